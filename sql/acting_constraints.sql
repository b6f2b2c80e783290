-- Constraints that call VOLATILE functions: of domains, of a result's type, of the table that is written, and triggers of partitions.
-- Arguments that read what these change see it as row by row, and batches without such arguments stay.
CREATE SEQUENCE ticks;
CREATE DOMAIN ticking AS bigint CHECK (VALUE < 0 OR nextval('ticks') > 0);
CREATE DOMAIN nested AS ticking;
CREATE TYPE holder AS (v nested, w text);
SELECT setval('ticks', 100);
SELECT x::ticking, add_one(currval('ticks')) FROM numbers WHERE x < 5;
SELECT add_one(currval('ticks')), x::nested FROM numbers WHERE x < 5;
SELECT add_one(currval('ticks')), ARRAY[x]::ticking[], ROW(x, 'a')::holder FROM numbers WHERE x < 5;
EXPLAIN (VERBOSE, COSTS OFF) SELECT x::ticking, add_one(currval('ticks')) FROM numbers;
EXPLAIN (VERBOSE, COSTS OFF) SELECT x::ticking, add_one(x) FROM numbers;
-- Results.
CREATE FUNCTION to_ticking(x bigint) RETURNS ticking LANGUAGE container AS E'image = "regress:1.0"\nfunction = "add_one"';
SELECT x, to_ticking(x), add_one(currval('ticks')) FROM numbers WHERE x < 5;
SELECT x, to_ticking(x), currval('ticks') FROM numbers WHERE x < 5;
SELECT x, add_one(to_ticking(x)) FROM numbers LIMIT 3;
SELECT nextval('ticks');
-- Tables.
CREATE TABLE checked (id bigint CHECK (nextval('ticks') > 0), v ticking);
INSERT INTO checked SELECT x, add_one(currval('ticks')) FROM numbers WHERE x < 6 RETURNING *;
UPDATE checked SET v = add_one(currval('ticks')) WHERE id < 4 RETURNING *;
CREATE TABLE parted (id bigint, v bigint) PARTITION BY RANGE (id);
CREATE TABLE low PARTITION OF parted FOR VALUES FROM (0) TO (3);
CREATE TABLE high PARTITION OF parted FOR VALUES FROM (3) TO (100);
CREATE FUNCTION ticks_on() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM nextval(''ticks''); RETURN NEW; END';
CREATE TRIGGER ticks BEFORE INSERT OR UPDATE ON high FOR EACH ROW EXECUTE FUNCTION ticks_on();
SELECT setval('ticks', 200);
INSERT INTO parted SELECT x, add_one(currval('ticks')) FROM numbers WHERE x < 7 RETURNING *;
UPDATE parted SET id = id + 5, v = add_one(currval('ticks')) RETURNING *;
-- The trigger of a partition that was not there when the statement was planned.
DROP TRIGGER ticks ON high;
PREPARE fill AS INSERT INTO parted SELECT x, add_one(currval('ticks')) FROM numbers WHERE x < 7 RETURNING *;
SET plan_cache_mode = force_generic_plan;
EXECUTE fill;
CREATE TRIGGER ticks BEFORE INSERT OR UPDATE ON high FOR EACH ROW EXECUTE FUNCTION ticks_on();
EXECUTE fill;
RESET plan_cache_mode;
DEALLOCATE fill;
-- Tables that inherit are written themselves, whatever the one that is named has.
CREATE TABLE parent (id bigint, v bigint);
CREATE TABLE child () INHERITS (parent);
INSERT INTO child SELECT x FROM numbers WHERE x < 5;
CREATE FUNCTION notes_id() RETURNS trigger LANGUAGE plpgsql
AS 'BEGIN PERFORM set_config(''regress.id'', NEW.id::text, false); RETURN NEW; END';
CREATE TRIGGER notes BEFORE UPDATE ON child FOR EACH ROW EXECUTE FUNCTION notes_id();
SET regress.id = 0;
UPDATE parent SET v = add_one(current_setting('regress.id')::bigint) RETURNING *;
SET transship.batching = off;
SET regress.id = 0;
UPDATE parent SET v = add_one(current_setting('regress.id')::bigint) RETURNING *;
RESET transship.batching;
-- Equal calls whose arguments act are as many calls, and are left where arguments may be evaluated again, or not at all.
SELECT setval('ticks', 300);
SELECT add_one(x::ticking), add_one(x::ticking), currval('ticks') FROM numbers WHERE x < 4;
SELECT sum(add_one(x::ticking)) OVER (ORDER BY x ROWS 1 PRECEDING) FROM numbers WHERE x < 5;
SELECT currval('ticks');
SET transship.batching = off;
SELECT setval('ticks', 300);
SELECT add_one(x::ticking), add_one(x::ticking), currval('ticks') FROM numbers WHERE x < 4;
SELECT sum(add_one(x::ticking)) OVER (ORDER BY x ROWS 1 PRECEDING) FROM numbers WHERE x < 5;
SELECT currval('ticks');
RESET transship.batching;
-- So are the keys of hash joins.
SET enable_mergejoin = off;
SET enable_nestloop = off;
EXPLAIN (COSTS OFF) SELECT a.x FROM numbers a JOIN numbers b ON add_one(a.x::ticking) = b.x;
EXPLAIN (COSTS OFF) SELECT a.x::ticking FROM numbers a JOIN numbers b ON add_one(a.x) = b.x;
RESET enable_mergejoin;
RESET enable_nestloop;
-- A domain that begins to act when the statement is planned.
CREATE DOMAIN quiet AS bigint CHECK (VALUE > 0);
PREPARE look AS SELECT add_one(currval('ticks')), x::quiet FROM numbers WHERE x < 5;
SET plan_cache_mode = force_generic_plan;
SELECT setval('ticks', 400);
EXECUTE look;
ALTER DOMAIN quiet ADD CHECK (nextval('ticks') > 0);
EXECUTE look;
-- And one whose function does.
CREATE FUNCTION ticks_now(v bigint) RETURNS boolean LANGUAGE plpgsql STABLE AS 'BEGIN RETURN nextval(''ticks'') > 0; END';
CREATE DOMAIN told AS bigint CHECK (ticks_now(VALUE));
PREPARE look_again AS SELECT add_one(currval('ticks')), x::told FROM numbers WHERE x < 5;
SELECT setval('ticks', 500);
EXECUTE look_again;
ALTER FUNCTION ticks_now VOLATILE;
EXECUTE look_again;
RESET plan_cache_mode;
DEALLOCATE look;
DEALLOCATE look_again;
DROP DOMAIN quiet, told;
DROP FUNCTION ticks_now;
-- What is read as text, or as JSON.
SELECT setval('ticks', 600);
SELECT format('{%s}', x)::ticking[], add_one(currval('ticks')) FROM numbers WHERE x < 4;
SELECT jsonb_populate_record(NULL::holder, jsonb_build_object('v', x)), add_one(currval('ticks')) FROM numbers WHERE x < 4;
-- A constraint that calls a function whose result has it.
CREATE DOMAIN looping AS bigint;
CREATE FUNCTION looped(v bigint) RETURNS looping LANGUAGE plpgsql IMMUTABLE STRICT AS 'BEGIN RETURN NULL; END';
ALTER DOMAIN looping ADD CHECK (looped(VALUE) IS NULL);
SELECT x::looping, add_one(x) FROM numbers WHERE x < 3;
ALTER DOMAIN looping DROP CONSTRAINT looping_check;
DROP FUNCTION looped;
DROP DOMAIN looping;
DROP TABLE checked, parted, parent, child;
DROP FUNCTION notes_id;
DROP FUNCTION ticks_on, to_ticking;
DROP TYPE holder;
DROP DOMAIN nested, ticking;
DROP SEQUENCE ticks;
-- A constraint that calls the function whose result it checks sees its own value after that.
CREATE FUNCTION checks_another(v text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  IF v >= 'm' THEN
    PERFORM to_checked('a' || repeat('b', 10000));
  END IF;
  RETURN true;
END
$$;
CREATE DOMAIN checked_text AS text CHECK (checks_another(VALUE) AND VALUE < 'm');
CREATE FUNCTION to_checked(x text) RETURNS checked_text LANGUAGE container AS E'image = "regress:1.0"\nfunction = "echo_text"';
SELECT to_checked('a');
SELECT code, message FROM failure($$SELECT to_checked('z' || repeat('y', 1000))$$);
SELECT code, message FROM failure($$SELECT to_checked(t) FROM (VALUES ('c'), ('x')) v (t)$$);
SELECT to_checked('b');
DROP FUNCTION to_checked;
DROP DOMAIN checked_text;
DROP FUNCTION checks_another;
