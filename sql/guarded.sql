-- A call is made only for the rows for which the expression around it would evaluate it.
SELECT sum(CASE WHEN x <> 50 THEN fail_at(x, 50) END) FROM numbers WHERE x <= 100;
SELECT count(*) FROM numbers WHERE x <= 100 AND (x = 50 OR fail_at(x, 50) > 0);
SELECT sum(coalesce(nullif(x, 50) * 0, fail_at(x, 51))) FROM numbers WHERE x <= 100;
SELECT sum(fail_at(x, 50)) FILTER (WHERE x <> 50) FROM numbers WHERE x <= 100;
SELECT count(*) FROM numbers WHERE x <> 50 AND x <= 100 AND fail_at(x, 50) > 0;
-- Arguments, too.
SELECT sum(CASE WHEN y <> 0 THEN add_one(x / y) END) FROM numbers WHERE x <= 100;
-- The first part of a guard is always evaluated, and batched.
EXPLAIN (VERBOSE, COSTS OFF) SELECT CASE WHEN add_one(x) > 5 THEN add_one(-x) END FROM numbers;
SELECT sum(CASE WHEN add_one(x) > 5 THEN add_one(-x) END) FROM numbers WHERE x <= 100;
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
