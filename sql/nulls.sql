-- NULL both ways, with and without STRICT.
CREATE TABLE holes AS SELECT nullif(i % 3, 0)::bigint AS x, i FROM generate_series(1, 600) i;
SELECT count(add_one(x)), count(*) FROM holes;
SELECT count(*) FILTER (WHERE is_null(x)) AS nulls, count(*) FILTER (WHERE NOT is_null(x)) AS others FROM holes;
SELECT i, add_one(x), add_one_volatile(x), is_null(x) FROM holes ORDER BY i LIMIT 4;
-- STRICT: one NULL of several is enough, and nothing is sent. Batches grow at any pace.
SET transship.batch_time = 0;
EXPLAIN (ANALYZE, BUFFERS OFF, COSTS OFF, TIMING OFF, SUMMARY OFF) SELECT add(x, i) FROM holes;
RESET transship.batch_time;
SELECT add(NULL, 1), add(1, NULL), add_one(NULL), is_null(NULL);
-- All rows NULL: no batch is sent at all.
SELECT count(add_one(NULL::bigint + x)) FROM holes;
-- The container's row is the right one although rows before it were not sent.
SELECT message, context FROM failure($$SELECT fail_at(x, 2 + 0 * i) FROM holes WHERE i >= 3$$);
DROP TABLE holes;
