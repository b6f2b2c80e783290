-- transship.map over transship.map: results go on as columns. Everything is as it is without.
SET datestyle = iso;
SET timezone = 'UTC';
-- How many rows a query gives, and how many of them it does not give without, or the other way round.
CREATE FUNCTION chained(query text, OUT rows bigint, OUT others bigint) LANGUAGE plpgsql AS $$
DECLARE
  plain text[];
  found text[];
BEGIN
  EXECUTE format('SELECT array_agg(q::text) FROM (%s) q', query) INTO found;
  SET LOCAL transship.fusion = off;
  EXECUTE format('SELECT array_agg(q::text) FROM (%s) q', query) INTO plain;
  SET LOCAL transship.fusion = on;
  rows := cardinality(found);
  SELECT count(*) INTO others FROM unnest(plain, found) AS u (p, f) WHERE p IS DISTINCT FROM f;
END
$$;
-- How a query fails, and whether it fails so without.
CREATE FUNCTION fails(query text, OUT code text, OUT message text, OUT context text, OUT is_same boolean) LANGUAGE plpgsql AS $$
DECLARE
  plain record;
  found record;
BEGIN
  SELECT * INTO found FROM failure(query);
  SET LOCAL transship.fusion = off;
  SELECT * INTO plain FROM failure(query);
  SET LOCAL transship.fusion = on;
  code := found.code;
  message := found.message;
  context := found.context;
  is_same := plain = found;
END
$$;
CREATE FUNCTION each_type(b boolean, i2 smallint, i4 int, i8 bigint, f4 real, f8 float8, t text, v varchar, y bytea, u uuid, d date, h time,
  s timestamp, z timestamptz)
RETURNS TABLE (b boolean, i2 smallint, i4 int, i8 bigint, f4 real, f8 float8, t text, v varchar, y bytea, u uuid, d date, h time,
  s timestamp, z timestamptz) LANGUAGE container AS $$
template = "python"
kind = "map"
source = '''
def each_type(rows):
    for row in rows:
        yield None if row[3] == 3 else row
'''
$$;
CREATE FUNCTION lines(n bigint) RETURNS SETOF text LANGUAGE container AS $$
template = "python"
kind = "map"
source = '''
def lines(rows):
    for (n,) in rows:
        if n == 5000:
            raise ValueError("no line 5000")
        yield None if n is None else "bad" + chr(0) if n == 6000 else "x" * n
'''
$$;
CREATE FUNCTION lengths(t text) RETURNS TABLE (n bigint, t text) LANGUAGE container AS $$
template = "python"
kind = "map"
source = '''
def lengths(rows):
    for (t,) in rows:
        if t == "x" * 77:
            raise ValueError("no length of 77")
        yield (None if t is None else len(t), t)
'''
$$;
CREATE FUNCTION late(t text) RETURNS SETOF bigint LANGUAGE container AS $$
template = "python"
kind = "map"
source = '''
import time

def late(rows):
    time.sleep(3)
    yield sum(len(t) for (t,) in rows)
'''
$$;
CREATE FUNCTION alone(t text) RETURNS SETOF text LANGUAGE container AS $$
template = "python"
kind = "map"
source = '''
import threading

turn = threading.Lock()

def alone(rows):
    with turn:
        for (t,) in rows:
            yield t
'''
$$;
CREATE FUNCTION decimals(x bigint) RETURNS SETOF numeric LANGUAGE container AS $$
template = "python"
kind = "map"
source = '''
def decimals(rows):
    for (x,) in rows:
        yield x
'''
$$;
CREATE FUNCTION of_decimals(x numeric) RETURNS SETOF bigint LANGUAGE container AS $$
template = "python"
kind = "map"
source = '''
def of_decimals(rows):
    for (x,) in rows:
        yield int(x)
'''
$$;
-- The server says which calls are fused.
SET client_min_messages = debug1;
SELECT * FROM transship.map('running_total', $$SELECT total FROM transship.map('running_total', $q$SELECT x FROM numbers WHERE x <= 4 ORDER BY x$q$) AS g (x bigint, total bigint)$$) AS f (x bigint, total bigint);
SET transship.fusion = off;
SELECT * FROM transship.map('running_total', $$SELECT total FROM transship.map('running_total', $q$SELECT x FROM numbers WHERE x <= 4 ORDER BY x$q$) AS g (x bigint, total bigint)$$) AS f (x bigint, total bigint);
RESET transship.fusion;
-- Three of them, of two images; through a subquery and a view, in another order, a column twice.
SELECT * FROM transship.map('running_total', $a$SELECT n FROM transship.map('lengths', $b$SELECT lines FROM transship.map('lines', 'SELECT x FROM numbers WHERE x <= 4 ORDER BY x') AS l (lines text)$b$) AS g (n bigint, t text)$a$) AS f (x bigint, total bigint);
CREATE VIEW measured AS SELECT t AS u, n AS m FROM (SELECT * FROM transship.map('lengths', $$SELECT t FROM numbers WHERE x <= 3 ORDER BY x$$) AS g (n bigint, t text)) s WHERE true;
SELECT * FROM transship.map('largest', 'SELECT m, u FROM measured') AS f (t text);
SELECT * FROM transship.map('each_type', $$SELECT NULL::bool, NULL::int2, NULL::int4, m, NULL::float4, NULL::float8, u, u::varchar, NULL::bytea, NULL::uuid, NULL::date, NULL::time, NULL::timestamp, NULL::timestamptz FROM measured$$) AS f (b boolean, i2 smallint, i4 int, i8 bigint, f4 real, f8 float8, t text, v varchar, y bytea, u uuid, d date, h time, s timestamp, z timestamptz);
-- Not fused: anything but columns, and types that SQL writes otherwise.
SELECT * FROM transship.map('running_total', $$SELECT x + 0 FROM transship.map('running_total', 'SELECT x FROM numbers WHERE x <= 2') AS g (x bigint, total bigint)$$) AS f (x bigint, total bigint);
SELECT * FROM transship.map('running_total', $$SELECT x FROM transship.map('running_total', 'SELECT x FROM numbers WHERE x <= 2') AS g (x bigint, total bigint) WHERE x > 1$$) AS f (x bigint, total bigint);
SELECT * FROM transship.map('running_total', $$SELECT x FROM transship.map('running_total', 'SELECT x FROM numbers WHERE x <= 2') AS g (x bigint, total bigint) ORDER BY total DESC$$) AS f (x bigint, total bigint);
SELECT * FROM transship.map('running_total', $$SELECT x FROM transship.map('running_total', 'SELECT x FROM numbers WHERE x <= 2') AS g (x bigint, total bigint) LIMIT 1$$) AS f (x bigint, total bigint);
SELECT * FROM transship.map('running_total', $$SELECT n FROM ROWS FROM (transship.map('running_total', 'SELECT x FROM numbers WHERE x <= 2') AS (x bigint, total bigint)) WITH ORDINALITY AS g (x, total, n)$$) AS f (x bigint, total bigint);
SELECT * FROM transship.map('of_decimals', $$SELECT x FROM transship.map('decimals', 'SELECT x FROM numbers WHERE x <= 2') AS g (x numeric)$$) AS f (x bigint);
CREATE DOMAIN small AS bigint CHECK (VALUE < 6);
CREATE FUNCTION small_total(x bigint) RETURNS TABLE (x bigint, total small) LANGUAGE container AS E'image = "regress:1.0"\nkind = "map"\nfunction = "running_total"';
SELECT * FROM transship.map('running_total', $$SELECT x FROM transship.map('small_total', 'SELECT x FROM numbers WHERE x <= 2') AS g (x bigint, total small)$$) AS f (x bigint, total bigint);
CREATE TYPE cut_length AS (n bigint, t varchar(3));
CREATE FUNCTION cut_lengths(t text) RETURNS SETOF cut_length LANGUAGE container AS $$
template = "python"
kind = "map"
source = '''
def cut_lengths(rows):
    for (t,) in rows:
        yield (len(t), t)
'''
$$;
SELECT * FROM transship.map('running_total', $$SELECT n FROM transship.map('cut_lengths', 'SELECT ''abc'' FROM numbers WHERE x <= 2') AS g (n bigint, t varchar(3))$$) AS f (x bigint, total bigint);
-- A length in the list of columns is none of the values', fused or not.
SELECT * FROM transship.map('largest', $$SELECT i8, v FROM transship.map('each_type', 'SELECT NULL::bool, NULL::int2, NULL::int4, x, NULL::float4, NULL::float8, t, t::varchar, NULL::bytea, NULL::uuid, NULL::date, NULL::time, NULL::timestamp, NULL::timestamptz FROM numbers WHERE x = 5') AS g (b boolean, i2 smallint, i4 int, i8 bigint, f4 real, f8 float8, t text, v varchar(1), y bytea, u uuid, d date, h time, s timestamp, z timestamptz)$$) AS f (t text);
RESET client_min_messages;
-- Every type, rows that are NULL, and NULLs in rows.
CREATE TABLE every_type AS SELECT x % 2 = 0 AS b, (x % 100)::int2 AS i2, -x::int4 AS i4, x AS i8, CASE x WHEN 7 THEN 'NaN' WHEN 8 THEN '-0' ELSE x / 3.0 END::float4 AS f4,
  CASE x WHEN 7 THEN 'NaN' WHEN 8 THEN '-Infinity' WHEN 9 THEN '-0' ELSE x / 3.0 END::float8 AS f8, t || 'é' AS t, t::varchar AS v, decode(md5(t), 'hex') AS y, md5(t)::uuid AS u,
  date '2000-01-01' + (x % 1000)::int AS d, time '00:00' + x * interval '1.000001 s' AS h, timestamp '1969-01-01' + x * interval '1 h 1 us' AS s,
  timestamptz '2069-01-01' - x * interval '1 h 1 us' AS z FROM numbers;
INSERT INTO every_type (i8) SELECT x FROM numbers WHERE x <= 300;
CREATE FUNCTION every_query(inner_query text) RETURNS text LANGUAGE sql AS $$
  SELECT format('SELECT * FROM transship.map(''each_type'', %L) AS g (b boolean, i2 smallint, i4 int, i8 bigint, f4 real, f8 float8, t text, v varchar, y bytea, u uuid, d date, h time, s timestamp, z timestamptz)', inner_query)
$$;
SELECT * FROM chained(every_query(every_query('SELECT * FROM every_type')));
SELECT * FROM chained(every_query(every_query(every_query('SELECT * FROM every_type WHERE i8 < 500'))));
SELECT * FROM chained(every_query('SELECT b, i2, i4, i8, f4, f8, t, t, y, u, d, h, s, z FROM (' || every_query('SELECT * FROM every_type') || ') s'));
SELECT * FROM chained(every_query(every_query('SELECT * FROM every_type WHERE false')));
SELECT * FROM chained('SELECT sum(total), count(*) FROM transship.map(''running_total'', $$SELECT i8 FROM (' || every_query('SELECT * FROM every_type') || ') s$$) AS f (x bigint, total bigint)');
-- Batches of one row and of three; small and large ones.
SET transship.batch_rows = 1;
SELECT * FROM chained(every_query(every_query('SELECT * FROM every_type LIMIT 20')));
SET transship.batch_rows = 3;
SELECT * FROM chained(every_query(every_query('SELECT * FROM every_type LIMIT 200')));
RESET transship.batch_rows;
SET transship.batch_size = '64kB';
SELECT * FROM chained($$SELECT n, md5(t) FROM transship.map('lengths', $q$SELECT l FROM transship.map('lines', 'SELECT x + 1000 FROM numbers WHERE x < 2000') AS l (l text)$q$) AS f (n bigint, t text)$$);
RESET transship.batch_size;
-- A function that takes its time: what it does not take waits, in the end in a file.
SELECT * FROM chained($$SELECT * FROM transship.map('late', $q$SELECT l FROM transship.map('lines', 'SELECT 100000::bigint FROM numbers WHERE x <= 600') AS l (l text)$q$) AS f (x bigint)$$);
SELECT count(*), sum(x) FROM transship.map('late', $q$SELECT l FROM transship.map('lines', 'SELECT 100000::bigint FROM numbers WHERE x <= 600') AS l (l text)$q$) AS f (x bigint);
-- A container that answers one call at a time, which are all calls of a chain: each begins when the one before has results.
SELECT count(*), sum(length(t)), max(t) FROM transship.map('alone', $a$SELECT t FROM transship.map('alone', $b$SELECT t FROM transship.map('alone', 'SELECT t FROM numbers') AS l (t text)$b$) AS l (t text)$a$) AS f (t text);
SELECT count(*), sum(length(t)), max(left(t, 6)) FROM transship.map('alone', $a$SELECT t FROM transship.map('alone', $b$SELECT t FROM transship.map('alone', 'SELECT repeat(t, 200) FROM numbers') AS l (t text)$b$) AS l (t text)$a$) AS f (t text);
-- Functions that want no more rows, LIMIT, joins, parameters, cursors, and calls in the query.
SELECT * FROM chained($$SELECT * FROM transship.map('first_only', $q$SELECT n FROM transship.map('lengths', 'SELECT t FROM numbers ORDER BY x') AS g (n bigint, t text)$q$) AS f (x bigint)$$);
SELECT * FROM chained($$SELECT * FROM transship.map('running_total', $q$SELECT x FROM transship.map('first_only', 'SELECT x FROM numbers ORDER BY x') AS g (x bigint)$q$) AS f (x bigint, total bigint)$$);
SELECT * FROM chained($$SELECT * FROM transship.map('running_total', $q$SELECT x FROM transship.map('running_total', 'SELECT add_one(x) FROM numbers ORDER BY x') AS g (x bigint, total bigint)$q$) AS f (x bigint, total bigint) LIMIT 3$$);
SELECT * FROM chained($$SELECT n.x, f.* FROM numbers n, transship.map('running_total', 'SELECT total FROM transship.map(''running_total'', ''SELECT x FROM numbers WHERE x < ' || n.x || ' ORDER BY x'') AS g (x bigint, total bigint)') AS f (x bigint, total bigint) WHERE n.x < 6$$);
BEGIN;
DECLARE c CURSOR FOR SELECT * FROM transship.map('running_total', $q$SELECT x FROM transship.map('running_total', 'SELECT x FROM numbers ORDER BY x') AS g (x bigint, total bigint)$q$) AS f (x bigint, total bigint);
FETCH 2 FROM c;
FETCH ABSOLUTE 2000 FROM c;
ROLLBACK;
-- Errors of the query, of either call, and of results that PostgreSQL refuses, at any row.
SELECT * FROM fails($$SELECT * FROM transship.map('running_total', $q$SELECT x FROM transship.map('running_total', 'SELECT 1 / (x - 1000) FROM numbers ORDER BY x') AS g (x bigint, total bigint)$q$) AS f (x bigint, total bigint)$$);
SELECT * FROM fails($$SELECT * FROM transship.map('lengths', $q$SELECT l FROM transship.map('lines', 'SELECT x + 4000 FROM numbers ORDER BY x') AS g (l text)$q$) AS f (n bigint, t text)$$);
SELECT * FROM fails($$SELECT * FROM transship.map('lengths', $q$SELECT l FROM transship.map('lines', 'SELECT x FROM numbers WHERE x < 100 ORDER BY x') AS g (l text)$q$) AS f (n bigint, t text)$$);
SELECT * FROM fails($$SELECT * FROM transship.map('lengths', $q$SELECT l FROM transship.map('lines', 'SELECT x + 5001 FROM numbers WHERE x < 1500 ORDER BY x') AS g (l text)$q$) AS f (n bigint, t text)$$);
SELECT * FROM fails($$SELECT * FROM transship.map('first_only', $q$SELECT n FROM transship.map('lengths', 'SELECT repeat(''x'', (1000 - x)::int) FROM numbers WHERE x < 1000 ORDER BY x') AS g (n bigint, t text)$q$) AS f (x bigint)$$);
SELECT * FROM fails($$SELECT * FROM transship.map('lengths', $q$SELECT x FROM transship.map('running_total', 'SELECT x FROM numbers') AS g (x bigint, total bigint)$q$) AS f (n bigint, t text)$$);
SELECT * FROM fails($$SELECT * FROM transship.map('running_total', $q$SELECT x FROM transship.map('running_total', 'SELECT x FROM numbers') AS g (x bigint, total int)$q$) AS f (x bigint, total bigint)$$);
SELECT * FROM fails($$SELECT * FROM transship.map('running_total', $q$SELECT x FROM transship.map('add_one', 'SELECT x FROM numbers') AS g (x bigint)$q$) AS f (x bigint, total bigint)$$);
SELECT * FROM fails($$SELECT * FROM transship.map('running_total', $q$SELECT x FROM transship.map('running_total', 'SELECT nothing FROM numbers') AS g (x bigint, total bigint)$q$) AS f (x bigint, total bigint)$$);
SELECT * FROM fails($$SET LOCAL transship.batch_timeout = '1s'; SELECT * FROM transship.map('running_total', $q$SELECT x FROM transship.map('late', 'SELECT t FROM numbers') AS g (x bigint)$q$) AS f (x bigint, total bigint)$$);
SELECT * FROM fails($$SET LOCAL transship.batch_timeout = '1s'; SELECT * FROM transship.map('late', $q$SELECT t FROM transship.map('lengths', 'SELECT t FROM numbers') AS g (n bigint, t text)$q$) AS f (x bigint)$$);
-- Whoever calls must be allowed to call both.
CREATE ROLE chainer;
GRANT SELECT ON numbers TO chainer;
GRANT USAGE ON SCHEMA transship TO chainer;
REVOKE EXECUTE ON FUNCTION lengths FROM PUBLIC;
SET ROLE chainer;
SELECT * FROM transship.map('largest', $q$SELECT n, t FROM transship.map('lengths', 'SELECT t FROM numbers') AS g (n bigint, t text)$q$) AS f (t text);
SELECT * FROM transship.map('lengths', $q$SELECT t FROM transship.map('largest', 'SELECT x + 20, t FROM numbers') AS g (t text)$q$) AS f (n bigint, t text);
RESET ROLE;
DROP OWNED BY chainer;
DROP ROLE chainer;
DROP VIEW measured;
DROP TABLE every_type;
DROP FUNCTION each_type, every_query, alone, lines, lengths, late, decimals, of_decimals, small_total, cut_lengths, chained, fails;
DROP DOMAIN small;
DROP TYPE cut_length;
