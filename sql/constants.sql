-- Arguments that are the same in every row travel once: constants and parameters of a query, of every type.
SET transship.batch_rows = 50;
CREATE TABLE constants (name text, type text, value text);
INSERT INTO constants VALUES
  ('bool', 'bool', 'true'), ('int2', 'smallint', '-7'), ('int4', 'integer', '70000'), ('int8', 'bigint', '9007199254740993'),
  ('float4', 'real', '0.25'), ('float8', 'double precision', '-0.0'), ('text', 'text', 'größer'), ('bytea', 'bytea', '\x00ff'),
  ('date', 'date', '2026-02-28'), ('timestamp', 'timestamp', '2026-02-28 12:34:56.789012'),
  ('timestamptz', 'timestamptz', '2026-02-28 12:34:56+03'), ('numeric', 'numeric', '12345678901234567890.10'),
  ('uuid', 'uuid', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'), ('json', 'jsonb', '{"a": [1, 2.25]}'), ('time', 'time', '23:59:59.5'),
  ('timetz', 'timetz', '01:02:03+05'), ('interval', 'interval', '1 mon -3 days 00:00:01'), ('inet', 'inet', '10.0.0.1/8'),
  ('ints', 'integer[]', '{1,NULL,3}'), ('texts', 'text[]', '{a,"b c",NULL}'), ('int8range', 'int8range', '[1,10)');
CREATE FUNCTION wrong_rows(called text, value text, transport text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE wrong bigint;
BEGIN
  PERFORM set_config('transship.transport', transport, true);
  EXECUTE format('SELECT count(*) FILTER (WHERE %1$s(%2$s)::text IS DISTINCT FROM (%2$s)::text) FROM numbers WHERE x <= 120', called, value)
    INTO wrong;
  RETURN wrong;
END
$$;
DO $$
DECLARE entry constants;
BEGIN
  FOR entry IN SELECT * FROM constants LOOP
    EXECUTE format('CREATE FUNCTION same_%1$s(%2$s) RETURNS %2$s LANGUAGE container AS %3$L',
      entry.name, entry.type, format('image = "regress:1.0" function = "echo_%s"', entry.name));
    EXECUTE format('CREATE FUNCTION whole_%1$s(%2$s) RETURNS %2$s LANGUAGE container AS %3$L',
      entry.name, entry.type, format('image = "regress:1.0" function = "pass_%s"', entry.name));
  END LOOP;
END
$$;
SELECT transport, count(*) AS calls, sum(wrong_rows(form || name, coalesce(quote_literal(nullif(value, 'NULL')), 'NULL') || '::' || type, transport)) AS wrong_rows
FROM unnest(ARRAY['auto', 'shm', 'socket', 'flight', 'json']) transport, unnest(ARRAY['same_', 'whole_']) form,
  (SELECT * FROM constants UNION ALL SELECT name, type, 'NULL' FROM constants) c
GROUP BY transport ORDER BY transport;
-- Parquet repeats them in each row; it has no arrays, ranges and intervals.
SELECT transport, count(*) AS calls, sum(wrong_rows(form || name, coalesce(quote_literal(nullif(value, 'NULL')), 'NULL') || '::' || type, transport)) AS wrong_rows
FROM unnest(ARRAY['parquet']) transport, unnest(ARRAY['same_', 'whole_']) form,
  (SELECT * FROM constants UNION ALL SELECT name, type, 'NULL' FROM constants) c
WHERE type !~ '\[\]|range|interval' GROUP BY transport;
-- Before, between and behind columns, alone, and as NULL.
CREATE FUNCTION add_volatile(a bigint, b bigint) RETURNS bigint LANGUAGE container AS 'image = "regress:1.0" function = "add"';
CREATE FUNCTION add_strict(a bigint, b bigint) RETURNS bigint LANGUAGE container STRICT AS 'image = "regress:1.0" function = "add"';
CREATE FUNCTION add_stable(a bigint, b bigint) RETURNS bigint LANGUAGE container STABLE STRICT AS 'image = "regress:1.0" function = "add"';
SELECT sum(add_volatile(5, x)), sum(add_volatile(x, -5)), sum(add_volatile(2, 3)), count(add_strict(x, NULL)), count(add_strict(NULL, 1)),
  sum(add_stable(4, 4)), sum(add_stable(CASE WHEN x % 2 = 0 THEN 7 END, 1)) FROM numbers WHERE x <= 333;
-- A parameter has one value while a plan runs, and another when it runs again.
SET plan_cache_mode = force_generic_plan;
PREPARE sums(bigint, text) AS SELECT sum(add_volatile(x, $1)), max(same_text($2)), count(same_text($2)) FROM numbers WHERE x <= 100;
EXECUTE sums(0, 'a');
EXECUTE sums(1, NULL);
EXECUTE sums(2, 'b');
DEALLOCATE sums;
CREATE FUNCTION sums(OUT n bigint, OUT total bigint) RETURNS SETOF record LANGUAGE plpgsql AS $$
DECLARE entry record;
BEGIN
  FOR i IN 1..3 LOOP
    n := i;
    SELECT sum(add_volatile(x, n)) INTO total FROM numbers WHERE x <= 100;
    RETURN NEXT;
  END LOOP;
  total := 0;
  -- What changes while a cursor is open does not change its parameters.
  FOR entry IN SELECT x, add_volatile(x, n) AS y FROM numbers WHERE x <= 200 LOOP
    n := n + 1;
    total := total + entry.y - entry.x;
  END LOOP;
  RETURN NEXT;
END
$$;
SELECT * FROM sums();
RESET plan_cache_mode;
-- Beneath a nested loop the same node runs again and again.
SELECT a.x, b.total FROM numbers a, LATERAL (SELECT sum(add_volatile(n.x, 100)) AS total FROM numbers n WHERE n.x <= a.x) b WHERE a.x <= 3 ORDER BY 1;
SELECT x, (SELECT max(add_volatile(5, y + numbers.x)) FROM (VALUES (1), (2)) v(y)) FROM numbers WHERE x <= 3 ORDER BY 1;
-- Sets.
CREATE FUNCTION words_of(text) RETURNS TABLE ("position" integer, word text) LANGUAGE container
AS $$ image = "regress:1.0" function = "words" $$;
SELECT x, (words_of('a b')).word FROM numbers WHERE x <= 2 ORDER BY 1, 2;
SELECT count(*), count(DISTINCT w) FROM (SELECT x, words_of('a b ' || 'c') AS w FROM numbers WHERE x <= 200) s;
-- One value of 2 MB for 2,000 rows: it is sent for the first few rows, and then once.
CREATE FUNCTION byte_of(bytes bytea, "position" bigint) RETURNS bigint LANGUAGE container AS 'image = "regress:1.0"';
SELECT transship.stat_reset();
PREPARE bytes(bytea) AS SELECT sum(byte_of($1, x * 100)) FROM numbers WHERE x <= 2000;
EXECUTE bytes(decode(repeat('0a', 2000000), 'hex'));
SELECT bytes_sent < 30000000 AS is_sent_once, batches > 40 AS has_batches FROM transship.stat_functions WHERE name = 'byte_of';
-- A model of 17 MB over each transport: where it is repeated in each row, batches are short, and the backend needs memory for some rows
-- at a time. In all rows of a batch of 50 it would take 850 MB.
CREATE FUNCTION sum_of_bytes(model bytea, transport text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE total bigint;
BEGIN
  PERFORM set_config('transship.transport', transport, true);
  SELECT sum(byte_of(model, x * 100)) INTO total FROM numbers WHERE x <= 50;
  RETURN total;
END
$$;
CREATE FUNCTION peak_megabytes() RETURNS bigint LANGUAGE sql
AS $$ SELECT substring(pg_read_file('/proc/self/status') FROM 'VmHWM:\s+(\d+) kB')::bigint / 1024 $$;
SELECT transport, sum_of_bytes(decode(repeat('0a', 17000000), 'hex'), transport), peak_megabytes() < 600 AS is_bounded
FROM unnest(ARRAY['shm', 'socket', 'flight', 'json', 'parquet']) transport;
SET transship.batching = off;
SELECT sum(add_volatile(5, x)), sum(add_volatile(x, -5)) FROM numbers WHERE x <= 33;
RESET transship.batching;
RESET transship.batch_rows;
DROP FUNCTION add_volatile, add_strict, add_stable, sums, words_of, byte_of, sum_of_bytes, peak_megabytes, wrong_rows;
DO $$
DECLARE entry constants;
BEGIN
  FOR entry IN SELECT * FROM constants LOOP
    EXECUTE format('DROP FUNCTION same_%1$s, whole_%1$s', entry.name);
  END LOOP;
END
$$;
DROP TABLE constants;
