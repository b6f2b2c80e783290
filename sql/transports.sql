-- Every transport gives the same answers.
CREATE FUNCTION count_changed(x bigint) RETURNS bigint LANGUAGE container STABLE AS 'image = "regress:1.0"';
CREATE FUNCTION over(transport text, query text, OUT used text, OUT answer text) LANGUAGE plpgsql AS $$
DECLARE line text;
BEGIN
  PERFORM set_config('transship.transport', transport, true);
  EXECUTE query INTO answer;
  FOR line IN EXECUTE 'EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) ' || query LOOP
    IF line LIKE '%Transport: %' THEN used := split_part(line, ': ', 2); END IF;
  END LOOP;
END
$$;
SELECT t, (over(t, $$SELECT sum(add_one(x)) || max(shout(t)) FROM numbers$$)).* FROM unnest('{auto,shm,flight,socket,parquet,json}'::text[]) t;
SELECT t, (over(t, $$SELECT sum(seven()) FROM numbers$$)).* FROM unnest('{auto,shm,flight,socket,parquet,json}'::text[]) t;
SELECT t, (over(t, $$SELECT count(*) FILTER (WHERE is_null(nullif(x, 7))) FROM numbers$$)).* FROM unnest('{auto,shm,flight,socket,parquet,json}'::text[]) t;
SELECT t, (over(t, $$SELECT sum(length(shout(repeat(t, x::int % 3000)))) FROM numbers WHERE x < 3000$$)).* FROM unnest('{auto,shm,flight,socket,parquet,json}'::text[]) t;
SELECT t, (over(t, $$SELECT shout(repeat('x', 20000000 * x::int)) = repeat('X', 20000000) || '!' FROM numbers WHERE x = 1$$)).* FROM unnest('{shm,flight,socket,parquet}'::text[]) t;
-- A function that keeps its arguments, which later batches must not change.
SELECT t, (over(t, $$SELECT max(count_changed(x)) FROM numbers$$)).* FROM unnest('{shm,flight,socket,parquet,json}'::text[]) t;
-- Results that are dictionaries, for calls that are all made and for equal ones that are sent once.
CREATE FUNCTION season(month bigint) RETURNS text LANGUAGE container VOLATILE AS 'image = "regress:1.0"';
CREATE FUNCTION season_of(month bigint) RETURNS text LANGUAGE container IMMUTABLE STRICT AS E'image = "regress:1.0"\nfunction = "season"';
CREATE FUNCTION pick(place bigint, text text) RETURNS text LANGUAGE container VOLATILE AS 'image = "regress:1.0"';
CREATE FUNCTION shout_at(text text) RETURNS text LANGUAGE container IMMUTABLE STRICT AS E'image = "regress:1.0"\nfunction = "shout"';
SELECT t, (over(t, $$SELECT string_agg(s || n, ' ' ORDER BY s) FROM (SELECT season(x % 13) s, count(*) n FROM numbers GROUP BY 1) g$$)).* FROM unnest('{auto,shm,flight,socket,parquet,json}'::text[]) t;
SELECT t, (over(t, $$SELECT string_agg(s || n, ' ' ORDER BY s) FROM (SELECT season_of(x % 13) s, count(*) n FROM numbers GROUP BY 1) g$$)).* FROM unnest('{shm,flight}'::text[]) t;
SELECT t, (over(t, $$SELECT string_agg(s || n, ' ' ORDER BY s) FROM (SELECT shout_at('x' || x % 3) s, count(*) n FROM numbers GROUP BY 1) g$$)).* FROM unnest('{shm,flight}'::text[]) t;
SELECT t, (over(t, $$SELECT string_agg(DISTINCT pick(x, t), ' ') FROM (SELECT x, t FROM numbers LIMIT 2) n$$)).* FROM unnest('{shm,flight,socket,parquet,json}'::text[]) t;
SELECT x, season(x), season_of(x) FROM numbers WHERE x IN (1, 4, 12, 13) ORDER BY x;
-- Every row is checked, whatever it shares.
CREATE FUNCTION season_name(month bigint) RETURNS varchar LANGUAGE container VOLATILE AS E'image = "regress:1.0"\nfunction = "season"';
CREATE DOMAIN short_name AS text CHECK (length(VALUE) < 10) NOT NULL;
CREATE FUNCTION short_season(month bigint) RETURNS short_name LANGUAGE container VOLATILE AS E'image = "regress:1.0"\nfunction = "season"';
SELECT x, season_name(x), pg_typeof(season_name(x)), season(x) = season_name(x) AS same FROM numbers WHERE x BETWEEN 8 AND 9;
SELECT count(*), max(short_season(x)) FROM numbers WHERE x % 13 BETWEEN 1 AND 8 AND x < 9;
SELECT code, message, context FROM failure('SELECT short_season(x) FROM numbers WHERE x < 10');
SELECT code, message, context FROM failure('SELECT short_season(12 + x) FROM numbers WHERE x < 10');
DROP FUNCTION season, season_of, season_name, short_season, pick, shout_at;
DROP DOMAIN short_name;
DROP FUNCTION over, count_changed;
-- Flight and JSON in one query.
CREATE FUNCTION add_one_json(x bigint) RETURNS bigint LANGUAGE container IMMUTABLE STRICT AS $$
image = "regress:1.0"
function = "add_one"
transport = "json"
$$;
EXPLAIN (VERBOSE, COSTS OFF) SELECT add_one_json(x), add_one(x) FROM numbers;
SELECT sum(add_one_json(x)) = sum(add_one(x)), count(add_one_json(x)) FROM numbers;
SELECT add_one_json(x) FROM numbers ORDER BY x LIMIT 3;
SELECT add_one_json(41);
SET transship.transport = shm;
\x on
SELECT code, message, context FROM failure('SELECT fail_at(x, 20000) FROM numbers');
SELECT code, message, detail FROM failure('SELECT exit_at(x, 20000) FROM numbers');
\x off
SET transship.transport = json;
SELECT sum(add_one(x)), max(shout(t)) FROM numbers;
SELECT sum(seven()) FROM numbers;
SELECT count(*) FILTER (WHERE is_null(nullif(x, 7))) FROM numbers;
\x on
SELECT code, message, context FROM failure('SELECT fail_at(x, 20000) FROM numbers');
SELECT code, message, detail FROM failure('SELECT exit_at(x, 20000) FROM numbers');
\x off
RESET transship.transport;
-- Handlers that take a batch as Arrow, NumPy and pandas columns.
CREATE FUNCTION add_one_arrow(x bigint) RETURNS bigint LANGUAGE container IMMUTABLE STRICT AS 'image = "regress:1.0"';
CREATE FUNCTION add_one_numpy(x bigint) RETURNS bigint LANGUAGE container IMMUTABLE STRICT AS 'image = "regress:1.0"';
CREATE FUNCTION add_one_pandas(x bigint) RETURNS bigint LANGUAGE container IMMUTABLE STRICT AS 'image = "regress:1.0"';
SELECT sum(add_one_arrow(x)), sum(add_one_numpy(x)), sum(add_one_pandas(x)) FROM numbers;
DROP FUNCTION add_one_json, add_one_arrow, add_one_numpy, add_one_pandas;
