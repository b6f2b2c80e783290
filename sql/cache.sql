-- Results that are kept: equal rows are not called again, in this session or another.
SET transship.cache = 'always';
SET transship.cache_timeout = '10s';
CREATE FUNCTION calls_of(query text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
  line text;
BEGIN
  FOR line IN EXECUTE 'EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) ' || query LOOP
    IF line ~ 'Calls:' THEN
      RETURN NEXT trim(line);
    END IF;
  END LOOP;
END
$$;
-- The handler gives another number each time that it is called.
CREATE FUNCTION kept(x bigint) RETURNS bigint LANGUAGE container IMMUTABLE PARALLEL SAFE COST 1000 AS 'image = "regress:1.0" function = "count_calls" cache = true';
SELECT transship.cache_reset('kept(bigint)');
SELECT * FROM calls_of('SELECT kept(x) FROM numbers WHERE x <= 1000');
CREATE TABLE results AS SELECT x, kept(x) AS y FROM numbers WHERE x <= 1000;
SELECT * FROM calls_of('SELECT kept(x) FROM numbers WHERE x <= 1000');
SELECT * FROM calls_of('SELECT kept(x) FROM numbers WHERE x BETWEEN 501 AND 1500');
SELECT count(*) FROM results WHERE y = kept(x);
SELECT count(*) FROM (SELECT x, y, kept(x) AS z FROM results ORDER BY x DESC LIMIT 100) r WHERE y = z;
-- Row by row, too.
SET transship.batching = off;
SELECT count(*) FROM results WHERE x <= 10 AND y = kept(x);
RESET transship.batching;
-- NULL is a row as any other; a STRICT function is not asked for it.
SELECT is_null(NULL), kept(NULL) = kept(NULL) AS same;
CREATE FUNCTION kept_null(x bigint) RETURNS bigint LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "add_one" cache = true';
ALTER FUNCTION kept_null(bigint) STRICT;
SELECT kept_null(NULL), kept_null(1), kept_null(1);
-- Another session, and prepared and parallel statements.
\c -
SET transship.cache = 'always';
SET transship.cache_timeout = '10s';
SELECT count(*) FROM results WHERE y = kept(x);
PREPARE again(bigint) AS SELECT count(*) FROM results WHERE x <= $1 AND y = kept(x);
EXECUTE again(10);
EXECUTE again(20);
SET plan_cache_mode = force_generic_plan;
EXECUTE again(30);
RESET plan_cache_mode;
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
SELECT count(*) FROM results WHERE y = kept(x);
RESET parallel_setup_cost;
RESET parallel_tuple_cost;
RESET min_parallel_table_scan_size;
-- A switch; results are then others, and are not kept.
SET transship.cache = 'off';
SELECT count(*) FROM results WHERE y = kept(x);
SET transship.cache = 'always';
SELECT count(*) FROM results WHERE y = kept(x);
-- Reset by its owner.
CREATE ROLE regress_reader;
SET ROLE regress_reader;
SELECT transship.cache_reset('kept(bigint)');
SELECT name, hits > 0 AS hits, misses > 0 AS misses, results, bytes > 0 AS bytes, evictions FROM transship.stat_cache WHERE name = 'kept';
RESET ROLE;
-- Whoever may not call it sees nothing.
REVOKE EXECUTE ON FUNCTION kept(bigint) FROM PUBLIC;
SET ROLE regress_reader;
SELECT count(*) FROM transship.stat_cache WHERE name = 'kept';
SELECT transship.cache_counters('kept(bigint)'::regprocedure);
SELECT kept(1);
RESET ROLE;
GRANT EXECUTE ON FUNCTION kept(bigint) TO PUBLIC;
DROP ROLE regress_reader;
SELECT transship.cache_reset('kept(bigint)');
SELECT name, hits, misses, results, bytes, evictions, pays FROM transship.stat_cache WHERE name = 'kept';
SELECT count(*) FROM results WHERE y = kept(x);
SELECT transship.cache_reset('pg_sleep(float8)');
-- What is altered later is not looked up any more.
CREATE TABLE results2 AS SELECT x, kept(x) AS y FROM numbers WHERE x <= 100;
ALTER FUNCTION kept(bigint) VOLATILE;
SELECT count(*) FROM results2 WHERE y = kept(x);
ALTER FUNCTION kept(bigint) IMMUTABLE;
SELECT count(*) FROM results2 WHERE y = kept(x);
-- Errors are not kept, and have their row.
CREATE FUNCTION kept_or_not(x bigint, bad bigint) RETURNS bigint LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "fail_at" cache = true';
SELECT count(kept_or_not(x, 0)) FROM numbers WHERE x <= 50;
SELECT code, message, context FROM failure('SELECT count(kept_or_not(x, 40)) FROM numbers WHERE x <= 50');
SELECT code, message, context FROM failure('SELECT count(kept_or_not(x, 40)) FROM numbers WHERE x <= 50');
CREATE FUNCTION kept_or_null(x bigint, bad bigint) RETURNS bigint LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "fail_at" cache = true on_error = "null"';
SELECT count(kept_or_null(x, 40)) FROM numbers WHERE x <= 50;
SELECT * FROM calls_of('SELECT kept_or_null(x, 40) FROM numbers WHERE x <= 50');
-- What cannot be kept.
CREATE FUNCTION f(x bigint) RETURNS bigint LANGUAGE container AS 'image = "regress:1.0" function = "add_one" cache = true';
CREATE FUNCTION f(x bigint) RETURNS bigint LANGUAGE container STABLE AS 'image = "regress:1.0" function = "add_one" cache = true';
CREATE FUNCTION f(x bigint) RETURNS SETOF bigint LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "count_to" cache = true';
CREATE FUNCTION f(x bigint) RETURNS bigint LANGUAGE container IMMUTABLE AS 'endpoint = "grpc://127.0.0.1:1" cache = true';
CREATE FUNCTION f(x bigint) RETURNS bigint LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "add_one" cache_ttl = 10';
CREATE FUNCTION f(x bigint) RETURNS bigint LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "add_one" cache = true cache_ttl = 0';
-- Values of all kinds, over all transports.
CREATE FUNCTION kept_bool(x bool) RETURNS bool LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "echo_bool" cache = true';
CREATE FUNCTION kept_float4(x float4) RETURNS float4 LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "pass_float4" cache = true';
CREATE FUNCTION kept_numeric(x numeric) RETURNS numeric LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "echo_numeric" cache = true';
CREATE FUNCTION kept_bytea(x bytea) RETURNS bytea LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "echo_bytea" cache = true';
CREATE FUNCTION kept_uuid(x uuid) RETURNS uuid LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "pass_uuid" cache = true';
CREATE FUNCTION kept_interval(x interval) RETURNS interval LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "echo_interval" cache = true';
CREATE FUNCTION kept_timestamptz(x timestamptz) RETURNS timestamptz LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "pass_timestamptz" cache = true';
CREATE FUNCTION kept_texts(x text[]) RETURNS text[] LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "echo_texts" cache = true';
CREATE FUNCTION kept_range(x int8range) RETURNS int8range LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "pass_int8range" cache = true';
CREATE FUNCTION kept_season(month bigint) RETURNS text LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "season" cache = true';
-- The functions' rows when they are called, when their results are kept, and row by row.
CREATE FUNCTION three_times(transport text, query text, OUT rows bigint, OUT same bool) LANGUAGE plpgsql AS $$
DECLARE
  called text;
  kept text;
  alone text;
BEGIN
  PERFORM set_config('transship.transport', transport, true);
  PERFORM transship.cache_reset(p.oid::regprocedure) FROM pg_proc p WHERE proname ~ '^kept_(bool|float4|numeric|bytea|uuid|interval|timestamptz|texts|range|season)$';
  EXECUTE query INTO rows, called;
  EXECUTE query INTO rows, kept;
  PERFORM set_config('transship.batching', 'off', true);
  EXECUTE query INTO rows, alone;
  PERFORM set_config('transship.batching', 'on', true);
  same := called = kept AND called = alone;
END
$$;
SELECT t, (three_times(t, $$
  SELECT count(*), string_agg(r::text, ';' ORDER BY r.x) FROM (
    SELECT x, kept_bool(nullif(x % 3, 0) > 1) a, kept_float4(CASE x % 5 WHEN 0 THEN '-0' WHEN 1 THEN 'NaN' ELSE x::text END::float4) b,
      kept_numeric(nullif(x / 7.0, 1)) c, kept_bytea(decode(repeat('0a', x::int % 40), 'hex')) d, kept_uuid(md5(x::text)::uuid) e,
      kept_interval(x * interval '1 month 2 days 03:04:05') f, kept_timestamptz(timestamptz '2020-01-01 UTC' + x * interval '1 day') g,
      kept_texts(CASE WHEN x % 4 > 0 THEN ARRAY['ü' || x, NULL, ''] END) h, kept_range(int8range(x, x + x % 3)) i, kept_season(x % 13) j
    FROM numbers WHERE x <= 200) r $$)).* FROM unnest('{auto,shm,flight,socket,parquet,json}'::text[]) t;
SELECT DISTINCT trim(line) AS line FROM calls_of('SELECT kept_texts(ARRAY[''ü'' || x, NULL, '''']), kept_numeric(x / 7.0) FROM numbers WHERE x <= 200 AND x % 4 > 0 AND x <> 7') line ORDER BY 1;
DROP FUNCTION kept_bool, kept_float4, kept_numeric, kept_bytea, kept_uuid, kept_interval, kept_timestamptz, kept_texts, kept_range, kept_season, three_times;
-- Functions of one name and other types are others, and a new image is another.
CREATE SCHEMA other;
CREATE FUNCTION other.kept(x text) RETURNS text LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "shout" cache = true';
SELECT other.kept('a'), other.kept('a'), other.kept(''), other.kept(NULL) IS NULL AS null;
CREATE FUNCTION version(x int) RETURNS int LANGUAGE container IMMUTABLE AS $$
template = "python"
cache = true
source = "def version(x): return x * 10 + 1"
$$;
SELECT version(1), version(2), version(1);
CREATE OR REPLACE FUNCTION version(x int) RETURNS int LANGUAGE container IMMUTABLE AS $$
template = "python"
cache = true
source = "def version(x): return x * 10 + 2"
$$;
SELECT version(1), version(2), version(1);
DROP FUNCTION version;
DROP SCHEMA other CASCADE;
DROP FUNCTION kept, kept_null, kept_or_not, kept_or_null, calls_of;
DROP TABLE results, results2;
