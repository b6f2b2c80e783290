-- Where calls are made in batches, and that results do not depend on it.
-- Target list.
EXPLAIN (VERBOSE, COSTS OFF) SELECT x, add_one(x) + 1 FROM numbers;
SELECT sum(z) FROM (SELECT add_one(x) + 1 AS z FROM numbers OFFSET 0) s;
-- Filter: cheap filters first, in the scan.
EXPLAIN (VERBOSE, COSTS OFF) SELECT x FROM numbers WHERE add_one(x) % 2 = 0 AND y = 3;
SELECT count(*) FROM numbers WHERE add_one(x) % 2 = 0 AND y = 3;
-- Two filters: the second is called only for what passed the first.
EXPLAIN (VERBOSE, COSTS OFF) SELECT x FROM numbers WHERE add_one(x) < 100 AND fail_at(x, 200) > 10;
SELECT count(*) FROM numbers WHERE fail_at(x, 20000) > 10 AND add_one(x) < 100 AND x < 20000;
-- Cost decides their order, as for any function.
ALTER FUNCTION fail_at COST 5000;
SELECT count(*) FROM numbers WHERE add_one(x) < 100 AND fail_at(x, 200) > 10;
-- Filter and target list: the target list's calls are made only for rows that passed.
SELECT sum(fail_at(x, 200)) FROM (SELECT x FROM numbers WHERE add_one(x) < 100 OFFSET 0) s;
-- Nested calls, inner first; equal calls once.
EXPLAIN (VERBOSE, COSTS OFF) SELECT add(add_one(x), add_one(x)) FROM numbers;
SELECT sum(add(add_one(x), add_one(x))) FROM numbers;
-- Aggregate arguments, FILTER, HAVING, GROUP BY, DISTINCT, ORDER BY.
EXPLAIN (VERBOSE, COSTS OFF) SELECT y, avg(add_one(x)) FROM numbers GROUP BY y HAVING add_one(max(x)) > 29995;
SELECT y, avg(add_one(x)) FROM numbers GROUP BY y HAVING add_one(max(x)) > 29995 ORDER BY y;
SELECT count(*) FILTER (WHERE add_one(x) > 100) FROM numbers;
SELECT add_one(y) AS z, count(*) FROM numbers GROUP BY 1 ORDER BY 1 LIMIT 3;
SELECT DISTINCT add_one(y) FROM numbers ORDER BY 1 LIMIT 3;
SELECT x FROM numbers ORDER BY add_one(-x) LIMIT 3;
-- Window functions.
SELECT x, sum(add_one(x)) OVER (ORDER BY x) FROM numbers WHERE x <= 3;
-- Joins: above the join, with columns of both sides.
EXPLAIN (VERBOSE, COSTS OFF) SELECT add(a.x, b.x) FROM numbers a JOIN numbers b USING (x) WHERE add(a.x, b.x) < 10;
SELECT add(a.x, b.x) FROM numbers a JOIN numbers b USING (x) WHERE add(a.x, b.x) < 10 ORDER BY 1;
SELECT count(*) FROM (VALUES (1::bigint), (2), (3)) v (a), (VALUES (2::bigint), (3)) w (b) WHERE add(a, b) = 5;
-- An outer join's null side gives NULL arguments.
SELECT a.x, is_null(b.x) FROM (VALUES (1::bigint), (99999)) a (x) LEFT JOIN numbers b ON a.x = b.x ORDER BY 1;
-- A merge join that goes back on a lifted inner side.
SET enable_hashjoin = off;
SET enable_nestloop = off;
CREATE TABLE doubles AS SELECT (i / 2)::bigint AS x FROM generate_series(2, 9) i;
CREATE INDEX ON doubles (x);
ANALYZE doubles;
SELECT a.x, b.z FROM doubles a JOIN (SELECT x, add_one(x) AS z FROM doubles ORDER BY x) b ON a.x = b.x ORDER BY 1, 2 LIMIT 6;
RESET enable_hashjoin;
RESET enable_nestloop;
-- Subqueries, CTEs, set operations, LATERAL, correlated subqueries.
WITH c AS MATERIALIZED (SELECT add_one(x) AS z FROM numbers WHERE x < 4) SELECT * FROM c ORDER BY z;
SELECT add_one(x) FROM numbers WHERE x < 3 UNION ALL SELECT add_one(x) FROM numbers WHERE x = 5 ORDER BY 1;
SELECT v.a, l.z FROM (VALUES (1), (2)) v (a), LATERAL (SELECT add(x, v.a) AS z FROM numbers WHERE x <= 2) l ORDER BY 1, 2;
SELECT v.a, (SELECT max(add(x, v.a)) FROM numbers WHERE x <= v.a) FROM (VALUES (1), (2), (3)) v (a) ORDER BY 1;
SELECT x FROM numbers WHERE x < 100 AND add_one(x) IN (SELECT add_one(add_one(x)) FROM numbers WHERE x < 4) ORDER BY x;
WITH RECURSIVE r (n) AS (SELECT 1::bigint UNION ALL SELECT add_one(n) FROM r WHERE add_one(n) < 6) SELECT * FROM r ORDER BY n;
-- Whole rows, system columns and wide rows pass through.
SELECT (n).t, shout((n).t), add_one((n).x), z.tableoid::regclass FROM (SELECT n, n.tableoid FROM numbers n) z WHERE add_one((n).x) < 4 ORDER BY 1;
SELECT count(*), max(length(w)) FROM (SELECT repeat(t, 1000) AS w, add_one(x) AS z FROM numbers WHERE x <= 2000 OFFSET 0) s WHERE z > 0;
-- Zero arguments.
SELECT sum(seven()) FROM numbers;
-- LIMIT takes no more than the first small batch.
SELECT count(z) FROM (SELECT count_calls(x) AS z FROM numbers LIMIT 10) s;
SELECT max(z) - min(z) < 400 FROM (SELECT min(c) AS z FROM (SELECT count_calls(x) AS c FROM numbers LIMIT 1) a
  UNION ALL SELECT min(c) FROM (SELECT count_calls(x) AS c FROM numbers LIMIT 1) b) s;
-- A VOLATILE function is called once per row.
SELECT count(DISTINCT count_calls(x)) FROM numbers;
-- Equal calls of a function that is not VOLATILE are sent once, where a look at the batch says that it pays. Errors name the
-- row where the arguments first were.
CREATE FUNCTION count_calls_stable(x bigint) RETURNS bigint LANGUAGE container STABLE STRICT
AS $$ image = "regress:1.0" function = "count_calls" $$;
SELECT count(DISTINCT c), count(*) FROM (SELECT count_calls_stable(x % 10) AS c FROM numbers WHERE x <= 100) s;
SELECT count(DISTINCT count_calls_stable(x)) FROM numbers;
SELECT sum(add_one(y)) = sum(y + 1) AS is_right FROM numbers;
SELECT count(*), sum(length(s)) FROM (SELECT shout(CASE WHEN y < 3 THEN NULL WHEN y < 6 THEN 'é' ELSE t END) AS s FROM numbers) s;
SELECT code, context FROM failure('SELECT fail_at(y, 7) FROM numbers WHERE x > 20');
EXPLAIN (ANALYZE, BUFFERS OFF, COSTS OFF, TIMING OFF, SUMMARY OFF) SELECT sum(add_one(y)) FROM numbers WHERE x <= 100;
DROP FUNCTION count_calls_stable;
-- EXPLAIN ANALYZE counts; the batches grow from 128 rows to 10,000, if no batch takes too long.
SET transship.batch_time = 0;
EXPLAIN (ANALYZE, BUFFERS OFF, COSTS OFF, TIMING OFF, SUMMARY OFF) SELECT sum(add_one(x)) FROM numbers;
-- A function may ask for another first batch; a limit asks for fewer.
CREATE FUNCTION add_one_at_once(x bigint) RETURNS bigint LANGUAGE container IMMUTABLE STRICT
    AS 'image = "regress:1.0" function = "add_one" first_batch_rows = 1000 max_batch_rows = 3000';
EXPLAIN (ANALYZE, BUFFERS OFF, COSTS OFF, TIMING OFF, SUMMARY OFF) SELECT sum(add_one_at_once(x)) FROM numbers WHERE x <= 1000;
EXPLAIN (ANALYZE, BUFFERS OFF, COSTS OFF, TIMING OFF, SUMMARY OFF) SELECT sum(add_one_at_once(x)) FROM numbers;
SELECT sum(add_one_at_once(x)), sum(x + 1) FROM numbers;
EXPLAIN (ANALYZE, BUFFERS OFF, COSTS OFF, TIMING OFF, SUMMARY OFF) SELECT add_one_at_once(x) FROM numbers LIMIT 10;
DROP FUNCTION add_one_at_once;
RESET transship.batch_time;
-- Slow calls have small batches: after a first one of 128 rows, as many as fit into the time.
CREATE FUNCTION wait_for_volatile(seconds float8) RETURNS float8 LANGUAGE container AS 'image = "regress:1.0" function = "wait_for"';
SET transship.batch_time = '20ms';
SELECT transship.stat_reset();
SELECT count(*), max(wait_for_volatile(0.005 + 0 * x)) FROM numbers WHERE x <= 200;
SELECT batches BETWEEN 10 AND 73 AS has_small_batches, calls FROM transship.stat_functions WHERE name = 'wait_for_volatile';
RESET transship.batch_time;
DROP FUNCTION wait_for_volatile;
-- The size of batches changes no result.
SET transship.batch_rows = 7;
SET transship.batch_window = 1;
SELECT sum(add_one(x)) FROM numbers WHERE x <= 100;
RESET transship.batch_window;
SET transship.batch_rows = 1000000;
SET transship.batch_size = '1kB';
SELECT sum(add_one(x)) FROM numbers WHERE x <= 1000;
RESET transship.batch_rows;
RESET transship.batch_size;
-- Off, every call is made by itself.
SET transship.batching = off;
EXPLAIN (VERBOSE, COSTS OFF) SELECT add_one(x) FROM numbers;
SELECT sum(add_one(x)) FROM numbers WHERE x <= 100;
RESET transship.batching;
-- Foreign tables, EXISTS, and a value of 100 MB.
CREATE EXTENSION file_fdw;
CREATE SERVER files FOREIGN DATA WRAPPER file_fdw;
CREATE FOREIGN TABLE counted (x bigint) SERVER files OPTIONS (program 'seq 1 5', format 'text');
EXPLAIN (VERBOSE, COSTS OFF) SELECT add_one(x) FROM counted WHERE add_one(x) > 2;
SELECT add_one(x) FROM counted WHERE add_one(x) > 2;
SET client_min_messages = warning;
DROP EXTENSION file_fdw CASCADE;
RESET client_min_messages;
SELECT transship.stat_reset();
SELECT EXISTS (SELECT 1 FROM numbers WHERE add_one(x) > 3);
SELECT calls <= 128 AS no_more_than_the_first_batch FROM transship.stat_functions WHERE name = 'add_one' AND schema = 'public';
-- Keys of hash joins, on either side, nested too.
SET enable_mergejoin = off;
SET enable_nestloop = off;
EXPLAIN (VERBOSE, COSTS OFF) SELECT a.x, b.y FROM numbers a JOIN numbers b ON add_one(add_one(a.x)) = add_one(b.x) AND a.y = b.y + 9;
SELECT count(*), sum(a.x), sum(b.x) FROM numbers a JOIN numbers b ON add_one(add_one(a.x)) = add_one(b.x) AND a.y = b.y + 9;
SELECT count(*), sum(a.x), sum(b.x) FROM numbers a FULL JOIN numbers b ON add_one(a.x) = b.x;
SELECT count(*) FROM numbers a WHERE NOT EXISTS (SELECT 1 FROM numbers b WHERE add_one(b.x) = a.x);
RESET enable_mergejoin;
RESET enable_nestloop;
