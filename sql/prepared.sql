-- Prepared statements with generic plans, cursors, PL/pgSQL.
PREPARE above(bigint) AS SELECT count(*) FROM numbers WHERE add(x, $1) > 30000;
SET plan_cache_mode = force_generic_plan;
EXPLAIN (COSTS OFF) EXECUTE above(10);
EXECUTE above(10);
EXECUTE above(20);
RESET plan_cache_mode;
DEALLOCATE above;
-- Cursors: forward, backward, and left open at the end.
BEGIN;
DECLARE forward NO SCROLL CURSOR FOR SELECT x, add_one(x) FROM numbers ORDER BY x;
FETCH 2 FROM forward;
FETCH 1 FROM forward;
DECLARE to_and_fro SCROLL CURSOR FOR SELECT x, add_one(x) FROM numbers WHERE x <= 5;
FETCH 3 FROM to_and_fro;
FETCH BACKWARD 2 FROM to_and_fro;
FETCH LAST FROM to_and_fro;
COMMIT;
-- Savepoints.
BEGIN;
SAVEPOINT s;
\set VERBOSITY terse
SELECT fail_at(x, 3) FROM numbers;
\set VERBOSITY default
ROLLBACK TO s;
SELECT sum(add_one(x)) FROM numbers;
COMMIT;
-- PL/pgSQL: queries are batched, expressions go row by row.
DO $$
DECLARE
  total bigint := 0;
  r record;
BEGIN
  FOR r IN SELECT add_one(x) AS z FROM numbers WHERE x <= 1000 LOOP
    total := add(total, r.z);
  END LOOP;
  RAISE NOTICE 'total %', total;
END
$$;
-- WHERE CURRENT OF, with a cursor FOR UPDATE.
CREATE TABLE current_rows AS SELECT x, 0::bigint AS z FROM numbers WHERE x <= 5;
BEGIN;
DECLARE rows CURSOR FOR SELECT x, add_one(x) FROM current_rows WHERE add_one(x) > 2 FOR UPDATE;
FETCH 2 FROM rows;
UPDATE current_rows SET z = add_one(x) WHERE CURRENT OF rows;
COMMIT;
SELECT * FROM current_rows WHERE z <> 0;
DROP TABLE current_rows;
-- A function that becomes a container's, and is one no longer, also where a function in SQL hides it.
CREATE FUNCTION changing(x bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN x - 1; END';
CREATE FUNCTION hiding(x bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT changing(x) + 10';
PREPARE changing AS SELECT sum(changing(x)) FROM numbers WHERE x <= 3;
PREPARE hiding AS SELECT sum(hiding(x)) FROM numbers WHERE x <= 3;
SET plan_cache_mode = force_generic_plan;
EXPLAIN (COSTS OFF) EXECUTE changing;
EXECUTE changing;
EXECUTE hiding;
CREATE OR REPLACE FUNCTION changing(x bigint) RETURNS bigint LANGUAGE container IMMUTABLE AS E'image = "regress:1.0"\nfunction = "add_one"';
EXPLAIN (COSTS OFF) EXECUTE changing;
EXECUTE changing;
EXPLAIN (COSTS OFF) EXECUTE hiding;
EXECUTE hiding;
EXPLAIN (COSTS OFF) SELECT (SELECT max(changing(x)) FROM numbers n WHERE n.y = numbers.y) FROM numbers;
CREATE OR REPLACE FUNCTION changing(x bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN x - 1; END';
EXPLAIN (COSTS OFF) EXECUTE changing;
EXECUTE changing;
EXECUTE hiding;
CREATE OR REPLACE FUNCTION changing(x bigint) RETURNS bigint LANGUAGE container IMMUTABLE AS E'image = "regress:1.0"\nfunction = "add_one"';
EXPLAIN (COSTS OFF) EXECUTE changing;
EXECUTE changing;
EXECUTE hiding;
-- A change that is taken back.
BEGIN;
CREATE OR REPLACE FUNCTION changing(x bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN x - 1; END';
EXPLAIN (COSTS OFF) EXECUTE changing;
ROLLBACK;
EXPLAIN (COSTS OFF) EXECUTE changing;
-- The language is known by its name.
BEGIN;
ALTER LANGUAGE container RENAME TO crates;
EXPLAIN (COSTS OFF) SELECT add_one(x) FROM numbers;
ALTER LANGUAGE crates RENAME TO container;
EXPLAIN (COSTS OFF) SELECT add_one(x) FROM numbers;
ALTER LANGUAGE container RENAME TO crates;
EXPLAIN (COSTS OFF) SELECT add_one(x) FROM numbers;
ROLLBACK;
EXPLAIN (COSTS OFF) SELECT add_one(x) FROM numbers;
RESET plan_cache_mode;
DEALLOCATE ALL;
DROP FUNCTION changing, hiding;
