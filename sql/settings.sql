-- Every setting: what it says, its bounds, and that it does what it says.
SELECT name, context, vartype, boot_val, unit, min_val, max_val, short_desc <> '' AS described FROM pg_settings WHERE name LIKE 'transship.%' ORDER BY name COLLATE "C";
SET transship.batch_rows = 0;
SET transship.batch_rows = 1000001;
SET transship.batch_size = 0;
SET transship.batch_window = 65;
SET transship.batch_time = -1;
SET transship.batch_timeout = 0;
SET transship.start_timeout = '2d';
SET transship.build_timeout = '0ms';
SET transship.transport = 'carrier pigeon';
SET transship.batching = 'perhaps';
-- batching, batch_rows, batch_size, batch_time, batch_window and transport are in batching.sql and transports.sql, allowed_images and check_allowed_images in dba.sql.
SET transship.batch_timeout = '100ms';
SELECT code, message, hint FROM failure('SELECT wait_for(1)');
RESET transship.batch_timeout;
SET transship.manager_socket = '/nowhere/transshipd.sock';
SELECT code, message FROM failure($$CREATE FUNCTION f(x bigint) RETURNS bigint LANGUAGE container AS E'image = "regress:1.0"\nfunction = "add_one"'$$);
RESET transship.manager_socket;
SET transship.build_timeout = '1ms';
SELECT code, message FROM failure(format($$CREATE FUNCTION slow_build(x bigint) RETURNS bigint LANGUAGE container
AS E'template = "python"\nsource = "def slow_build(x): return x  # %s"'$$, clock_timestamp()));
RESET transship.build_timeout;
-- Lines that a handler writes reach the session that asks for them, before the results or the error.
CREATE FUNCTION murmur(x text) RETURNS text LANGUAGE container VOLATILE AS E'image = "regress:1.0"\nfunction = "murmur"';
SELECT murmur('unheard');
SET transship.log_handlers = notice;
SELECT murmur(x) FROM (VALUES ('one'), (E'two\nthree'), (E'\x1b[31mred')) v (x);
SELECT code, message FROM failure($$SELECT murmur('fail')$$);
DO $$ BEGIN PERFORM murmur('of a block'); END $$;
-- What the client's encoding has no character for is marked, and stands in the way of neither results nor errors.
SET client_encoding = 'LATIN1';
SELECT length(murmur(U&'to \2192 from'));
SELECT code, message FROM failure($$SELECT murmur(x) FROM (VALUES (U&'\2192'), ('fail')) v (x)$$);
RESET client_encoding;
SET transship.transport = flight;
SELECT murmur('over Flight');
RESET transship.transport;
SET transship.log_handlers = loud;
RESET transship.log_handlers;
-- What is no context traces nothing.
SET transship.traceparent = 'nonsense';
SELECT murmur('traced');
RESET transship.traceparent;
DROP FUNCTION murmur(text);
