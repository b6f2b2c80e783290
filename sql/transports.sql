-- Flight and JSON give the same answers.
CREATE FUNCTION add_one_json(x bigint) RETURNS bigint LANGUAGE container IMMUTABLE STRICT AS $$
image = "regress:1.0"
function = "add_one"
transport = "json"
$$;
EXPLAIN (VERBOSE, COSTS OFF) SELECT add_one_json(x), add_one(x) FROM numbers;
SELECT sum(add_one_json(x)) = sum(add_one(x)), count(add_one_json(x)) FROM numbers;
SELECT add_one_json(x) FROM numbers ORDER BY x LIMIT 3;
SELECT add_one_json(41);
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
