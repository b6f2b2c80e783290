-- Results of every shape: composite types, OUT arguments, sets, tables.
CREATE FUNCTION span(a bigint, b bigint, OUT low bigint, OUT high bigint, OUT label text) LANGUAGE container IMMUTABLE
AS 'image = "regress:1.0"';
CREATE TYPE spanned AS (low bigint, high bigint, label text);
CREATE FUNCTION span_arrow(a bigint, b bigint) RETURNS spanned LANGUAGE container IMMUTABLE AS 'image = "regress:1.0"';
EXPLAIN (VERBOSE, COSTS OFF) SELECT x, (span(x, 3)).high FROM numbers WHERE x <= 5;
SELECT x, (span(x, 3)).high, (span(x, 3)).label FROM numbers WHERE x <= 5;
SELECT span(x, 3), span_arrow(x, 3), (span_arrow(x, 3)).low FROM numbers WHERE x <= 3;
SELECT span(NULL, 1) IS NULL AS is_null;
SELECT * FROM span(7, 3);
SELECT code, message, detail, context FROM failure('SELECT span(x, 1) FROM numbers');
-- In FROM, with columns of the rest of FROM.
EXPLAIN (VERBOSE, COSTS OFF) SELECT n.x, s.high, s.label FROM numbers n, span_arrow(n.x, 3) s WHERE n.x <= 5 AND s.high > 3;
SELECT n.x, s.high, s.label FROM numbers n, span_arrow(n.x, 3) s WHERE n.x <= 5 AND s.high > 3;
SELECT n.x, s FROM numbers n, LATERAL span(n.x, 3) s WHERE n.x <= 2;
-- Sets.
CREATE FUNCTION divisors(n bigint) RETURNS SETOF bigint LANGUAGE container IMMUTABLE STRICT AS 'image = "regress:1.0"';
CREATE FUNCTION divisors_arrow(n bigint) RETURNS SETOF bigint LANGUAGE container IMMUTABLE STRICT AS 'image = "regress:1.0"';
CREATE FUNCTION count_to(n bigint) RETURNS SETOF bigint LANGUAGE container VOLATILE STRICT AS 'image = "regress:1.0"';
CREATE FUNCTION words(text text) RETURNS TABLE ("position" int, word text) LANGUAGE container STABLE AS 'image = "regress:1.0"';
SELECT * FROM divisors(12);
SELECT * FROM words('to be or not') WITH ORDINALITY;
EXPLAIN (ANALYZE, BUFFERS OFF, VERBOSE, COSTS OFF, TIMING OFF, SUMMARY OFF) SELECT n.x, d FROM numbers n, divisors(n.x) d WHERE n.x <= 12;
SELECT n.x, array_agg(d) FROM numbers n, divisors(n.x) d WHERE n.x <= 12 GROUP BY 1 ORDER BY 1;
SELECT n.x, d FROM numbers n, divisors_arrow(n.x) d WHERE n.x <= 6 AND d > 1;
-- A row without results goes, or stays with LEFT JOIN; so does a NULL argument of a STRICT function.
SELECT v.a, d FROM (VALUES (2), (0), (NULL), (3)) v (a), divisors(v.a) d;
EXPLAIN (VERBOSE, COSTS OFF) SELECT v.a, d FROM (VALUES (2), (0), (NULL), (3)) v (a) LEFT JOIN LATERAL divisors(v.a) d ON true;
SELECT v.a, d FROM (VALUES (2), (0), (NULL), (3)) v (a) LEFT JOIN LATERAL divisors(v.a) d ON true;
SELECT v.a, d FROM (VALUES (2), (0), (NULL), (3)) v (a) LEFT JOIN LATERAL divisors(v.a) d ON d > 1;
SELECT v.t, w.* FROM (VALUES ('to be'), (''), ('or not')) v (t), words(v.t) w;
-- In the target list.
EXPLAIN (VERBOSE, COSTS OFF) SELECT x, divisors(add_one(x)), add_one(-x) FROM numbers WHERE x <= 5;
SELECT x, divisors(add_one(x)), add_one(-x) FROM numbers WHERE x <= 3;
SELECT x, (words(t || ' and ' || t)).* FROM numbers WHERE x <= 2;
SELECT x, divisors(x), generate_series(1, 3) FROM numbers WHERE x BETWEEN 4 AND 5;
SELECT divisors(6);
-- Large sets come in parts over Flight and whole otherwise; nothing is lost or doubled.
SELECT count(*), sum(c) FROM numbers n, count_to(n.x % 3000) c WHERE n.x <= 6000;
SET transship.transport = shm;
SELECT count(*), sum(c) FROM numbers n, count_to(n.x % 300) c WHERE n.x <= 3000;
SELECT v.t, w.* FROM (VALUES ('to be'), (''), ('or not')) v (t), words(v.t) w;
SET transship.transport = json;
SELECT count(*), sum(c) FROM numbers n, count_to(n.x % 300) c WHERE n.x <= 3000;
SELECT v.t, w.* FROM (VALUES ('to be'), (''), ('or not')) v (t), words(v.t) w;
RESET transship.transport;
SELECT count(*), sum(c) FROM count_to(100000) c;
-- LIMIT ends a set early.
SELECT n.x, c FROM numbers n, count_to(n.x + 1000000000) c LIMIT 3;
SELECT count_to(x + 1000000000) FROM numbers LIMIT 2;
-- Rescans.
SELECT v.a, (SELECT sum(d) FROM numbers n, divisors(n.x + v.a) d WHERE n.x <= v.a) FROM (VALUES (1), (2), (3)) v (a);
SELECT code, message, context FROM failure('SELECT n.x, d FROM numbers n, divisors(n.x) d');
SELECT code, message, context FROM failure('SELECT * FROM divisors(13)');
SELECT code, message FROM failure('SELECT add_one(1) + divisors(x) FROM numbers WHERE divisors(x) > 1');
-- Kinds are part of the signature.
SELECT code, message, detail FROM failure($$CREATE FUNCTION f(n bigint) RETURNS bigint LANGUAGE container AS E'image = "regress:1.0"\nfunction = "divisors"'$$);
-- Inline code may return sets and rows as well.
CREATE FUNCTION chars(t text) RETURNS TABLE (i int, c text) LANGUAGE container AS $$
template = "python"
source = '''
def chars(t):
    yield from enumerate(t)
'''
$$;
SELECT * FROM chars('abc');
-- Nested calls in FROM are batched inner first.
EXPLAIN (VERBOSE, COSTS OFF) SELECT n.x, s.low FROM numbers n, span(add_one(n.x), 3) s WHERE n.x <= 3;
SELECT n.x, s.low FROM numbers n, span(add_one(n.x), 3) s WHERE n.x <= 3;
-- Batches of which no row is sent stand between others, which are answered later. How many are out at a time is a matter of time.
CREATE FUNCTION strict_chars(t text) RETURNS TABLE (i int, c text) LANGUAGE container IMMUTABLE STRICT AS $$
template = "python"
source = '''
def strict_chars(t):
    yield from enumerate(t)
'''
$$;
SET transship.batch_rows = 3;
SELECT count(*), count(c), sum(i), sum(x) FROM generate_series(1, 600) x LEFT JOIN LATERAL strict_chars(CASE WHEN (x - 1) / 3 % 2 = 0 THEN 'ab' || x END) ON true;
SELECT count(*), count(c), sum(i), sum(x) FROM generate_series(1, 600) x, strict_chars(CASE WHEN (x - 1) / 3 % 2 = 0 THEN 'ab' || x END);
SELECT count(*), count(c), sum(i), sum(x) FROM generate_series(1, 600) x LEFT JOIN LATERAL strict_chars(CASE WHEN (x - 1) / 3 % 4 <> 0 THEN 'ab' || x END) ON true;
-- As PostgreSQL's own.
SELECT count(*), count(c), sum(i), sum(x) FROM generate_series(1, 600) x
LEFT JOIN LATERAL (SELECT i - 1, c FROM regexp_split_to_table(CASE WHEN (x - 1) / 3 % 2 = 0 THEN 'ab' || x END, '') WITH ORDINALITY AS r (c, i)) s (i, c) ON true;
RESET transship.batch_rows;
