-- A call is made only for the rows for which the expression around it would evaluate it.
SELECT sum(CASE WHEN x <> 50 THEN fail_at(x, 50) END) FROM numbers WHERE x <= 100;
SELECT count(*) FROM numbers WHERE x <= 100 AND (x = 50 OR fail_at(x, 50) > 0);
SELECT sum(coalesce(nullif(x, 50) * 0, fail_at(x, 51))) FROM numbers WHERE x <= 100;
SELECT sum(fail_at(x, 50)) FILTER (WHERE x <> 50) FROM numbers WHERE x <= 100;
SELECT count(*) FROM numbers WHERE x <> 50 AND x <= 100 AND fail_at(x, 50) > 0;
-- Arguments, too.
SELECT sum(CASE WHEN y <> 0 THEN add_one(x / y) END) FROM numbers WHERE x <= 100;
-- Guarded calls are batched: "Calls" counts those that were made.
EXPLAIN (ANALYZE, BUFFERS OFF, VERBOSE, COSTS OFF, TIMING OFF, SUMMARY OFF)
SELECT CASE y WHEN 1 THEN add_one(x) WHEN 2 THEN 0 ELSE add_one(-x) END FROM numbers WHERE x <= 100;
SELECT sum(CASE y WHEN 1 THEN add_one(x) WHEN 2 THEN 0 ELSE add_one(-x) END) FROM numbers WHERE x <= 100;
EXPLAIN (ANALYZE, BUFFERS OFF, VERBOSE, COSTS OFF, TIMING OFF, SUMMARY OFF)
SELECT x FROM numbers WHERE x <= 100 AND (y = 0 OR (y > 5 AND fail_at(x, 50) > 60));
EXPLAIN (ANALYZE, BUFFERS OFF, VERBOSE, COSTS OFF, TIMING OFF, SUMMARY OFF)
SELECT coalesce(nullif(y, 3)::bigint, add_one(x)) FROM numbers WHERE x <= 100;
EXPLAIN (ANALYZE, BUFFERS OFF, VERBOSE, COSTS OFF, TIMING OFF, SUMMARY OFF)
SELECT sum(fail_at(x, 50)) FILTER (WHERE x <> 50), count(add_one(x)) FROM numbers WHERE x <= 100;
-- A call in a guard is made first.
EXPLAIN (ANALYZE, BUFFERS OFF, VERBOSE, COSTS OFF, TIMING OFF, SUMMARY OFF)
SELECT CASE WHEN add_one(x) > 50 THEN add_one(-x) END FROM numbers WHERE x <= 100;
SELECT sum(CASE WHEN add_one(x) > 5 THEN add_one(-x) END) FROM numbers WHERE x <= 100;
EXPLAIN (ANALYZE, BUFFERS OFF, VERBOSE, COSTS OFF, TIMING OFF, SUMMARY OFF)
SELECT sum(add_one(x)) FILTER (WHERE add_one(y) > 9) FROM numbers WHERE x <= 100;
-- Nested calls under a guard; equal calls under two guards are made once, for the rows of either.
EXPLAIN (ANALYZE, BUFFERS OFF, VERBOSE, COSTS OFF, TIMING OFF, SUMMARY OFF)
SELECT CASE WHEN y = 1 THEN add_one(add_one(x)) WHEN y = 2 THEN add_one(x) END FROM numbers WHERE x <= 100;
-- NULL is neither true nor false: AND goes on behind it, OR too, WHEN does not.
SELECT a, a AND is_null(NULL) AS "and", a OR is_null(NULL) AS "or", CASE WHEN a THEN is_null(1) END AS "when"
FROM (VALUES (true), (false), (NULL)) v (a);
EXPLAIN (VERBOSE, COSTS OFF) SELECT a AND is_null(b), a OR is_null(b), CASE WHEN a THEN is_null(b) END
FROM (VALUES (true, 1::bigint), (false, 2), (NULL, 3)) v (a, b);
SELECT a, a AND is_null(b) AS "and", a OR is_null(b) AS "or", CASE WHEN a THEN is_null(b) END AS "when"
FROM (VALUES (true, 1::bigint), (false, 2), (NULL, 3)) v (a, b);
-- A VOLATILE function is called once for each row that needs it, and never for another.
SELECT count(DISTINCT c), count(c) FROM (SELECT CASE WHEN y = 1 THEN count_calls(x) END AS c FROM numbers WHERE x <= 1000 OFFSET 0) s;
-- A guard that cannot be evaluated twice leaves its calls row by row, and so does a subquery.
EXPLAIN (VERBOSE, COSTS OFF) SELECT CASE WHEN random() < 2 THEN add_one(x) END FROM numbers;
SELECT sum(CASE WHEN random() < 2 THEN add_one(x) END) FROM numbers WHERE x <= 100;
SELECT sum(CASE WHEN x IN (SELECT y FROM numbers) THEN add_one(x) END) FROM numbers WHERE x <= 100;
-- The outer call need not wait for an inner one that stays.
EXPLAIN (VERBOSE, COSTS OFF) SELECT add_one(CASE WHEN random() < 2 THEN add_one(x) END) FROM numbers;
-- STRICT, under a guard.
SELECT sum(CASE WHEN x > 50 THEN add_one(nullif(x, 60)) END) FROM numbers WHERE x <= 100;
-- A later filter does not see rows that an earlier one removes.
CREATE VIEW small WITH (security_barrier) AS SELECT x FROM numbers WHERE add_one(x) <= 10;
CREATE FUNCTION leak(x bigint) RETURNS boolean LANGUAGE plpgsql COST 0.0001 AS $$
BEGIN
  RAISE NOTICE 'saw %', x;
  RETURN true;
END
$$;
SELECT x FROM small WHERE leak(x) AND x <= 20 ORDER BY x;
DROP VIEW small;
DROP FUNCTION leak;
-- An equal call for other rows, whose guard is known only later, is a call of its own.
SELECT sum(a), sum(b) FROM (SELECT CASE WHEN y = 1 THEN add_one(x) END AS a, CASE WHEN add_one(y) > 9 THEN add_one(x) END AS b
FROM numbers WHERE x <= 100 OFFSET 0) s;
-- Row-level security: a function of the query's sees no row that the policy's call removes.
CREATE ROLE reader;
CREATE TABLE secured AS SELECT x, y FROM numbers WHERE x <= 50;
ALTER TABLE secured ENABLE ROW LEVEL SECURITY;
CREATE POLICY small ON secured USING (add_one(x) <= 4);
GRANT SELECT ON secured TO reader;
CREATE FUNCTION peek(x bigint) RETURNS boolean LANGUAGE plpgsql COST 0.0001 AS $$
BEGIN
  RAISE NOTICE 'saw %', x;
  RETURN true;
END
$$;
SET ROLE reader;
SELECT x FROM secured WHERE peek(x) AND fail_at(x, 9) > 0 ORDER BY x;
RESET ROLE;
DROP TABLE secured;
DROP FUNCTION peek;
DROP ROLE reader;
