-- More calls in one query than a container has threads.
DO $$
BEGIN
  FOR i IN 0..129 LOOP
    EXECUTE format('CREATE FUNCTION m%s(x bigint) RETURNS bigint LANGUAGE container STABLE STRICT AS %L', i,
      E'image = "regress:1.0"\nfunction = "add_one"');
  END LOOP;
END
$$;
SELECT string_agg(format('m%s(x)', i), ' + ') AS calls FROM generate_series(0, 129) i \gset
CREATE FUNCTION over(transport text, calls text, OUT answer numeric) LANGUAGE plpgsql AS $$
BEGIN
  PERFORM set_config('transship.transport', transport, true);
  EXECUTE 'SELECT sum(s) FROM (SELECT ' || calls || ' AS s FROM numbers WHERE x <= 1000) q' INTO answer;
END
$$;
SELECT 130 * (1000 * 1001 / 2 + 1000) AS answer;
SELECT over('auto', :'calls');
SELECT over('shm', :'calls');
SELECT over('flight', :'calls');
SELECT over('socket', :'calls');
SELECT over('parquet', :'calls');
SELECT over('json', :'calls');
-- Calls that a transaction keeps for later.
CREATE FUNCTION one_by_one(transport text, OUT answer bigint) LANGUAGE plpgsql AS $$
BEGIN
  PERFORM set_config('transship.transport', transport, true);
  answer := 0;
  FOR i IN 0..129 LOOP
    EXECUTE format('DO %L', format('BEGIN PERFORM set_config(''many.y'', m%s(%s)::text, true); END', i, i));
    answer := answer + current_setting('many.y')::bigint;
  END LOOP;
END
$$;
SELECT t, one_by_one(t) FROM unnest('{shm,flight,json}'::text[]) t;
DO $$ BEGIN FOR i IN 0..129 LOOP EXECUTE format('DROP FUNCTION m%s', i); END LOOP; END $$;
DROP FUNCTION over, one_by_one;
