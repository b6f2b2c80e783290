-- Results that are kept: equal rows are not called again, in this session or another.
SET transship.cache = 'always';
SET transship.cache_timeout = '1s';
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
-- The setting counts at once, in the middle of a transaction as well.
BEGIN;
SELECT y = kept(x) AS same FROM results WHERE x = 1;
SET LOCAL transship.cache = 'off';
SELECT y = kept(x) AS same FROM results WHERE x = 1;
COMMIT;
RESET transship.batching;
-- A node that starts anew forgets results that nobody has taken.
CREATE FUNCTION kept_one(x bigint) RETURNS bigint LANGUAGE container IMMUTABLE STRICT PARALLEL SAFE COST 1000 AS 'image = "regress:1.0" function = "add_one" cache = true';
SELECT sum(kept_one(x)) FROM numbers;
SELECT n, l.x, l.y FROM generate_series(1, 4) n, LATERAL (SELECT x, kept_one(x) AS y FROM numbers WHERE x >= n * 1000 LIMIT 1 + n) l ORDER BY 1, 2;
-- NULL is a row as any other; a STRICT function is not asked for it.
SELECT is_null(NULL), kept(NULL) = kept(NULL) AS same;
CREATE FUNCTION kept_null(x bigint) RETURNS bigint LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "add_one" cache = true';
ALTER FUNCTION kept_null(bigint) STRICT;
SELECT kept_null(NULL), kept_null(1), kept_null(1);
-- Another session, and prepared and parallel statements.
\c -
SET transship.cache = 'always';
SET transship.cache_timeout = '1s';
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
SELECT name, hits, disk_hits, misses, results, bytes, evictions, off_because FROM transship.stat_cache WHERE name = 'kept';
SELECT count(*) FROM results WHERE y = kept(x);
SELECT transship.cache_reset('pg_sleep(float8)');
-- Why results are not looked up.
SET transship.cache = 'off';
SELECT off_because FROM transship.stat_cache WHERE name = 'kept';
SET transship.cache = 'auto';
CREATE FUNCTION cheap(x bigint) RETURNS bigint LANGUAGE container IMMUTABLE STRICT AS 'image = "regress:1.0" function = "add_one_arrow" cache = true';
SELECT transship.cache_reset('cheap(bigint)');
-- A machine that is busy elsewhere may let a few calls look dear.
DO $$
BEGIN
  FOR i IN 1..100 LOOP
    PERFORM sum(cheap(x + 1000000 * i)) FROM numbers;
    EXIT WHEN EXISTS (SELECT FROM transship.stat_cache WHERE name = 'cheap' AND off_because IS NOT NULL);
  END LOOP;
END
$$;
SELECT off_because FROM transship.stat_cache WHERE name = 'cheap';
SET transship.cache = 'always';
SELECT off_because FROM transship.stat_cache WHERE name = 'cheap';
DROP FUNCTION cheap;
-- What is altered later is not looked up any more.
CREATE TABLE results2 AS SELECT x, kept(x) AS y FROM numbers WHERE x <= 100;
ALTER FUNCTION kept(bigint) VOLATILE;
SELECT off_because FROM transship.stat_cache WHERE name = 'kept';
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
CREATE FUNCTION kept_or_said(x bigint, bad bigint, OUT value bigint, OUT error text) LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "fail_at" cache = true on_error = "report"';
SELECT x, (r).* FROM (SELECT x, kept_or_said(x, 3) AS r FROM numbers WHERE x <= 4 OFFSET 0) s;
SELECT x, (r).* FROM (SELECT x, kept_or_said(x, 3) AS r FROM numbers WHERE x <= 4 OFFSET 0) s;
SELECT * FROM calls_of('SELECT kept_or_said(x, 3) FROM numbers WHERE x <= 4');
-- What cannot be kept.
CREATE FUNCTION f(x bigint) RETURNS bigint LANGUAGE container AS 'image = "regress:1.0" function = "add_one" cache = true';
CREATE FUNCTION f(x bigint) RETURNS bigint LANGUAGE container STABLE AS 'image = "regress:1.0" function = "add_one" cache = true';
CREATE FUNCTION f(x bigint) RETURNS SETOF bigint LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "count_to" cache = true';
CREATE FUNCTION f(x bigint) RETURNS TABLE (x2 bigint, total bigint) LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "running_total" cache = true';
CREATE FUNCTION f(internal, text, text) RETURNS internal LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "join_texts" cache = true';
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
    FROM numbers WHERE x <= 200) r $$)).* FROM unnest('{auto,shm,flight,socket,json}'::text[]) t;
SELECT DISTINCT trim(line) AS line FROM calls_of('SELECT kept_texts(ARRAY[''ü'' || x, NULL, '''']), kept_numeric(x / 7.0) FROM numbers WHERE x <= 200 AND x % 4 > 0 AND x <> 7') line ORDER BY 1;
DROP FUNCTION kept_bool, kept_float4, kept_numeric, kept_bytea, kept_uuid, kept_interval, kept_timestamptz, kept_texts, kept_range, kept_season, three_times;
-- Functions of one name and other types are others, and a new image is another.
CREATE SCHEMA other;
CREATE FUNCTION other.kept(x text) RETURNS text LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "shout" cache = true';
SELECT other.kept('a'), other.kept('a'), other.kept('');
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
DROP FUNCTION version(int);
DROP SCHEMA other CASCADE;
-- Values that compare as equal, or look alike, and are not the same.
CREATE FUNCTION told(x numeric) RETURNS text LANGUAGE container IMMUTABLE AS $$
template = "python"
cache = true
source = "def told(x): return repr(x)"
$$;
CREATE FUNCTION told(x float8) RETURNS text LANGUAGE container IMMUTABLE AS $$
template = "python"
cache = true
source = "def told(x): return repr(x)"
$$;
CREATE FUNCTION told(x text) RETURNS text LANGUAGE container IMMUTABLE AS $$
template = "python"
cache = true
source = "def told(x): return repr(x)"
$$;
CREATE FUNCTION told(x timestamptz) RETURNS text LANGUAGE container IMMUTABLE AS $$
template = "python"
cache = true
source = "def told(x): return repr(x.timestamp())"
$$;
CREATE FUNCTION told(x text[]) RETURNS text LANGUAGE container IMMUTABLE AS $$
template = "python"
cache = true
source = "def told(x): return repr(x)"
$$;
CREATE TYPE colour AS ENUM ('red', 'green');
CREATE TYPE fruit AS ENUM ('green', 'red');
CREATE FUNCTION told(x colour) RETURNS colour LANGUAGE container IMMUTABLE AS $$
template = "python"
cache = true
source = "def told(x): return x"
$$;
CREATE FUNCTION told(x fruit) RETURNS fruit LANGUAGE container IMMUTABLE AS $$
template = "python"
cache = true
source = "def told(x): return x"
$$;
CREATE VIEW told_values AS
SELECT (SELECT string_agg(told(x), ' ' ORDER BY n) FROM (VALUES (1, 1.0), (2, 1.00), (3, 1), (4, 'NaN'::numeric), (5, NULL)) v (n, x)) AS numerics,
  (SELECT string_agg(told(x), ' ' ORDER BY n) FROM (VALUES (1, 0::float8), (2, '-0'), (3, 'NaN'), (4, NULL), (5, 'inf')) v (n, x)) AS floats,
  (SELECT string_agg(told(x), ' ' ORDER BY n) FROM (VALUES (1, ''), (2, NULL), (3, 'a'), (4, 'a '), (5, 'NULL')) v (n, x)) AS texts,
  (SELECT string_agg(told(x::char(3)::text), ' ' ORDER BY n) FROM (VALUES (1, 'a'), (2, 'a  ')) v (n, x)) AS chars,
  (SELECT string_agg(told(x), ' ' ORDER BY n) FROM (VALUES (1, '{}'::text[]), (2, NULL), (3, '{NULL}'), (4, '{""}'), (5, '{a,b}'), (6, '{"a,b"}')) v (n, x)) AS arrays,
  (SELECT string_agg(told(x)::text, ' ' ORDER BY told(x)) FROM (VALUES ('red'::colour), ('green'), (NULL)) v (x)) AS colours,
  (SELECT string_agg(told(x)::text, ' ' ORDER BY told(x)) FROM (VALUES ('red'::fruit), ('green'), (NULL)) v (x)) AS fruits,
  told(timestamptz '2020-06-01 00:00+00') AS moment;
\x on
SET TimeZone = 'UTC';
SELECT * FROM told_values;
SET TimeZone = 'Asia/Kolkata';
SET DateStyle = 'German';
SET extra_float_digits = 0;
SELECT * FROM told_values;
\x off
RESET TimeZone;
RESET DateStyle;
RESET extra_float_digits;
SELECT name, hits > 0 AS hits FROM transship.stat_cache WHERE name = 'told' ORDER BY 2;
ALTER TYPE colour RENAME VALUE 'red' TO 'crimson';
SELECT told(x) FROM (VALUES ('crimson'::colour), ('green')) v (x);
SELECT code, message FROM failure('SELECT told(''[0:1]={a,b}''::text[])');
DROP VIEW told_values;
DROP FUNCTION told(numeric), told(float8), told(text), told(timestamptz), told(text[]), told(colour), told(fruit);
DROP TYPE colour, fruit;
-- A database in another encoding has the same results, in its own, and refuses what it cannot say.
CREATE FUNCTION kept_text(x text) RETURNS text LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "echo_text" cache = true';
CREATE FUNCTION kept_euro(x text) RETURNS text LANGUAGE container IMMUTABLE AS $$
template = "python"
cache = true
source = "def kept_euro(x): return x and '€'"
$$;
SELECT transship.cache_reset('kept_text(text)'), transship.cache_reset('kept_euro(text)');
SELECT kept_text('größe'), kept_text('€'), kept_euro('x');
CREATE DATABASE regress_latin1_cache TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C';
SELECT current_database() AS before \gset
\c regress_latin1_cache
SET client_encoding = 'UTF8';
SET transship.cache = 'always';
SET transship.cache_timeout = '1s';
CREATE EXTENSION transship;
CREATE FUNCTION kept_text(x text) RETURNS text LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "echo_text" cache = true';
CREATE FUNCTION kept_euro(x text) RETURNS text LANGUAGE container IMMUTABLE AS $$
template = "python"
cache = true
source = "def kept_euro(x): return x and '\u20ac'"
$$;
CREATE TABLE words AS SELECT unnest('{größe,plain}'::text[]) AS t;
SELECT t, octet_length(t), kept_text(t) = t AS same, octet_length(kept_text(t)) FROM words;
SELECT name, hits > 0 AS hits FROM transship.stat_cache WHERE name = 'kept_text';
SELECT kept_euro('x');
SELECT kept_euro('x');
SELECT kept_euro(NULL) IS NULL AS null;
\c :before
DROP DATABASE regress_latin1_cache;
SET transship.cache = 'always';
SET transship.cache_timeout = '1s';
SELECT kept_text('größe'), kept_text('plain'), kept_euro('x');
DROP FUNCTION kept_text, kept_euro;
-- A server's results have an age.
\getenv endpoint ARROW_UDF_ENDPOINT
CREATE FUNCTION make_aged(endpoint text, seconds int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format('CREATE OR REPLACE FUNCTION aged(x int, y int) RETURNS int LANGUAGE container IMMUTABLE AS %L',
    format('endpoint = "%s" function = "common_divisor" cache = true cache_ttl = %s', endpoint, seconds));
END
$$;
SELECT make_aged(:'endpoint', 3600);
SELECT transship.cache_reset('aged(int, int)');
SELECT sum(aged(x::int, 36)) FROM numbers WHERE x <= 100;
SELECT * FROM calls_of('SELECT aged(x::int, 36) FROM numbers WHERE x <= 100');
SELECT pg_sleep(1.1);
SELECT make_aged(:'endpoint', 1);
SELECT * FROM calls_of('SELECT aged(x::int, 36) FROM numbers WHERE x <= 100');
DROP FUNCTION aged, make_aged;
-- A store that hangs, is killed, or starts anew: results are right all the time.
\! kill -STOP $(pgrep -P $(head -n 1 ${TRANSSHIP_SOCKET%/*}/pid) -f cache-store)
SET transship.cache_timeout = '50ms';
SELECT sum(kept_one(x)) FROM numbers;
SELECT off_because FROM transship.stat_cache WHERE name = 'kept_one';
SELECT sum(kept_one(x)) FROM numbers;
\! kill -CONT $(pgrep -P $(head -n 1 ${TRANSSHIP_SOCKET%/*}/pid) -f cache-store)
\c -
SET transship.cache = 'always';
SET transship.cache_timeout = '1s';
SELECT * FROM calls_of('SELECT kept_one(x) FROM numbers WHERE x <= 100');
\! kill -KILL $(pgrep -P $(head -n 1 ${TRANSSHIP_SOCKET%/*}/pid) -f cache-store)
SELECT sum(kept_one(x)) FROM numbers;
DO $$
BEGIN
  FOR i IN 1..200 LOOP
    BEGIN
      PERFORM transship.cache_reset('kept_one(bigint)');
      RETURN;
    EXCEPTION WHEN connection_failure OR sqlclient_unable_to_establish_sqlconnection THEN
      PERFORM pg_sleep(0.1);
    END;
  END LOOP;
END
$$;
\c -
SET transship.cache = 'always';
SET transship.cache_timeout = '1s';
SELECT sum(kept_one(x)) FROM numbers WHERE x <= 100;
SELECT * FROM calls_of('SELECT kept_one(x) FROM numbers WHERE x <= 200');
SET transship.manager_socket = '/nowhere/m.sock';
SELECT off_because FROM transship.stat_cache WHERE name = 'kept_one';
SELECT code, message, detail, hint FROM failure('SELECT transship.cache_reset(''kept_one(bigint)'')');
RESET transship.manager_socket;
DROP FUNCTION kept_or_said, kept_one;
DROP FUNCTION kept, kept_null, kept_or_not, kept_or_null, calls_of;
DROP TABLE results, results2;
