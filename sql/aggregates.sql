-- Aggregates whose steps run in the container.
CREATE FUNCTION join_step(internal, text, separator text) RETURNS internal LANGUAGE container PARALLEL SAFE
AS E'image = "regress:1.0"\nfunction = "join_texts"';
CREATE FUNCTION join_final(internal) RETURNS text LANGUAGE container PARALLEL SAFE AS E'image = "regress:1.0"\nfunction = "join_texts"';
CREATE FUNCTION join_combine(internal, internal) RETURNS internal LANGUAGE container PARALLEL SAFE AS E'image = "regress:1.0"\nfunction = "join_texts"';
CREATE FUNCTION join_serial(internal) RETURNS bytea LANGUAGE container STRICT PARALLEL SAFE AS E'image = "regress:1.0"\nfunction = "join_texts"';
CREATE FUNCTION join_deserial(bytea, internal) RETURNS internal LANGUAGE container STRICT PARALLEL SAFE AS E'image = "regress:1.0"\nfunction = "join_texts"';
CREATE AGGREGATE join_texts(text, text) (SFUNC = join_step, STYPE = internal, FINALFUNC = join_final,
  COMBINEFUNC = join_combine, SERIALFUNC = join_serial, DESERIALFUNC = join_deserial, PARALLEL = SAFE);
CREATE FUNCTION mean_step(internal, float8) RETURNS internal LANGUAGE container AS E'image = "regress:1.0"\nfunction = "mean"';
CREATE FUNCTION mean_final(internal) RETURNS float8 LANGUAGE container AS E'image = "regress:1.0"\nfunction = "mean"';
CREATE AGGREGATE mean(float8) (SFUNC = mean_step, STYPE = internal, FINALFUNC = mean_final);
SELECT join_texts(t, ', ') FROM numbers WHERE x <= 5;
SELECT y, join_texts(t, ','), mean(x) FROM numbers WHERE x <= 30 GROUP BY y ORDER BY y;
SELECT join_texts(t, ',') IS NULL AS empty, mean(x) IS NULL AS none FROM numbers WHERE false;
SELECT join_texts(nullif(t, 'n2'), ',') FILTER (WHERE x <> 3), join_texts(DISTINCT 'a', ',') FROM numbers WHERE x <= 5;
-- Sorted and hashed groups, many of them, and grouping sets.
SET enable_hashagg = off;
SELECT count(*), sum(m) FROM (SELECT x / 3 AS g, mean(x) AS m FROM numbers GROUP BY 1) s;
RESET enable_hashagg;
SET enable_sort = off;
SELECT count(*), sum(m) FROM (SELECT x / 3 AS g, mean(x) AS m FROM numbers GROUP BY 1) s;
RESET enable_sort;
SELECT sum(m) = (SELECT sum(a) FROM (SELECT avg(x) AS a FROM numbers GROUP BY x / 3) s) AS same FROM (SELECT mean(x) AS m FROM numbers GROUP BY x / 3) s;
SELECT y, x % 2 AS odd, count(*), mean(x) FROM numbers WHERE x <= 100 GROUP BY GROUPING SETS ((y), (x % 2), ()) ORDER BY 1, 2;
-- Arguments that are container calls, correlated subqueries, and a result that another function takes.
SELECT mean(add_one(x)), shout(join_texts(t, ',')) FROM numbers WHERE x <= 5;
SELECT v.a, (SELECT mean(x) FROM numbers WHERE x <= v.a) FROM (VALUES (3), (0), (9)) v (a);
-- In parallel: states of several processes are merged.
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
EXPLAIN (COSTS OFF) SELECT y, join_texts(t, ',') FROM numbers GROUP BY y;
CREATE TABLE joined AS SELECT y, join_texts(t, ',') AS texts FROM numbers GROUP BY y;
SELECT y, texts = (SELECT string_agg(t, ',' ORDER BY t COLLATE "C") FROM numbers n WHERE n.y = j.y) AS same FROM joined j ORDER BY y;
RESET parallel_setup_cost;
RESET parallel_tuple_cost;
RESET min_parallel_table_scan_size;
-- Slow rows make small batches, as they do of other functions.
CREATE FUNCTION slow_step(internal, float8) RETURNS internal LANGUAGE container AS E'image = "regress:1.0"\nfunction = "wait_and_count"';
CREATE FUNCTION slow_final(internal) RETURNS bigint LANGUAGE container AS E'image = "regress:1.0"\nfunction = "wait_and_count"';
CREATE AGGREGATE wait_and_count(float8) (SFUNC = slow_step, STYPE = internal, FINALFUNC = slow_final);
SET transship.batch_time = '20ms';
SELECT transship.stat_reset('slow_step'::regproc);
SELECT wait_and_count(0.005 + 0 * x) FROM numbers WHERE x <= 200;
SELECT batches BETWEEN 10 AND 74 AS has_small_batches, calls FROM transship.stat_functions WHERE name = 'slow_step';
RESET transship.batch_time;
-- Errors.
SELECT code, message, context FROM failure($$SELECT join_texts(CASE WHEN x = 500 THEN 'bad' ELSE t END, ',') FROM numbers$$);
SELECT code, message FROM failure('SELECT mean(x) OVER (ORDER BY x) FROM numbers');
CREATE FUNCTION wrong_step(internal, bigint) RETURNS internal LANGUAGE container AS E'image = "regress:1.0"\nfunction = "mean"';
CREATE FUNCTION wrong_final(internal) RETURNS text LANGUAGE container AS E'image = "regress:1.0"\nfunction = "mean"';
SELECT code, message FROM failure($$CREATE FUNCTION wrong(internal) RETURNS internal LANGUAGE container AS 'image = "regress:1.0"'$$);
CREATE AGGREGATE half(float8) (SFUNC = mean_step, STYPE = internal, FINALFUNC = numeric_avg);
SELECT code, message FROM failure('SELECT half(x) FROM numbers');
