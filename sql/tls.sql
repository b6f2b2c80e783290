-- A server over TLS: whom PostgreSQL believes, and what it shows of its user.
\getenv endpoint TLS_ENDPOINT
\set ca `cat "$TLS_FOLDER/ca.pem"`
\set certificate `cat "$TLS_FOLDER/client.pem"`
\set key `cat "$TLS_FOLDER/client.key"`
CREATE SERVER secure FOREIGN DATA WRAPPER transship OPTIONS (endpoint :'endpoint', ca :'ca');
CREATE USER MAPPING FOR postgres SERVER secure OPTIONS (token 's3cret', certificate :'certificate', key :'key');
SET check_function_bodies = off;
CREATE FUNCTION secure_token(x bigint) RETURNS bigint LANGUAGE container AS E'server = "secure"\nfunction = "token_length"';
SELECT secure_token(1), sum(secure_token(x)) FROM numbers WHERE x <= 10;
-- Compressed, which gRPC's servers read by themselves.
ALTER SERVER secure OPTIONS (ADD compression 'gzip');
SELECT sum(secure_token(x)) FROM numbers WHERE x <= 100;
-- Without the client's certificate the server ends the connection; the words are those of the system.
ALTER USER MAPPING FOR postgres SERVER secure OPTIONS (DROP certificate, DROP key);
SELECT code, message FROM failure('SELECT secure_token(1)');
ALTER USER MAPPING FOR postgres SERVER secure OPTIONS (ADD certificate :'certificate');
SELECT code, message FROM failure('SELECT secure_token(1)');
ALTER USER MAPPING FOR postgres SERVER secure OPTIONS (ADD key 'no key');
SELECT code, message FROM failure('SELECT secure_token(1)');
ALTER USER MAPPING FOR postgres SERVER secure OPTIONS (SET key :'key');
-- A server whose authority is unknown is not believed.
ALTER SERVER secure OPTIONS (DROP ca);
SELECT code, message, detail FROM failure('SELECT secure_token(1)');
-- Nor is one of another name.
SELECT replace(:'endpoint', 'localhost', '127.0.0.1') AS endpoint \gset
ALTER SERVER secure OPTIONS (SET endpoint :'endpoint', ADD ca :'ca');
SELECT code, message, detail ~ 'not valid for name "127.0.0.1"' AS has_other_name FROM failure('SELECT secure_token(1)');
-- Certificates are text in PEM, and no names of files.
ALTER SERVER secure OPTIONS (SET ca '/etc/passwd');
DROP FUNCTION secure_token;
DROP SERVER secure CASCADE;
