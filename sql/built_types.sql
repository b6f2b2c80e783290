-- Arrays, ranges, composite types, enums, domains, and the base types that travel as text or in parts.
CREATE TYPE point2 AS (x float8, y float8);
CREATE TYPE line2 AS (name text, ends point2[], at timestamptz);
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE DOMAIN positive AS int4 CHECK (VALUE > 0);
CREATE DOMAIN short AS varchar(3) NOT NULL;
DO $$
DECLARE
  kind text[];
BEGIN
  FOREACH kind SLICE 1 IN ARRAY ARRAY[
    ['time', 'time'], ['timetz', 'timetz'], ['interval', 'interval'], ['inet', 'inet'], ['cidr', 'cidr'], ['macaddr', 'macaddr'],
    ['ints', 'int4[]'], ['texts', 'text[]'], ['uuids', 'uuid[]'], ['numerics', 'numeric[]'], ['int8range', 'int8range'],
    ['tstzrange', 'tstzrange'], ['numrange', 'numrange'], ['point', 'point2'], ['line', 'line2'], ['ranges', 'daterange[]']]
  LOOP
    EXECUTE format($f$CREATE FUNCTION echo_%1$s(x %2$s) RETURNS %2$s LANGUAGE container AS 'image = "regress:1.0"'$f$, kind[1], kind[2]);
    EXECUTE format($f$CREATE FUNCTION pass_%1$s(x %2$s) RETURNS %2$s LANGUAGE container AS 'image = "regress:1.0"'$f$, kind[1], kind[2]);
  END LOOP;
END
$$;
CREATE TABLE v_time AS SELECT * FROM (VALUES ('00:00'::time), ('23:59:59.999999'), ('12:30:00.5'), (NULL)) s (v);
CREATE TABLE v_timetz AS SELECT * FROM (VALUES ('00:00+00'::timetz), ('23:59:59.999999-05:30'), ('12:30:00.5+02'), ('01:02:03+12:34:56'), (NULL)) s (v);
CREATE TABLE v_interval AS SELECT * FROM (VALUES ('0'::interval), ('1 year 2 mons -3 days 04:05:06.000007'), ('-178000000 years'), ('-2562047:47:16.854775'), (NULL)) s (v);
CREATE TABLE v_inet AS SELECT * FROM (VALUES ('192.168.1.5/24'::inet), ('10.0.0.1'), ('::1'), ('fe80::1/64'), (NULL)) s (v);
CREATE TABLE v_cidr AS SELECT * FROM (VALUES ('10.0.0.0/8'::cidr), ('2001:db8::/32'), ('1.2.3.4'), (NULL)) s (v);
CREATE TABLE v_macaddr AS SELECT * FROM (VALUES ('08:00:2b:01:02:03'::macaddr), (NULL)) s (v);
CREATE TABLE v_ints AS SELECT * FROM (VALUES ('{}'::int4[]), ('{1}'), ('{1,NULL,-2147483648}'), (NULL)) s (v);
CREATE TABLE v_texts AS SELECT * FROM (VALUES ('{}'::text[]), ('{"",NULL,"NULL","a,b\"{}"}'), (ARRAY[repeat('x', 100000)]), (NULL)) s (v);
CREATE TABLE v_uuids AS SELECT * FROM (VALUES ('{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11,NULL}'::uuid[]), (NULL)) s (v);
CREATE TABLE v_numerics AS SELECT * FROM (VALUES ('{1.50,NULL,NaN,12345678901234567890.123456789,Infinity}'::numeric[]), (NULL)) s (v);
CREATE TABLE v_int8range AS SELECT * FROM (VALUES ('[1,5)'::int8range), ('empty'), ('(,)'), ('[3,)'), (NULL)) s (v);
CREATE TABLE v_tstzrange AS SELECT * FROM (VALUES ('[2000-01-01 00:00+00,2001-01-01 00:00+00]'::tstzrange), ('(,2000-01-01 00:00+00)'), (NULL)) s (v);
CREATE TABLE v_numrange AS SELECT * FROM (VALUES ('(1.50,2.5]'::numrange), ('[0,0]'), (NULL)) s (v);
CREATE TABLE v_point AS SELECT * FROM (VALUES ('(1,-0.5)'::point2), ('(,)'), ('(NaN,Infinity)'), (NULL)) s (v);
CREATE TABLE v_line AS SELECT * FROM (VALUES (ROW('a "b"', ARRAY[(1, 2)::point2, NULL, ROW(NULL, 3)::point2], '2013-01-01 05:15+00')::line2), (ROW(NULL, '{}', NULL)::line2), (NULL)) s (v);
CREATE TABLE v_ranges AS SELECT * FROM (VALUES (ARRAY['[2000-01-01,2000-02-01)'::daterange, NULL, 'empty']), (NULL)) s (v);
CREATE FUNCTION both_ways(kind text, OUT n int, OUT echo text, OUT pass text) LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format('SELECT count(*), CASE WHEN bool_and(e::text IS NOT DISTINCT FROM v::text) THEN ''same'' ELSE string_agg(e::text, '' '') END,
    CASE WHEN bool_and(p::text IS NOT DISTINCT FROM v::text) THEN ''same'' ELSE string_agg(p::text, '' '') END
    FROM (SELECT v, echo_%1$s(v) AS e, pass_%1$s(v) AS p FROM v_%1$s OFFSET 0) s', kind) INTO n, echo, pass;
END
$$;
SET transship.transport = shm;
SELECT kind, both_ways(kind) FROM unnest('{time,timetz,interval,inet,cidr,macaddr,ints,texts,uuids,numerics,int8range,tstzrange,numrange,point,line,ranges}'::text[]) kind;
SET transship.transport = flight;
SELECT kind, both_ways(kind) FROM unnest('{time,timetz,interval,inet,cidr,macaddr,ints,texts,uuids,numerics,int8range,tstzrange,numrange,point,line,ranges}'::text[]) kind;
SET transship.transport = socket;
SELECT kind, both_ways(kind) FROM unnest('{time,timetz,interval,inet,cidr,macaddr,ints,texts,uuids,numerics,int8range,tstzrange,numrange,point,line,ranges}'::text[]) kind;
SET transship.transport = json;
SELECT kind, both_ways(kind) FROM unnest('{time,timetz,interval,inet,cidr,macaddr,ints,texts,uuids,numerics,int8range,tstzrange,numrange,point,line,ranges}'::text[]) kind;
-- Values that nest have no form in Parquet files, and intervals have none.
SET transship.transport = parquet;
SELECT kind, both_ways(kind) FROM unnest('{time,timetz,inet,cidr,macaddr}'::text[]) kind;
SELECT both_ways('interval');
SELECT both_ways('ints');
RESET transship.transport;
-- What Python or Arrow cannot hold.
SELECT pass_time('24:00'), pass_interval('1 day 24:00');
SELECT code, message, detail FROM failure($$SELECT echo_time('24:00')$$);
SELECT code, message, detail FROM failure($$SELECT pass_interval('2562047788:00:00')$$);
SELECT code, message, detail FROM failure($$SELECT pass_ints('{{1,2},{3,4}}')$$);
SELECT code, message, detail FROM failure($$SELECT pass_ints('[0:1]={1,2}')$$);
-- Enums, domains, name, char with length, xml: as text; results are checked.
CREATE FUNCTION echo_mood(x mood) RETURNS mood LANGUAGE container AS E'image = "regress:1.0"\nfunction = "echo_text"';
CREATE FUNCTION to_mood(x text) RETURNS mood LANGUAGE container AS E'image = "regress:1.0"\nfunction = "echo_text"';
CREATE FUNCTION to_positive(x int) RETURNS positive LANGUAGE container AS E'image = "regress:1.0"\nfunction = "echo_int4"';
CREATE FUNCTION to_positives(x int[]) RETURNS positive[] LANGUAGE container AS E'image = "regress:1.0"\nfunction = "echo_ints"';
CREATE FUNCTION to_short(x text) RETURNS short LANGUAGE container AS E'image = "regress:1.0"\nfunction = "echo_text"';
CREATE FUNCTION echo_name(x name) RETURNS name LANGUAGE container AS E'image = "regress:1.0"\nfunction = "echo_text"';
SELECT echo_mood('happy'), to_mood('sad') < 'ok', to_positive(3), to_positives('{1,2}'), to_short('abc'), echo_name('n');
SELECT * FROM failure($$SELECT to_mood(t) FROM numbers$$);
SELECT code, message, context FROM failure($$SELECT to_positive(5 - x::int) FROM numbers$$);
SELECT code, message, context FROM failure($$SELECT to_positives('{1,0}')$$);
SELECT code, message, context FROM failure($$SELECT to_short('abcd')$$);
SELECT code, message, context FROM failure($$SELECT to_short(NULL)$$);
-- A composite type that changes under a function.
SELECT echo_point((1, 2));
ALTER TYPE point2 ADD ATTRIBUTE z int;
SELECT code, message FROM failure($$SELECT echo_point((1, 2, 3))$$);
ALTER TYPE point2 DROP ATTRIBUTE z;
SELECT echo_point((1, 2)), pass_line(v) FROM v_line;
SELECT v, pass_point(v) FROM v_point;
-- Attributes of every kind that goes into columns at once, of two arguments; a NULL is not a row of NULLs.
CREATE TYPE mixed AS (a smallint, b text, dropped int, c boolean, d timestamptz, e bytea, f date);
ALTER TYPE mixed DROP ATTRIBUTE dropped;
CREATE FUNCTION last_of(first mixed, number bigint, last mixed) RETURNS mixed LANGUAGE container VOLATILE AS 'image = "regress:1.0"';
CREATE FUNCTION last_if_any(first mixed, number bigint, last mixed) RETURNS mixed LANGUAGE container VOLATILE STRICT
AS E'image = "regress:1.0"\nfunction = "last_of"';
CREATE TABLE v_mixed AS SELECT x, CASE WHEN x % 7 > 0 THEN ROW(nullif(x % 5, 1), repeat(t, (x % 11)::int), x % 2 = 0, 'epoch'::timestamptz + x * '1 h'::interval,
  nullif(convert_to(t, 'UTF8'), 'n12'), date '2000-01-01' - x::int)::mixed END AS v FROM numbers;
INSERT INTO v_mixed VALUES (100, ROW(1, repeat('long', 100000), NULL, 'infinity', NULL, '-infinity')), (101, ROW(NULL, NULL, NULL, NULL, NULL, NULL));
SELECT count(*), bool_and(l::text IS NOT DISTINCT FROM v::text) AS same, bool_and(s::text IS NOT DISTINCT FROM v::text) AS strict
FROM (SELECT v, last_of(NULL, x, v) AS l, last_if_any(v, x, v) AS s FROM v_mixed OFFSET 0) p;
SELECT count(*) FILTER (WHERE l IS NULL AND v IS DISTINCT FROM NULL) AS rows_of_nulls, count(*) FILTER (WHERE l IS NOT DISTINCT FROM NULL) AS nulls
FROM (SELECT v, last_of(v, 1, v) AS l FROM v_mixed OFFSET 0) p;
SELECT last_of((1::smallint, 'a', true, NULL, NULL, NULL), x, (x::smallint, t, x > 1, NULL, '\x00', '2013-01-01')) FROM numbers WHERE x <= 3;
DROP TABLE v_mixed;
-- Types that have no place outside PostgreSQL are refused, with what to do instead.
SELECT code, message, hint FROM failure($$CREATE FUNCTION f(x anyelement) RETURNS anyelement LANGUAGE container AS 'image = "regress:1.0"'$$);
SELECT code, message, hint FROM failure($$CREATE FUNCTION f(x money) RETURNS int LANGUAGE container AS 'image = "regress:1.0"'$$);
SELECT code, message, hint FROM failure($$CREATE FUNCTION f(x point[]) RETURNS int LANGUAGE container AS 'image = "regress:1.0"'$$);
SELECT code, message, hint FROM failure($$CREATE FUNCTION f(x int) RETURNS record LANGUAGE container AS 'image = "regress:1.0"'$$);
-- VARIADIC arguments are an array.
CREATE FUNCTION total(VARIADIC "values" bigint[]) RETURNS bigint LANGUAGE container IMMUTABLE AS 'image = "regress:1.0"';
SELECT total(1, 2, 3), total(VARIADIC '{4,5}'), sum(total(x, y)) FROM numbers WHERE x <= 10;

-- A datetime2, for which PostgreSQL has no type, is text.
CREATE FUNCTION echo_datetime2(x text) RETURNS text LANGUAGE container AS 'image = "regress:1.0"';
CREATE FUNCTION pass_datetime2(x text) RETURNS text LANGUAGE container AS 'image = "regress:1.0"';
SELECT echo_datetime2(v), pass_datetime2(v) FROM (VALUES ('0001-01-01T00:00:00.0000001'), ('9999-12-31T23:59:59.9999999'), (NULL)) s (v);
SELECT echo_datetime2('yesterday');
CREATE FUNCTION wrong(x timestamp) RETURNS timestamp LANGUAGE container AS E'image = "regress:1.0"\nfunction = "echo_datetime2"';
-- What a domain refuses leaves nothing behind in the session.
CREATE DOMAIN refusing AS bigint CHECK (VALUE < 0);
CREATE FUNCTION refused(x bigint) RETURNS refusing LANGUAGE container AS 'image = "regress:1.0" function = "add_one"';
CREATE FUNCTION growth(calls bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE before bigint := sum(total_bytes) FROM pg_backend_memory_contexts;
BEGIN
  FOR i IN 1..calls LOOP
    BEGIN
      PERFORM refused(i);
    EXCEPTION WHEN check_violation THEN
    END;
  END LOOP;
  RETURN (SELECT sum(total_bytes) FROM pg_backend_memory_contexts) - before;
END
$$;
SELECT growth(10) < 2000000 AS is_small, growth(500) < 2000000 AS stays_small;
DROP FUNCTION growth, refused;
DROP DOMAIN refusing;
