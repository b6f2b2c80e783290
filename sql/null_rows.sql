-- A composite result that is NULL: in FROM it is a row of NULLs, elsewhere NULL, as of any function. PL/pgSQL and SQL are the reference.
CREATE TYPE spread AS (low bigint, gone int, high bigint, label text);
ALTER TYPE spread DROP ATTRIBUTE gone;
CREATE FUNCTION spread_of(a bigint, b bigint) RETURNS spread LANGUAGE container IMMUTABLE AS E'image = "regress:1.0"\nfunction = "span"';
CREATE FUNCTION span_strict(a bigint, b bigint) RETURNS spread LANGUAGE container IMMUTABLE STRICT AS E'image = "regress:1.0"\nfunction = "span"';
CREATE FUNCTION span_out(a bigint, b bigint, OUT low bigint, OUT high bigint, OUT label text) LANGUAGE container IMMUTABLE
AS E'image = "regress:1.0"\nfunction = "span"';
CREATE FUNCTION pairs(n bigint) RETURNS TABLE ("position" int, word text) LANGUAGE container IMMUTABLE AS E'image = "regress:1.0"\nfunction = "maybe_pairs"';
CREATE SCHEMA reference;
CREATE FUNCTION reference.spread_of(a bigint, b bigint) RETURNS spread LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  RETURN CASE WHEN a + b IS NOT NULL THEN (least(a, b), greatest(a, b), a || '-' || b)::spread END;
END
$$;
CREATE FUNCTION reference.span_strict(a bigint, b bigint) RETURNS spread LANGUAGE plpgsql IMMUTABLE STRICT AS 'BEGIN RETURN reference.spread_of(a, b); END';
CREATE FUNCTION reference.span_out(a bigint, b bigint, OUT low bigint, OUT high bigint, OUT label text) LANGUAGE sql IMMUTABLE AS
'SELECT s.low, s.high, s.label FROM reference.spread_of(a, b) s WHERE s.low IS NOT NULL';
CREATE TYPE numbered AS (position int, word text);
CREATE FUNCTION reference.pairs(n bigint) RETURNS SETOF numbered LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  FOR i IN 1 .. coalesce(n, 0) LOOP
    RETURN NEXT CASE WHEN i % 2 = 1 THEN (i, i::text)::numbered END;
  END LOOP;
END
$$;
CREATE TABLE gaps AS SELECT i AS k, nullif(i, 2) AS x FROM generate_series(0::bigint, 4) i;
-- The answers to a query with the functions of the image, with batching on and off, and those with the reference.
CREATE FUNCTION answers(query text, OUT batched text, OUT single text, OUT expected text) LANGUAGE plpgsql AS $$
BEGIN
  query := format('SELECT string_agg(s::text, '' '') FROM (%s) s', query);
  EXECUTE query INTO batched;
  SET LOCAL transship.batching = off;
  EXECUTE query INTO single;
  SET LOCAL search_path = reference, public;
  EXECUTE query INTO expected;
  RESET transship.batching;
  RESET search_path;
END
$$;
SELECT name, query, batched = expected AND single = expected AS same, expected
FROM (VALUES ('spread_of(x, 5)'), ('span_strict(x, 5)'), ('span_out(x, 5)'), ('pairs(x)')) f (name),
  (VALUES
    ('SELECT k, r FROM gaps, %s r ORDER BY k'),
    ('SELECT count(*), count(r) FROM gaps, %s r'),
    ('SELECT k, coalesce(r::text, ''none'') FROM gaps, %s r ORDER BY k'),
    ('SELECT k, r IS NULL, r IS NOT DISTINCT FROM NULL FROM gaps, %s r ORDER BY k'),
    ('SELECT k FROM gaps, %s r WHERE r IS DISTINCT FROM NULL ORDER BY k'),
    ('SELECT k, r FROM gaps LEFT JOIN LATERAL %s r ON true ORDER BY k'),
    ('SELECT k, r FROM gaps LEFT JOIN LATERAL %s r ON k <> 1 ORDER BY k'),
    ('SELECT k, r.* FROM gaps, %s r ORDER BY k'),
    ('SELECT k, %s AS r FROM gaps ORDER BY k')) q (query), answers(format(query, name));
EXPLAIN (VERBOSE, COSTS OFF) SELECT k, r FROM gaps, spread_of(x, 5) r;
EXPLAIN (VERBOSE, COSTS OFF) SELECT k, r FROM gaps, pairs(x) r;
DROP FUNCTION answers, spread_of, span_strict, span_out, pairs;
SET client_min_messages = warning;
DROP SCHEMA reference CASCADE;
RESET client_min_messages;
DROP TABLE gaps;
DROP TYPE spread, numbered;
