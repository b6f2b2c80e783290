-- What goes wrong is one clear error; the backend lives, and the next statement works.
\x on
-- An exception in the user's code, in a batch and by itself.
SELECT * FROM failure('SELECT sum(fail_at(x, 20000)) FROM numbers');
SELECT * FROM failure('SELECT fail_at(1, 1)');
SELECT * FROM failure('SELECT CASE WHEN random() >= 0 THEN fail_at(x, 3) END FROM numbers');
-- A result of another type, or too few results.
CREATE FUNCTION wrong_type(x bigint) RETURNS bigint LANGUAGE container AS 'image = "regress:1.0"';
CREATE FUNCTION too_few(x bigint) RETURNS bigint LANGUAGE container AS 'image = "regress:1.0"';
SELECT * FROM failure('SELECT wrong_type(x) FROM numbers');
SELECT * FROM failure('SELECT too_few(x) FROM numbers');
-- A container that ends in the middle of a query.
SELECT * FROM failure('SELECT sum(exit_at(x, 20000)) FROM numbers');
SELECT sum(exit_at(x, 0)) FROM numbers;
-- A function that is not VOLATILE is tried on other replicas, but not for ever.
CREATE FUNCTION exit_at_immutable(x bigint, bad bigint) RETURNS bigint LANGUAGE container IMMUTABLE AS $$
image = "regress:1.0"
function = "exit_at"
$$;
SELECT * FROM failure('SELECT sum(exit_at_immutable(x, 20000)) FROM numbers');
SELECT errors, retries FROM transship.stat_functions WHERE name = 'exit_at_immutable';
-- The manager remembers how the containers of an image end.
SELECT image, endings >= 3 AS ended, last ~ 'status' AS says_how, 'exit_at_immutable'::regproc::oid = ANY (functions::oid[]) AS is_called_there
FROM transship.circuits WHERE image = 'regress:1.0';
-- No manager.
SET transship.manager_socket = '/nowhere/transshipd.sock';
SELECT * FROM failure('SELECT sum(add_one(x)) FROM numbers');
SELECT * FROM failure($$CREATE FUNCTION f(x bigint) RETURNS bigint LANGUAGE container AS 'image = "regress:1.0"'$$);
RESET transship.manager_socket;
-- Servers that break the protocol.
\getenv endpoint MISBEHAVING_ENDPOINT
CREATE FUNCTION make_bad(name text, endpoint text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format('CREATE FUNCTION %I(x bigint) RETURNS bigint LANGUAGE container AS %L', name, format('endpoint = "%s"', endpoint));
END
$$;
SELECT make_bad(name, :'endpoint') FROM unnest('{too_many_rows,other_type,two_columns,other_batch,no_answer,bad_metadata}'::text[]) name;
SELECT * FROM failure('SELECT too_many_rows(x) FROM numbers');
SELECT * FROM failure('SELECT too_many_rows(1)');
SELECT * FROM failure('SELECT other_type(x) FROM numbers');
SELECT * FROM failure('SELECT two_columns(x) FROM numbers');
SELECT * FROM failure('SELECT other_batch(x) FROM numbers');
SELECT * FROM failure('SELECT no_answer(x) FROM numbers');
SELECT code, message FROM failure('SELECT bad_metadata(x) FROM numbers');
-- A server that is not there.
SELECT code, message FROM failure($$CREATE FUNCTION f(x bigint) RETURNS bigint LANGUAGE container AS 'endpoint = "unix:/nowhere/flight.sock"'$$);
-- After all that, and after an error in a subtransaction.
SELECT sum(add_one(x)) FROM numbers;
DO $$
BEGIN
  BEGIN
    PERFORM fail_at(x, 500) FROM numbers;
  EXCEPTION WHEN external_routine_exception THEN
    RAISE NOTICE 'caught: %', SQLERRM;
  END;
  PERFORM add_one(x) FROM numbers;
END
$$;
DROP FUNCTION wrong_type, too_few, exit_at_immutable, make_bad, too_many_rows, other_type, two_columns, other_batch, no_answer, bad_metadata;
-- Errors that are raised below a Container Batch node keep their context.
CREATE FUNCTION divide(a bigint, b bigint) RETURNS bigint LANGUAGE plpgsql AS 'BEGIN RETURN a / b; END';
SELECT add_one(divide(x, y)) FROM numbers ORDER BY x;
DROP FUNCTION divide;
-- A manager that takes the connection and says nothing: transship.start_timeout ends the wait.
SELECT set_config('transship.manager_socket', substr(:'endpoint', 6) || '.silent', false) <> '' AS set;
SET transship.start_timeout = '200ms';
SELECT code, message FROM failure('SELECT sum(add_one(x)) FROM numbers');
SELECT code, message FROM failure('SELECT add_one(1 + (random() * 0)::int)');
RESET transship.start_timeout;
RESET transship.manager_socket;
SELECT sum(add_one(x)) FROM numbers;
