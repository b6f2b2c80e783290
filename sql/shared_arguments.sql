-- Arguments that several calls have are evaluated and converted once. Everything is as it is without (transship.fusion = off).
CREATE FUNCTION compared(query text, OUT rows bigint, OUT others bigint) LANGUAGE plpgsql AS $$
DECLARE
  apart text[];
  shared text[];
BEGIN
  EXECUTE format('SELECT array_agg(q::text) FROM (%s) q', query) INTO shared;
  SET LOCAL transship.fusion = off;
  EXECUTE format('SELECT array_agg(q::text) FROM (%s) q', query) INTO apart;
  SET LOCAL transship.fusion = on;
  rows := cardinality(shared);
  SELECT count(*) INTO others FROM unnest(apart, shared) AS u (a, s) WHERE a IS DISTINCT FROM s;
END
$$;
CREATE FUNCTION size_of(t text) RETURNS bigint LANGUAGE container IMMUTABLE STRICT PARALLEL SAFE COST 1000 AS $$
template = "python"
source = '''
def size_of(t):
    if t == "bad":
        raise ValueError("a bad text")
    return len(t)
'''
$$;
CREATE FUNCTION joined(t text, y bigint) RETURNS text LANGUAGE container IMMUTABLE STRICT PARALLEL SAFE COST 1000 AS $$
template = "python"
source = '''
def joined(t, y):
    return f"{t} {y}"
'''
$$;
CREATE FUNCTION joined_or_none(t text, y bigint) RETURNS text LANGUAGE container IMMUTABLE PARALLEL SAFE COST 1000 AS $$
template = "python"
source = '''
def joined_or_none(t, y):
    return f"{t} {y}"
'''
$$;
CREATE TABLE texts AS SELECT i::bigint AS x, CASE WHEN i % 7 > 0 THEN 'Text ' || i END AS t, nullif(i % 5, 3)::bigint AS y,
  repeat(md5(i::text), 200) AS large FROM generate_series(1, 5000) i;
ANALYZE texts;
-- How often an argument is evaluated. The function says of itself that nobody can tell.
CREATE SEQUENCE evaluations;
CREATE FUNCTION counted(t text) RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
  PERFORM nextval('evaluations');
  RETURN t;
END
$$;
CREATE FUNCTION evaluations_of(query text, OUT evaluations bigint) LANGUAGE plpgsql AS $$
BEGIN
  PERFORM setval('evaluations', 1, false);
  EXECUTE format('SELECT count(q::text) FROM (%s) q', query);
  evaluations := nextval('evaluations') - 1;
END
$$;
SELECT * FROM evaluations_of('SELECT shout(counted(t)), size_of(counted(t)), joined(counted(t), x) FROM texts');
SELECT * FROM evaluations_of('SELECT joined(shout(counted(t)), size_of(counted(t))) FROM texts');
SELECT * FROM evaluations_of('SELECT shout(counted(t)), joined(counted(t) || ''!'', x) FROM texts');
SET transship.fusion = off;
SELECT * FROM evaluations_of('SELECT shout(counted(t)), size_of(counted(t)), joined(counted(t), x) FROM texts');
RESET transship.fusion;
-- For no row for which no call is made, and for one of which one is.
SELECT * FROM evaluations_of('SELECT CASE WHEN x <= 100 THEN shout(counted(t)) END, CASE WHEN x > 90 AND x <= 150 THEN size_of(counted(t)) END FROM texts');
SELECT * FROM evaluations_of('SELECT x FROM texts WHERE shout(counted(t)) LIKE ''%00!'' AND size_of(counted(t)) = 8');
SELECT * FROM compared('SELECT x FROM texts WHERE shout(t) LIKE ''%00!'' AND size_of(t) = 8');
-- What is VOLATILE is evaluated for each call, and what is STABLE, has a subquery, or is checked by a domain as well.
CREATE SEQUENCE drawn;
SELECT count(*), count(DISTINCT one), count(DISTINCT two), count(*) FILTER (WHERE one = two)
  FROM (SELECT add_one(nextval('drawn')) AS one, add(nextval('drawn'), 0) AS two FROM texts OFFSET 0) s;
SELECT last_value FROM drawn;
SELECT count(*) FILTER (WHERE one = two) AS equal
  FROM (SELECT joined(random()::text, 0) AS one, joined_or_none(random()::text, 0) AS two FROM texts OFFSET 0) s;
CREATE FUNCTION counted_stable(t text) RETURNS text LANGUAGE plpgsql STABLE AS 'BEGIN RETURN counted(t); END';
SELECT * FROM evaluations_of('SELECT shout(counted_stable(t)), size_of(counted_stable(t)) FROM texts WHERE x <= 20');
SELECT * FROM evaluations_of('SELECT shout((SELECT counted(s.t) FROM texts s WHERE s.x = 1 + length(texts.t) % 2 LIMIT 1)), size_of((SELECT counted(s.t) FROM texts s WHERE s.x = 1 + length(texts.t) % 2 LIMIT 1)) FROM texts WHERE x <= 20');
CREATE DOMAIN counted_text AS text CHECK (counted(VALUE) IS NOT NULL OR VALUE IS NULL);
SELECT * FROM evaluations_of('SELECT shout(t::counted_text), size_of(t::counted_text) FROM texts WHERE x <= 20');
-- Rows that one call leaves out and another does not: NULL for STRICT functions, and conditions.
SELECT x, shout(t), joined(t, y), joined_or_none(t, y), size_of(t) FROM texts WHERE x BETWEEN 5 AND 9;
SELECT * FROM compared('SELECT x, shout(t), joined(t, y), joined_or_none(t, y), size_of(t) FROM texts');
SELECT * FROM compared('SELECT x, joined(t, y), joined(t, x), joined_or_none(lower(t), NULL), joined(lower(t), y) FROM texts');
SELECT * FROM compared('SELECT x, CASE WHEN y < 2 THEN shout(t) ELSE joined(t, x) END, CASE WHEN x > 4000 THEN size_of(t) WHEN y = 4 THEN length(joined_or_none(t, x)) END FROM texts');
SELECT * FROM compared('SELECT x, CASE WHEN x < 0 THEN shout(t) END, CASE WHEN x % 3 = 0 THEN size_of(t) END, COALESCE(joined(t, y), joined_or_none(t, y)) FROM texts');
SELECT * FROM compared('SELECT x, CASE WHEN y <> 0 THEN add_one(100 / y) END, CASE WHEN y > 1 THEN add(100 / y, y) END FROM texts');
SELECT code, message, context FROM failure('SELECT CASE WHEN y <> 0 THEN add_one(100 / y) END, add(100 / y, y) FROM texts');
SELECT * FROM compared('SELECT count(shout(t)) FILTER (WHERE y = 1), max(size_of(t)), string_agg(joined(t, y), '','' ORDER BY x) FROM texts GROUP BY x % 3');
SELECT * FROM compared('SELECT x FROM texts WHERE size_of(t) > 5 OR joined(t, y) < ''Text 3''');
-- Expressions that look alike are not equal: other lengths, collations, constants, and columns of other tables.
SELECT * FROM (SELECT x, joined(t::varchar(4), 0), joined_or_none(t::varchar(5), 0), joined_or_none(t::varchar(4)::text, 0),
  shout(t::char(4)), shout(t::char(12)) FROM texts WHERE x BETWEEN 100 AND 110 OFFSET 0) s ORDER BY x LIMIT 3;
SELECT * FROM compared('SELECT x, joined((t COLLATE "C" < ''text 3'')::text, x), joined_or_none((t < ''text 3'')::text, x), joined_or_none((t COLLATE "C" < ''text 3'')::text, y) FROM texts');
SELECT * FROM compared('SELECT a.x, joined(a.t, 1), joined(b.t, 1), joined_or_none(a.t, b.x), size_of(b.t) FROM texts a JOIN texts b ON b.x = a.x + 1');
SELECT * FROM compared('SELECT a.x, joined(a.t, 1), joined(b.t, 1), joined_or_none(a.t, b.x), size_of(b.t), joined_or_none(a.t || b.t, 1), size_of(a.t || b.t) FROM texts a LEFT JOIN texts b ON b.x = a.x + 2500');
-- Whole rows, parts of them, system columns, and functions that the planner puts in their place.
CREATE TYPE shared_pair AS (number bigint, word text, amount numeric);
CREATE FUNCTION pair_word(p shared_pair) RETURNS text LANGUAGE container IMMUTABLE PARALLEL SAFE COST 1000 AS $$
template = "python"
source = '''
def pair_word(p):
    return None if p is None else str(p["word"])
'''
$$;
CREATE FUNCTION pair_sum(p shared_pair, y bigint) RETURNS numeric LANGUAGE container IMMUTABLE STRICT PARALLEL SAFE COST 1000 AS $$
template = "python"
source = '''
def pair_sum(p, y):
    return None if p["amount"] is None else p["amount"] + y
'''
$$;
CREATE TABLE shared_pairs AS SELECT x, y, CASE WHEN x % 4 > 0 THEN ROW(x, t, y / 4.0)::shared_pair END AS p FROM texts WHERE x <= 500;
SELECT * FROM compared('SELECT x, pair_word(p), pair_sum(p, y), pair_sum(p, x), pair_word(ROW(x, (p).word, y)), size_of((p).word), joined((p).word, (p).number) FROM shared_pairs');
SELECT * FROM compared('SELECT pair_word(q), pair_sum(q, q.number), joined_or_none(q.word, 1), size_of(q.word) FROM (SELECT (p).* FROM shared_pairs) q');
SELECT * FROM compared('SELECT pair_word(ROW(x, t, y)), pair_sum(ROW(x, t, y), x), joined_or_none(t, y), size_of(t) FROM texts');
SELECT * FROM compared('SELECT x, joined(ctid::text, x), joined_or_none(ctid::text, y), size_of(ctid::text) FROM texts');
CREATE FUNCTION inlined(t text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT t || ''/'' || t';
SELECT * FROM compared('SELECT x, joined(inlined(t), x), size_of(inlined(t)), size_of(t || ''/'' || t), CASE WHEN y = 2 THEN shout(inlined(t)) END FROM texts');
-- Outer rows without inner ones, and rows that were changed or inserted.
SELECT * FROM compared('SELECT x, (SELECT string_agg(joined(v, x) || size_of(v), '','') FROM (VALUES (t), (lower(t)), (NULL)) w (v)) FROM texts WHERE x <= 100');
CREATE TABLE changed AS SELECT x, t, t AS u, t AS v FROM texts WHERE x <= 1000;
UPDATE changed SET u = shout(t), v = joined(t, x) || size_of(t) WHERE size_of(t) = 7 OR joined_or_none(t, x) < 'Text 2';
SELECT count(*) FILTER (WHERE u <> t) AS changed, count(*) FILTER (WHERE u <> upper(t) || '!' AND u <> t) AS wrong,
  count(*) FILTER (WHERE v <> t || ' ' || x || length(t) AND v <> t) AS wrong_too FROM changed;
-- One argument twice in one call, and arguments of fused calls.
SELECT * FROM compared('SELECT x, add(x + 1, x + 1), add_one(x + 1), joined(t, x), joined(shout(t), size_of(t)) FROM texts');
SELECT * FROM compared('SELECT x, joined(joined(t, y), size_of(t)), joined(t, size_of(joined(t, y))), shout(joined_or_none(t, y)) FROM texts');
-- Equal rows and results that are kept.
CREATE FUNCTION kept_size_of(t text) RETURNS bigint LANGUAGE container IMMUTABLE STRICT PARALLEL SAFE COST 1000 AS $$
template = "python"
cache = true
source = '''
def kept_size_of(t):
    return len(t)
'''
$$;
SET transship.cache = always;
SELECT * FROM compared('SELECT x, shout(left(t, 6)), kept_size_of(left(t, 6)), size_of(left(t, 6)), joined(left(t, 6), y) FROM texts');
SELECT * FROM compared('SELECT x, shout(left(t, 6)), kept_size_of(left(t, 6)), size_of(left(t, 6)), joined(left(t, 6), y) FROM texts');
RESET transship.cache;
-- Nodes that start anew, cursors, prepared and parallel statements, and batches of few rows.
SELECT * FROM compared('SELECT n, l.* FROM generate_series(1, 50) n, LATERAL (SELECT x, shout(t), joined(t, n) FROM texts WHERE x >= n * 70 LIMIT 1 + n % 4) l');
SELECT * FROM compared('SELECT x, (SELECT max(shout(n.t || m.t) || joined(n.t || m.t, m.y)) FROM texts m WHERE m.x < n.x) FROM texts n WHERE x < 40');
BEGIN;
DECLARE c SCROLL CURSOR FOR SELECT x, shout(t), joined(t, y) FROM texts;
FETCH 2 FROM c;
FETCH ABSOLUTE 2001 FROM c;
FETCH BACKWARD 1 FROM c;
COMMIT;
PREPARE again(bigint) AS SELECT max(joined(t, $1)), max(joined_or_none(t || $1, y)), max(shout(t || $1)) FROM texts;
SET plan_cache_mode = force_generic_plan;
EXECUTE again(2);
EXECUTE again(NULL);
RESET plan_cache_mode;
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
SELECT * FROM compared('SELECT sum(size_of(t)), max(joined(t, y)), min(joined(t, x)) FROM texts');
RESET parallel_setup_cost;
RESET parallel_tuple_cost;
RESET min_parallel_table_scan_size;
SET transship.batch_rows = 1;
SELECT * FROM compared('SELECT x, shout(t), joined(t, y), joined_or_none(t, y) FROM texts WHERE x <= 50');
SET transship.batch_rows = 3;
SELECT * FROM compared('SELECT x, shout(t), joined(t, y), joined_or_none(t, y), size_of(shout(t)) FROM texts WHERE x <= 50');
RESET transship.batch_rows;
-- Every transport, and values that are stored out of line; what each call sends counts for the size of a batch, as without.
CREATE FUNCTION batches_of(query text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
  line text;
BEGIN
  FOR line IN EXECUTE 'EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) ' || query LOOP
    IF line ~ '^ *(Calls|Batches|Container Call):' THEN
      RETURN NEXT trim(line);
    END IF;
  END LOOP;
END
$$;
SET transship.batch_size = '64kB';
SELECT * FROM batches_of('SELECT size_of(large), size_of(lower(large)), joined(large, y) FROM texts');
SET transship.fusion = off;
SELECT * FROM batches_of('SELECT size_of(large), size_of(lower(large)), joined(large, y) FROM texts');
RESET transship.fusion;
SELECT * FROM compared('SELECT x, size_of(large), md5(joined(large, y)), size_of(shout(large)) FROM texts');
RESET transship.batch_size;
SET transship.transport = flight;
SELECT * FROM compared('SELECT x, size_of(large), md5(joined(large, y)), joined_or_none(t, y), shout(t) FROM texts');
SET transship.transport = json;
SELECT * FROM compared('SELECT x, size_of(large), md5(joined(large, y)), joined_or_none(t, y), shout(t) FROM texts');
SET transship.transport = socket;
SELECT * FROM compared('SELECT x, size_of(large), md5(joined(large, y)), joined_or_none(t, y), shout(t) FROM texts');
RESET transship.transport;
-- Errors name the function and the row of the scan.
SELECT code, message, context FROM failure($$SELECT shout(CASE x WHEN 2345 THEN 'bad' ELSE t END), size_of(CASE x WHEN 2345 THEN 'bad' ELSE t END) FROM texts$$);
SELECT code, message, context FROM failure($$SELECT joined_or_none(s, y), CASE WHEN y = 1 THEN size_of(s) END FROM (SELECT CASE WHEN x = 2346 THEN 'bad' ELSE t END AS s, y FROM texts OFFSET 0) q$$);
SELECT code, message, context FROM failure($$SELECT joined(s, y), size_of(s) FROM (SELECT CASE WHEN x = 2343 THEN 'bad' ELSE t END AS s, y FROM texts OFFSET 0) q$$);
-- Every type that is converted value by value.
CREATE FUNCTION make_shared(kind text, name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format('CREATE FUNCTION shared_one(x %1$s) RETURNS %1$s LANGUAGE container IMMUTABLE AS ''image = "regress:1.0" function = "pass_%2$s"''', kind, name);
  EXECUTE format('CREATE FUNCTION shared_two(x %1$s) RETURNS %1$s LANGUAGE container IMMUTABLE STRICT AS ''image = "regress:1.0" function = "echo_%2$s"''', kind, name);
END
$$;
CREATE TABLE shared_values AS SELECT i AS id, NULLIF('\x' || lpad(to_hex(i), 4, '0'), '\x0003')::bytea AS bytea, NULLIF(i / 8.0, 1)::numeric AS numeric,
  CASE WHEN i <> 4 THEN json_build_object('i', i)::jsonb::text::json END AS json, NULLIF(md5(i::text)::uuid, md5('5')::uuid) AS uuid,
  CASE WHEN i % 5 > 0 THEN i * interval '1 mon 2 days 3.5 s' END AS interval, CASE WHEN i % 6 > 0 THEN ARRAY[i, NULL, 3] END AS ints,
  CASE WHEN i % 4 > 0 THEN ARRAY['a' || i, NULL, ''] END AS texts FROM generate_series(1, 300) i;
DO $$
DECLARE
  kind text[];
  found record;
BEGIN
  FOREACH kind SLICE 1 IN ARRAY ARRAY[['bytea', 'bytea'], ['numeric', 'numeric'], ['json', 'json'], ['uuid', 'uuid'], ['interval', 'interval'], ['int4[]', 'ints'], ['text[]', 'texts']] LOOP
    PERFORM make_shared(kind[1], kind[2]);
    SELECT * INTO found FROM compared(format('SELECT id, shared_one(%1$I), shared_two(%1$I), CASE WHEN id %% 7 < 3 THEN shared_one(%1$I)::text END, CASE WHEN id %% 3 = 1 THEN shared_two(%1$I)::text END, %1$I FROM shared_values', kind[2]));
    RAISE INFO '%: %', kind[1], found;
    EXECUTE format('SELECT count(*) FROM shared_values WHERE shared_one(%1$I)::text IS DISTINCT FROM %1$I::text OR shared_two(%1$I)::text IS DISTINCT FROM %1$I::text', kind[2]) INTO found;
    RAISE INFO '%: % changed', kind[1], found.count;
    EXECUTE format('DROP FUNCTION shared_one(%s), shared_two(%1$s)', kind[1]);
  END LOOP;
END
$$;
DROP FUNCTION pair_word, pair_sum, inlined;
DROP TABLE shared_pairs, changed;
DROP TYPE shared_pair;
DROP FUNCTION make_shared, batches_of, evaluations_of, counted_stable, compared;
DROP TABLE texts, shared_values;
DROP DOMAIN counted_text;
DROP FUNCTION counted, size_of, joined, joined_or_none, kept_size_of;
DROP SEQUENCE evaluations, drawn;
