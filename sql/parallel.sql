-- Parallel workers each hold their own exchange.
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
SET max_parallel_workers_per_gather = 2;
EXPLAIN (VERBOSE, COSTS OFF) SELECT sum(add_one(x)) FROM numbers;
SELECT sum(add_one(x)) FROM numbers;
SELECT count(*) FROM numbers WHERE add_one(x) % 2 = 0;
-- The leader adds up what its workers counted.
CREATE FUNCTION calls_of(query text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  line text;
BEGIN
  FOR line IN EXECUTE 'EXPLAIN (ANALYZE, BUFFERS OFF, COSTS OFF, TIMING OFF, SUMMARY OFF) ' || query LOOP
    IF line ~ 'Calls:' THEN
      RETURN trim(line);
    END IF;
  END LOOP;
END
$$;
SELECT calls_of('SELECT sum(add_one(x)) FROM numbers');
-- Functions that are not PARALLEL SAFE stay in the leader.
EXPLAIN (COSTS OFF) SELECT shout(t) FROM numbers;
-- An error in a worker.
ALTER FUNCTION fail_at PARALLEL SAFE;
SELECT code, message FROM failure('SELECT sum(fail_at(x, 20000)) FROM numbers');
SELECT sum(add_one(x)) FROM numbers;
DROP FUNCTION calls_of;
