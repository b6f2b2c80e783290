-- What a DBA does: servers and secrets, the allow-list, import, views, statistics.
\getenv endpoint MISBEHAVING_ENDPOINT
CREATE ROLE analyst;
GRANT USAGE ON LANGUAGE container TO analyst;
GRANT CREATE ON SCHEMA public TO analyst;
-- Servers that run elsewhere: the secret is the user mapping's.
CREATE SERVER scorer FOREIGN DATA WRAPPER transship OPTIONS (endpoint :'endpoint');
CREATE USER MAPPING FOR postgres SERVER scorer OPTIONS (token 'secret');
CREATE FUNCTION token_length(x bigint) RETURNS bigint LANGUAGE container AS 'server = "scorer"';
SELECT token_length(1);
EXPLAIN (VERBOSE, COSTS OFF) SELECT token_length(x) FROM numbers;
SELECT max(token_length(x)) FROM numbers WHERE x <= 10;
SET ROLE analyst;
SELECT token_length(1);
RESET ROLE;
GRANT USAGE ON FOREIGN SERVER scorer TO analyst;
SET ROLE analyst;
SELECT token_length(1);
RESET ROLE;
CREATE USER MAPPING FOR PUBLIC SERVER scorer OPTIONS (token 'of everybody');
CREATE USER MAPPING FOR PUBLIC SERVER scorer OPTIONS (token 'everybody');
SET ROLE analyst;
SELECT token_length(1);
CREATE FUNCTION mine(x bigint) RETURNS bigint LANGUAGE container AS E'server = "scorer"\nfunction = "token_length"';
RESET ROLE;
ALTER SERVER scorer OPTIONS (SET endpoint 'nonsense');
ALTER SERVER scorer OPTIONS (ADD password 'x');
ALTER SERVER scorer OPTIONS (ADD proxy 'proxy:3128');
ALTER SERVER scorer OPTIONS (ADD compression 'zip');
ALTER SERVER scorer OPTIONS (ADD compression 'none');
CREATE FOREIGN DATA WRAPPER other;
CREATE SERVER elsewhere FOREIGN DATA WRAPPER other;
SELECT code, message FROM failure($$CREATE FUNCTION f(x bigint) RETURNS bigint LANGUAGE container AS 'server = "elsewhere"'$$);
DROP FOREIGN DATA WRAPPER other CASCADE;
-- The allow-list is for those who are not superusers, and does not depend on check_function_bodies.
SET ROLE analyst;
SELECT code, message, hint FROM failure($$CREATE FUNCTION f(x bigint) RETURNS bigint LANGUAGE container AS E'image = "regress:1.0"\nfunction = "add_one"'$$);
SET check_function_bodies = off;
SELECT code, message FROM failure($$CREATE FUNCTION f(x bigint) RETURNS bigint LANGUAGE container AS E'image = "regress:1.0"\nfunction = "add_one"'$$);
RESET check_function_bodies;
SELECT code, message FROM failure($$CREATE FUNCTION f(x bigint) RETURNS bigint LANGUAGE container AS E'template = "python"\nsource = ""'$$);
SELECT code, message, hint FROM failure($$CREATE FUNCTION f(x bigint) RETURNS bigint LANGUAGE container AS 'endpoint = "grpc://localhost:1"'$$);
SELECT code, message FROM failure($$SET transship.allowed_images = '*'$$);
RESET ROLE;
SET transship.allowed_images = 'flights:*, regress:*';
SET ROLE analyst;
CREATE FUNCTION mine_too(x bigint) RETURNS bigint LANGUAGE container AS E'image = "regress:1.0"\nfunction = "add_one"';
-- With the digest that it got, the function can be written again; with another digest it cannot.
SELECT prosrc AS body FROM pg_proc WHERE proname = 'mine_too' \gset
CREATE OR REPLACE FUNCTION mine_too(x bigint) RETURNS bigint LANGUAGE container AS :'body';
SELECT code, message FROM failure(format($$CREATE FUNCTION f(x bigint) RETURNS bigint LANGUAGE container AS E'digest = "sha256:%s"\nimage = "regress:1.0"\nfunction = "add_one"'$$, repeat('0', 64)));
-- A call asks for the list of the function's owner, whoever calls: what this session has is nobody else's.
SELECT code, message, detail, hint FROM failure('SELECT mine_too(1)');
RESET ROLE;
SELECT code, message FROM failure('SELECT mine_too(1)');
SELECT code, message FROM failure('SELECT sum(mine_too(x)) FROM numbers WHERE x <= 10');
RESET transship.allowed_images;
SELECT current_database() AS database \gset
ALTER ROLE analyst SET transship.allowed_images = 'regress:*';
SELECT mine_too(1), (SELECT sum(mine_too(x)) FROM numbers WHERE x <= 10);
SET ROLE analyst;
SELECT mine_too(1);
RESET ROLE;
-- As for a new session, what is said of the role in this database comes first, and last what is said of all.
ALTER ROLE analyst IN DATABASE :"database" SET transship.allowed_images = 'flights:*';
SELECT code, message FROM failure('SELECT mine_too(1)');
ALTER ROLE analyst IN DATABASE :"database" SET transship.allowed_images = 'flights:*, regress:1.0@sha256:*';
SELECT mine_too(1);
ALTER ROLE analyst IN DATABASE :"database" SET transship.allowed_images = 'regress:1.0@sha256:0*0';
SELECT code, message FROM failure('SELECT mine_too(1)');
ALTER ROLE analyst IN DATABASE :"database" RESET ALL;
ALTER ROLE analyst RESET ALL;
SELECT code FROM failure('SELECT mine_too(1)');
ALTER DATABASE :"database" SET transship.allowed_images = 'regress:*';
SELECT mine_too(1);
ALTER DATABASE :"database" RESET transship.allowed_images;
SELECT code FROM failure('SELECT mine_too(1)');
ALTER ROLE ALL SET transship.allowed_images = 'regress:*';
SELECT mine_too(1);
ALTER ROLE ALL RESET transship.allowed_images;
SELECT code FROM failure('SELECT mine_too(1)');
-- Where functions are checked when they are created, and those of superusers, calls are not.
SET transship.check_allowed_images = 'create';
SELECT mine_too(1);
SET ROLE analyst;
SELECT code, message FROM failure($$SET transship.check_allowed_images = 'create'$$);
RESET ROLE;
RESET transship.check_allowed_images;
ALTER FUNCTION mine_too OWNER TO CURRENT_USER;
SELECT mine_too(1);
-- Who may not name an image has no business with it.
SET ROLE analyst;
SELECT code, message FROM failure($$SELECT transship.image_info('regress:1.0')$$);
SELECT code, message FROM failure($$SELECT transship.import('regress:1.0')$$);
RESET ROLE;
-- All functions of an image at once.
CREATE SCHEMA imported;
SELECT regexp_replace(ddl, '\n.*', '') AS ddl FROM transship.import('regress:1.0', 'imported') ddl WHERE ddl ~ '[.](echo_line|words|running_total|mean|no_merge)';
SELECT count(*) > 90 AS all FROM transship.functions WHERE schema = 'imported';
SELECT imported.add_one(1), imported.echo_line(NULL), (imported.span(5, 3)).low, (SELECT imported.mean(x) FROM numbers WHERE x <= 3);
SELECT count(*) > 90 AS again FROM transship.import('regress:1.0', 'imported');
SELECT code, message FROM failure($$SELECT transship.import('absent:1')$$);
-- What somebody's source says, in whatever language, breaks no view.
SET check_function_bodies = off;
CREATE FUNCTION zeros_said() RETURNS int LANGUAGE sql AS E'image = "a"\nfunction = "\\u0000"';
CREATE FUNCTION zeros_meant(x float8) RETURNS float8 LANGUAGE container AS E'image = "regress:1.0"\nfunction = "\\u0000"';
RESET check_function_bodies;
SELECT transship.function_body('zeros_said'::regproc), transship.function_body('zeros_meant'::regproc);
SELECT count(*) > 0 AS reads FROM transship.functions WHERE image ~ 'regress';
SELECT count(*) AS registered FROM transship.registered('regress', 'nowhere');
SELECT code, message FROM failure($$SELECT zeros_meant(1)$$);
DROP FUNCTION zeros_said, zeros_meant;
SET client_min_messages = warning;
DROP SCHEMA imported CASCADE;
RESET client_min_messages;
-- Views.
SELECT schema, name, arguments, result, owner, image, digest ~ '^sha256:' AS pinned, server FROM transship.functions WHERE name IN ('add_one', 'token_length') AND schema = 'public';
SELECT image, bool_and(digest ~ '^sha256:') AS has_digest, bool_or(state IN ('ready', 'leased', 'idle', 'running')) AS runs, bool_and(leases >= 0) AS leases FROM transship.replicas WHERE image = 'regress:1.0' GROUP BY image;
SET ROLE analyst;
SELECT count(*) FROM transship.replicas;
SELECT transship.stat_reset();
RESET ROLE;
-- Statistics.
SET transship.batch_time = 0;
SELECT transship.stat_reset('add_one(bigint)'::regprocedure);
SELECT sum(add_one(x)) FROM numbers WHERE x <= 1000;
RESET transship.batch_time;
SELECT code FROM failure('SELECT sum(fail_at(x, 500)) FROM numbers');
SELECT exchanges, calls, rows, batches, bytes_sent >= 8000 AS sent, bytes_received >= 8000 AS received, errors, retries,
  wait_time > 0 AS waited, compute_time > 0 AS computed, latency_mean <= 1.2 * latency_p99 AND latency_p50 <= latency_p90 AND latency_p90 <= latency_p99 AS latencies
FROM transship.stat_functions WHERE name = 'add_one' AND schema = 'public';
SELECT errors > 0 AS errors FROM transship.stat_functions WHERE name = 'fail_at';
-- They lie in memory: nobody who counts waits for a disk.
SELECT count(*) FROM pg_ls_dir('pg_stat_tmp') file WHERE file LIKE 'transship%';
SELECT transship.stat_reset();
SELECT count(*) FROM transship.stat_functions WHERE calls > 0;
-- What is running, seen from inside a query that does.
SELECT DISTINCT p.name, p.batches_sent > 0 AS sent, p.calls > 0 AS calls, started <= clock_timestamp() AS started
FROM (SELECT add_one(x) AS z FROM numbers LIMIT 500) s, LATERAL (SELECT * FROM transship.progress WHERE pid = pg_backend_pid() AND s.z > 0 OFFSET 0) p;
DROP SERVER scorer CASCADE;
SELECT code, message FROM failure('SELECT token_length(1)');
DROP FUNCTION token_length, mine, mine_too;
-- A secret does not cross a network as plain text, unless its server says that it may.
CREATE SERVER far FOREIGN DATA WRAPPER transship OPTIONS (endpoint 'http://192.0.2.1:1');
CREATE USER MAPPING FOR postgres SERVER far OPTIONS (token 'secret');
SELECT code, message, detail FROM failure($$CREATE FUNCTION far(x bigint) RETURNS bigint LANGUAGE container AS 'server = "far"'$$);
SELECT code, message FROM failure($$ALTER SERVER far OPTIONS (plaintext_secrets 'yes')$$);
ALTER SERVER far OPTIONS (plaintext_secrets 'on');
DROP SERVER far CASCADE;
-- No message, plan or view tells a secret.
CREATE SERVER closed FOREIGN DATA WRAPPER transship OPTIONS (endpoint 'http://127.0.0.1:1');
CREATE USER MAPPING FOR postgres SERVER closed OPTIONS (token 'xyzzy-token', headers 'X-Key: xyzzy-key');
SELECT code, message, concat(message, detail, hint) ~ 'xyzzy' AS tells FROM failure($$CREATE FUNCTION closed(x bigint) RETURNS bigint LANGUAGE container AS 'server = "closed"'$$);
SET check_function_bodies = off;
CREATE FUNCTION closed(x bigint) RETURNS bigint LANGUAGE container AS 'server = "closed"';
RESET check_function_bodies;
SELECT code, concat(message, detail, hint) ~ 'xyzzy' AS tells FROM failure('SELECT closed(1)');
SELECT code, concat(message, detail, hint) ~ 'xyzzy' AS tells FROM failure('SELECT sum(closed(x)) FROM numbers');
ALTER SERVER closed OPTIONS (ADD proxy 'http://127.0.0.1:1');
ALTER USER MAPPING FOR postgres SERVER closed OPTIONS (ADD proxy 'http://user:xyzzy-password@127.0.0.1:1');
SELECT code, concat(message, detail, hint) ~ 'xyzzy' AS tells FROM failure('SELECT closed(1)');
SELECT code, concat(message, detail, hint) ~ 'xyzzy' AS tells FROM failure($$ALTER USER MAPPING FOR postgres SERVER closed OPTIONS (SET proxy 'ftp://user:xyzzy-password@127.0.0.1:1')$$);
SELECT code, concat(message, detail, hint) ~ 'xyzzy' AS tells FROM failure($$ALTER USER MAPPING FOR postgres SERVER closed OPTIONS (SET token 'xyzzy token')$$);
SELECT code, concat(message, detail, hint) ~ 'xyzzy' AS tells FROM failure($$ALTER USER MAPPING FOR postgres SERVER closed OPTIONS (SET headers 'xyzzy')$$);
SELECT code, concat(message, detail, hint) ~ 'xyzzy' AS tells FROM failure($$ALTER USER MAPPING FOR postgres SERVER closed OPTIONS (ADD certificate 'xyzzy', ADD key 'xyzzy')$$);
EXPLAIN (VERBOSE, COSTS OFF) SELECT closed(x) FROM numbers;
SELECT functions::text ~ 'xyzzy' AS tells FROM transship.functions WHERE name = 'closed';
SELECT stat_functions::text ~ 'xyzzy' AS tells FROM transship.stat_functions WHERE name = 'closed';
DROP SERVER closed CASCADE;
DROP FUNCTION closed;
DROP OWNED BY analyst;
DROP ROLE analyst;
