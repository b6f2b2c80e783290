-- Databases in other encodings than UTF-8: what goes to containers is converted or refused, and so is what comes back.
CREATE DATABASE regress_eucjp TEMPLATE template0 ENCODING 'EUC_JP' LOCALE 'C';
CREATE DATABASE regress_latin1 TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C';
CREATE DATABASE regress_ascii TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C';
SELECT current_database() AS before \gset
\c regress_eucjp
SET client_encoding = 'UTF8';
CREATE EXTENSION transship;
CREATE FUNCTION echo_text(x text) RETURNS text LANGUAGE container IMMUTABLE AS 'image = "regress:1.0"';
CREATE FUNCTION pass_text(x text) RETURNS text LANGUAGE container IMMUTABLE AS 'image = "regress:1.0"';
CREATE FUNCTION echo_texts(x text[]) RETURNS text[] LANGUAGE container IMMUTABLE AS 'image = "regress:1.0"';
CREATE FUNCTION echo_json(x jsonb) RETURNS jsonb LANGUAGE container IMMUTABLE AS 'image = "regress:1.0"';
CREATE FUNCTION "話す"("語" text, "数" bigint) RETURNS text LANGUAGE container IMMUTABLE AS $$
# 話す
image = "regress:1.0"
function = "speak"
$$;
CREATE FUNCTION join_step(internal, text, separator text) RETURNS internal LANGUAGE container AS E'image = "regress:1.0"\nfunction = "join_texts"';
CREATE FUNCTION join_final(internal) RETURNS text LANGUAGE container AS E'image = "regress:1.0"\nfunction = "join_texts"';
CREATE AGGREGATE join_texts(text, text) (SFUNC = join_step, STYPE = internal, FINALFUNC = join_final);
CREATE TABLE words (t text);
INSERT INTO words VALUES ('日本語'), ('plain'), (''), (NULL);
SELECT regexp_replace(prosrc, '[0-9a-f]{64}', '...') AS body FROM pg_proc WHERE proname = '話す';
SELECT name, arguments FROM transship.functions WHERE name = '話す';
-- In batches, one by one, and as aggregates.
SELECT t, echo_text(t), pass_text(t), echo_texts(ARRAY[t, 'x']), echo_json(to_jsonb(t)) FROM words;
SET transship.batching = off;
SELECT t, echo_text(t), pass_text(t), echo_texts(ARRAY[t, 'x']), echo_json(to_jsonb(t)) FROM words;
RESET transship.batching;
SELECT join_texts(t, '、') FROM words;
EXPLAIN (VERBOSE, COSTS OFF) SELECT "話す"(t, 1::bigint) FROM words WHERE t <> '日本';
SELECT "話す"('日本', 0);
-- Keys of shared tables, among them one that is not in UTF-8.
SELECT transship.share('keyed', $$SELECT coalesce(t, '') || i AS k, i AS n FROM words, generate_series(1, 5000) i$$, 'k');
SELECT k, n FROM keyed WHERE k = (SELECT '日本語' || 7);
SELECT count(*) FROM keyed WHERE k = (SELECT convert_from('\xa9a1', 'EUC_JP'));
-- Errors: what the container says, and what PostgreSQL says of it. DETAIL holds paths.
\set VERBOSITY terse
SELECT "話す"('日本', 1);
SELECT "話す"(t, 1) FROM words;
SELECT "話す"(t, 2) FROM words;
SELECT "話す"(t, 3) FROM words;
\set VERBOSITY default
SELECT "話す"('日本', 3);
DO $$
DECLARE
  detail text;
  context text;
BEGIN
  PERFORM "話す"(t, 1) FROM words;
EXCEPTION WHEN external_routine_exception THEN
  GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL, context = PG_EXCEPTION_CONTEXT;
  RAISE NOTICE '% / % / %', SQLERRM, substr(detail, strpos(detail, 'ValueError')), split_part(context, E'\n', 1);
END
$$;
SELECT echo_text(t)::int FROM words;
CREATE DOMAIN "短い" AS text CHECK (length(VALUE) < 3);
CREATE FUNCTION brief(x text) RETURNS "短い" LANGUAGE container IMMUTABLE AS E'image = "regress:1.0"\nfunction = "echo_text"';
SELECT brief(t) FROM words;
\set VERBOSITY terse
CREATE FUNCTION "無い"(x text) RETURNS text LANGUAGE container AS 'image = "regress:1.0"';
\set VERBOSITY default
CREATE FUNCTION "無い"(x text) RETURNS text LANGUAGE container AS 'server = "無い"';
REVOKE EXECUTE ON FUNCTION "話す" FROM PUBLIC;
CREATE ROLE "人";
GRANT SELECT ON words TO "人";
SET ROLE "人";
SELECT "話す"(t, 0) FROM words;
RESET ROLE;
-- Names of columns, too: those of a composite type, and those of a set.
CREATE TYPE "点" AS (x float8, "縦" float8);
CREATE FUNCTION echo_point(x "点") RETURNS "点" LANGUAGE container IMMUTABLE AS 'image = "regress:1.0"';
CREATE TYPE point AS (x float8, y float8);
CREATE FUNCTION echo_point(x public.point) RETURNS public.point LANGUAGE container IMMUTABLE AS 'image = "regress:1.0"';
SELECT echo_point(ROW(1, 2)::public.point);
-- Servers, and who may use them.
CREATE SERVER "店" FOREIGN DATA WRAPPER transship OPTIONS (endpoint 'grpc://localhost:1');
CREATE SERVER "屋" FOREIGN DATA WRAPPER transship OPTIONS (endpoint '日本');
SET check_function_bodies = off;
CREATE FUNCTION at_server(x text) RETURNS text LANGUAGE container AS 'server = "店"';
SET ROLE "人";
SELECT at_server('x');
RESET ROLE;
DROP OWNED BY "人";
DROP ROLE "人";
\c regress_latin1
SET client_encoding = 'UTF8';
CREATE EXTENSION transship;
CREATE FUNCTION "größe"("größe" text, "nächste" bigint) RETURNS text LANGUAGE container IMMUTABLE AS $$
# Größe
image = "regress:1.0"
function = "speak"
$$;
SELECT regexp_replace(prosrc, '[0-9a-f]{64}', '...') AS body FROM pg_proc WHERE proname = 'größe';
CREATE TABLE words (t text);
INSERT INTO words VALUES ('Straße'), ('plain'), (NULL);
SELECT t, "größe"(t, 0), "größe"(t, 0) = t AS same FROM words;
\set VERBOSITY terse
SELECT "größe"(t, 1) FROM words;
SELECT "größe"(t, 2) FROM words;
\set VERBOSITY default
SELECT "größe"(t, 3) FROM words;
SELECT "größe"('Straße', 3);
-- An error that is reported has a mark for what the database cannot say.
CREATE FUNCTION reported("größe" text, "nächste" bigint, OUT value text, OUT error text) LANGUAGE container IMMUTABLE AS $$
image = "regress:1.0"
function = "speak"
on_error = "report"
$$;
SELECT t, (r).value, (r).error FROM (SELECT t, reported(t, CASE WHEN t = 'plain' THEN 0 ELSE 2 END) AS r FROM words OFFSET 0) s;
-- What the database cannot say, and knows nothing of.
\c regress_ascii
SET client_encoding = 'SQL_ASCII';
CREATE EXTENSION transship;
CREATE FUNCTION speak(word text, number bigint) RETURNS text LANGUAGE container IMMUTABLE AS 'image = "regress:1.0"';
CREATE FUNCTION pass_text(x text) RETURNS text LANGUAGE container IMMUTABLE AS 'image = "regress:1.0"';
CREATE TABLE words (t text);
INSERT INTO words VALUES ('日本語'), ('plain'), (NULL);
SELECT t, speak(t, 0), pass_text(t), speak(t, 3) FROM words;
\set VERBOSITY terse
SELECT speak(t, 1) FROM words;
\set VERBOSITY default
INSERT INTO words VALUES (E'Stra\xdfe');
SELECT speak(t, 0) FROM words;
SELECT pass_text(t) FROM words;
SELECT speak(E'Stra\xdfe', 0);
-- What is not in UTF-8 is no key of a shared table.
SELECT transship.share('keyed', $$SELECT 'plain' || i AS k, i AS n FROM generate_series(0, 20000) i UNION ALL SELECT 'plain', -1$$, 'k');
ANALYZE words;
EXPLAIN (COSTS OFF) SELECT count(*), count(n) FROM words LEFT JOIN keyed ON k = t;
SELECT count(*), count(n) FROM words LEFT JOIN keyed ON k = t;
SELECT count(*) FROM keyed WHERE k = (SELECT max(t) FROM words WHERE t LIKE 'Stra%');
CREATE FUNCTION latin(x text) RETURNS text LANGUAGE container AS E'# \xdf\nimage = "regress:1.0"';
\c :before
DROP DATABASE regress_eucjp WITH (FORCE);
DROP DATABASE regress_latin1 WITH (FORCE);
DROP DATABASE regress_ascii WITH (FORCE);
