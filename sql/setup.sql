-- Functions that the other tests call.
CREATE FUNCTION add_one(x bigint) RETURNS bigint LANGUAGE container IMMUTABLE STRICT PARALLEL SAFE COST 1000
AS 'image = "regress:1.0"';
CREATE FUNCTION add_one_volatile(x bigint) RETURNS bigint LANGUAGE container VOLATILE
AS $$
image = "regress:1.0"
function = "add_one"
$$;
CREATE FUNCTION add(a bigint, b bigint) RETURNS bigint LANGUAGE container IMMUTABLE STRICT PARALLEL SAFE COST 1000
AS 'image = "regress:1.0"';
CREATE FUNCTION shout(t text) RETURNS text LANGUAGE container IMMUTABLE STRICT AS 'image = "regress:1.0"';
CREATE FUNCTION seven() RETURNS bigint LANGUAGE container STABLE AS 'image = "regress:1.0"';
CREATE FUNCTION is_null(x bigint) RETURNS boolean LANGUAGE container IMMUTABLE AS 'image = "regress:1.0"';
CREATE FUNCTION fail_at(x bigint, bad bigint) RETURNS bigint LANGUAGE container IMMUTABLE STRICT
AS 'image = "regress:1.0"';
CREATE FUNCTION exit_at(x bigint, bad bigint) RETURNS bigint LANGUAGE container VOLATILE STRICT
AS 'image = "regress:1.0"';
CREATE FUNCTION wait_for(seconds float8) RETURNS float8 LANGUAGE container VOLATILE STRICT
AS 'image = "regress:1.0"';
CREATE FUNCTION count_calls(x bigint) RETURNS bigint LANGUAGE container VOLATILE STRICT
AS 'image = "regress:1.0"';
CREATE TABLE numbers AS SELECT i::bigint AS x, i % 10 AS y, 'n' || i AS t FROM generate_series(1, 30000) i;
ALTER TABLE numbers ALTER x SET NOT NULL;
ANALYZE numbers;
-- What a failing statement says, on one row and without the parts that differ from run to run.
CREATE FUNCTION failure(statement text, OUT code text, OUT message text, OUT detail text, OUT hint text, OUT context text)
LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE statement;
  message := 'no failure';
EXCEPTION WHEN others THEN
  GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL,
    hint = PG_EXCEPTION_HINT, context = PG_EXCEPTION_CONTEXT;
  message := regexp_replace(message, '"(unix:)?/[^"]*/', '"\1.../', 'g');
  message := regexp_replace(message, 'inline:[0-9a-f]+', 'inline:...');
  detail := regexp_replace(detail, '"/[^"]*/', '".../', 'g');
  context := split_part(context, E'\n', 1);
END
$$;
