-- States of aggregates: none at all, and one for several aggregates.
CREATE FUNCTION texts_step(internal, text, separator text) RETURNS internal LANGUAGE container PARALLEL SAFE
AS E'image = "regress:1.0"\nfunction = "join_texts"';
CREATE FUNCTION texts_final(internal) RETURNS text LANGUAGE container PARALLEL SAFE AS E'image = "regress:1.0"\nfunction = "join_texts"';
CREATE FUNCTION texts_combine(internal, internal) RETURNS internal LANGUAGE container PARALLEL SAFE AS E'image = "regress:1.0"\nfunction = "join_texts"';
-- SERIALFUNC and DESERIALFUNC that are not STRICT are called for groups without rows.
CREATE FUNCTION texts_serial(internal) RETURNS bytea LANGUAGE container PARALLEL SAFE AS E'image = "regress:1.0"\nfunction = "join_texts"';
CREATE FUNCTION texts_deserial(bytea, internal) RETURNS internal LANGUAGE container PARALLEL SAFE AS E'image = "regress:1.0"\nfunction = "join_texts"';
CREATE AGGREGATE loose(text, text) (SFUNC = texts_step, STYPE = internal, FINALFUNC = texts_final,
  COMBINEFUNC = texts_combine, SERIALFUNC = texts_serial, DESERIALFUNC = texts_deserial, PARALLEL = SAFE);
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
EXPLAIN (COSTS OFF) SELECT loose(t, ',') FROM numbers WHERE x + 0 < 0;
SELECT loose(t, ',') IS NULL AS none FROM numbers WHERE x + 0 < 0;
SELECT loose(t, ',') FROM numbers WHERE abs(x - 17) <= 0;
SELECT loose(t, ','), count(*), loose(t, ',') FILTER (WHERE x < 0) IS NULL AS none FROM numbers WHERE abs(x - 15000) = 14500;
-- Of several grouping sets, only the groups that have all of their rows are asked for results: bits cannot be hashed.
CREATE FUNCTION two_step(internal, bigint) RETURNS internal LANGUAGE container AS E'image = "regress:1.0"\nfunction = "at_least_two"';
CREATE FUNCTION two_final(internal) RETURNS bigint LANGUAGE container AS E'image = "regress:1.0"\nfunction = "at_least_two"';
CREATE AGGREGATE at_least_two(bigint) (SFUNC = two_step, STYPE = internal, FINALFUNC = two_final);
CREATE TABLE crossed AS SELECT (x / 10)::int::bit(4) AS a, x % 10 AS b, x FROM numbers WHERE x < 40;
EXPLAIN (COSTS OFF) SELECT a, b, at_least_two(x) FROM crossed GROUP BY GROUPING SETS ((a), (b));
SELECT a, b, at_least_two(x) FROM crossed GROUP BY GROUPING SETS ((a), (b)) ORDER BY a, b;
SELECT a, b, at_least_two(x) FROM crossed, generate_series(1, 2) WHERE x % 10 < 2 GROUP BY ROLLUP (a, (a, b)) HAVING grouping(b) = 1 ORDER BY a, b;
DROP TABLE crossed;
DROP AGGREGATE at_least_two(bigint);
DROP FUNCTION two_step, two_final;
-- One function as FINALFUNC and as SERIALFUNC.
CREATE FUNCTION packed_step(internal, text) RETURNS internal LANGUAGE container PARALLEL SAFE AS E'image = "regress:1.0"\nfunction = "packed"';
CREATE FUNCTION packed_bytes(internal) RETURNS bytea LANGUAGE container PARALLEL SAFE AS E'image = "regress:1.0"\nfunction = "packed"';
CREATE FUNCTION packed_combine(internal, internal) RETURNS internal LANGUAGE container PARALLEL SAFE AS E'image = "regress:1.0"\nfunction = "packed"';
CREATE FUNCTION packed_deserial(bytea, internal) RETURNS internal LANGUAGE container PARALLEL SAFE AS E'image = "regress:1.0"\nfunction = "packed"';
CREATE AGGREGATE packed(text) (SFUNC = packed_step, STYPE = internal, FINALFUNC = packed_bytes,
  COMBINEFUNC = packed_combine, SERIALFUNC = packed_bytes, DESERIALFUNC = packed_deserial, PARALLEL = SAFE);
EXPLAIN (COSTS OFF) SELECT packed(t) FROM numbers;
SELECT convert_from(packed(t), 'UTF8') FROM numbers WHERE x <= 3;
SELECT packed(t) IS NULL AS none FROM numbers WHERE x < 0;
SET max_parallel_workers_per_gather = 0;
SELECT convert_from(packed(t), 'UTF8') FROM numbers WHERE x <= 3;
RESET max_parallel_workers_per_gather;
RESET parallel_setup_cost;
RESET parallel_tuple_cost;
RESET min_parallel_table_scan_size;
-- PostgreSQL keeps one state for aggregates that differ in FINALFUNC alone: each result is of its own FINALFUNC's type.
CREATE TYPE answer AS ENUM ('yes', 'no', 'no,yes');
CREATE DOMAIN brief AS text CHECK (length(VALUE) < 4);
CREATE FUNCTION answer_final(internal) RETURNS answer LANGUAGE container AS E'image = "regress:1.0"\nfunction = "join_texts"';
CREATE FUNCTION brief_final(internal) RETURNS brief LANGUAGE container AS E'image = "regress:1.0"\nfunction = "join_texts"';
CREATE AGGREGATE texts(text, text) (SFUNC = texts_step, STYPE = internal, FINALFUNC = texts_final);
CREATE AGGREGATE answers(text, text) (SFUNC = texts_step, STYPE = internal, FINALFUNC = answer_final);
CREATE AGGREGATE briefs(text, text) (SFUNC = texts_step, STYPE = internal, FINALFUNC = brief_final);
SELECT texts(v, ','), answers(v, ',') FROM (VALUES ('yes'), ('no')) v (v);
SELECT answers(v, ','), texts(v, ','), briefs(v, ',') FROM (VALUES ('yes')) v (v);
SELECT code, message FROM failure($$SELECT texts(v, ','), briefs(v, ',') FROM (VALUES ('yes'), ('no')) v (v)$$);
SELECT texts(v, ','), answers(v, ','), briefs(v, ',') FROM (VALUES ('yes')) v (v) WHERE v = '';
SELECT y, answers(a, ','), texts(a, ','), texts(a, ',') = answers(a, ',')::text AS same
FROM (SELECT y, CASE WHEN y < 5 THEN 'yes' ELSE 'no' END AS a FROM numbers WHERE x <= 10) s GROUP BY y ORDER BY y;
-- Groups are asked for in batches, for two aggregates as for one.
SELECT transship.stat_reset('texts_step'::regproc);
SET enable_sort = off;
SELECT count(*), bool_and(t = a::text) AS same FROM (
  SELECT texts('yes', ',') AS t, answers('yes', ',') AS a FROM numbers WHERE x <= 20000 GROUP BY x) s;
RESET enable_sort;
SELECT batches < 1000 AS few FROM transship.stat_functions WHERE name = 'texts_step';
-- Parts of different functions, and of other types than the container's.
CREATE AGGREGATE mixed(text, text) (SFUNC = texts_step, STYPE = internal, FINALFUNC = packed_bytes);
SELECT code, message, detail FROM failure($$SELECT mixed(t, ',') FROM numbers$$);
SELECT code, message, detail FROM failure($$SELECT texts(t, ','), mixed(t, ',') FROM numbers$$);
CREATE AGGREGATE bytes_of_texts(text, text) (SFUNC = texts_step, STYPE = internal, FINALFUNC = texts_serial);
SELECT code, message, detail FROM failure($$SELECT texts(t, ','), bytes_of_texts(t, ',') FROM numbers$$);
DROP AGGREGATE loose(text, text), packed(text), texts(text, text), answers(text, text), briefs(text, text), mixed(text, text), bytes_of_texts(text, text);
DROP FUNCTION texts_step, texts_final, texts_combine, texts_serial, texts_deserial, packed_step, packed_bytes, packed_combine, packed_deserial, answer_final, brief_final;
DROP DOMAIN brief;
DROP TYPE answer;
