-- Shared tables that follow a table: after each statement they have the rows that their query has.
CREATE TABLE fleet (tailnum text PRIMARY KEY, year int, seats int, note text);
INSERT INTO fleet SELECT 'N' || i, 1950 + i % 70, i % 300, 'n' FROM generate_series(1, 100) i;
SELECT transship.share('followed', 'SELECT tailnum, seats, upper(note) AS note FROM fleet WHERE year > 1960', key => 'tailnum', follow => true);
SELECT name, key, rows, follows FROM transship.shared_tables;
\d+ followed_source
-- How many rows only one of the two has.
CREATE FUNCTION differences() RETURNS bigint LANGUAGE sql AS $$
  SELECT (SELECT count(*) FROM (TABLE followed EXCEPT ALL TABLE followed_source) d) + (SELECT count(*) FROM (TABLE followed_source EXCEPT ALL TABLE followed) d)
$$;
SELECT differences(), count(*) FROM followed;
-- Inserted rows are appended, and seen at once.
BEGIN;
INSERT INTO fleet VALUES ('A1', 1970, 7, 'a'), ('A2', 1950, 7, 'old'), ('A3', NULL, 7, 'unknown');
SELECT * FROM followed WHERE tailnum LIKE 'A%';
SAVEPOINT s;
INSERT INTO fleet VALUES ('A4', 1970, 7, 'a');
SELECT differences(), count(*) FROM followed;
ROLLBACK TO s;
SELECT differences(), count(*) FROM followed;
ROLLBACK;
SELECT differences(), count(*) FROM followed;
INSERT INTO fleet SELECT 'B' || i, 1980, i, NULL FROM generate_series(1, 50) i;
COPY fleet FROM stdin;
C1	1990	1	c
C2	1950	2	c
\.
SELECT differences(), count(*) FROM followed;
SELECT * FROM followed WHERE tailnum IN ('B7', 'C1', 'C2') ORDER BY 1;
-- Anything else shares the rows again.
UPDATE fleet SET seats = seats + 1 WHERE tailnum < 'C';
SELECT differences(), sum(seats) FROM followed;
DELETE FROM fleet WHERE tailnum LIKE 'B1%';
SELECT differences(), count(*) FROM followed;
UPDATE fleet SET year = 1950 WHERE tailnum = 'B2';
SELECT differences(), count(*) FROM followed WHERE tailnum = 'B2';
-- A statement that changes nothing does not.
SELECT id AS before FROM transship.table_segments WHERE relation = 'followed'::regclass \gset
UPDATE fleet SET seats = 0 WHERE false;
DELETE FROM fleet WHERE false;
INSERT INTO fleet SELECT * FROM fleet WHERE false;
SELECT count(*) FROM transship.table_segments WHERE relation = 'followed'::regclass AND id = :'before';
-- Statements that do both.
INSERT INTO fleet VALUES ('B3', 1999, 33, 'again'), ('D1', 1999, 1, 'd') ON CONFLICT (tailnum) DO UPDATE SET seats = excluded.seats;
SELECT differences(), count(*) FROM followed WHERE tailnum IN ('B3', 'D1');
INSERT INTO fleet VALUES ('D1', 1999, 1, 'd'), ('D2', 1999, 2, 'd') ON CONFLICT DO NOTHING;
SELECT differences(), count(*) FROM followed WHERE tailnum LIKE 'D%';
MERGE INTO fleet f USING (VALUES ('D1', 11), ('D3', 13), ('D2', 0)) v (tailnum, seats) ON f.tailnum = v.tailnum
  WHEN MATCHED AND v.seats = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET seats = v.seats WHEN NOT MATCHED THEN INSERT VALUES (v.tailnum, 2000, v.seats, 'm');
SELECT differences() , array_agg((tailnum, seats) ORDER BY tailnum) FROM followed WHERE tailnum LIKE 'D%';
WITH gone AS (DELETE FROM fleet WHERE tailnum LIKE 'D%' RETURNING *) INSERT INTO fleet SELECT 'E' || tailnum, year, seats, note FROM gone;
WITH added AS (INSERT INTO fleet VALUES ('F1', 2000, 1, 'f') RETURNING *) UPDATE fleet SET seats = 2 WHERE tailnum = 'ED1';
WITH changed AS (UPDATE fleet SET seats = 3 WHERE tailnum = 'ED1' RETURNING *) INSERT INTO fleet VALUES ('F2', 2000, 1, 'f');
SELECT differences() , array_agg((tailnum, seats) ORDER BY tailnum) FROM followed WHERE tailnum ~ '^(ED|F)';
DO $$
BEGIN
  UPDATE fleet SET seats = 4 WHERE tailnum = 'F1';
  FOR i IN 1 .. 3 LOOP
    INSERT INTO fleet VALUES ('G' || i, 2000, i, 'g');
  END LOOP;
  DELETE FROM fleet WHERE tailnum = 'G2';
  INSERT INTO fleet VALUES ('G4', 2000, 4, 'g');
END
$$;
SELECT differences() , array_agg((tailnum, seats) ORDER BY tailnum) FROM followed WHERE tailnum LIKE 'G%';
-- Triggers that change the rows of the statement, or add others, before and after.
CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF pg_trigger_depth() = 1 THEN
    UPDATE fleet SET seats = seats + 1000 WHERE tailnum LIKE 'H%';
    INSERT INTO fleet VALUES ('I' || (SELECT count(*) FROM fleet), 2000, 1, 'i');
  END IF;
  RETURN NEW;
END
$$;
CREATE TRIGGER a BEFORE INSERT ON fleet FOR EACH ROW EXECUTE FUNCTION meddle();
INSERT INTO fleet VALUES ('H1', 2000, 1, 'h'), ('H2', 2000, 2, 'h');
SELECT differences() , array_agg((tailnum, seats) ORDER BY tailnum) FROM followed WHERE tailnum LIKE 'H%';
DROP TRIGGER a ON fleet;
CREATE TRIGGER a AFTER INSERT ON fleet FOR EACH ROW EXECUTE FUNCTION meddle();
INSERT INTO fleet VALUES ('H3', 2000, 3, 'h'), ('H4', 2000, 4, 'h');
SELECT differences() , array_agg((tailnum, seats) ORDER BY tailnum) FROM followed WHERE tailnum LIKE 'H%';
DROP TRIGGER a ON fleet;
CREATE TRIGGER a AFTER INSERT ON fleet FOR EACH STATEMENT EXECUTE FUNCTION meddle();
INSERT INTO fleet VALUES ('H5', 2000, 5, 'h'), ('H6', 2000, 6, 'h');
DROP TRIGGER a ON fleet;
CREATE TRIGGER z AFTER INSERT ON fleet FOR EACH STATEMENT EXECUTE FUNCTION meddle();
INSERT INTO fleet VALUES ('H7', 2000, 7, 'h'), ('H8', 2000, 8, 'h');
DROP TRIGGER z ON fleet;
SELECT differences() , array_agg((tailnum, seats) ORDER BY tailnum) FROM followed WHERE tailnum LIKE 'H%';
DROP FUNCTION meddle;
-- What foreign keys do.
CREATE TABLE makers (id int PRIMARY KEY);
INSERT INTO makers VALUES (1), (2);
ALTER TABLE fleet ADD maker int REFERENCES makers ON DELETE CASCADE ON UPDATE CASCADE;
UPDATE fleet SET maker = 1 WHERE tailnum LIKE 'H%';
DELETE FROM makers WHERE id = 1;
SELECT differences(), count(*) FROM followed WHERE tailnum LIKE 'H%';
-- The names of the source and its columns may change, and those that the query does not read may go.
ALTER TABLE fleet RENAME TO airplanes;
ALTER TABLE airplanes RENAME year TO built;
ALTER TABLE airplanes DROP maker;
ALTER TABLE airplanes ADD extra int DEFAULT 5;
INSERT INTO airplanes (tailnum, built, seats, note) VALUES ('J1', 2000, 1, 'j');
UPDATE airplanes SET seats = 2 WHERE tailnum = 'J1';
SELECT differences(), (SELECT follows FROM transship.shared_tables) FROM followed WHERE tailnum = 'J1';
ALTER TABLE airplanes RENAME TO fleet;
ALTER TABLE fleet RENAME built TO year;
SELECT code, message FROM failure('ALTER TABLE fleet ALTER seats TYPE bigint');
SELECT code, message FROM failure('ALTER TABLE fleet DROP seats');
SELECT code, message FROM failure('DROP TABLE fleet');
SELECT code, message, hint FROM failure($$SELECT transship.append('followed', 'SELECT tailnum, seats, note FROM fleet')$$);
-- It cannot become a partition, or a child, whose rows other statements change.
CREATE TABLE all_fleets (LIKE fleet) PARTITION BY LIST (tailnum);
SELECT code, message FROM failure('ALTER TABLE all_fleets ATTACH PARTITION fleet DEFAULT');
CREATE TABLE parent (LIKE fleet);
SELECT code, message FROM failure('ALTER TABLE fleet INHERIT parent');
DROP TABLE all_fleets, parent;
-- Rows of a child are its own.
CREATE TABLE child () INHERITS (fleet);
INSERT INTO child VALUES ('K1', 2000, 1, 'k');
UPDATE fleet SET seats = 5 WHERE tailnum = 'K1';
SELECT differences(), count(*) FROM followed WHERE tailnum = 'K1';
DROP TABLE child;
-- Several tables follow one, and one that is shared without following no longer does.
SELECT transship.share('follower', 'SELECT DISTINCT year FROM fleet');
SELECT transship.share('follower2', 'SELECT year FROM fleet', follow => true);
INSERT INTO fleet VALUES ('L1', 2525, 1, 'l');
SELECT differences(), (SELECT count(*) FROM follower2 WHERE year = 2525), (SELECT count(*) FROM follower WHERE year = 2525);
SELECT transship.share('follower2', 'SELECT year FROM fleet WHERE year = 2525');
INSERT INTO fleet VALUES ('L2', 2525, 1, 'l');
SELECT differences(), (SELECT count(*) FROM follower2), to_regclass('follower2_source');
SELECT name, follows FROM transship.shared_tables ORDER BY name;
SELECT transship.unshare('follower2'), transship.unshare('follower');
-- Another query, of another table.
CREATE TABLE second (tailnum text, seats int, note text);
SELECT transship.share('followed', 'SELECT tailnum, seats, note FROM second', key => 'tailnum', follow => true);
SELECT tgname FROM pg_trigger WHERE tgrelid = 'fleet'::regclass AND NOT tgisinternal;
INSERT INTO fleet VALUES ('M1', 2000, 1, 'm');
INSERT INTO second VALUES ('M2', 1, 'm');
SELECT * FROM followed;
TRUNCATE second;
SELECT count(*) FROM followed;
BEGIN;
TRUNCATE second;
COPY second FROM stdin (FREEZE);
M3	1	m
\.
SELECT * FROM followed;
COMMIT;
SELECT differences(), count(*) FROM followed;
-- Constants keep their digits, whatever the settings, and other things that settings would change.
SET extra_float_digits = -10;
SET transform_null_equals = on;
CREATE TABLE measures (x float8, d date);
SELECT transship.share('measured', $$SELECT x, x = 0.1234567890123456::float8 AS same, d = '02/01/2000'::date AS day FROM measures$$, follow => true);
SET datestyle = 'SQL, DMY';
INSERT INTO measures VALUES (0.1234567890123456, '2000-02-01');
RESET extra_float_digits;
RESET datestyle;
RESET transform_null_equals;
INSERT INTO measures VALUES (0.1234567890123456, '2000-02-01');
SELECT * FROM measured;
UPDATE measures SET d = d;
SELECT * FROM measured;
SELECT transship.unshare('measured');
-- What cannot be followed.
CREATE VIEW seen AS TABLE fleet;
CREATE TABLE cut (id int) PARTITION BY RANGE (id);
CREATE TABLE cut1 PARTITION OF cut DEFAULT;
CREATE UNLOGGED TABLE unlogged (id int);
CREATE TEMP TABLE passing (id int);
CREATE TABLE made (id int, twice int GENERATED ALWAYS AS (id * 2) STORED);
CREATE TABLE inherited (id int);
CREATE TABLE inherits () INHERITS (inherited);
SELECT query, f.code, f.message, f.detail FROM unnest(ARRAY[
  'SELECT tailnum FROM fleet ORDER BY 1', 'SELECT tailnum FROM fleet LIMIT 1', 'SELECT count(*) FROM fleet', 'SELECT DISTINCT note FROM fleet', 'SELECT note FROM fleet GROUP BY 1',
  'SELECT rank() OVER (ORDER BY year) FROM fleet', 'SELECT generate_series(1, year) FROM fleet', 'SELECT (SELECT 1) AS i FROM fleet',
  'SELECT tailnum FROM fleet WHERE EXISTS (SELECT 1)', 'SELECT tailnum FROM fleet UNION ALL SELECT tailnum FROM fleet', 'WITH f AS (TABLE fleet) SELECT tailnum FROM f',
  'SELECT tailnum FROM fleet FOR UPDATE', 'INSERT INTO fleet VALUES (1) RETURNING year', 'SELECT tailnum INTO other FROM fleet', 'VALUES (1)', 'SELECT 1 AS i', '', 'SELECT 1; SELECT 2', 'DROP TABLE fleet',
  'SELECT a.tailnum FROM fleet a, second b', 'SELECT a.tailnum FROM fleet a LEFT JOIN second b USING (tailnum)', 'SELECT tailnum FROM (TABLE fleet) f', 'SELECT tailnum FROM seen', 'SELECT tailnum FROM followed', 'SELECT id FROM cut', 'SELECT id FROM cut1',
  'SELECT tailnum FROM fleet TABLESAMPLE system (50)', 'SELECT id FROM unlogged', 'SELECT id FROM passing', 'SELECT oid::int FROM pg_class', 'SELECT rows FROM transship.table_segments',
  'SELECT ctid::text AS c FROM fleet', 'SELECT (f IS NULL) AS n FROM fleet f', 'SELECT twice FROM made', 'SELECT random() AS r FROM fleet', 'SELECT now() AS n FROM fleet', 'SELECT current_date AS n FROM fleet',
  'SELECT year FROM fleet WHERE year < extract(year FROM now())', 'SELECT nextval(''x'') FROM fleet', 'SELECT id FROM inherited', 'file:///x', 'SELECT nothing FROM fleet']) query, failure(format('SELECT transship.share(%L, %L, follow => true)', 't', query)) f;
SELECT transship.share('t', 'SELECT id FROM ONLY inherited', follow => true), transship.share('t2', 'SELECT id FROM made', follow => true);
INSERT INTO inherits VALUES (1);
INSERT INTO inherited VALUES (2);
TABLE t;
SELECT transship.unshare('t'), transship.unshare('t2');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT code, message FROM failure($$SELECT transship.share('t', 'SELECT id FROM made', follow => true)$$);
ROLLBACK;
DROP VIEW seen;
DROP TABLE cut, unlogged, passing, made, inherits, inherited;
-- Columns with a dictionary follow as well.
CREATE TABLE places (id int PRIMARY KEY, city text);
INSERT INTO places SELECT i, 'city ' || i % 3 FROM generate_series(1, 5) i;
SELECT transship.share('placed', 'SELECT id, city FROM places', key => 'id', dictionary => 'city', follow => true);
INSERT INTO places VALUES (6, 'another'), (7, NULL);
SELECT * FROM placed ORDER BY id;
UPDATE places SET city = 'city 0' WHERE id > 4;
SELECT * FROM placed ORDER BY id;
SELECT ftoptions FROM pg_foreign_table WHERE ftrelid = 'placed'::regclass;
SELECT transship.unshare('placed');
DROP TABLE places;
-- Rights: the query runs as the owner of the shared table, without the settings and functions of whoever writes.
CREATE ROLE regress_owner;
CREATE ROLE regress_sharer;
CREATE ROLE regress_writer;
CREATE SCHEMA yard AUTHORIZATION regress_owner;
GRANT USAGE ON SCHEMA yard TO regress_sharer, regress_writer;
CREATE SCHEMA sharers AUTHORIZATION regress_sharer;
CREATE SCHEMA writers AUTHORIZATION regress_writer;
SET ROLE regress_owner;
CREATE TABLE yard.items (id int, name text, secret text);
GRANT INSERT, UPDATE, SELECT (id) ON yard.items TO regress_writer;
SET ROLE regress_sharer;
SELECT code, message FROM failure($$SELECT transship.share('sharers.items', 'SELECT id FROM yard.items', follow => true)$$);
RESET ROLE;
GRANT TRIGGER ON yard.items TO regress_sharer;
SET ROLE regress_sharer;
SELECT code, message FROM failure($$SELECT transship.share('sharers.items', 'SELECT id FROM yard.items', follow => true)$$);
RESET ROLE;
GRANT SELECT (id, name) ON yard.items TO regress_sharer;
SET ROLE regress_sharer;
SELECT code, message FROM failure($$SELECT transship.share('sharers.items', 'SELECT id FROM yard.items WHERE secret IS NULL', follow => true)$$);
-- Nothing that users have written is called as the owner.
CREATE FUNCTION sharers.named(t text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$BEGIN RETURN lower(t); END$$;
CREATE FUNCTION sharers.inlined(t text) RETURNS text IMMUTABLE LANGUAGE sql AS 'SELECT lower($1)';
CREATE FUNCTION sharers.same(text, text) RETURNS boolean IMMUTABLE LANGUAGE sql AS 'SELECT true';
CREATE OPERATOR sharers.=== (FUNCTION = sharers.same, LEFTARG = text, RIGHTARG = text);
CREATE DOMAIN sharers.short AS text CHECK (length(sharers.named(VALUE)) < 100);
SELECT query, code, detail FROM unnest(ARRAY[$$SELECT sharers.named(name) AS name FROM yard.items$$, $$SELECT sharers.inlined(name) AS name FROM yard.items$$, $$SELECT id FROM yard.items WHERE sharers.named('a') = 'a'$$,
  $$SELECT id FROM yard.items WHERE name OPERATOR(sharers.===) 'a'$$, $$SELECT name::sharers.short::text AS name FROM yard.items$$, $$SELECT xmlelement(name n, name)::text AS x FROM yard.items$$]) query, failure(format('SELECT transship.share(%L, %L, follow => true)', 'sharers.refused', query));
SET search_path = sharers, public;
SELECT transship.share('items', 'SELECT id, lower(name) AS name, id + 1 AS next FROM yard.items', follow => true);
RESET search_path;
RESET ROLE;
-- Functions and operators of the writer that would be found in the search_path of the writer.
SET ROLE regress_writer;
CREATE FUNCTION writers.named(text) RETURNS text IMMUTABLE LANGUAGE sql AS $$SELECT 'taken'$$;
CREATE FUNCTION writers.lower(text) RETURNS text IMMUTABLE LANGUAGE sql AS $$SELECT 'taken'$$;
CREATE FUNCTION writers.plus(int, int) RETURNS int IMMUTABLE LANGUAGE sql AS $$SELECT -1$$;
CREATE OPERATOR writers.+ (FUNCTION = writers.plus, LEFTARG = int, RIGHTARG = int);
CREATE TABLE writers.items (id int, name text);
SET search_path = writers, pg_catalog, public;
SET application_name = 'mine';
INSERT INTO yard.items VALUES (1, 'One', 'x');
SHOW application_name;
SELECT current_user;
UPDATE yard.items SET name = 'UNO' WHERE id = 1;
SHOW application_name;
RESET search_path;
RESET ROLE;
TABLE sharers.items;
SELECT code, message FROM failure('SET ROLE regress_writer; TABLE sharers.items');
-- A view that calls one is not asked.
SET ROLE regress_sharer;
CREATE OR REPLACE VIEW sharers.items_source AS SELECT id, sharers.named(name) AS name, id + 1 AS next FROM ONLY yard.items;
RESET ROLE;
SELECT code, message, detail, hint FROM failure($$INSERT INTO yard.items VALUES (2, 'Two', 'x')$$);
CREATE OR REPLACE VIEW sharers.items_source AS SELECT id, lower(name) AS name, id + 1 AS next FROM ONLY yard.items;
-- The sharer loses a right, or row-level security comes to apply: writers get an error, and the shared table no rows.
REVOKE SELECT (name) ON yard.items FROM regress_sharer;
SELECT code, message FROM failure($$INSERT INTO yard.items VALUES (3, 'Three', 'x')$$);
SELECT code, message FROM failure($$UPDATE yard.items SET name = 'x'$$);
GRANT SELECT (name) ON yard.items TO regress_sharer;
ALTER TABLE yard.items ENABLE ROW LEVEL SECURITY;
SELECT code, message, detail FROM failure($$INSERT INTO yard.items VALUES (3, 'Three', 'x')$$);
ALTER TABLE yard.items DISABLE ROW LEVEL SECURITY;
-- Another owner, of one of the two.
ALTER TABLE sharers.items OWNER TO regress_owner;
SELECT code, message, detail, hint FROM failure($$INSERT INTO yard.items VALUES (3, 'Three', 'x')$$);
ALTER TABLE sharers.items OWNER TO regress_sharer;
-- Nobody else has it follow.
SELECT code, message FROM failure($$SELECT transship.share('sharers.items', 'SELECT id, name, id + 1 AS next FROM yard.items', follow => true)$$);
-- Triggers that others make.
SET ROLE regress_sharer;
CREATE TRIGGER another AFTER INSERT ON yard.items REFERENCING NEW TABLE AS n FOR EACH STATEMENT EXECUTE FUNCTION transship.follow_source();
SELECT code, message FROM failure('SELECT transship.follow_source()');
RESET ROLE;
SELECT code, message FROM failure($$INSERT INTO yard.items VALUES (3, 'Three', 'x')$$);
DROP TRIGGER another ON yard.items;
SELECT code, message FROM failure($$SET ROLE regress_sharer; TABLE transship.followed_tables$$);
INSERT INTO yard.items VALUES (3, 'Three', 'x');
TABLE sharers.items;
-- Whether it still follows can be seen.
SELECT follows FROM transship.shared_tables WHERE name = 'items';
ALTER TABLE yard.items DISABLE TRIGGER transship_follow_delete;
SELECT follows FROM transship.shared_tables WHERE name = 'items';
ALTER TABLE yard.items ENABLE ALWAYS TRIGGER transship_follow_delete;
SET session_replication_role = replica;
INSERT INTO yard.items VALUES (4, 'Four', 'x');
UPDATE yard.items SET name = 'four' WHERE id = 4;
DELETE FROM yard.items WHERE id = 1;
RESET session_replication_role;
TABLE sharers.items;
-- The owner of the source gains nothing by expressions that planners evaluate.
CREATE ROLE regress_low;
CREATE SCHEMA low AUTHORIZATION regress_low;
SET ROLE regress_low;
CREATE TABLE low.items (id int, v int);
INSERT INTO low.items SELECT i, i FROM generate_series(1, 100) i;
CREATE TABLE low.seen (who name);
CREATE FUNCTION low.really(i int) RETURNS int LANGUAGE plpgsql AS $$BEGIN INSERT INTO low.seen VALUES (current_user); RETURN i; END$$;
CREATE FUNCTION low.evil(i int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$BEGIN RETURN low.really(i); END$$;
RESET ROLE;
SELECT transship.share('trusting', 'SELECT id, v FROM low.items', follow => true);
SET ROLE regress_low;
CREATE STATISTICS low.st ON id, (low.evil(1) + id) FROM low.items;
CREATE INDEX ON low.items (id) WHERE low.evil(8) = 8;
UPDATE low.items SET v = v + 1 WHERE id = 1;
DELETE FROM low.items WHERE id = 2;
INSERT INTO low.items VALUES (101, 101);
TRUNCATE low.items;
INSERT INTO low.items VALUES (102, 102);
RESET ROLE;
SELECT DISTINCT who FROM low.seen;
TABLE trusting;
SELECT transship.unshare('trusting');
DROP SCHEMA low CASCADE;
DROP ROLE regress_low;
-- The settings of whoever writes change no value.
CREATE TABLE measured (x float8, b bytea);
SELECT transship.share('as_texts', 'SELECT x::text AS x, b::text AS b FROM measured', follow => true);
SET extra_float_digits = -10;
SET bytea_output = escape;
INSERT INTO measured VALUES (0.1234567890123456, '\x00ff61');
TABLE as_texts;
UPDATE measured SET x = x + 1;
TABLE as_texts;
RESET extra_float_digits;
RESET bytea_output;
-- Ranges of a user's may have a function that is called where nothing shows it.
CREATE TYPE text_range AS RANGE (subtype = text);
CREATE TABLE of_ranges (a text_range, b text_range, c int4range);
SELECT query, code FROM (VALUES ('a -|- b AS x'), ('a * b AS x'), ('a -|- ANY (ARRAY[b]) AS x'), ('text_range(lower(a), upper(b)) AS x'), ('a::text::text_range AS x')) v (query),
  failure(format('SELECT transship.share(''of_range'', %L, follow => true)', 'SELECT ' || query || ' FROM of_ranges'));
SELECT transship.share('of_range', 'SELECT a IS NULL AS n, lower(c * c) AS c FROM of_ranges', follow => true);
SELECT transship.unshare('of_range');
DROP TABLE of_ranges;
DROP TYPE text_range;
-- Following does not begin in the middle of a statement that writes to the source.
CREATE FUNCTION begins() RETURNS int LANGUAGE plpgsql AS $$BEGIN PERFORM transship.share('of_middle', 'SELECT x FROM measured', follow => true); RETURN 3; END$$;
SELECT code, message FROM failure('INSERT INTO measured SELECT CASE WHEN i = 3 THEN begins() ELSE i END FROM generate_series(1, 6) i');
DROP FUNCTION begins;
-- A row that somebody has written drops nobody's view.
CREATE VIEW precious AS SELECT 1 AS one;
SELECT transship.share('own', 'SELECT 1 AS a');
INSERT INTO transship.followed_tables VALUES ('own', 'precious', 'measured');
SELECT transship.unshare('own');
TABLE precious;
DROP VIEW precious;
-- Not even one that reads the table, unless whoever drops may drop the view.
CREATE ROLE regress_forger;
GRANT CREATE ON SCHEMA public TO regress_forger;
CREATE VIEW precious AS SELECT x FROM measured;
SET ROLE regress_forger;
SELECT transship.share('forged', 'SELECT 1 AS a');
RESET ROLE;
INSERT INTO transship.followed_tables VALUES ('forged', 'precious', 'measured');
SET ROLE regress_forger;
SELECT transship.unshare('forged');
RESET ROLE;
TABLE precious;
DROP VIEW precious;
REVOKE CREATE ON SCHEMA public FROM regress_forger;
DROP ROLE regress_forger;
SELECT transship.unshare('as_texts');
DROP TABLE measured;
-- Nor does it follow a table that inherits from another, whose statements do not fire its triggers.
CREATE TABLE parent (id int);
CREATE TABLE child () INHERITS (parent);
SELECT code, message, detail FROM failure($$SELECT transship.share('of_child', 'SELECT id FROM child', follow => true)$$);
DROP TABLE parent CASCADE;
-- What happens to the table when its source goes, and to the source when the table goes.
ALTER TABLE yard.items DROP COLUMN name CASCADE;
SELECT count(*) FROM pg_trigger WHERE tgrelid = 'yard.items'::regclass;
INSERT INTO yard.items VALUES (5, 'x');
TABLE sharers.items;
SELECT name, follows FROM transship.shared_tables ORDER BY name;
CREATE VIEW above AS TABLE followed_source;
SELECT code, message FROM failure($$SELECT transship.unshare('followed')$$);
DROP VIEW above;
SELECT transship.unshare('followed');
SELECT to_regclass('followed_source'), count(*) FROM pg_trigger WHERE tgrelid = 'second'::regclass;
SET ROLE regress_sharer;
SELECT transship.share('sharers.others', 'SELECT id FROM yard.items', follow => true);
RESET ROLE;
DROP SCHEMA sharers, writers, yard CASCADE;
TABLE transship.followed_tables;
SELECT transship.share('followed', 'SELECT tailnum FROM fleet', follow => true);
-- A row that came with a dump says nothing of what was written here: the table is shared again, once.
UPDATE transship.followed_tables SET source = source;
SELECT min(id::text) AS before FROM transship.table_segments WHERE relation = 'followed'::regclass \gset
INSERT INTO fleet VALUES ('R1', 2000, 1, 'r');
SELECT differences(), count(*) FROM transship.table_segments WHERE id::text = :'before';
SELECT min(id::text) AS before FROM transship.table_segments WHERE relation = 'followed'::regclass \gset
INSERT INTO fleet VALUES ('R2', 2000, 2, 'r');
SELECT differences(), count(*) FROM transship.table_segments WHERE id::text = :'before';
-- Then segments of the dump are left out.
INSERT INTO transship.table_segments SELECT relation, gen_random_uuid(), digest, rows, keys, bytes FROM transship.table_segments WHERE relation = 'followed'::regclass;
SELECT differences();
-- One that is there is no other.
SELECT code, message FROM failure($$INSERT INTO transship.table_segments SELECT * FROM transship.table_segments WHERE relation = 'followed'::regclass$$);
SELECT differences();
-- Nobody else makes a trigger of it.
CREATE ROLE regress_leaver;
SET ROLE regress_leaver;
CREATE TEMP TABLE left_out (a int);
SELECT code, message FROM failure('CREATE TRIGGER own BEFORE INSERT ON left_out FOR EACH STATEMENT EXECUTE FUNCTION transship.leave_segment()');
RESET ROLE;
CREATE TRIGGER own BEFORE INSERT ON left_out FOR EACH STATEMENT EXECUTE FUNCTION transship.leave_segment();
SELECT code, message FROM failure('INSERT INTO left_out VALUES (1)');
DROP TABLE left_out;
DROP ROLE regress_leaver;
-- Without the row, triggers say that they are of no use.
BEGIN;
DELETE FROM transship.followed_tables;
INSERT INTO fleet VALUES ('R3', 2000, 3, 'r');
ROLLBACK;
SELECT differences(), count(*) FROM followed WHERE tailnum LIKE 'R_';
DROP TABLE fleet CASCADE;
SELECT name, rows > 0 AS rows, follows FROM transship.shared_tables;
SELECT transship.unshare('followed');
DROP FUNCTION differences;
DROP TABLE second, makers, measures;
DROP ROLE regress_owner, regress_sharer, regress_writer;
