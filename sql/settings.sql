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
