-- Fused calls: results go on as arguments without becoming SQL values. Everything is as it is without.
SET datestyle = iso;
SET timezone = 'UTC';
-- How many calls of a query's plan are fused, and how many rows it gives that it does not give without, or the other way round.
CREATE FUNCTION fused(query text, OUT fused bigint, OUT rows bigint, OUT others bigint) LANGUAGE plpgsql AS $$
DECLARE
  line text;
  plain text[];
  found text[];
BEGIN
  fused := 0;
  FOR line IN EXECUTE 'EXPLAIN (COSTS OFF) ' || query LOOP
    fused := fused + (line ~ 'Container Call:.*\(fused\)$')::int;
  END LOOP;
  EXECUTE format('SELECT array_agg(q::text) FROM (%s) q', query) INTO found;
  SET LOCAL transship.fusion = off;
  EXECUTE format('SELECT array_agg(q::text) FROM (%s) q', query) INTO plain;
  SET LOCAL transship.fusion = on;
  rows := cardinality(found);
  SELECT count(*) INTO others FROM unnest(plain, found) AS u (p, f) WHERE p IS DISTINCT FROM f;
END
$$;
CREATE FUNCTION odd_or_null(x bigint) RETURNS bigint LANGUAGE container IMMUTABLE STRICT PARALLEL SAFE COST 1000 AS $$
template = "python"
source = '''
def odd_or_null(x):
    return x if x % 2 else None
'''
$$;
CREATE FUNCTION zero_if_null(x bigint, y bigint) RETURNS bigint LANGUAGE container IMMUTABLE PARALLEL SAFE COST 1000 AS $$
template = "python"
source = '''
def zero_if_null(x, y):
    return (0 if x is None else x) * 1000 + (0 if y is None else y)
'''
$$;
CREATE FUNCTION times(text text, n bigint) RETURNS text LANGUAGE container IMMUTABLE STRICT PARALLEL SAFE COST 1000 AS $$
template = "python"
source = '''
def times(text, n):
    return text * n
'''
$$;
CREATE FUNCTION length_of(t text) RETURNS bigint LANGUAGE container IMMUTABLE STRICT PARALLEL SAFE COST 1000 AS $$
template = "python"
source = '''
def length_of(t):
    if t.startswith("bad"):
        raise ValueError("a bad text")
    return len(t)
'''
$$;
EXPLAIN (VERBOSE, COSTS OFF) SELECT add(add_one(x), y) FROM numbers;
EXPLAIN (VERBOSE, COSTS OFF) SELECT add(add_one(x), odd_or_null(x)), add_one(x) FROM numbers WHERE x < 5;
SELECT x, add(add_one(x), odd_or_null(x)), zero_if_null(odd_or_null(x), y) FROM numbers WHERE x < 5;
-- NULL among the results, for functions that are STRICT and that are not; two and three levels; a result that is also shown, used twice, or not.
SELECT * FROM fused('SELECT x, add(add_one(x), odd_or_null(x)) FROM numbers');
SELECT * FROM fused('SELECT x, add_one(odd_or_null(add_one(x))) FROM numbers');
SELECT * FROM fused('SELECT x, zero_if_null(odd_or_null(x), y), odd_or_null(x) FROM numbers');
SELECT * FROM fused('SELECT x, zero_if_null(add_one(odd_or_null(x)), odd_or_null(y)), add(y, odd_or_null(x)) FROM numbers');
SELECT * FROM fused('SELECT x, add(odd_or_null(x), odd_or_null(x)), add(odd_or_null(x), 7), add(7, add_one(odd_or_null(x))) FROM numbers');
SELECT * FROM fused('SELECT x, is_null(odd_or_null(x)), shout(times(t, 2)), length_of(times(t, odd_or_null(x) % 3)) FROM numbers');
SELECT * FROM fused('SELECT count(*), sum(add(add_one(x), odd_or_null(x))), max(zero_if_null(odd_or_null(x), y)) FROM numbers');
SELECT * FROM fused('SELECT y, sum(add_one(odd_or_null(x))) FILTER (WHERE add_one(add_one(y)) > 5) FROM numbers GROUP BY y ORDER BY y');
SELECT * FROM fused('SELECT x FROM numbers WHERE add_one(odd_or_null(x)) % 3 = 0');
SELECT * FROM fused('SELECT a.x, b.x AS other FROM numbers a JOIN numbers b ON add_one(add_one(a.x)) = add_one(odd_or_null(b.x)) WHERE a.x < 500 ORDER BY 1');
SELECT * FROM fused('SELECT x, sum(add_one(odd_or_null(x))) OVER (PARTITION BY y ORDER BY x) FROM numbers ORDER BY x');
-- Columns that are of no use behind the arguments.
SELECT * FROM fused('SELECT sum(add(add_one(a), add_one(b))), count(c) FROM (SELECT x AS a, x AS b, t AS c FROM numbers) s');
-- Rows for which calls are not made.
SELECT * FROM fused('SELECT x, CASE WHEN y < 3 THEN add_one(odd_or_null(x)) WHEN y < 6 THEN odd_or_null(x) END FROM numbers');
SELECT * FROM fused('SELECT x, CASE WHEN y < 0 THEN zero_if_null(odd_or_null(x), y) END, zero_if_null(NULL, add_one(x)) FROM numbers');
SELECT * FROM fused('SELECT x, y < 5 AND add_one(odd_or_null(x)) > 20, COALESCE(odd_or_null(x), add_one(add_one(x))) FROM numbers');
SELECT * FROM fused('SELECT add_one(odd_or_null(2 * x)), zero_if_null(odd_or_null(2 * x), x) FROM numbers');
-- Not fused: an expression between, VOLATILE calls, a filter in between, a condition on an inner result, a set.
SELECT * FROM fused('SELECT add_one(odd_or_null(x) + 1) FROM numbers');
SELECT * FROM fused('SELECT add_one_volatile(add_one(x)), add_one(add_one_volatile(x)) FROM numbers');
SELECT * FROM fused('SELECT add_one(s) FROM (SELECT x, odd_or_null(x) AS s FROM numbers OFFSET 0) n WHERE s > 100');
SELECT * FROM fused('SELECT CASE WHEN odd_or_null(x) > 100 THEN add_one(odd_or_null(x)) END FROM numbers');
-- LIMIT, cursors, nodes that start anew, and prepared and parallel statements.
SELECT * FROM fused('SELECT x, add_one(odd_or_null(x)) FROM numbers LIMIT 7 OFFSET 130');
SELECT * FROM fused('SELECT n, l.* FROM generate_series(1, 50) n, LATERAL (SELECT x, zero_if_null(odd_or_null(x), n) FROM numbers WHERE x >= n * 100 LIMIT 1 + n % 4) l');
SELECT * FROM fused('SELECT x, (SELECT max(add(add_one(n.x), odd_or_null(m.x))) FROM numbers m WHERE m.x < n.x) FROM numbers n WHERE x < 40');
BEGIN;
DECLARE c SCROLL CURSOR FOR SELECT x, add_one(odd_or_null(x)) FROM numbers;
FETCH 3 FROM c;
FETCH ABSOLUTE 2001 FROM c;
FETCH BACKWARD 2 FROM c;
COMMIT;
PREPARE again(bigint) AS SELECT sum(add(add_one(x), $1)), sum(add($1, odd_or_null(x))) FROM numbers;
EXECUTE again(1);
EXECUTE again(NULL);
SET plan_cache_mode = force_generic_plan;
EXECUTE again(2);
EXECUTE again(NULL);
RESET plan_cache_mode;
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
SELECT * FROM fused('SELECT sum(add_one(odd_or_null(x))), count(*) FROM numbers');
RESET parallel_setup_cost;
RESET parallel_tuple_cost;
RESET min_parallel_table_scan_size;
-- Batches of one row and of three, and calls without batches.
SET transship.batch_rows = 1;
SELECT * FROM fused('SELECT x, add_one(odd_or_null(x)), zero_if_null(odd_or_null(x), y) FROM numbers WHERE x <= 50');
SET transship.batch_rows = 3;
SELECT * FROM fused('SELECT x, add_one(odd_or_null(x)), zero_if_null(odd_or_null(x), y) FROM numbers WHERE x <= 50');
RESET transship.batch_rows;
-- Every transport.
SET transship.transport = flight;
SELECT * FROM fused('SELECT x, add_one(odd_or_null(x)), shout(times(t, 2)) FROM numbers');
SET transship.transport = json;
SELECT * FROM fused('SELECT x, add_one(odd_or_null(x)), shout(times(t, 2)) FROM numbers');
SET transship.transport = socket;
SELECT * FROM fused('SELECT x, add_one(odd_or_null(x)), shout(times(t, 2)) FROM numbers');
RESET transship.transport;
-- Results that are much larger than what they were made of are sent on in pieces.
SET transship.batch_size = '64kB';
SELECT * FROM fused('SELECT x, length_of(times(t, 1000)) FROM numbers WHERE x <= 600');
SELECT * FROM fused('SELECT x, length_of(times(shout(t), 1000)), md5(shout(times(t, 1000))) FROM numbers WHERE x <= 600');
SELECT code, message, context FROM failure($$SELECT length_of(times(CASE x WHEN 123 THEN 'bad' ELSE t END, 1000)) FROM numbers$$);
RESET transship.batch_size;
-- So are those that came as a dictionary: equal texts, which are sent once, are spelled out in pieces.
CREATE FUNCTION page(n bigint) RETURNS text LANGUAGE container IMMUTABLE STRICT PARALLEL SAFE COST 1000 AS $$
template = "python"
source = '''
import time

def page(n):
    time.sleep(0.001)
    return str(n) * 100000
'''
$$;
SET transship.batch_size = '1MB';
SELECT * FROM fused('SELECT x, length_of(page(x % 4)) FROM numbers WHERE x <= 1000');
SELECT * FROM fused('SELECT x, md5(shout(shout(page(x % 4)))) FROM numbers WHERE x <= 600');
RESET transship.batch_size;
-- Functions with bounds of rows of their own are not fused with others.
CREATE FUNCTION add_one_by_ten(x bigint) RETURNS bigint LANGUAGE container IMMUTABLE STRICT AS 'image = "regress:1.0" function = "add_one" max_batch_rows = 10';
SELECT * FROM fused('SELECT x, add_one_by_ten(odd_or_null(x)), odd_or_null(add_one_by_ten(x)) FROM numbers WHERE x <= 1000');
SELECT * FROM fused('SELECT x, add_one_by_ten(add_one_by_ten(x)) FROM numbers WHERE x <= 100');
-- The results of one batch, which came in pieces, are bounded together.
CREATE FUNCTION longer(t text) RETURNS text LANGUAGE container IMMUTABLE STRICT AS $$
template = "python"
source = '''
def longer(t):
    return t * 8
'''
$$;
SET transship.batch_size = '1MB';
SET transship.max_reply_size = '16MB';
SELECT code, message, detail, hint FROM failure('SELECT max(longer(times(t, 4000))) FROM numbers WHERE x > 20000');
SET transship.fusion = off;
SELECT length(max(longer(times(t, 4000)))) FROM numbers WHERE x > 20000;
RESET transship.fusion;
RESET transship.max_reply_size;
RESET transship.batch_size;
-- A call that takes results of two nodes is made once per row, with all of it in one batch.
CREATE FUNCTION calls_made(query text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
  line text;
BEGIN
  FOR line IN EXECUTE 'EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) ' || query LOOP
    IF line ~ '^ *(Calls|Container Call):' THEN
      RETURN NEXT trim(line);
    END IF;
  END LOOP;
END
$$;
SET enable_sort = off;
SELECT * FROM calls_made('SELECT add_one(y), sum(add(add_one(y), odd_or_null(x))) FROM numbers WHERE x <= 100 GROUP BY add_one(y)');
SELECT * FROM fused('SELECT add_one(y) AS g, sum(add(add_one(y), odd_or_null(x))) FROM numbers GROUP BY add_one(y) ORDER BY 1');
RESET enable_sort;
SELECT * FROM calls_made('SELECT add(s, add_one(n.y)) FROM numbers n, LATERAL odd_or_null(n.x) AS s WHERE n.x <= 100');
SELECT * FROM fused('SELECT n.x, add(s, add_one(n.y)) FROM numbers n, LATERAL odd_or_null(n.x) AS s');
-- Errors name the function and the row of the scan, whichever rows were left out.
SELECT code, message, context FROM failure('SELECT fail_at(odd_or_null(x), 20001) FROM numbers');
SELECT code, message, context FROM failure('SELECT fail_at(add_one(x), 20001) FROM numbers WHERE y <> 3');
SELECT code, message, context FROM failure('SELECT add_one(fail_at(odd_or_null(x), 20001)) FROM numbers');
SELECT code, message, context FROM failure('SELECT CASE WHEN y = 1 THEN fail_at(odd_or_null(x), 20001) END FROM numbers');
-- Errors that become NULL.
CREATE FUNCTION odd_or_error(x bigint) RETURNS bigint LANGUAGE container IMMUTABLE STRICT PARALLEL SAFE COST 1000 AS $$
template = "python"
on_error = "null"
source = '''
def odd_or_error(x):
    return x if x % 2 else None + 1
'''
$$;
SELECT * FROM fused('SELECT x, add_one(odd_or_error(x)), odd_or_error(odd_or_null(x)), zero_if_null(odd_or_error(x), y) FROM numbers WHERE x <= 2000');
-- Equal rows, and results that are kept.
CREATE FUNCTION kept_times(text text, n bigint) RETURNS text LANGUAGE container IMMUTABLE STRICT PARALLEL SAFE COST 1000 AS $$
template = "python"
cache = true
source = '''
def kept_times(text, n):
    return text * n
'''
$$;
SET transship.cache = always;
SET transship.cache_timeout = '1s';
SELECT * FROM fused('SELECT x, shout(kept_times(''n'' || y, y)), kept_times(shout(t), y) FROM numbers');
SELECT * FROM fused('SELECT x, shout(kept_times(''n'' || y, y)), kept_times(kept_times(t, 1), y) FROM numbers');
RESET transship.cache;
RESET transship.cache_timeout;
-- What PostgreSQL cannot hold is an error, although no SQL value is made of it.
CREATE FUNCTION with_nul(t text) RETURNS text LANGUAGE container IMMUTABLE STRICT AS $$
template = "python"
source = '''
def with_nul(t):
    return "\0" if t == "n2000" else t
'''
$$;
CREATE FUNCTION far_date(x bigint) RETURNS date LANGUAGE container IMMUTABLE STRICT AS $$
template = "python"
batch = "arrow"
source = '''
import pyarrow as pa

def far_date(x):
    return pa.array([-2**31 + 7 if n == 3000 else n for n in x.to_pylist()], pa.int32()).cast(pa.date32())
'''
$$;
CREATE FUNCTION passed(x date) RETURNS date LANGUAGE container IMMUTABLE STRICT AS 'image = "regress:1.0" function = "pass_date"';
SELECT * FROM fused('SELECT passed(far_date(x)), passed(passed(far_date(x + 1))) FROM numbers WHERE x < 2999');
SELECT code, message, detail, context FROM failure('SELECT count(shout(with_nul(t))) FROM numbers');
SELECT code, message, detail, context FROM failure('SELECT count(passed(far_date(x))) FROM numbers WHERE y > 0 OR x = 3000');
SELECT code, message, detail, context FROM failure('SELECT count(CASE WHEN x < 10 THEN passed(far_date(x)) END), max(far_date(x)) FROM numbers');
-- Who may not execute the inner function may not call it.
CREATE ROLE fusing_user;
GRANT SELECT ON numbers TO fusing_user;
REVOKE EXECUTE ON FUNCTION odd_or_null(bigint) FROM PUBLIC;
SET ROLE fusing_user;
SELECT add_one(odd_or_null(x)) FROM numbers;
RESET ROLE;
GRANT EXECUTE ON FUNCTION odd_or_null(bigint) TO PUBLIC;
REVOKE SELECT ON numbers FROM fusing_user;
DROP ROLE fusing_user;
-- Every type, at its boundaries: those whose values are the same again are fused.
CREATE FUNCTION fuse_bool(x bool) RETURNS bool LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "pass_bool"';
CREATE FUNCTION fuse_echo_bool(x bool) RETURNS bool LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "echo_bool"';
CREATE TABLE fuse_v_bool AS SELECT v::bool FROM (VALUES (true), (false), (NULL)) s (v);
SELECT 'bool' AS type, * FROM fused($$SELECT v, fuse_bool(fuse_echo_bool(v)), fuse_bool(fuse_bool(fuse_echo_bool(v))) FROM fuse_v_bool$$);
SELECT count(*) FROM fuse_v_bool WHERE fuse_bool(fuse_echo_bool(v))::text IS DISTINCT FROM v::text;
CREATE FUNCTION fuse_int2(x int2) RETURNS int2 LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "pass_int2"';
CREATE FUNCTION fuse_echo_int2(x int2) RETURNS int2 LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "echo_int2"';
CREATE TABLE fuse_v_int2 AS SELECT v::int2 FROM (VALUES ('-32768'::int2), (0), (32767), (NULL)) s (v);
SELECT 'int2' AS type, * FROM fused($$SELECT v, fuse_int2(fuse_echo_int2(v)), fuse_int2(fuse_int2(fuse_echo_int2(v))) FROM fuse_v_int2$$);
SELECT count(*) FROM fuse_v_int2 WHERE fuse_int2(fuse_echo_int2(v))::text IS DISTINCT FROM v::text;
CREATE FUNCTION fuse_int4(x int4) RETURNS int4 LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "pass_int4"';
CREATE FUNCTION fuse_echo_int4(x int4) RETURNS int4 LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "echo_int4"';
CREATE TABLE fuse_v_int4 AS SELECT v::int4 FROM (VALUES ('-2147483648'::int4), (0), (2147483647), (NULL)) s (v);
SELECT 'int4' AS type, * FROM fused($$SELECT v, fuse_int4(fuse_echo_int4(v)), fuse_int4(fuse_int4(fuse_echo_int4(v))) FROM fuse_v_int4$$);
SELECT count(*) FROM fuse_v_int4 WHERE fuse_int4(fuse_echo_int4(v))::text IS DISTINCT FROM v::text;
CREATE FUNCTION fuse_int8(x int8) RETURNS int8 LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "pass_int8"';
CREATE FUNCTION fuse_echo_int8(x int8) RETURNS int8 LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "echo_int8"';
CREATE TABLE fuse_v_int8 AS SELECT v::int8 FROM (VALUES ('-9223372036854775808'::int8), (9007199254740993), (9223372036854775807), (NULL)) s (v);
SELECT 'int8' AS type, * FROM fused($$SELECT v, fuse_int8(fuse_echo_int8(v)), fuse_int8(fuse_int8(fuse_echo_int8(v))) FROM fuse_v_int8$$);
SELECT count(*) FROM fuse_v_int8 WHERE fuse_int8(fuse_echo_int8(v))::text IS DISTINCT FROM v::text;
CREATE FUNCTION fuse_float4(x float4) RETURNS float4 LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "pass_float4"';
CREATE FUNCTION fuse_echo_float4(x float4) RETURNS float4 LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "echo_float4"';
CREATE TABLE fuse_v_float4 AS SELECT v::float4 FROM (VALUES ('-0'::float4), (3.4028235e38), ('1e-45'), ('NaN'), ('-Infinity'), (NULL)) s (v);
SELECT 'float4' AS type, * FROM fused($$SELECT v, fuse_float4(fuse_echo_float4(v)), fuse_float4(fuse_float4(fuse_echo_float4(v))) FROM fuse_v_float4$$);
SELECT count(*) FROM fuse_v_float4 WHERE fuse_float4(fuse_echo_float4(v))::text IS DISTINCT FROM v::text;
CREATE FUNCTION fuse_float8(x float8) RETURNS float8 LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "pass_float8"';
CREATE FUNCTION fuse_echo_float8(x float8) RETURNS float8 LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "echo_float8"';
CREATE TABLE fuse_v_float8 AS SELECT v::float8 FROM (VALUES ('-0'::float8), (0.1), ('5e-324'), ('NaN'), ('Infinity'), (NULL)) s (v);
SELECT 'float8' AS type, * FROM fused($$SELECT v, fuse_float8(fuse_echo_float8(v)), fuse_float8(fuse_float8(fuse_echo_float8(v))) FROM fuse_v_float8$$);
SELECT count(*) FROM fuse_v_float8 WHERE fuse_float8(fuse_echo_float8(v))::text IS DISTINCT FROM v::text;
CREATE FUNCTION fuse_text(x text) RETURNS text LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "pass_text"';
CREATE FUNCTION fuse_echo_text(x text) RETURNS text LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "echo_text"';
CREATE TABLE fuse_v_text AS SELECT v::text FROM (VALUES (''::text), ('Grüße 🚢'), (E'a\tb\n"\\'), (repeat('x', 100000)), (NULL)) s (v);
SELECT 'text' AS type, * FROM fused($$SELECT v, fuse_text(fuse_echo_text(v)), fuse_text(fuse_text(fuse_echo_text(v))) FROM fuse_v_text$$);
SELECT count(*) FROM fuse_v_text WHERE fuse_text(fuse_echo_text(v))::text IS DISTINCT FROM v::text;
CREATE FUNCTION fuse_varchar(x varchar) RETURNS varchar LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "pass_text"';
CREATE FUNCTION fuse_echo_varchar(x varchar) RETURNS varchar LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "echo_text"';
CREATE TABLE fuse_v_varchar AS SELECT v::varchar FROM (VALUES (''::varchar), ('ü '), (NULL)) s (v);
SELECT 'varchar' AS type, * FROM fused($$SELECT v, fuse_varchar(fuse_echo_varchar(v)), fuse_varchar(fuse_varchar(fuse_echo_varchar(v))) FROM fuse_v_varchar$$);
SELECT count(*) FROM fuse_v_varchar WHERE fuse_varchar(fuse_echo_varchar(v))::text IS DISTINCT FROM v::text;
CREATE FUNCTION fuse_bytea(x bytea) RETURNS bytea LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "pass_bytea"';
CREATE FUNCTION fuse_echo_bytea(x bytea) RETURNS bytea LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "echo_bytea"';
CREATE TABLE fuse_v_bytea AS SELECT v::bytea FROM (VALUES (''::bytea), ('\x00ff0a'), (decode(repeat('00ff', 50000), 'hex')), (NULL)) s (v);
SELECT 'bytea' AS type, * FROM fused($$SELECT v, fuse_bytea(fuse_echo_bytea(v)), fuse_bytea(fuse_bytea(fuse_echo_bytea(v))) FROM fuse_v_bytea$$);
SELECT count(*) FROM fuse_v_bytea WHERE fuse_bytea(fuse_echo_bytea(v))::text IS DISTINCT FROM v::text;
CREATE FUNCTION fuse_date(x date) RETURNS date LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "pass_date"';
CREATE FUNCTION fuse_echo_date(x date) RETURNS date LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "pass_date"';
CREATE TABLE fuse_v_date AS SELECT v::date FROM (VALUES ('4713-01-01 BC'::date), ('1969-12-31'), ('5874897-12-31'), ('infinity'), ('-infinity'), (NULL)) s (v);
SELECT 'date' AS type, * FROM fused($$SELECT v, fuse_date(fuse_echo_date(v)), fuse_date(fuse_date(fuse_echo_date(v))) FROM fuse_v_date$$);
SELECT count(*) FROM fuse_v_date WHERE fuse_date(fuse_echo_date(v))::text IS DISTINCT FROM v::text;
CREATE FUNCTION fuse_time(x time) RETURNS time LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "pass_time"';
CREATE FUNCTION fuse_echo_time(x time) RETURNS time LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "pass_time"';
CREATE TABLE fuse_v_time AS SELECT v::time FROM (VALUES ('00:00'::time), ('23:59:59.999999'), ('24:00'), (NULL)) s (v);
SELECT 'time' AS type, * FROM fused($$SELECT v, fuse_time(fuse_echo_time(v)), fuse_time(fuse_time(fuse_echo_time(v))) FROM fuse_v_time$$);
SELECT count(*) FROM fuse_v_time WHERE fuse_time(fuse_echo_time(v))::text IS DISTINCT FROM v::text;
CREATE FUNCTION fuse_timestamp(x timestamp) RETURNS timestamp LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "pass_timestamp"';
CREATE FUNCTION fuse_echo_timestamp(x timestamp) RETURNS timestamp LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "pass_timestamp"';
CREATE TABLE fuse_v_timestamp AS SELECT v::timestamp FROM (VALUES ('4713-01-01 BC'::timestamp), ('1969-12-31 23:59:59.999999'), ('294246-12-31 23:59:59.999999'), ('infinity'), ('-infinity'), (NULL)) s (v);
SELECT 'timestamp' AS type, * FROM fused($$SELECT v, fuse_timestamp(fuse_echo_timestamp(v)), fuse_timestamp(fuse_timestamp(fuse_echo_timestamp(v))) FROM fuse_v_timestamp$$);
SELECT count(*) FROM fuse_v_timestamp WHERE fuse_timestamp(fuse_echo_timestamp(v))::text IS DISTINCT FROM v::text;
CREATE FUNCTION fuse_timestamptz(x timestamptz) RETURNS timestamptz LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "pass_timestamptz"';
CREATE FUNCTION fuse_echo_timestamptz(x timestamptz) RETURNS timestamptz LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "pass_timestamptz"';
CREATE TABLE fuse_v_timestamptz AS SELECT v::timestamptz FROM (VALUES ('4713-01-02 00:00+00 BC'::timestamptz), ('2013-01-01 05:15:00.000001-05'), ('294246-12-30 00:00+00'), ('infinity'), (NULL)) s (v);
SELECT 'timestamptz' AS type, * FROM fused($$SELECT v, fuse_timestamptz(fuse_echo_timestamptz(v)), fuse_timestamptz(fuse_timestamptz(fuse_echo_timestamptz(v))) FROM fuse_v_timestamptz$$);
SELECT count(*) FROM fuse_v_timestamptz WHERE fuse_timestamptz(fuse_echo_timestamptz(v))::text IS DISTINCT FROM v::text;
CREATE FUNCTION fuse_uuid(x uuid) RETURNS uuid LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "pass_uuid"';
CREATE FUNCTION fuse_echo_uuid(x uuid) RETURNS uuid LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "echo_uuid"';
CREATE TABLE fuse_v_uuid AS SELECT v::uuid FROM (VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid), ('00000000-0000-0000-0000-000000000000'), (NULL)) s (v);
SELECT 'uuid' AS type, * FROM fused($$SELECT v, fuse_uuid(fuse_echo_uuid(v)), fuse_uuid(fuse_uuid(fuse_echo_uuid(v))) FROM fuse_v_uuid$$);
SELECT count(*) FROM fuse_v_uuid WHERE fuse_uuid(fuse_echo_uuid(v))::text IS DISTINCT FROM v::text;
CREATE FUNCTION fuse_numeric(x numeric) RETURNS numeric LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "pass_numeric"';
CREATE FUNCTION fuse_echo_numeric(x numeric) RETURNS numeric LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "echo_numeric"';
CREATE TABLE fuse_v_numeric AS SELECT v::numeric FROM (VALUES (1.500::numeric), ('NaN'), (NULL)) s (v);
SELECT 'numeric' AS type, * FROM fused($$SELECT v, fuse_numeric(fuse_echo_numeric(v)), fuse_numeric(fuse_numeric(fuse_echo_numeric(v))) FROM fuse_v_numeric$$);
SELECT count(*) FROM fuse_v_numeric WHERE fuse_numeric(fuse_echo_numeric(v))::text IS DISTINCT FROM v::text;
CREATE FUNCTION fuse_json(x json) RETURNS json LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "pass_json"';
CREATE FUNCTION fuse_echo_json(x json) RETURNS json LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "echo_json"';
CREATE TABLE fuse_v_json AS SELECT v::json FROM (VALUES ('{"a": [1, 2.5]}'::json), (NULL)) s (v);
SELECT 'json' AS type, * FROM fused($$SELECT v, fuse_json(fuse_echo_json(v)), fuse_json(fuse_json(fuse_echo_json(v))) FROM fuse_v_json$$);
SELECT count(*) FROM fuse_v_json WHERE fuse_json(fuse_echo_json(v))::text IS DISTINCT FROM v::text;
CREATE FUNCTION fuse_interval(x interval) RETURNS interval LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "pass_interval"';
CREATE FUNCTION fuse_echo_interval(x interval) RETURNS interval LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "echo_interval"';
CREATE TABLE fuse_v_interval AS SELECT v::interval FROM (VALUES ('1 mon -3 days 4.000005 s'::interval), (NULL)) s (v);
SELECT 'interval' AS type, * FROM fused($$SELECT v, fuse_interval(fuse_echo_interval(v)), fuse_interval(fuse_interval(fuse_echo_interval(v))) FROM fuse_v_interval$$);
SELECT count(*) FROM fuse_v_interval WHERE fuse_interval(fuse_echo_interval(v))::text IS DISTINCT FROM v::text;
CREATE FUNCTION fuse_int4s(x int4[]) RETURNS int4[] LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "pass_ints"';
CREATE FUNCTION fuse_echo_int4s(x int4[]) RETURNS int4[] LANGUAGE container IMMUTABLE AS 'image = "regress:1.0" function = "echo_ints"';
CREATE TABLE fuse_v_int4s AS SELECT v::int4[] FROM (VALUES ('{1,NULL,3}'::int4[]), ('{}'), (NULL)) s (v);
SELECT 'int4[]' AS type, * FROM fused($$SELECT v, fuse_int4s(fuse_echo_int4s(v)), fuse_int4s(fuse_int4s(fuse_echo_int4s(v))) FROM fuse_v_int4s$$);
SELECT count(*) FROM fuse_v_int4s WHERE fuse_int4s(fuse_echo_int4s(v))::text IS DISTINCT FROM v::text;
-- A call whose arguments are the same call twice, and so on: each is made once, and the plan stays small.
CREATE FUNCTION fuse_add(a bigint, b bigint) RETURNS bigint LANGUAGE container IMMUTABLE STRICT AS E'image = "regress:1.0"\nfunction = "add"';
CREATE FUNCTION fuse_doubled(levels int) RETURNS TABLE (x bigint, v bigint) LANGUAGE plpgsql AS $$
BEGIN
  RETURN QUERY EXECUTE 'SELECT n.x, l' || levels || '.v FROM (SELECT x FROM numbers WHERE x <= 3) n CROSS JOIN LATERAL fuse_add(n.x, n.x) AS l1 (v) '
    || (SELECT string_agg(format('CROSS JOIN LATERAL fuse_add(l%s.v, l%1$s.v) AS l%s (v)', i - 1, i), ' ') FROM generate_series(2, levels) i);
END
$$;
SELECT * FROM fuse_doubled(30);
DROP FUNCTION fuse_doubled, fuse_add;
RESET datestyle;
RESET timezone;
