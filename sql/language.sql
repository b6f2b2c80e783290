-- Creating functions: what the validator accepts, refuses and stores.
\x on
-- The body pins the image's digest.
SELECT prosrc ~ '^\ndigest = "sha256:[0-9a-f]{64}"\nimage = "regress:1.0"$' AS is_pinned FROM pg_proc WHERE proname = 'add_one';
-- Replacing keeps a pinned digest and accepts it.
SELECT pg_get_functiondef('add_one'::regproc) AS definition \gset
:definition;
SELECT add_one(1);
-- Images and functions that are not there.
SELECT * FROM failure($$CREATE FUNCTION f(x bigint) RETURNS bigint LANGUAGE container AS 'image = "nothing:1.0"'$$);
SELECT code, message, hint FROM failure($$CREATE FUNCTION nothing(x bigint) RETURNS bigint LANGUAGE container AS 'image = "regress:1.0"'$$);
-- Other argument and result types than the image's.
SELECT * FROM failure($$CREATE FUNCTION add(a int, b text) RETURNS float8 LANGUAGE container AS 'image = "regress:1.0"'$$);
SELECT * FROM failure($$CREATE FUNCTION add(a bigint) RETURNS bigint LANGUAGE container AS 'image = "regress:1.0"'$$);
-- Types and shapes that containers do not take.
SELECT * FROM failure($$CREATE FUNCTION f(x point) RETURNS bigint LANGUAGE container AS 'image = "regress:1.0"'$$);
SELECT * FROM failure($$CREATE FUNCTION f(x bigint) RETURNS void LANGUAGE container AS 'image = "regress:1.0"'$$);
SELECT * FROM failure($$CREATE PROCEDURE f(x bigint) LANGUAGE container AS 'image = "regress:1.0"'$$);
SELECT * FROM failure($$CREATE FUNCTION f() RETURNS trigger LANGUAGE container AS 'image = "regress:1.0"'$$);
-- Malformed bodies.
SELECT * FROM failure($$CREATE FUNCTION f(x bigint) RETURNS bigint LANGUAGE container AS ''$$);
SELECT * FROM failure($$CREATE FUNCTION f(x bigint) RETURNS bigint LANGUAGE container AS 'imagee = "regress:1.0"'$$);
SELECT * FROM failure($$CREATE FUNCTION f(x bigint) RETURNS bigint LANGUAGE container AS 'image = '$$);
SELECT * FROM failure($$CREATE FUNCTION f(x bigint) RETURNS bigint LANGUAGE container AS E'image = "regress:1.0"\ntimeout_ms = 0'$$);
SELECT * FROM failure($$CREATE FUNCTION f(x bigint) RETURNS bigint LANGUAGE container AS 'endpoint = "tcp://localhost:1"'$$);
\x off
-- Without check_function_bodies nothing is looked at, so that dumps restore in any order.
SET check_function_bodies = off;
CREATE FUNCTION later(x bigint) RETURNS bigint LANGUAGE container AS 'image = "nothing:1.0"';
RESET check_function_bodies;
SELECT later(1);
DROP FUNCTION later;
-- A function created like that finds its image at its first call.
SET check_function_bodies = off;
CREATE FUNCTION unpinned(x bigint) RETURNS bigint LANGUAGE container AS E'image = "regress:1.0"\nfunction = "add_one"';
RESET check_function_bodies;
SELECT unpinned(1);
DROP FUNCTION unpinned;
-- Inline code is built into an image.
CREATE FUNCTION triple(x bigint) RETURNS bigint LANGUAGE container IMMUTABLE STRICT AS $$
template = "python"
source = '''
def triple(x):
    return 3 * x
'''
$$;
SELECT triple(14), (SELECT sum(triple(x)) FROM numbers);
CREATE FUNCTION halve(x float8) RETURNS float8 LANGUAGE container IMMUTABLE STRICT AS $$
template = "python"
requirements = ["numpy"]
batch = "numpy"
source = '''
def halve(x):
    return x / 2
'''
$$;
SELECT sum(halve(x)) FROM numbers;
-- What Python says of broken code reaches the user.
SELECT code, message, detail ~ 'SyntaxError' AS names_the_error FROM failure($$
CREATE FUNCTION broken(x bigint) RETURNS bigint LANGUAGE container AS $body$
template = "python"
source = 'def broken(x:'
$body$ $$);
SELECT * FROM failure($$
CREATE FUNCTION absent(x bigint) RETURNS bigint LANGUAGE container AS $body$
template = "python"
source = 'def other(x): return x'
$body$ $$);
SELECT code, message FROM failure($$
CREATE FUNCTION absent(x bigint) RETURNS bigint LANGUAGE container AS $body$
template = "cobol"
source = 'x'
$body$ $$);
-- CREATE OR REPLACE takes effect in this session and in cached plans.
PREPARE tripled AS SELECT triple(x) FROM numbers ORDER BY x LIMIT 1;
EXECUTE tripled;
CREATE OR REPLACE FUNCTION triple(x bigint) RETURNS bigint LANGUAGE container IMMUTABLE STRICT AS $$
template = "python"
source = '''
def triple(x):
    return 30 * x
'''
$$;
EXECUTE tripled;
DROP FUNCTION triple, halve;
-- Only superusers, and those whom they let, create functions.
CREATE ROLE regress_transship_user;
GRANT CREATE ON SCHEMA public TO regress_transship_user;
SET ROLE regress_transship_user;
CREATE FUNCTION users_own(x bigint) RETURNS bigint LANGUAGE container AS E'image = "regress:1.0"\nfunction = "add_one"';
RESET ROLE;
GRANT USAGE ON LANGUAGE container TO regress_transship_user;
ALTER ROLE regress_transship_user SET transship.allowed_images = 'regress:*';
SET transship.allowed_images = 'regress:*';
SET ROLE regress_transship_user;
CREATE FUNCTION users_own(x bigint) RETURNS bigint LANGUAGE container AS E'image = "regress:1.0"\nfunction = "add_one"';
SELECT users_own(1);
RESET ROLE;
DROP FUNCTION users_own;
-- EXECUTE is asked for whichever way a call goes.
REVOKE EXECUTE ON FUNCTION add_one FROM PUBLIC;
GRANT SELECT ON numbers TO regress_transship_user;
SET ROLE regress_transship_user;
SELECT add_one(1);
SELECT add_one(x) FROM numbers;
SELECT sum(add_one(x)) FROM numbers;
RESET ROLE;
GRANT EXECUTE ON FUNCTION add_one TO PUBLIC;
REVOKE ALL ON numbers FROM regress_transship_user;
REVOKE USAGE ON LANGUAGE container FROM regress_transship_user;
REVOKE CREATE ON SCHEMA public FROM regress_transship_user;
DROP ROLE regress_transship_user;
