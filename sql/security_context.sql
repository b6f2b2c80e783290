-- Whose privileges and credentials count: those of the user whom PostgreSQL asks about, whichever way a call goes.
\getenv endpoint MISBEHAVING_ENDPOINT
CREATE ROLE scoring;
CREATE ROLE stranger;
CREATE SERVER tokens FOREIGN DATA WRAPPER transship OPTIONS (endpoint :'endpoint');
CREATE USER MAPPING FOR postgres SERVER tokens OPTIONS (token 'postgres');
CREATE USER MAPPING FOR scoring SERVER tokens OPTIONS (token 'score');
GRANT USAGE ON FOREIGN SERVER tokens TO scoring;
GRANT SELECT ON numbers TO scoring, stranger;
CREATE FUNCTION token_length(x bigint) RETURNS bigint LANGUAGE container AS 'server = "tokens"';
-- Row by row, in one transaction: the exchange of one user is not another's.
CREATE FUNCTION as_definer(x bigint) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER AS 'BEGIN RETURN token_length(x); END';
ALTER FUNCTION as_definer OWNER TO scoring;
CREATE FUNCTION as_caller(x bigint) RETURNS bigint LANGUAGE plpgsql AS 'BEGIN RETURN token_length(x); END';
SELECT as_caller(1), as_definer(1), as_caller(1), as_definer(1);
BEGIN;
SELECT as_caller(1);
SET LOCAL ROLE scoring;
SELECT as_caller(1);
SET LOCAL ROLE stranger;
SELECT code, message FROM failure('SELECT as_caller(1)');
SELECT as_definer(1);
RESET ROLE;
SELECT as_caller(1);
COMMIT;
-- What changes while the transaction runs counts from then on.
BEGIN;
SET LOCAL ROLE scoring;
SELECT as_caller(1);
RESET ROLE;
ALTER USER MAPPING FOR scoring SERVER tokens OPTIONS (SET token 'changed');
SET LOCAL ROLE scoring;
SELECT as_caller(1);
RESET ROLE;
REVOKE USAGE ON FOREIGN SERVER tokens FROM scoring;
SET LOCAL ROLE scoring;
SELECT code, message FROM failure('SELECT as_caller(1)');
ROLLBACK;
BEGIN;
GRANT scoring TO stranger;
DROP USER MAPPING FOR postgres SERVER tokens;
CREATE USER MAPPING FOR PUBLIC SERVER tokens OPTIONS (token 'everybody');
SET LOCAL ROLE stranger;
SELECT as_caller(1);
RESET ROLE;
REVOKE scoring FROM stranger;
SET LOCAL ROLE stranger;
SELECT code, message FROM failure('SELECT as_caller(1)');
ROLLBACK;
-- In batches: who began the query, although another fetches from its cursor.
CREATE FUNCTION lengths() RETURNS refcursor LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
  result refcursor := 'lengths';
BEGIN
  OPEN result NO SCROLL FOR SELECT token_length(x) FROM numbers;
  RETURN result;
END
$$;
ALTER FUNCTION lengths OWNER TO scoring;
BEGIN;
SELECT lengths();
FETCH 1 FROM lengths;
ROLLBACK;
BEGIN;
DECLARE mine CURSOR FOR SELECT token_length(x) FROM numbers;
SET LOCAL ROLE scoring;
FETCH 1 FROM mine;
ROLLBACK;
SELECT max(token_length(x)) FROM numbers WHERE x <= 10;
SET ROLE scoring;
SELECT max(token_length(x)) FROM numbers WHERE x <= 10;
SET ROLE stranger;
SELECT max(token_length(x)) FROM numbers WHERE x <= 10;
RESET ROLE;
-- Who may not execute a function may not have its plan explained either, as with other functions.
CREATE FUNCTION plain(x bigint) RETURNS bigint LANGUAGE plpgsql AS 'BEGIN RETURN x; END';
REVOKE EXECUTE ON FUNCTION plain, token_length FROM PUBLIC;
SET ROLE stranger;
EXPLAIN SELECT token_length(x) FROM numbers;
EXPLAIN SELECT add_one(plain(x)) FROM numbers;
EXPLAIN SELECT CASE WHEN plain(x) = 1 THEN add_one(x) END FROM numbers;
EXPLAIN (COSTS OFF) SELECT add_one(x) FROM numbers;
RESET ROLE;
-- Who may only use a server cannot say where the database connects to, nor who answers what policies ask of it.
CREATE ROLE caller;
CREATE SERVER verdicts FOREIGN DATA WRAPPER transship OPTIONS (endpoint 'http://127.0.0.1:1');
GRANT USAGE ON FOREIGN SERVER verdicts TO caller;
SET check_function_bodies = off;
CREATE FUNCTION may_see(x bigint) RETURNS boolean LANGUAGE container AS 'server = "verdicts"';
RESET check_function_bodies;
CREATE TABLE hidden (x bigint);
INSERT INTO hidden VALUES (1);
CREATE POLICY only_some ON hidden USING (may_see(x));
ALTER TABLE hidden ENABLE ROW LEVEL SECURITY;
GRANT SELECT ON hidden TO caller;
SET ROLE caller;
CREATE USER MAPPING FOR caller SERVER verdicts OPTIONS (proxy 'http://127.0.0.1:2');
SELECT code, message FROM failure('SELECT may_see(1)');
SELECT code, message FROM failure('SELECT x FROM hidden');
RESET ROLE;
-- For the server's own proxy they may have a password.
ALTER SERVER verdicts OPTIONS (ADD proxy 'http://127.0.0.1:3');
SET ROLE caller;
SELECT code, message FROM failure('SELECT may_see(1)');
ALTER USER MAPPING FOR caller SERVER verdicts OPTIONS (SET proxy 'http://me:s3cret@127.0.0.1:3');
SELECT code, message FROM failure('SELECT may_see(1)');
RESET ROLE;
DROP TABLE hidden;
DROP FUNCTION may_see;
SET client_min_messages = warning;
DROP SERVER verdicts CASCADE;
RESET client_min_messages;
DROP ROLE caller;
-- The validator changes nothing that exists, whoever calls it, and pins only what is being created.
CREATE ROLE owner;
GRANT CREATE ON SCHEMA public TO owner;
GRANT USAGE ON LANGUAGE container TO owner, stranger;
SET transship.allowed_images = 'regress:*';
SET check_function_bodies = off;
SET ROLE owner;
CREATE FUNCTION unpinned(x bigint) RETURNS bigint LANGUAGE container AS E'image = "regress:1.0"\nfunction = "add_one"';
RESET check_function_bodies;
SELECT transship.transship_validator('unpinned'::regproc);
SET ROLE stranger;
SELECT transship.transship_validator('unpinned'::regproc);
DO $$ BEGIN PERFORM transship.transship_validator('unpinned'::regproc); END $$;
RESET ROLE;
SELECT prosrc FROM pg_proc WHERE proname = 'unpinned';
REVOKE EXECUTE ON FUNCTION unpinned FROM PUBLIC;
SET ROLE stranger;
SELECT transship.transship_validator('unpinned'::regproc);
RESET ROLE;
SELECT code FROM failure($$SELECT transship.transship_validator('as_caller'::regproc)$$);
-- A body that does not hold is still found.
SET check_function_bodies = off;
CREATE FUNCTION nowhere(x bigint) RETURNS bigint LANGUAGE container AS 'image = "regress:1.0"';
RESET check_function_bodies;
SELECT code, message FROM failure($$SELECT transship.transship_validator('nowhere'::regproc)$$);
SET ROLE owner;
CREATE OR REPLACE FUNCTION unpinned(x bigint) RETURNS bigint LANGUAGE container AS E'image = "regress:1.0"\nfunction = "add_one"';
RESET ROLE;
SELECT prosrc ~ '^\ndigest = "sha256:' AS is_pinned FROM pg_proc WHERE proname = 'unpinned';
-- Asking the manager for images is for those who may write container functions.
SET ROLE scoring;
SELECT code, message FROM failure($$SELECT transship.image_info('regress:1.0')$$);
SELECT code, message FROM failure($$SELECT transship.image_ddl('regress:1.0', 'public')$$);
SET ROLE owner;
SELECT transship.image_info('regress:1.0') ->> 'name' AS name;
RESET ROLE;
RESET transship.allowed_images;
DROP FUNCTION nowhere, plain, lengths, as_caller, as_definer;
SET client_min_messages = warning;
DROP SERVER tokens CASCADE;
RESET client_min_messages;
DROP FUNCTION token_length;
DROP OWNED BY scoring, stranger, owner;
DROP ROLE scoring, stranger, owner;
