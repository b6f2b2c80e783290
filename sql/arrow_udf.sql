-- Servers of RisingWave's arrow-udf work as they are, over Flight on TCP.
\getenv endpoint ARROW_UDF_ENDPOINT
CREATE FUNCTION make_remote(declaration text, result text, endpoint text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format('CREATE FUNCTION %s RETURNS %s LANGUAGE container STABLE AS %L', declaration, result, format('endpoint = "%s"', endpoint));
END
$$;
SELECT make_remote('common_divisor(int, int)', 'int', :'endpoint'), make_remote('reversed_text(text)', 'text', :'endpoint'),
  make_remote('scaled(numeric, json)', 'numeric', :'endpoint'), make_remote('forty()', 'int', :'endpoint'),
  make_remote('missing(int)', 'int', :'endpoint');
SELECT sum(common_divisor(x::int, 36)), sum(gcd(x::int, 36)) FROM numbers;
SELECT common_divisor(NULL::int, y) FROM (VALUES (1)) v (y) WHERE false;
SELECT reversed_text('abc'), reversed_text(NULL), scaled(1.5, '{"factor": 3}'), forty();
SELECT max(reversed_text(t)), sum(forty()), sum(scaled(x, '{"factor": 2}')) FROM numbers WHERE x <= 1000;
-- Its exceptions arrive with their traceback, not as a missing function.
SELECT code, message, detail ~ 'KeyError: 1' AS has_traceback, context FROM failure('SELECT missing(x::int) FROM numbers');
-- Errors of rows: such a server is asked again, in halves; of a VOLATILE function row by row.
CREATE FUNCTION make_scaled(name text, volatility text, endpoint text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format('CREATE FUNCTION %I(numeric, json, OUT value numeric, OUT error text) LANGUAGE container %s AS %L', name, volatility,
    format(E'endpoint = "%s"\nfunction = "scaled"\non_error = "report"', endpoint));
END
$$;
SELECT make_scaled('scaled_stable', 'STABLE', :'endpoint'), make_scaled('scaled_volatile', 'VOLATILE', :'endpoint');
SELECT x, (r).value, split_part((r).error, E'\n', 1) AS error
FROM (SELECT x, scaled_stable(x, CASE WHEN x % 3 = 0 THEN '{}'::json ELSE '{"factor": 2}'::json END) AS r FROM numbers WHERE x <= 7 OFFSET 0) s ORDER BY x;
SELECT sum((r).value), count((r).error) FROM (SELECT scaled_stable(x, CASE WHEN x % 100 = 0 THEN '{}' ELSE '{"factor": 2}'::json END) AS r FROM numbers WHERE x <= 2000 OFFSET 0) s;
SELECT sum((r).value), count((r).error) FROM (SELECT scaled_volatile(x, CASE WHEN x % 20 = 0 THEN '{}' ELSE '{"factor": 2}'::json END) AS r FROM numbers WHERE x <= 100 OFFSET 0) s;
DROP FUNCTION make_scaled, scaled_stable, scaled_volatile;
-- Signatures are checked.
\x on
SELECT code, detail FROM failure(format('SELECT make_remote(%L, %L, %L)', 'common_divisor(bigint, int)', 'int', :'endpoint'));
SELECT code, regexp_replace(message, '[0-9]+"', 'PORT"') AS message FROM failure(format('SELECT make_remote(%L, %L, %L)', 'nothing(int)', 'int', :'endpoint'));
\x off
-- Version 1 of the protocol: numeric and json have other Arrow types.
\getenv old_endpoint ARROW_UDF_1_ENDPOINT
SELECT make_remote('described(numeric, json, text)', 'json', :'old_endpoint'), make_remote('doubled(numeric)', 'numeric', :'old_endpoint'),
  make_remote('below(int)', 'SETOF int', :'old_endpoint');
SELECT described(1.50, '{"factor": [1, null]}', 'é'), described(NULL, NULL, NULL);
SELECT sum(doubled(x + 0.5)), 2 * sum(x + 0.5) FROM numbers;
SELECT n, array_agg(b) FROM (VALUES (3), (0), (2)) v (n), below(n) AS b GROUP BY n ORDER BY n;
SELECT code, message ~ 'NoneType' AS says_why FROM failure('SELECT doubled(NULL)');
DROP FUNCTION described, doubled, below;
DROP FUNCTION common_divisor, reversed_text, scaled, forty, missing, make_remote;
