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
-- What workers say reaches the leader at any time: also when nodes above have returned rows, and when they have ended. The server's
-- log has it, and the client does not.
CREATE FUNCTION says(x bigint) RETURNS boolean LANGUAGE plpgsql STABLE PARALLEL SAFE SET client_min_messages = notice AS $$
BEGIN
  IF x % 10 = 0 AND pg_backend_pid()::text <> current_setting('regress.leader') THEN
    RAISE NOTICE 'a worker';
  END IF;
  RETURN true;
END
$$;
CREATE FUNCTION add_one_restricted(x bigint) RETURNS bigint LANGUAGE container IMMUTABLE STRICT PARALLEL RESTRICTED
AS E'image = "regress:1.0"\nfunction = "add_one"';
SELECT set_config('regress.leader', pg_backend_pid()::text, false) AS leader \gset
SET parallel_leader_participation = off;
SET client_min_messages = error;
SET log_min_messages = notice;
SET log_error_verbosity = terse;
EXPLAIN (COSTS OFF) SELECT add_one_restricted(x) FROM numbers WHERE says(x) LIMIT 1;
SELECT count(r) FROM (SELECT add_one_restricted(x) AS r FROM numbers WHERE says(x) LIMIT 1) s;
SELECT count(r) FROM (SELECT add_one_restricted(x) AS r FROM numbers WHERE says(x) LIMIT 3000) s;
SELECT count(r) FROM (SELECT add_one_restricted(x) AS r FROM numbers WHERE says(x) OFFSET 0) s;
SELECT count(r) FROM (SELECT add_one(sum(x)::bigint) AS r FROM numbers WHERE says(x) GROUP BY y LIMIT 1) s;
SELECT count(r) FROM (SELECT add_one(x) AS r FROM numbers WHERE x < 10 AND EXISTS (SELECT FROM numbers WHERE says(x))) s;
SELECT count(r) FROM (SELECT add_one_restricted(x + (SELECT 0 WHERE EXISTS (SELECT FROM numbers WHERE says(x)))) AS r FROM numbers) s;
-- A worker's error keeps its context, also where it comes while the leader waits for a container.
CREATE FUNCTION refuses(x bigint) RETURNS boolean LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
BEGIN
  IF x = 4000 THEN
    PERFORM pg_sleep(0.3);
    RAISE EXCEPTION 'refused';
  END IF;
  RETURN true;
END
$$;
CREATE FUNCTION wait_restricted(seconds float8) RETURNS float8 LANGUAGE container IMMUTABLE STRICT PARALLEL RESTRICTED
AS E'image = "regress:1.0"\nfunction = "wait_for"';
SELECT code, message, context FROM failure('SELECT wait_restricted(0.01) FROM numbers WHERE refuses(x)');
SELECT code, message, context FROM failure('SELECT wait_restricted(CASE WHEN x < 1000 THEN 0.01 ELSE 0 END) FROM numbers WHERE refuses(x)');
RESET log_error_verbosity;
RESET log_min_messages;
RESET client_min_messages;
RESET parallel_leader_participation;
DROP FUNCTION says, add_one_restricted, refuses, wait_restricted;
-- One statement calls one version of an image, also of a function without a digest whose image's name stands for another one by now.
\! mkdir -p target/regress/versions
\! printf 'name = "regress_versions"\nversion = "1.0"\ntemplate = "python"\n\n[[functions]]\nname = "image_version"\n\n[[functions]]\nname = "version_of"\narguments = ["(x int8)"]\nreturns = "int8"\n\n[[functions]]\nname = "versions"\nkind = "aggregate"\narguments = ["x int8"]\nreturns = "text"\n' > target/regress/versions/transship.toml
\! printf 'def image_version(x: int) -> int:\n    return 1\n\n\ndef version_of(row):\n    return 1\n\n\nclass versions:\n    def __init__(self):\n        self.seen = set()\n\n    def step(self, x):\n        self.seen.add(image_version(x))\n\n    def merge(self, other):\n        self.seen |= other.seen\n\n    def finish(self):\n        return str(self.seen)\n' > target/regress/versions/handler.py
\! target/release/transship build target/regress/versions > /dev/null 2>&1
SET check_function_bodies = off;
CREATE FUNCTION image_version(x bigint) RETURNS bigint LANGUAGE container IMMUTABLE PARALLEL SAFE COST 1000 AS 'image = "regress_versions:1.0"';
-- One that takes rows is adapted to the image's row type before a worker knows its leader's image.
CREATE TYPE versioned AS (x bigint);
CREATE FUNCTION version_of(v versioned) RETURNS bigint LANGUAGE container IMMUTABLE PARALLEL SAFE COST 1000 AS 'image = "regress_versions:1.0"';
CREATE FUNCTION versions_step(internal, x bigint) RETURNS internal LANGUAGE container PARALLEL SAFE AS E'image = "regress_versions:1.0"\nfunction = "versions"';
CREATE FUNCTION versions_final(internal) RETURNS text LANGUAGE container PARALLEL SAFE AS E'image = "regress_versions:1.0"\nfunction = "versions"';
CREATE FUNCTION versions_state(internal) RETURNS bytea LANGUAGE container STRICT PARALLEL SAFE AS E'image = "regress_versions:1.0"\nfunction = "versions"';
CREATE FUNCTION versions_read(bytea, internal) RETURNS internal LANGUAGE container STRICT PARALLEL SAFE AS E'image = "regress_versions:1.0"\nfunction = "versions"';
CREATE FUNCTION versions_merge(internal, internal) RETURNS internal LANGUAGE container PARALLEL SAFE AS E'image = "regress_versions:1.0"\nfunction = "versions"';
CREATE AGGREGATE versions(bigint) (SFUNC = versions_step, STYPE = internal, FINALFUNC = versions_final, COMBINEFUNC = versions_merge,
  SERIALFUNC = versions_state, DESERIALFUNC = versions_read, PARALLEL = SAFE);
RESET check_function_bodies;
SELECT image_version(1), version_of(ROW(1)::versioned), versions(1);
\! sed -i 's/return 1/return 2/' target/regress/versions/handler.py
\! target/release/transship build target/regress/versions > /dev/null 2>&1
SET parallel_leader_participation = off;
SELECT sum(image_version(x)), count(*) FROM numbers;
SELECT sum(version_of(ROW(x)::versioned)), count(*) FROM numbers;
-- Also of an aggregate, and row by row.
EXPLAIN (COSTS OFF) SELECT versions(x) FROM numbers;
SELECT versions(x) FROM numbers;
SET transship.batching = off;
EXPLAIN (COSTS OFF) SELECT sum(image_version(x)), count(*) FROM numbers WHERE x <= 1000;
SELECT sum(image_version(x)), count(*) FROM numbers WHERE x <= 1000;
SELECT sum(version_of(ROW(x)::versioned)), count(*) FROM numbers WHERE x <= 1000;
RESET transship.batching;
-- A function that was replaced since its session called it, and that the plan does not name.
CREATE FUNCTION replaced(x bigint) RETURNS bigint LANGUAGE container IMMUTABLE PARALLEL SAFE AS E'template = "python"\nsource = "def replaced(x): return 1"';
CREATE FUNCTION calls_replaced(x bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE COST 10000 AS 'BEGIN RETURN replaced(x); END';
SELECT replaced(1);
CREATE OR REPLACE FUNCTION replaced(x bigint) RETURNS bigint LANGUAGE container IMMUTABLE PARALLEL SAFE AS E'template = "python"\nsource = "def replaced(x): return 2"';
EXPLAIN (COSTS OFF) SELECT sum(calls_replaced(x)), count(*) FROM numbers WHERE x <= 1000;
SELECT sum(calls_replaced(x)), count(*) FROM numbers WHERE x <= 1000;
RESET parallel_leader_participation;
DROP FUNCTION calls_replaced, replaced;
SELECT sum(image_version(x)), count(*) FROM numbers;
\c -
SELECT sum(image_version(x)), count(*) FROM numbers;
SELECT sum(version_of(ROW(x)::versioned)), count(*) FROM numbers;
DROP AGGREGATE versions(bigint);
DROP FUNCTION image_version, version_of, versions_step, versions_final, versions_state, versions_read, versions_merge;
DROP TYPE versioned;
\! rm -r target/regress/versions
