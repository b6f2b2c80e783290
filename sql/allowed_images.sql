-- The ways around the list of allowed images. What a DBA does with the list is in dba.sql.
CREATE ROLE scribe;
GRANT USAGE ON LANGUAGE container TO scribe;
GRANT CREATE ON SCHEMA public TO scribe;
-- An image that is not on the list, and one that is.
CREATE FUNCTION secret(x bigint) RETURNS bigint LANGUAGE container AS $$
template = "python"
source = "def secret(x): return -x"
$$;
SELECT substring(prosrc FROM 'sha256:[0-9a-f]{64}') AS secret FROM pg_proc WHERE proname = 'secret' \gset
SELECT transship.image_info('regress:1.0') ->> 'digest' AS digest \gset
SELECT 'sha256:' || repeat('0', 64) AS absent \gset
-- What a statement says, with digests left out.
CREATE FUNCTION answer(statement text, OUT code text, OUT message text, OUT detail text) LANGUAGE sql AS $$
  SELECT code, regexp_replace(message, '[0-9a-f]{64}', '...'), regexp_replace(detail, '[0-9a-f]{64}', '...') FROM failure(statement);
$$;
CREATE FUNCTION creation(name text, body text) RETURNS text LANGUAGE sql AS $$
  SELECT format('CREATE FUNCTION %I(x bigint) RETURNS bigint LANGUAGE container AS %L', name, body);
$$;
ALTER ROLE scribe SET transship.allowed_images = 'regress:*, inline:go';
SET transship.allowed_images = 'regress:*, inline:go';

-- Who names an image and a digest chooses both: the digest must be one of the name's, wherever it stands.
SET ROLE scribe;
SELECT code, message, detail FROM answer(creation('f', format('image = "regress:1.0" digest = "%s" function = "secret"', :'secret')));
SELECT code, message, detail FROM answer(creation('f', format('image = "regress:1.0" digest = "%s" function = "secret"', :'absent')));
SELECT code, message, detail FROM answer(creation('f', format('image = "regress:1.0@%s" function = "secret"', :'secret')));
SELECT code, message, detail FROM answer(creation('f', format('image = "regress:1.0@%s" function = "secret"', :'absent')));
SELECT code, message FROM answer(creation('f', format('image = "%s" function = "secret"', :'secret')));
SELECT code, message FROM answer(creation('f', format('image = "%s" function = "secret"', :'absent')));
SELECT code, message FROM answer(creation('f', format('digest = "%s" template = "go" source = ""', :'secret')));
SET check_function_bodies = off;
SELECT code, message FROM answer(creation('f', format('image = "regress:1.0" digest = "%s" function = "secret"', :'secret')));
SELECT code, message, detail FROM answer(creation('f', format('image = "regress:1.0@%s" function = "secret"', :'secret')));
RESET check_function_bodies;
SELECT message FROM answer(creation('pinned', format('image = "regress:1.0" digest = "%s" function = "add_one"', :'digest')));
ALTER FUNCTION pinned PARALLEL SAFE;
SELECT message FROM answer(creation('by_digest', format('image = "%s" function = "add_one"', :'digest')));
SELECT pinned(1), by_digest(1);
RESET ROLE;

-- The owner that a function is given has not been asked about: what its body names is looked at when it is called.
SELECT message FROM answer(creation('disguised', format('image = "regress:1.0" digest = "%s" function = "secret"', :'secret')));
SELECT message FROM answer(creation('disguised_too', format('image = "%s" function = "secret"', :'secret')));
ALTER FUNCTION disguised OWNER TO scribe;
ALTER FUNCTION disguised_too OWNER TO scribe;
SELECT code, message, detail FROM answer('SELECT disguised(1)');
SELECT code, message FROM answer('SELECT sum(disguised(x)) FROM numbers');
SELECT code, message FROM answer('SELECT disguised_too(1)');
ALTER ROLE scribe SET transship.allowed_images = 'regress:*, inline:python';
SELECT code, message FROM answer('SELECT disguised(1)');
SELECT disguised_too(1);
ALTER ROLE scribe SET transship.allowed_images = 'regress:1.0@*';
SELECT code, message FROM answer('SELECT disguised(1)');
SELECT pinned(1);
ALTER ROLE scribe SET transship.allowed_images = '*';
SELECT disguised(1), disguised_too(1), pinned(1);
SELECT format('ALTER ROLE scribe SET transship.allowed_images = %L', :'secret') AS by_digest \gset
:by_digest;
SELECT disguised(1), disguised_too(1);
SELECT code FROM answer('SELECT pinned(1)');

-- A call that is refused builds nothing, and asks for nothing.
ALTER ROLE scribe SET transship.allowed_images = 'regress:*';
CREATE TYPE pair AS (a bigint, b bigint);
SET check_function_bodies = off;
CREATE FUNCTION unbuilt(x bigint) RETURNS bigint LANGUAGE container AS E'template = "python"\nsource = "def unbuilt(x): return x"';
CREATE FUNCTION unbuilt_pair(p pair) RETURNS bigint LANGUAGE container AS E'template = "python"\nsource = "def unbuilt_pair(p): return 1"';
RESET check_function_bodies;
ALTER FUNCTION unbuilt OWNER TO scribe;
ALTER FUNCTION unbuilt_pair OWNER TO scribe;
SET transship.manager_socket = '/nowhere/transshipd.sock';
SELECT code, message FROM answer('SELECT unbuilt(1)');
SELECT code, message FROM answer('SELECT unbuilt(x) FROM numbers');
SELECT code, message FROM answer('SELECT unbuilt_pair(ROW(1, 2))');
SELECT code, message FROM answer('SELECT unbuilt_pair(ROW(x, 2)) FROM numbers');

-- Who may not name an image is not told whether there is one, either: by its name not even the manager is asked.
SET ROLE scribe;
SELECT code, message FROM answer($$SELECT transship.image_info('flights:1.0')$$);
SELECT code, message FROM answer(format('SELECT transship.image_info(%L)', 'flights:1.0@' || :'digest'));
SELECT code, message FROM answer($$SELECT transship.import('flights:1.0')$$);
RESET ROLE;
RESET transship.manager_socket;
SET ROLE scribe;
SELECT image, code, message FROM (VALUES ('secret', :'secret'), ('absent', :'absent'), ('named secret', 'regress:1.0@' || :'secret'),
  ('named absent', 'regress:1.0@' || :'absent')) v (image, place), answer(format('SELECT transship.image_info(%L)', place));
SELECT code, message FROM answer(format('SELECT transship.image_ddl(%L, %L)', :'secret', 'public'));
SELECT code, message FROM answer(format('SELECT transship.image_ddl(%L, %L)', :'absent', 'public'));
SELECT transship.image_info(:'digest') ->> 'name' AS name;
SELECT code, message FROM answer($$SELECT transship.image_info('regress:9.9')$$);
RESET ROLE;
SET transship.allowed_images = 'regress:*@sha256:0*0';
SET ROLE scribe;
SELECT code, message FROM answer($$SELECT transship.image_info('regress:1.0')$$);
SELECT code, message FROM answer($$SELECT transship.image_info('regress:9.9')$$);
RESET ROLE;

-- Who creates a function that nobody will be able to call is told so.
ALTER ROLE scribe SET transship.allowed_images = 'flights:*';
SET transship.allowed_images = 'regress:*';
SET ROLE scribe;
CREATE FUNCTION uncallable(x bigint) RETURNS bigint LANGUAGE container AS 'image = "regress:1.0" function = "add_one"';
RESET ROLE;
CREATE OR REPLACE FUNCTION uncallable(x bigint) RETURNS bigint LANGUAGE container AS 'image = "regress:1.0" function = "add_one"';
SET check_function_bodies = off;
CREATE OR REPLACE FUNCTION uncallable(x bigint) RETURNS bigint LANGUAGE container AS 'image = "regress:1.0" function = "add_one"';
RESET check_function_bodies;
SELECT transship.transship_validator('uncallable'::regproc);
SET transship.check_allowed_images = 'create';
CREATE OR REPLACE FUNCTION uncallable(x bigint) RETURNS bigint LANGUAGE container AS 'image = "regress:1.0" function = "add_one"';
RESET transship.check_allowed_images;
ALTER ROLE scribe SET transship.allowed_images = 'regress:*';
CREATE OR REPLACE FUNCTION uncallable(x bigint) RETURNS bigint LANGUAGE container AS 'image = "regress:1.0" function = "add_one"';
SELECT uncallable(1);

-- Owners without a list of their own have the server's, whatever this session has: what databases, roles and clients say of
-- the user who logged in is not the server's.
ALTER ROLE scribe RESET transship.allowed_images;
RESET transship.allowed_images;
SELECT code FROM answer('SELECT pinned(1)');
ALTER ROLE CURRENT_USER SET transship.allowed_images = '*';
\c -
SHOW transship.allowed_images;
SELECT code FROM answer('SELECT pinned(1)');
ALTER ROLE CURRENT_USER RESET transship.allowed_images;
\c -reuse-previous=on "options='-c transship.allowed_images=*'"
SHOW transship.allowed_images;
SELECT code FROM answer('SELECT pinned(1)');
\c -reuse-previous=on "options=''"
-- It is the server's once the server has read its files again.
ALTER SYSTEM SET transship.allowed_images = 'regress:*';
SELECT code FROM answer('SELECT pinned(1)');
SELECT pg_reload_conf();
-- Waits until this session has it.
\set ECHO none
\o /dev/null
SELECT 'SELECT pg_sleep(0.1) WHERE NOT pg_catalog.current_setting($$transship.allowed_images$$) ~ $$regress$$' FROM generate_series(1, 600) \gexec
\o
\set ECHO all
SELECT pinned(1);
-- Parallel workers know no more of the server's than of this session's.
SET transship.allowed_images = 'flights:*';
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
SELECT sum(pinned(x)) FROM numbers;
-- A role with another list does not keep the server's from those who have none.
ALTER ROLE CURRENT_USER SET transship.allowed_images = '';
\c -
SELECT pinned(1);
ALTER ROLE CURRENT_USER RESET transship.allowed_images;
ALTER SYSTEM RESET transship.allowed_images;
\c -
SELECT pg_reload_conf();
\set ECHO none
\o /dev/null
SELECT 'SELECT pg_sleep(0.1) WHERE pg_catalog.current_setting($$transship.allowed_images$$) ~ $$regress$$' FROM generate_series(1, 600) \gexec
\o
\set ECHO all
SELECT code FROM answer('SELECT pinned(1)');
DROP FUNCTION secret, answer, creation;
DROP OWNED BY scribe;
DROP TYPE pair;
DROP ROLE scribe;
