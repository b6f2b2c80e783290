-- Shared tables: rows that every process of the host maps, found by key.
CREATE TABLE planes (tailnum text PRIMARY KEY, year int, seats int, weight float8, made date);
INSERT INTO planes SELECT 'N' || i, CASE WHEN i % 7 > 0 THEN 1950 + i % 70 END, i % 300, i / 3.0, date '1950-01-01' + i FROM generate_series(1, 3000) i;
SELECT transship.share('shared_planes', 'SELECT * FROM planes', key => 'tailnum');
\d shared_planes
SELECT schema, name, owner = current_user AS own, key, segments, rows, bytes > 100000 AS bytes FROM transship.shared_tables;
-- The same rows.
SELECT count(*), sum(year), sum(seats), sum(weight), min(made), max(made) FROM shared_planes;
SELECT count(*) FROM (TABLE planes EXCEPT ALL TABLE shared_planes) d;
SELECT count(*) FROM (TABLE shared_planes EXCEPT ALL TABLE planes) d;
-- Rows come in the order in which they were shared.
SELECT * FROM shared_planes LIMIT 3;
SELECT * FROM shared_planes WHERE tailnum = 'N2500';
SELECT * FROM shared_planes WHERE tailnum = 'N2500' AND seats = 1;
SELECT * FROM shared_planes WHERE 'N14' = tailnum;
SELECT * FROM shared_planes WHERE tailnum = NULL;
SELECT * FROM shared_planes WHERE tailnum = 'none';
SELECT p, p.seats FROM shared_planes p WHERE tailnum = 'N3';
SELECT tableoid::regclass, seats FROM shared_planes WHERE tailnum = 'N3';
SELECT count(*) FROM shared_planes WHERE tailnum > 'N2';
SELECT count(*) FROM shared_planes WHERE tailnum IN ('N1', 'N2', 'none');
EXPLAIN (COSTS OFF) SELECT * FROM shared_planes WHERE tailnum = 'N2500';
EXPLAIN (COSTS OFF) SELECT * FROM shared_planes WHERE tailnum > 'N2';
EXPLAIN (COSTS OFF) SELECT * FROM shared_planes WHERE tailnum = 'N' || random();
EXPLAIN (COSTS OFF, ANALYZE, TIMING OFF, SUMMARY OFF, BUFFERS OFF) SELECT seats FROM shared_planes WHERE tailnum = 'N2500';
-- Joins: by key, or whole.
CREATE TABLE flights AS SELECT i AS id, CASE WHEN i % 11 > 0 THEN 'N' || (i * 7) % 4000 END AS tailnum FROM generate_series(1, 5000) i;
ANALYZE flights;
EXPLAIN (COSTS OFF) SELECT f.id, p.seats FROM flights f JOIN shared_planes p USING (tailnum) WHERE f.id <= 10;
SELECT count(*), sum(p.seats) FROM flights f JOIN planes p USING (tailnum);
SELECT count(*), sum(p.seats) FROM flights f JOIN shared_planes p USING (tailnum);
SET enable_hashjoin = off;
SET enable_mergejoin = off;
EXPLAIN (COSTS OFF) SELECT count(*), sum(p.seats) FROM flights f JOIN shared_planes p USING (tailnum);
SELECT count(*), sum(p.seats) FROM flights f JOIN shared_planes p USING (tailnum);
SELECT count(*), count(p.tailnum), sum(p.seats) FROM flights f LEFT JOIN shared_planes p USING (tailnum);
SELECT count(*), count(p.tailnum), sum(p.seats) FROM flights f LEFT JOIN planes p USING (tailnum);
SELECT count(*), count(p.tailnum) FROM flights f LEFT JOIN shared_planes p ON p.tailnum = f.tailnum AND p.seats > f.id % 100;
SELECT count(*), count(p.tailnum) FROM flights f LEFT JOIN planes p ON p.tailnum = f.tailnum AND p.seats > f.id % 100;
SELECT count(*) FROM flights f WHERE NOT EXISTS (SELECT FROM shared_planes p WHERE p.tailnum = f.tailnum);
SELECT count(*) FROM flights f WHERE f.id < 100 AND (SELECT p.seats FROM shared_planes p WHERE p.tailnum = f.tailnum) > 50;
SELECT count(*) FROM flights f WHERE f.id < 100 AND (SELECT p.seats FROM planes p WHERE p.tailnum = f.tailnum) > 50;
RESET enable_hashjoin;
RESET enable_mergejoin;
-- Look-ups.
SELECT f.id, p.* FROM flights f, transship.lookup('shared_planes', f.tailnum) AS p (tailnum text, year int, seats int, weight float8, made date) WHERE f.id BETWEEN 10 AND 13;
SELECT count(*), sum(p.seats) FROM flights f, transship.lookup('shared_planes', f.tailnum) AS p (tailnum text, year int, seats int, weight float8, made date);
SELECT count(*), count(p.tailnum) FROM flights f LEFT JOIN LATERAL transship.lookup('shared_planes', f.tailnum) AS p (tailnum text, year int, seats int, weight float8, made date) ON true;
SELECT * FROM transship.lookup('shared_planes', 'N12') AS p (tailnum text, year int, seats int, weight float8, made date);
SELECT * FROM transship.lookup('shared_planes', 'N12'::varchar) AS p (a text, b int, c int, d float8, e date);
SELECT * FROM transship.lookup('shared_planes', NULL::text) AS p (tailnum text, year int, seats int, weight float8, made date);
SELECT code, message, hint FROM failure($$SELECT * FROM transship.lookup('shared_planes', 'N12') AS p (tailnum text, year int)$$);
SELECT code, message, hint FROM failure($$SELECT * FROM transship.lookup('shared_planes', 12) AS p (tailnum text, year int, seats int, weight float8, made date)$$);
SELECT code, message, hint FROM failure($$SELECT * FROM transship.lookup('shared_planes', 'N12', 1) AS p (tailnum text, year int, seats int, weight float8, made date)$$);
SELECT code, message, hint FROM failure($$SELECT * FROM transship.lookup('shared_planes', VARIADIC ARRAY['N12']) AS p (tailnum text, year int, seats int, weight float8, made date)$$);
SELECT code, message, hint FROM failure($$SELECT * FROM transship.lookup('planes', 'N12') AS p (tailnum text)$$);
-- Among a query's results it could be of other columns each time.
SELECT code, message, hint FROM failure($$SELECT transship.lookup('shared_planes', tailnum) FROM planes$$);
-- They are joins, unless something is to be evaluated once per call, or numbered.
EXPLAIN (COSTS OFF) SELECT f.id, p.seats FROM flights f, transship.lookup('shared_planes', f.tailnum) AS p (tailnum text, year int, seats int, weight float8, made date) WHERE f.id BETWEEN 10 AND 13;
EXPLAIN (COSTS OFF) SELECT count(*), sum(p.seats) FROM flights f, transship.lookup('shared_planes', f.tailnum) AS p (tailnum text, year int, seats int, weight float8, made date);
EXPLAIN (COSTS OFF) SELECT count(*), count(p.tailnum) FROM flights f LEFT JOIN LATERAL transship.lookup('shared_planes', f.tailnum) AS p (tailnum text, year int, seats int, weight float8, made date) ON p.seats > 100;
EXPLAIN (COSTS OFF) SELECT * FROM transship.lookup('shared_planes', 'N' || ceil(random())) AS p (tailnum text, year int, seats int, weight float8, made date);
EXPLAIN (COSTS OFF) SELECT * FROM transship.lookup('shared_planes', (SELECT min(tailnum) FROM flights)) AS p (tailnum text, year int, seats int, weight float8, made date);
CREATE VIEW by_call AS SELECT f.id, p.tailnum, p.year, p.seats, p.weight, p.made FROM flights f,
  ROWS FROM (transship.lookup('shared_planes', f.tailnum) AS (tailnum text, year int, seats int, weight float8, made date)) WITH ORDINALITY AS p;
CREATE VIEW by_join AS SELECT f.id, p.* FROM flights f, transship.lookup('shared_planes', f.tailnum) AS p (tailnum text, year int, seats int, weight float8, made date);
SELECT (SELECT count(*) FROM (TABLE by_call EXCEPT ALL TABLE by_join) d), (SELECT count(*) FROM (TABLE by_join EXCEPT ALL TABLE by_call) d), (SELECT count(*) FROM by_join);
DROP VIEW by_call, by_join;
SELECT f.id, p, p.seats FROM flights f LEFT JOIN LATERAL transship.lookup('shared_planes', f.tailnum) AS p (a text, b int, seats int, c float8, d date) ON f.id <> 12 WHERE f.id BETWEEN 10 AND 13 ORDER BY 1;
SELECT count(*) FROM flights f WHERE EXISTS (SELECT FROM transship.lookup('shared_planes', f.tailnum) AS p (a text, b int, seats int, c float8, d date) WHERE p.seats > f.id % 100);
SELECT count(*) FROM flights f, planes p WHERE p.tailnum = f.tailnum AND p.seats > f.id % 100;
SELECT f.id, (SELECT max(p.seats) FROM transship.lookup('shared_planes', max(f.tailnum)) AS p (a text, b int, seats int, c float8, d date)) FROM flights f WHERE f.id < 4 GROUP BY f.id ORDER BY 1;
-- Values of other types and collations are compared by the key's collation, and kept by it.
CREATE COLLATION any_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE TABLE visits AS SELECT i, ('N' || i % 5)::varchar AS v, ('N' || i % 5)::name AS n, (CASE WHEN i % 2 = 0 THEN 'N' ELSE 'n' END || i % 5) COLLATE any_case AS c FROM generate_series(1, 2000) i;
ANALYZE visits;
SET enable_hashjoin = off;
SET enable_mergejoin = off;
EXPLAIN (COSTS OFF) SELECT count(p.seats) FROM visits LEFT JOIN LATERAL transship.lookup('shared_planes', v) AS p (tailnum text, year int, seats int, weight float8, made date) ON true;
SELECT count(p.seats), sum(p.seats) FROM visits LEFT JOIN LATERAL transship.lookup('shared_planes', v) AS p (tailnum text, year int, seats int, weight float8, made date) ON true;
SELECT count(p.seats), sum(p.seats) FROM visits LEFT JOIN LATERAL transship.lookup('shared_planes', n) AS p (tailnum text, year int, seats int, weight float8, made date) ON true;
SELECT count(p.seats), sum(p.seats) FROM visits LEFT JOIN LATERAL transship.lookup('shared_planes', c) AS p (tailnum text, year int, seats int, weight float8, made date) ON true;
RESET enable_hashjoin;
RESET enable_mergejoin;
SELECT count(p.seats), sum(p.seats) FROM visits JOIN planes p ON p.tailnum = v;
SELECT count(p.seats), sum(p.seats) FROM visits JOIN planes p ON p.tailnum = c COLLATE "C";
SELECT count(p.seats), sum(p.seats) FROM visits LEFT JOIN LATERAL transship.lookup('shared_planes', v) AS p (tailnum text, year int, seats int, weight float8, made date) ON true;
SELECT count(p.seats), sum(p.seats) FROM visits LEFT JOIN LATERAL transship.lookup('shared_planes', c) AS p (tailnum text, year int, seats int, weight float8, made date) ON true;
DROP TABLE visits;
DROP COLLATION any_case;
-- Of a table that changes, or goes, between executions.
PREPARE looked_up (text) AS SELECT p.seats FROM transship.lookup('shared_planes', $1) AS p (a text, b int, seats int, c float8, d date);
SET plan_cache_mode = force_generic_plan;
EXECUTE looked_up ('N12');
EXPLAIN (COSTS OFF) EXECUTE looked_up ('N12');
BEGIN;
SELECT transship.append('shared_planes', $$SELECT 'N12' AS tailnum, 1 AS year, -1 AS seats, 1.0::float8 AS weight, date '2000-01-01' AS made$$);
EXECUTE looked_up ('N12');
ROLLBACK;
EXECUTE looked_up ('N12');
BEGIN;
SELECT transship.unshare('shared_planes');
EXECUTE looked_up ('N12');
ROLLBACK;
EXECUTE looked_up ('N12');
EXECUTE looked_up (NULL);
DEALLOCATE looked_up;
RESET plan_cache_mode;
-- A literal is read when it is looked up, and who may not read a table does not lock it.
SELECT transship.share('shared_days', $$SELECT date 'today' + i AS day, i FROM generate_series(-1, 1) i$$, key => 'day');
EXPLAIN (COSTS OFF) SELECT i FROM transship.lookup('shared_days', 'today') AS d (day date, i int);
SELECT i FROM transship.lookup('shared_days', 'today') AS d (day date, i int);
SELECT i FROM transship.lookup('shared_days', date 'today') AS d (day date, i int);
CREATE ROLE regress_stranger;
BEGIN;
SET LOCAL ROLE regress_stranger;
EXPLAIN (COSTS OFF) SELECT i FROM transship.lookup('shared_days', date '2000-01-01') AS d (day date, i int);
SELECT count(*) FROM pg_locks WHERE relation = 'shared_days'::regclass;
SELECT i FROM transship.lookup('shared_days', date '2000-01-01') AS d (day date, i int);
ROLLBACK;
DROP ROLE regress_stranger;
SELECT transship.unshare('shared_days');
-- In statements that lock and change rows.
BEGIN;
SELECT f.id, p.seats FROM flights f, transship.lookup('shared_planes', f.tailnum) AS p (a text, b int, seats int, c float8, d date) WHERE f.id BETWEEN 13 AND 14 ORDER BY 1 FOR UPDATE;
UPDATE flights f SET id = -p.seats FROM flights g, transship.lookup('shared_planes', g.tailnum) AS p (a text, b int, seats int, c float8, d date) WHERE f.id = 13 AND g.id = 14 RETURNING f.id, p.a;
MERGE INTO flights f USING (SELECT g.id, p.seats FROM flights g, transship.lookup('shared_planes', g.tailnum) AS p (a text, b int, seats int, c float8, d date) WHERE g.id = 14) s ON s.id = f.id WHEN MATCHED THEN UPDATE SET id = -s.seats;
SELECT id, tailnum FROM flights WHERE id < 0 ORDER BY 1;
ROLLBACK;
-- Keys that are not unique, of several columns, and NULL.
SELECT transship.share('"Odd Table"', $$SELECT i % 10 AS a, CASE WHEN i % 5 > 0 THEN 'k''' || i % 3 END AS "b, c", i AS "V" FROM generate_series(1, 1000) i$$, key => '"b, c", a');
SELECT count(*), sum("V") FROM "Odd Table" WHERE a = 7 AND "b, c" = 'k''1';
SELECT count(*), sum(i) FROM generate_series(1, 1000) i WHERE i % 10 = 7 AND i % 5 > 0 AND i % 3 = 1;
SELECT count(*), sum(o."V") FROM transship.lookup('"Odd Table"', 'k''1', 7) AS o (a int, "b, c" text, "V" int);
SELECT count(*), sum(o."V") FROM transship.lookup('"Odd Table"', 'k''1', 7::smallint) AS o (a int, "b, c" text, "V" int);
SELECT count(*) FROM "Odd Table" WHERE "b, c" IS NULL;
EXPLAIN (COSTS OFF) SELECT count(*) FROM generate_series(1, 1000) i, transship.lookup('"Odd Table"', 'k''' || i % 4, (i % 10)::smallint) AS o (a int, "b, c" text, "V" int);
SELECT count(*), sum(o."V") FROM generate_series(1, 1000) i, transship.lookup('"Odd Table"', 'k''' || i % 4, (i % 10)::smallint) AS o (a int, "b, c" text, "V" int);
SELECT count(*), sum(o."V") FROM generate_series(1, 1000) i, ROWS FROM (transship.lookup('"Odd Table"', 'k''' || i % 4, (i % 10)::smallint) AS (a int, "b, c" text, "V" int)) WITH ORDINALITY AS o;
SELECT count(*) FROM transship.lookup('"Odd Table"', 'k''1'::name, 10000000000) AS o (a int, "b, c" text, "V" int);
SELECT count(*) FROM transship.lookup('"Odd Table"', 'k''1'::char(9), 7) AS o (a int, "b, c" text, "V" int);
EXPLAIN (COSTS OFF) SELECT * FROM "Odd Table" WHERE a = 7 AND "b, c" = 'k1';
EXPLAIN (COSTS OFF) SELECT * FROM "Odd Table" WHERE "b, c" = 'k1';
EXPLAIN (COSTS OFF) SELECT * FROM flights f, "Odd Table" o WHERE o.a = f.id AND o."b, c" = 'k1' AND f.id < 10;
SELECT count(*), sum(o."V") FROM flights f, "Odd Table" o WHERE o.a = f.id AND o."b, c" = 'k''1' AND f.id < 10;
-- Each type of key.
CREATE TABLE keyed AS SELECT i AS id, i % 2 = 0 AS bool, i::smallint AS int2, i * 100000 AS int4, i * 10000000000 AS int8, 'ü' || i AS text,
  ('v' || i)::varchar(10) AS varchar, decode(lpad(to_hex(i), 4, '0'), 'hex') AS bytea, md5(i::text)::uuid AS uuid, date 'epoch' - i AS date,
  time '00:00' + i * interval '1 second' AS time, timestamp 'epoch' - i * interval '1 microsecond' AS timestamp,
  timestamptz 'epoch' + i * interval '1 day' AS timestamptz
FROM generate_series(1, 1000) i;
INSERT INTO keyed (id) VALUES (1001);
INSERT INTO keyed VALUES (1002, true, -32768, -2147483648, -9223372036854775808, '', '', '', '00000000-0000-0000-0000-000000000000', '-infinity', '00:00', '-infinity', '-infinity'),
  (1003, true, 32767, 2147483647, 9223372036854775807, repeat('x', 10000), 'v', '\x00', 'ffffffff-ffff-ffff-ffff-ffffffffffff', 'infinity', '24:00', 'infinity', 'infinity');
DO $$
DECLARE
  k text;
  same bigint;
  wrong bigint;
  called bigint;
  columns text := (SELECT string_agg(format('%I %s', attname, format_type(atttypid, atttypmod)), ', ' ORDER BY attnum) FROM pg_attribute WHERE attrelid = 'keyed'::regclass AND attnum > 0);
BEGIN
  FOREACH k IN ARRAY ARRAY['bool', 'int2', 'int4', 'int8', 'text', 'varchar', 'bytea', 'uuid', 'date', 'time', 'timestamp', 'timestamptz'] LOOP
    EXECUTE format('SELECT transship.share(%L, %L, %L)', 'shared_' || k, 'TABLE keyed', k);
    SET LOCAL enable_hashjoin = off;
    SET LOCAL enable_mergejoin = off;
    SET LOCAL enable_material = off;
    EXECUTE format('SELECT count(*), count(*) FILTER (WHERE a IS DISTINCT FROM b) FROM keyed k JOIN shared_%1$s b ON b.%1$I = k.%1$I JOIN keyed a ON a.id = b.id', k) INTO same, wrong;
    RAISE NOTICE '%: %, %', k, same, wrong;
    RESET enable_hashjoin;
    EXECUTE format('SELECT count(*) FROM keyed k JOIN keyed b USING (%1$I)', k) INTO wrong;
    IF same <> wrong THEN
      RAISE EXCEPTION '% instead of %', same, wrong;
    END IF;
    -- Look-ups as joins, and as calls.
    EXECUTE format('SELECT count(*) FROM keyed k, transship.lookup(%L, k.%I) AS p (%s)', 'shared_' || k, k, columns) INTO wrong;
    EXECUTE format('SELECT %s - count(*) FROM keyed k, ROWS FROM (transship.lookup(%L, k.%I) AS (%s)) WITH ORDINALITY', same, 'shared_' || k, k, columns) INTO called;
    IF same <> wrong OR called <> 0 THEN
      RAISE EXCEPTION '% and % instead of %', wrong, called, same;
    END IF;
    EXECUTE format('SELECT transship.unshare(%L)', 'shared_' || k);
  END LOOP;
END
$$;
-- Integers of other types.
SELECT transship.share('shared_ints', 'SELECT int2, int4, int8, id FROM keyed', 'int4');
EXPLAIN (COSTS OFF) SELECT id FROM shared_ints WHERE int4 = 500000::bigint;
SELECT id FROM shared_ints WHERE int4 = 500000::bigint;
SELECT id FROM shared_ints WHERE int4 = 5000000000;
SELECT id FROM shared_ints WHERE int4 = 4294967296 - 2147483648;
SELECT id FROM shared_ints WHERE int4 = -2147483648::bigint;
SELECT transship.unshare('shared_ints');
SELECT transship.share('shared_ints', 'SELECT int2, int4, int4::bigint AS int8, id FROM keyed', 'int8');
SELECT id FROM shared_ints WHERE 2147483647 = int8;
SELECT id FROM shared_ints WHERE int8 = 10000000000;
SET enable_hashjoin = off;
SET enable_mergejoin = off;
EXPLAIN (COSTS OFF) SELECT count(*) FROM keyed k JOIN shared_ints s ON s.int8 = k.int4;
SELECT count(*) FROM keyed k JOIN shared_ints s ON s.int8 = k.int4;
RESET enable_hashjoin;
RESET enable_mergejoin;
SELECT transship.unshare('shared_ints');
SELECT transship.share('shared_ints', 'SELECT int2, int4, int8, id FROM keyed', 'int2');
SELECT id FROM shared_ints WHERE int2 = 500;
SELECT id FROM shared_ints WHERE int2 = 66036;
SELECT id FROM shared_ints WHERE int2 = 32768::bigint;
SELECT id FROM shared_ints WHERE int2 = -32768;
SELECT l.id FROM transship.lookup('shared_ints', 500::bigint) AS l (int2 smallint, int4 int, int8 bigint, id int);
SELECT l.id FROM transship.lookup('shared_ints', 66036) AS l (int2 smallint, int4 int, int8 bigint, id int);
SELECT transship.unshare('shared_ints');
-- A boolean, of which the planner leaves no comparison.
SELECT transship.share('shared_flags', 'SELECT bool AS flag, id % 3 AS k, id FROM keyed', 'flag, k');
EXPLAIN (COSTS OFF) SELECT count(*) FROM shared_flags WHERE flag = true AND k = 1;
SELECT count(*) FROM shared_flags WHERE flag = true AND k = 1;
EXPLAIN (COSTS OFF) SELECT count(*) FROM shared_flags WHERE flag = false AND k = 1;
SELECT count(*) FROM shared_flags WHERE flag = false AND k = 1;
SELECT count(*) FROM shared_flags WHERE NOT flag AND k = 1;
SELECT count(*) FROM shared_flags WHERE flag IS NOT TRUE AND k = 1;
SELECT count(*) FILTER (WHERE bool), count(*) FILTER (WHERE NOT bool) FROM keyed WHERE id % 3 = 1;
SELECT transship.unshare('shared_flags');
-- Wide rows behind narrow ones.
SELECT transship.share('shared_wide', $$SELECT i AS id, CASE WHEN i > 200 THEN repeat('x', 3000000) END AS body FROM generate_series(1, 264) i$$, 'id');
SELECT segments > 1 AS many, rows FROM transship.shared_tables WHERE name = 'shared_wide';
SELECT code, message FROM failure('SELECT count(body), sum(length(body)) FROM shared_wide WHERE id = 250');
SELECT transship.unshare('shared_wide');
-- Very many narrow rows, which do not become one segment.
SELECT transship.share('shared_narrow', 'SELECT i % 2 = 0 AS flag FROM generate_series(1, 2200000) i');
SELECT transship.append('shared_narrow', 'SELECT i % 2 = 0 AS flag FROM generate_series(1, 2200000) i');
SELECT segments, rows FROM transship.shared_tables WHERE name = 'shared_narrow';
SELECT flag, count(*) FROM shared_narrow GROUP BY 1 ORDER BY 1;
SELECT transship.unshare('shared_narrow');
-- Statistics, also of what repeats.
SELECT transship.share('shared_periodic', 'SELECT i AS id, i % 100 AS g FROM generate_series(1, 60000) i');
SELECT n_distinct FROM pg_stats WHERE tablename = 'shared_periodic' AND attname = 'g';
SELECT transship.unshare('shared_periodic');
SELECT reltuples, relpages > 0 AS has_pages FROM pg_class WHERE oid = 'shared_planes'::regclass;
SELECT attname, n_distinct, null_frac > 0 AS has_nulls FROM pg_stats WHERE tablename = 'shared_planes' ORDER BY 1;
ANALYZE shared_planes;
-- Other types of columns.
CREATE TABLE typed AS SELECT i AS id, i::float4 / 3 AS f4, i::numeric / 7 AS n, (i / 8.0)::numeric(10, 2) AS n2, i * interval '1 month 3 days 0.000001 s' AS iv,
  jsonb_build_object('i', i) AS jb, json_build_object('i', i) AS j, ('c' || i)::char(8) AS bp, ARRAY[i, NULL, i + 1] AS ia, ARRAY['a', NULL, 'b' || i] AS ta,
  ('10.0.0.' || i)::inet AS ip, '12:00+02'::timetz AS tz, 'n'::name AS nm
FROM generate_series(1, 200) i;
INSERT INTO typed (id, n, f4) VALUES (201, 'NaN', 'NaN'), (202, 'Infinity', '-Infinity');
SELECT transship.share('shared_typed', 'TABLE typed', 'id');
SELECT count(*) FROM typed t JOIN shared_typed s USING (id)
WHERE (t.f4, t.n, t.n2, t.iv, t.jb, t.j::text, t.bp, t.ia, t.ta, t.ip, t.tz, t.nm) IS NOT DISTINCT FROM (s.f4, s.n, s.n2, s.iv, s.jb, s.j::text, s.bp, s.ia, s.ta, s.ip, s.tz, s.nm);
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'shared_typed'::regclass AND attnum > 0 ORDER BY attnum;
-- Types whose values change with something else.
CREATE TYPE shared_mood AS ENUM ('sad', 'glad');
CREATE DOMAIN shared_positive AS int CHECK (VALUE > 0);
SELECT code, message, hint FROM failure($$SELECT transship.share('t', 'SELECT ''sad''::shared_mood AS v')$$);
SELECT code, message FROM failure($$SELECT transship.share('t', 'SELECT ARRAY[''sad''::shared_mood] AS v')$$);
SELECT code, message FROM failure($$SELECT transship.share('t', 'SELECT 1::shared_positive AS v')$$);
SELECT code, message FROM failure($$SELECT transship.share('t', 'SELECT ''<a/>''::xml AS v')$$);
SELECT code, message FROM failure($$SELECT transship.share('t', 'SELECT int4range(1, 2) AS v')$$);
-- Appended rows are seen when the transaction says so.
SELECT transship.append('shared_planes', $$SELECT 'N2500'::text AS tailnum, 2020 AS year, 7 AS seats, 1.5::float8 AS weight, date '2020-01-01' AS made$$);
SELECT * FROM shared_planes WHERE tailnum = 'N2500';
BEGIN;
SELECT transship.append('shared_planes', $$SELECT 'X'::text AS tailnum, 2020 AS year, i AS seats, 1.5::float8 AS weight, date '2020-01-01' AS made FROM generate_series(1, 3) i$$);
SELECT seats FROM shared_planes WHERE tailnum = 'X';
SAVEPOINT s;
SELECT transship.append('shared_planes', $$SELECT 'X'::text AS tailnum, 2020 AS year, i AS seats, 1.5::float8 AS weight, date '2020-01-01' AS made FROM generate_series(4, 5) i$$);
SELECT count(*) FROM shared_planes WHERE tailnum = 'X';
ROLLBACK TO s;
SELECT count(*) FROM shared_planes WHERE tailnum = 'X';
DECLARE before CURSOR FOR SELECT count(*) FROM shared_planes WHERE tailnum = 'X';
SELECT transship.append('shared_planes', $$SELECT 'X'::text AS tailnum, 2020 AS year, i AS seats, 1.5::float8 AS weight, date '2020-01-01' AS made FROM generate_series(6, 8) i$$);
FETCH before;
SELECT count(*) FROM shared_planes WHERE tailnum = 'X';
ROLLBACK;
SELECT count(*) FROM shared_planes WHERE tailnum = 'X';
SELECT transship.append('shared_planes', $$SELECT * FROM planes WHERE false$$);
SELECT segments, rows FROM transship.shared_tables WHERE name = 'shared_planes';
-- Prepared statements see them.
SET plan_cache_mode = force_generic_plan;
PREPARE of_plane(text) AS SELECT count(*), sum(seats) FROM shared_planes WHERE tailnum = $1;
EXECUTE of_plane('Y');
SELECT transship.append('shared_planes', $$SELECT 'Y'::text AS tailnum, 2020 AS year, 9 AS seats, 1.5::float8 AS weight, date '2020-01-01' AS made$$);
EXECUTE of_plane('Y');
EXECUTE of_plane(NULL);
RESET plan_cache_mode;
-- Shared again: other rows, at once. The query may read the table itself.
SELECT transship.share('shared_planes', $$SELECT * FROM shared_planes WHERE tailnum IN ('Y', 'N2500')$$, 'tailnum');
SELECT * FROM shared_planes ORDER BY tailnum, seats;
SELECT segments, rows FROM transship.shared_tables WHERE name = 'shared_planes';
-- Whenever the query reads it.
CREATE TABLE staging AS SELECT 2 AS id;
SELECT transship.share('kept_rows', 'SELECT 1 AS id', 'id');
SELECT transship.share('kept_rows', 'WITH m AS (DELETE FROM staging RETURNING id) SELECT id FROM kept_rows UNION ALL SELECT id FROM m', 'id');
TABLE kept_rows;
CREATE FUNCTION more_rows() RETURNS SETOF int LANGUAGE plpgsql AS $$ BEGIN RETURN QUERY SELECT id + 10 FROM kept_rows; END $$;
SELECT transship.share('kept_rows', 'SELECT more_rows AS id FROM more_rows()', 'id');
TABLE kept_rows;
SELECT transship.unshare('kept_rows');
DROP TABLE staging;
DROP FUNCTION more_rows;
SELECT code, message, detail FROM failure($$SELECT transship.share('shared_planes', 'SELECT tailnum FROM planes', 'tailnum')$$);
SELECT code, message, hint FROM failure($$SELECT transship.share('shared_planes', 'SELECT * FROM planes')$$);
SELECT code, message, hint FROM failure($$SELECT transship.share('shared_planes', 'SELECT * FROM planes', 'tailnum, year')$$);
-- What fails leaves nothing.
SELECT code, message, detail FROM failure($$SELECT transship.append('shared_planes', 'SELECT tailnum, seats FROM planes')$$);
SELECT code, message, detail FROM failure($$SELECT transship.append('shared_planes', 'SELECT tailnum, year, seats::bigint, weight, made FROM planes')$$);
SELECT code, message, detail FROM failure($$SELECT transship.append('shared_planes', 'SELECT tailnum, seats, year, weight, made FROM planes')$$);
SELECT code, message FROM failure($$SELECT transship.append('shared_planes', 'SELECT tailnum, year, seats / (seats - 299) AS seats, weight, made FROM planes')$$);
SELECT code, message FROM failure($$SELECT transship.share('shared_planes', 'SELECT tailnum, year, seats / (seats - 299) AS seats, weight, made FROM planes', 'tailnum')$$);
SELECT code, message FROM failure($$SELECT transship.append('shared_planes', 'DELETE FROM planes')$$);
SELECT code, message FROM failure($$SELECT transship.append('planes', 'TABLE planes')$$);
SELECT count(*) FROM shared_planes;
SELECT code, message, hint FROM failure($$SELECT transship.share('t', 'TABLE planes', 'tail')$$);
SELECT code, message FROM failure($$SELECT transship.share('t', 'TABLE planes', 'tailnum, tailnum')$$);
SELECT code, message, hint FROM failure($$SELECT transship.share('t', 'TABLE planes', 'tailnum,')$$);
SELECT code, message FROM failure($$SELECT transship.share('t', 'TABLE planes', 'weight')$$);
SELECT code, message, hint FROM failure($$SELECT transship.share('t', 'SELECT ROW(1, 2) AS r')$$);
SELECT code, message, hint FROM failure($$SELECT transship.share('t', 'SELECT p AS r FROM planes p')$$);
SELECT code, message FROM failure($$SELECT transship.share('t', 'SELECT 1 AS a, 2 AS a')$$);
SELECT code, message FROM failure($$SELECT transship.share('t', 'SELECT 1; SELECT 2')$$);
SELECT code, message FROM failure($$SELECT transship.share('t', 'CREATE TABLE x ()')$$);
SELECT code, message FROM failure($$SELECT transship.share('a.b.c.d', 'TABLE planes')$$);
SELECT code, message FROM failure($$SELECT transship.share('nowhere.t', 'TABLE planes')$$);
SELECT code, message FROM failure($$SELECT transship.share('planes', 'TABLE planes')$$);
SELECT code, message FROM failure($$SELECT transship.share(NULL, 'TABLE planes')$$);
SELECT code, message FROM failure($$SELECT transship.share('pg_temp.t', 'TABLE planes')$$);
CREATE TEMP TABLE in_temp (a int);
CREATE FOREIGN TABLE pg_temp.by_hand (a int) SERVER transship_tables;
SELECT code, message FROM failure('SELECT * FROM pg_temp.by_hand');
DROP FOREIGN TABLE pg_temp.by_hand;
SELECT code, message FROM failure($$SELECT transship.unshare('planes')$$);
SELECT count(*) FROM pg_class WHERE relname = 't';
CREATE COLLATION caseless (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
SELECT code, message FROM failure($$SELECT transship.share('t', 'SELECT tailnum COLLATE caseless AS tailnum FROM planes', 'tailnum')$$);
SELECT transship.share('caseless', 'SELECT tailnum COLLATE caseless AS tailnum FROM planes WHERE seats < 3');
SELECT count(*) FROM caseless WHERE tailnum = 'n1';
-- Another equality than the key's.
SELECT count(*) FROM shared_planes WHERE tailnum = 'n2500' COLLATE caseless;
EXPLAIN (COSTS OFF) SELECT count(*) FROM shared_planes WHERE tailnum = 'n2500' COLLATE caseless;
BEGIN READ ONLY;
SELECT transship.append('shared_planes', 'TABLE planes');
ROLLBACK;
-- Where nothing is merged for a while, not everything is left.
SELECT transship.share('many_appends', 'SELECT 0 AS a', key => 'a');
BEGIN ISOLATION LEVEL SERIALIZABLE;
DO $$BEGIN FOR i IN 1..200 LOOP PERFORM transship.append('many_appends', format('SELECT %s AS a', i)); END LOOP; END$$;
COMMIT;
SELECT segments < 40 AS few, rows FROM transship.shared_tables WHERE name = 'many_appends';
SELECT count(*), sum(a) FROM many_appends;
SELECT transship.unshare('many_appends');
-- Altered tables.
ALTER FOREIGN TABLE shared_planes RENAME COLUMN year TO built;
SELECT code, message, hint FROM failure('SELECT count(*) FROM shared_planes');
SELECT code, message, hint FROM failure($$SELECT transship.append('shared_planes', 'SELECT tailnum, year AS built, seats, weight, made FROM planes')$$);
ALTER FOREIGN TABLE shared_planes RENAME COLUMN built TO year;
SELECT count(*) FROM shared_planes;
ALTER FOREIGN TABLE shared_planes OPTIONS (SET key 'tailnum, year');
SELECT code, message FROM failure('SELECT count(*) FROM shared_planes');
ALTER FOREIGN TABLE shared_planes OPTIONS (SET key 'tail');
SELECT code, message FROM failure('SELECT count(*) FROM shared_planes');
ALTER FOREIGN TABLE shared_planes OPTIONS (SET key 'tailnum');
ALTER FOREIGN TABLE shared_planes ADD COLUMN note text;
SELECT code, message FROM failure('SELECT count(*) FROM shared_planes');
ALTER FOREIGN TABLE shared_planes DROP COLUMN note;
SELECT count(*) FROM shared_planes;
-- Another column in the place of one would show its values.
SELECT code, message, hint FROM failure('ALTER FOREIGN TABLE shared_planes DROP COLUMN made');
SELECT code, message, hint FROM failure('ALTER FOREIGN TABLE shared_planes DROP COLUMN made, ADD COLUMN made date');
SELECT code, message FROM failure($$DO 'BEGIN
  ALTER FOREIGN TABLE shared_planes RENAME COLUMN made TO old;
  ALTER FOREIGN TABLE shared_planes ADD COLUMN made date;
  ALTER FOREIGN TABLE shared_planes DROP COLUMN old;
END'$$);
SELECT transship.share('shared_prices', 'SELECT i AS id, i::numeric(10,2) AS price, ''p'' || i AS name FROM generate_series(1, 3) i', key => 'id');
ALTER FOREIGN TABLE shared_prices ALTER COLUMN price TYPE numeric(4,1);
SELECT code, message, hint FROM failure('SELECT * FROM shared_prices');
ALTER FOREIGN TABLE shared_prices ALTER COLUMN price TYPE numeric(10,2);
SELECT * FROM shared_prices WHERE id = 2;
-- Texts that were padded are not read as texts that are not.
SELECT transship.share('shared_padded', $$SELECT 'ab'::char(5) AS code, ARRAY['c'::char(3)] AS codes$$);
ALTER FOREIGN TABLE shared_padded ALTER COLUMN code TYPE varchar(5);
SELECT code, message, hint FROM failure('SELECT * FROM shared_padded');
ALTER FOREIGN TABLE shared_padded ALTER COLUMN code TYPE char(5), ALTER COLUMN codes TYPE varchar(3)[];
SELECT code, message, hint FROM failure('SELECT * FROM shared_padded');
ALTER FOREIGN TABLE shared_padded ALTER COLUMN codes TYPE char(3)[];
SELECT code = 'ab' AS code, code || '|' AS text, codes = ARRAY['c'::char(3)] AS codes FROM shared_padded;
SELECT transship.unshare('shared_padded');
-- One that goes with something else takes the rows along, and keeps nobody from that.
CREATE COLLATION passing FROM "C";
SELECT transship.share('shared_passing', 'SELECT 1 AS a, ''old'' COLLATE passing AS b');
DROP COLLATION passing CASCADE;
ALTER FOREIGN TABLE shared_passing ADD COLUMN b text;
SELECT * FROM shared_passing;
SELECT transship.unshare('shared_passing');
-- Rows that never had it stay.
SELECT transship.share('shared_kept', 'SELECT 1 AS a');
CREATE DOMAIN passing_text AS text;
ALTER FOREIGN TABLE shared_kept ADD COLUMN b passing_text;
DROP DOMAIN passing_text CASCADE;
SELECT * FROM shared_kept;
SELECT transship.unshare('shared_kept');
-- What a table lacks as well.
CREATE DOMAIN narrow_text AS varchar(2);
CREATE FOREIGN TABLE lacks (a int, b narrow_text) SERVER transship_tables;
DROP DOMAIN narrow_text CASCADE;
SELECT transship.append('lacks', 'SELECT 1 AS a');
SELECT transship.unshare('lacks');
SELECT transship.unshare('shared_prices');
INSERT INTO shared_planes VALUES ('Z');
ALTER FOREIGN TABLE shared_planes OPTIONS (ADD size '1');
-- A table that is declared by hand has no rows before they are appended. Columns that were dropped are no columns.
CREATE FOREIGN TABLE by_hand (gone text, a int, b varchar(5)) SERVER transship_tables OPTIONS (key 'a');
ALTER FOREIGN TABLE by_hand DROP COLUMN gone;
SELECT * FROM by_hand WHERE a = 1;
SELECT transship.append('by_hand', $$SELECT i AS a, ('b' || i)::varchar(5) AS b FROM generate_series(1, 3) i$$);
SELECT * FROM by_hand WHERE a = 2;
SELECT * FROM by_hand;
SELECT * FROM transship.lookup('by_hand', 2) AS h (a int, b varchar);
CREATE FOREIGN TABLE unfit (a int, b regclass) SERVER transship_tables;
SELECT code, message FROM failure('SELECT * FROM unfit');
DROP FOREIGN TABLE unfit;
-- Rights.
CREATE ROLE regress_sharer;
CREATE ROLE regress_reader;
CREATE SCHEMA sharer AUTHORIZATION regress_sharer;
SET ROLE regress_sharer;
SELECT code, message FROM failure($$SELECT transship.share('sharer.t', 'TABLE planes', 'tailnum')$$);
SELECT transship.share('sharer.t', 'SELECT 1 AS a, 2 AS b', 'a');
SELECT code, message FROM failure('SELECT * FROM transship.table_segments');
SELECT code, message FROM failure('SELECT * FROM transship.table_chunks');
SELECT code, message FROM failure('SELECT transship.forget_table(''shared_planes''::regclass)');
SELECT code, message FROM failure($$SELECT * FROM transship.lookup('shared_planes', 'Y') AS p (tailnum text, year int, seats int, weight float8, made date)$$);
SELECT code, message FROM failure($$SELECT transship.append('shared_planes', 'SELECT 1')$$);
SELECT code, message FROM failure($$SELECT transship.share('shared_planes', 'SELECT 1')$$);
SELECT code, message FROM failure($$SELECT transship.unshare('shared_planes')$$);
SELECT code, message FROM failure('SELECT * FROM shared_planes');
SELECT name, rows FROM transship.shared_tables;
GRANT USAGE ON SCHEMA sharer TO regress_reader;
GRANT SELECT, INSERT ON sharer.t TO regress_reader;
SET ROLE regress_reader;
SELECT transship.append('sharer.t', 'SELECT 3 AS a, 4 AS b');
SELECT * FROM sharer.t;
SELECT * FROM transship.lookup('sharer.t', 3) AS p (a int, b int);
SELECT code, message FROM failure($$SELECT transship.share('sharer.t', 'SELECT 3 AS a, 4 AS b', 'a')$$);
RESET ROLE;
-- Row-level security is that of whoever shares.
CREATE TABLE guarded (owner name, value int);
INSERT INTO guarded VALUES ('regress_sharer', 1), ('regress_reader', 2);
ALTER TABLE guarded ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON guarded USING (owner = current_user);
GRANT SELECT ON guarded TO regress_sharer;
SET ROLE regress_sharer;
SELECT transship.share('sharer.guarded', 'SELECT value FROM guarded');
TABLE sharer.guarded;
RESET ROLE;
-- Dropped with all that was theirs.
SELECT count(*) > 0 AS has_chunks FROM transship.table_chunks;
DROP SCHEMA sharer CASCADE;
DROP TABLE guarded;
DROP ROLE regress_sharer, regress_reader;
SELECT count(*) FROM transship.table_segments s WHERE NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = s.relation);
SELECT count(*) FROM transship.table_chunks c WHERE NOT EXISTS (SELECT FROM transship.table_segments s WHERE s.id = c.segment);
-- Partitions, and functions of containers beside them.
CREATE TABLE parts (a int, b varchar(5)) PARTITION BY RANGE (a);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (100) TO (200);
INSERT INTO parts VALUES (150, 'p');
ALTER TABLE parts ATTACH PARTITION by_hand FOR VALUES FROM (0) TO (100);
SELECT * FROM parts ORDER BY a;
SELECT n.x, p.b FROM numbers n JOIN parts p ON p.a = n.x AND n.x IN (2, 150) ORDER BY 1;
SELECT s.tailnum, add_one(s.seats), shout(s.tailnum) FROM shared_planes s WHERE add_one(s.seats) > 5 ORDER BY 1, 2;
SELECT s.seats FROM shared_planes s WHERE s.tailnum = shout('y');
DROP TABLE parts;
-- In parallel workers.
SELECT transship.share('shared_numbers', 'SELECT x, t FROM numbers', 'x');
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
SET enable_hashjoin = off;
SET enable_mergejoin = off;
EXPLAIN (COSTS OFF) SELECT count(*), sum(length(s.t)) FROM numbers n JOIN shared_numbers s USING (x);
SELECT count(*), sum(length(s.t)) FROM numbers n JOIN shared_numbers s USING (x);
-- A key that parallel workers find, which say something while the scan goes on.
RESET ALL;
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
SET parallel_leader_participation = off;
SET client_min_messages = warning;
SET log_min_messages = notice;
CREATE FUNCTION noisy(x bigint) RETURNS boolean LANGUAGE plpgsql PARALLEL SAFE COST 1000 AS $$
BEGIN
  IF x % 50 = 0 THEN
    RAISE NOTICE 'row %', x;
  END IF;
  RETURN x = 7;
END
$$;
EXPLAIN (COSTS OFF) SELECT g, s.t FROM generate_series(1, 3) g LEFT JOIN shared_numbers s ON s.x = (SELECT x FROM numbers WHERE noisy(x) LIMIT 1);
SELECT g, s.t FROM generate_series(1, 3) g LEFT JOIN shared_numbers s ON s.x = (SELECT x FROM numbers WHERE noisy(x) LIMIT 1), pg_sleep(0.05);
DROP FUNCTION noisy;
RESET ALL;
-- Many appends, few segments.
SELECT transship.share('appended', 'SELECT 0 AS id', 'id');
DO $$
BEGIN
  FOR i IN 1..300 LOOP
    PERFORM transship.append('appended', format('SELECT %s AS id', i));
  END LOOP;
END
$$;
SELECT segments < 12 AS few, rows FROM transship.shared_tables WHERE name = 'appended';
SELECT count(*), count(DISTINCT id), sum(id) FROM appended;
SELECT array_agg(id) = array_agg(id ORDER BY id) AS in_order FROM appended;
SELECT count(*) FROM generate_series(0, 300) i JOIN appended a ON a.id = i;
SELECT transship.unshare('appended');
SELECT count(*) FROM transship.table_chunks c WHERE NOT EXISTS (SELECT FROM transship.table_segments s WHERE s.id = c.segment);
-- Memory: what does not fit is an error, and what was removed is read again.
SELECT transship.share('large', $$SELECT i AS id, md5(i::text) || md5(i::text) AS t FROM generate_series(1, 30000) i$$, 'id');
SELECT count(*), count(DISTINCT t) FROM large;
SET transship.tables_size = '1MB';
SELECT code, message, detail, hint FROM failure($$SELECT transship.share('large', $q$SELECT i AS id, md5(random()::text) || md5(i::text) AS t FROM generate_series(1, 30000) i$q$, 'id')$$);
SELECT code, message, detail, hint FROM failure('SELECT count(*) FROM large');
SET transship.tables_size = '4MB';
SELECT transship.share('large2', $$SELECT i AS id, md5(random()::text) AS t FROM generate_series(1, 30000) i$$, 'id');
SELECT code, message, hint FROM failure('SELECT (SELECT count(*) FROM large), (SELECT count(*) FROM large2)');
SELECT (SELECT count(*) FROM large), (SELECT count(*) FROM shared_planes);
SELECT count(*) FROM large2;
SELECT count(*) FROM large;
-- Room is for each segment once, whatever was read before.
SELECT count(*) FROM large a, (SELECT FROM shared_planes LIMIT 1) b, large c WHERE a.id = 1 AND c.id = 2;
-- Without room for a sample, a table has no statistics.
BEGIN;
DECLARE holder CURSOR FOR SELECT * FROM large;
FETCH 1 FROM holder;
SELECT transship.share('large3', $$SELECT i AS id, md5(random()::text) AS t FROM generate_series(1, 30000) i$$, 'id');
COMMIT;
SELECT count(*) FROM large3;
SELECT transship.unshare('large3');
-- Nor is a table appended to that could not be read.
SELECT code, message, detail FROM failure($$SELECT transship.append('large', $q$SELECT i AS id, md5(random()::text) || md5(i::text) AS t FROM generate_series(1, 30000) i$q$)$$);
SELECT count(*) FROM large;
SELECT transship.unshare('large2');
RESET transship.tables_size;
SELECT count(*), count(DISTINCT t) FROM large;
-- Bytes that are damaged, as in a dump that somebody has edited.
SELECT transship.share('large', 'SELECT 1 AS id, repeat(''a'', 100) AS t', 'id');
-- What is in memory is found by its digest, and not read again.
UPDATE transship.table_segments SET digest = sha256('another') WHERE relation = 'large'::regclass;
SELECT code, message, hint FROM failure('SELECT * FROM large');
UPDATE transship.table_chunks SET data = 'ARROW1' WHERE segment IN (SELECT id FROM transship.table_segments WHERE relation = 'large'::regclass);
SELECT code, message FROM failure('SELECT * FROM large');
UPDATE transship.table_segments SET digest = 'x' WHERE relation = 'large'::regclass;
SELECT code, message, detail FROM failure('SELECT * FROM large');
DELETE FROM transship.table_segments WHERE relation = 'large'::regclass;
SELECT * FROM large;
-- A domain's values are those of its base type.
CREATE DOMAIN shared_number AS int;
SELECT transship.share('small_keys', 'SELECT 7::smallint AS k, 1 AS n', 'k');
SELECT x, n FROM unnest(ARRAY[7, 8, 100000]) u (x) LEFT JOIN LATERAL transship.lookup('small_keys', x::shared_number) AS p (k smallint, n int) ON true;
SELECT n FROM transship.lookup('small_keys', (random() * 0 + 7)::int::shared_number) AS p (k smallint, n int);
DROP DOMAIN shared_number;
SELECT transship.unshare(c.oid) FROM pg_class c WHERE relkind = 'f';
SELECT count(*) FROM transship.shared_tables;
DROP TABLE planes, flights, keyed, typed;
DROP TYPE shared_mood;
DROP DOMAIN shared_positive;
