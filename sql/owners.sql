-- Statements that create functions do not leave code of other roles where superusers call it.
CREATE ROLE mallory;
CREATE DATABASE transship_owned;
\c transship_owned
GRANT CREATE ON DATABASE transship_owned TO mallory;
SET ROLE mallory;
CREATE SCHEMA transship;
CREATE FUNCTION transship.concat_ws(text, text, text, text) RETURNS text LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'mallory ran as %', current_user; END$$;
RESET ROLE;
CREATE EXTENSION transship;
ALTER SCHEMA transship OWNER TO CURRENT_USER;
-- What is there already is not called all the same.
SET client_min_messages = warning;
CREATE EXTENSION transship;
RESET client_min_messages;
-- An update asks again.
DROP EXTENSION transship;
CREATE EXTENSION transship VERSION '0.1.0';
ALTER SCHEMA transship OWNER TO mallory;
ALTER EXTENSION transship UPDATE;
ALTER SCHEMA transship OWNER TO CURRENT_USER;
-- And of whoever may create functions there.
GRANT CREATE ON SCHEMA transship TO mallory;
ALTER EXTENSION transship UPDATE;
REVOKE CREATE ON SCHEMA transship FROM mallory;
GRANT CREATE ON SCHEMA transship TO PUBLIC;
ALTER EXTENSION transship UPDATE;
REVOKE CREATE ON SCHEMA transship FROM PUBLIC;
SET client_min_messages = warning;
ALTER EXTENSION transship UPDATE;
RESET client_min_messages;
SELECT extversion FROM pg_extension WHERE extname = 'transship';
\c transship_regression
DROP DATABASE transship_owned WITH (FORCE);
CREATE SCHEMA shared;
GRANT ALL ON SCHEMA shared TO mallory;
GRANT USAGE ON LANGUAGE container TO mallory;
SELECT count(*) > 90 AS imported FROM transship.import('regress:1.0', 'shared');
SELECT count(*) > 90 AS registered FROM transship.registered('regress', 'shared');
SELECT pg_describe_object(classid, objid, 0) FROM pg_depend WHERE refobjid = 'shared.span_result'::regtype AND classid = 'pg_proc'::regclass ORDER BY 1;
-- A function that she could replace again.
ALTER FUNCTION shared.add_one OWNER TO mallory;
SELECT code, message, detail, hint FROM failure($$SELECT transship.import('regress:1.0', 'shared')$$);
SELECT code, message FROM failure($$SELECT transship.register('regress:1.0', 'shared')$$);
-- What she says about versions.
SELECT count(*) FROM transship.registered('regress', 'shared') WHERE funcid = 'shared.add_one'::regproc;
SET ROLE mallory;
SELECT count(*) FROM transship.registered('regress', 'shared');
RESET ROLE;
DROP FUNCTION shared.add_one;
-- A function that is not of the image, though it has the name and arguments of one.
CREATE FUNCTION shared.add_one(x bigint) RETURNS bigint LANGUAGE sql AS 'SELECT 0::bigint';
SELECT code, message, detail FROM failure($$SELECT transship.import('regress:1.0', 'shared')$$);
SELECT code, message FROM failure($$SELECT transship.register('regress:1.0', 'shared')$$);
SELECT shared.add_one(1);
DROP FUNCTION shared.add_one;
-- A type whose values have code of hers run, and one with such a column.
ALTER TYPE shared.span_result OWNER TO mallory;
SELECT code, message FROM failure($$SELECT transship.import('regress:1.0', 'shared')$$);
SET client_min_messages = warning;
DROP TYPE shared.span_result CASCADE;
RESET client_min_messages;
SET ROLE mallory;
CREATE DOMAIN shared.checked AS bigint CHECK (VALUE > 0);
RESET ROLE;
CREATE TYPE shared.span_result AS (low shared.checked, high bigint, label text);
SELECT code, message FROM failure($$SELECT transship.import('regress:1.0', 'shared')$$);
-- Hers that nothing was made of may stay, and so may what belongs to the schema's owner.
DROP TYPE shared.span_result;
ALTER SCHEMA shared OWNER TO mallory;
ALTER FUNCTION shared.echo_int8 OWNER TO mallory;
SELECT count(*) > 90 AS imported FROM transship.import('regress:1.0', 'shared');
-- Members of the role that owns it can do what the owner can.
CREATE ROLE team;
GRANT team TO mallory;
ALTER SCHEMA shared OWNER TO team;
SELECT count(*) > 90 AS imported FROM transship.import('regress:1.0', 'shared');
ALTER SCHEMA shared OWNER TO CURRENT_USER;
DROP ROLE team;
SET client_min_messages = warning;
DROP SCHEMA shared CASCADE;
RESET client_min_messages;
-- A version that another image is of.
CREATE SCHEMA shared;
SELECT format('CREATE FUNCTION shared.add_one(x bigint) RETURNS bigint LANGUAGE container AS %L', format(E'image = "other:1.0"\ndigest = "%1$s"\nprevious = "%1$s"', transship.image_info('regress:1.0') ->> 'digest')) AS statement \gset
:statement;
SELECT code, regexp_replace(message, 'sha256:[0-9a-f]+', 'sha256:...') AS message FROM failure($$SELECT transship.rollback('other', 'shared')$$);
REVOKE USAGE ON LANGUAGE container FROM mallory;
DROP SCHEMA shared CASCADE;
DROP ROLE mallory;
