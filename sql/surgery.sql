-- What the plan above and below a Container Batch node relies on.
CREATE TABLE small AS SELECT i::bigint AS x, i % 5 AS y FROM generate_series(1, 1000) i;
CREATE TABLE lines AS SELECT i AS id, i % 4 AS a, 't' || i AS t, repeat('w ', i % 4) AS words FROM generate_series(1, 20) i;
ANALYZE small, lines;
CREATE FUNCTION words_of(text text) RETURNS TABLE ("position" int, word text) LANGUAGE container STABLE STRICT
AS E'image = "regress:1.0"\nfunction = "words"';
CREATE FUNCTION numbered(n bigint) RETURNS SETOF bigint LANGUAGE container STABLE STRICT
AS E'image = "regress:1.0"\nfunction = "count_to"';
-- Plans that run once, of nodes that are replaced.
SELECT l.id, s.position FROM lines l, words_of(l.words) s WHERE l.id > (SELECT max(id) - 2 FROM lines);
SELECT count(*), min(s.position) FROM lines l, words_of(l.words) s WHERE l.t > (SELECT min(t) FROM lines);
SELECT id, numbered(a) FROM lines WHERE id > (SELECT max(id) - 2 FROM lines);
SELECT l.id, s.n FROM lines l, LATERAL (SELECT n FROM numbered(l.a) n WHERE n > (SELECT 1)) s WHERE l.id < 8;
SELECT l.id, s.n FROM lines l, LATERAL (SELECT n FROM numbered(l.a) n WHERE n > (SELECT l.id % 2 OFFSET 0)) s WHERE l.id < 8;
-- Calls outside of aggregates see the group, not a row.
SELECT y, add_one(y), sum(add_one(y)) FROM small GROUP BY ROLLUP (y) ORDER BY 1;
SELECT y, add_one(y), x % 2, sum(add_one(y)) FILTER (WHERE x > 500) FROM small GROUP BY CUBE (y, x % 2) HAVING add_one(y) > 4 OR y IS NULL ORDER BY 1, 3;
SELECT seven(), sum(seven()) FROM small WHERE x < 0;
SELECT shout('a'), string_agg(shout('a'), ',') FROM small WHERE x < 0;
SELECT add_one(y), count(add_one(y)) FROM small GROUP BY y ORDER BY 1;
-- Conditions that a window node asks of its own results.
SELECT * FROM (SELECT row_number() OVER (ORDER BY x DESC) rn, add_one(x) z FROM small) s WHERE rn <= 3;
SELECT * FROM (SELECT x, rank() OVER (PARTITION BY y ORDER BY x) r, count(*) OVER (PARTITION BY y ORDER BY x) c, add_one(x) z FROM small) s
WHERE r <= 2 AND c < 2 ORDER BY x;
-- What stands beside the result of a set is NULL where the set is empty.
SELECT l.id, s.found, s.position, s.word FROM lines l LEFT JOIN LATERAL (SELECT true AS found, m.position, coalesce(m.word, 'none') AS word FROM words_of(l.words) m) s ON true
WHERE l.id < 6 ORDER BY 1, 3;
SELECT l.id, s.position, s.word FROM lines l LEFT JOIN LATERAL words_of(l.words) s ON true WHERE l.id < 6 ORDER BY 1, 2;
-- A whole row.
SELECT l.id, s, s IS NULL AS is_null FROM lines l LEFT JOIN LATERAL words_of(l.words) s ON true WHERE l.id < 6 ORDER BY 1, 2;
-- Backwards.
BEGIN;
DECLARE c SCROLL CURSOR FOR SELECT x, add_one(x) FROM small LIMIT 100;
FETCH 3 c;
FETCH BACKWARD 2 c;
FETCH LAST c;
FETCH ABSOLUTE 2 c;
CLOSE c;
DECLARE c SCROLL CURSOR FOR SELECT x, add_one(x) FROM small WHERE x < 4 UNION ALL SELECT x, add_one(x) FROM small WHERE x > 998;
FETCH ALL c;
FETCH BACKWARD ALL c;
FETCH RELATIVE 2 c;
CLOSE c;
DECLARE c SCROLL CURSOR WITH HOLD FOR SELECT x FROM (SELECT x, add_one(x) z FROM small OFFSET 0) s WHERE z % 2 = 0 LIMIT 4;
FETCH 2 c;
COMMIT;
FETCH PRIOR c;
FETCH LAST c;
CLOSE c;
DO $$
DECLARE
  c SCROLL CURSOR FOR SELECT add_one(x) AS z FROM small LIMIT 30;
  z bigint;
BEGIN
  OPEN c;
  FETCH LAST FROM c INTO z;
  RAISE NOTICE 'last %', z;
  FETCH PRIOR FROM c INTO z;
  RAISE NOTICE 'before it %', z;
END $$;
-- A merge join goes back on its inner side.
SET enable_hashjoin = off;
SET enable_nestloop = off;
SET enable_material = off;
CREATE INDEX ON small (y);
SELECT count(*), sum(b.z) FROM lines a JOIN (SELECT y, add_one(x) z FROM small WHERE add_one(x) < 40) b ON a.a = b.y;
SELECT count(*), sum(b.z) FROM small a JOIN (SELECT y, add_one(x) z FROM small ORDER BY y OFFSET 0) b ON a.y = b.y AND a.x < 10;
RESET enable_hashjoin;
RESET enable_nestloop;
RESET enable_material;
-- Subplans in a call's arguments depend on what is around them.
SELECT v.k, (SELECT sum(add_one(CASE WHEN n.x IN (SELECT u.x FROM small u WHERE u.x <= v.k) THEN 1 ELSE 0 END)) FROM small n WHERE n.x <= 20)
FROM (VALUES (1), (2), (3)) v (k);
-- Calls with the results of a subquery that sets several columns.
UPDATE lines l SET (a, t) = (SELECT l.a + 10, shout(l.t || '!') OFFSET 0) WHERE id < 3;
UPDATE lines l SET (id, t) = (SELECT s.x, l.t FROM small s WHERE s.x = l.id LIMIT 1), words = shout(l.words) WHERE id < 3;
SELECT * FROM lines WHERE id < 4 ORDER BY id;
-- A key behind one that is NULL is not looked at.
SET enable_mergejoin = off;
SELECT count(*) FROM (SELECT CASE WHEN x <> 7 THEN x END AS k, x FROM small) a
JOIN (SELECT CASE WHEN x <> 7 THEN x END AS k, x FROM small OFFSET 0) b ON a.k = b.k AND fail_at(a.x, 7) = fail_at(b.x, 7);
RESET enable_mergejoin;
-- Window functions evaluate their arguments for the rows they want.
SELECT x, first_value(fail_at(x, 2)) OVER (ORDER BY x) AS first, lag(add_one(x)) OVER (ORDER BY x) AS lag, sum(add_one(x)) OVER (ORDER BY x) AS sum
FROM small WHERE x < 4;
SELECT x, sum(fail_at(x, 1)) OVER (ORDER BY x ROWS BETWEEN 1 FOLLOWING AND 2 FOLLOWING) FROM small WHERE x < 4;
-- As many rows are read as are asked for.
SELECT fail_at(x, 4) FROM (SELECT * FROM small ORDER BY x OFFSET 0) s LIMIT 3;
SELECT fail_at(x, 6) FROM (SELECT * FROM small ORDER BY x OFFSET 0) s LIMIT 3 OFFSET 2;
PREPARE limited(bigint) AS SELECT fail_at(x, 4) FROM (SELECT * FROM small ORDER BY x OFFSET 0) s LIMIT $1;
SET plan_cache_mode = force_generic_plan;
EXECUTE limited(3);
SELECT code, message FROM failure('EXECUTE limited(4)');
RESET plan_cache_mode;
SELECT EXISTS (SELECT FROM (SELECT * FROM small ORDER BY x OFFSET 0) s WHERE fail_at(x, 2) > 0);
-- VOLATILE functions, and what stands beside them, are called for no row more.
CREATE SEQUENCE drawn;
SELECT count_calls(0) < count_calls(0) AS is_counted;
SELECT n, add_one(x) FROM (SELECT nextval('drawn') AS n, x FROM small OFFSET 0) s LIMIT 3;
SELECT last_value FROM drawn;
SELECT add_one(n) FROM (SELECT nextval('drawn') AS n FROM small OFFSET 0) s LIMIT 2;
SELECT last_value FROM drawn;
EXPLAIN (VERBOSE, COSTS OFF) SELECT count_calls(x) FROM small LIMIT 10;
EXPLAIN (VERBOSE, COSTS OFF) SELECT count_calls(x) FROM small;
SELECT transship.stat_reset();
SELECT count(*) FROM (SELECT count_calls(x) FROM small LIMIT 10) s;
BEGIN;
DECLARE c CURSOR FOR SELECT count_calls(x) > 0 FROM small;
FETCH 3 c;
COMMIT;
DO $$
BEGIN
  FOR i IN 1..2 LOOP
    PERFORM EXISTS (SELECT FROM small WHERE count_calls(x) > 0);
  END LOOP;
END $$;
SELECT name, calls FROM transship.stat_functions WHERE name = 'count_calls';
-- Nor are rows locked.
BEGIN;
SELECT add_one(x) FROM (SELECT x FROM small ORDER BY x FOR UPDATE) s LIMIT 2;
SELECT count(*) FROM small WHERE xmax <> 0;
COMMIT;
-- What is written between two rows is seen by functions inside the database.
CREATE TABLE written (n bigint);
CREATE FUNCTION written_so_far() RETURNS bigint LANGUAGE plpgsql VOLATILE AS 'BEGIN RETURN (SELECT count(*) FROM written); END';
INSERT INTO written SELECT add_one(s.so_far) FROM (SELECT written_so_far() AS so_far FROM small WHERE x <= 4 OFFSET 0) s;
SELECT * FROM written;
-- What stands before a call in its row is evaluated before the call's arguments are.
CREATE SEQUENCE turn;
SELECT nextval('turn') AS n, add_one(currval('turn')) AS m FROM generate_series(1, 5) LIMIT 3;
SELECT nextval('turn') AS n, add_one(currval('turn')) AS m FROM generate_series(1, 3);
CREATE TABLE taken (n bigint, m bigint);
INSERT INTO taken SELECT nextval('turn'), add_one(currval('turn')) FROM small WHERE x <= 3;
SELECT * FROM taken;
SELECT add_one(currval('turn')), nextval('turn') FROM small WHERE x <= 3;
SELECT sum(nextval('turn')), sum(add_one(currval('turn'))) FROM small WHERE x <= 3;
SELECT nextval('turn'), add_one(x + (SELECT currval('turn'))) FROM small WHERE x <= 3;
SELECT nextval('turn'), coalesce(add_one(nullif(add_one(x), 3) + currval('turn')), -1) FROM small WHERE x <= 3;
EXPLAIN (VERBOSE, COSTS OFF) SELECT nextval('turn'), add_one(currval('turn')), add_one(x) FROM small;
EXPLAIN (VERBOSE, COSTS OFF) SELECT add_one(currval('turn')), nextval('turn') FROM small;
-- What is read ahead must not show to what stands behind it, in the node or above.
SELECT currval('turn'), add_one(x) FROM small WHERE x <= 3 AND nextval('turn') > 0;
SELECT nextval('turn'), z FROM (SELECT add_one(nextval('turn')) AS z FROM small WHERE x <= 3 OFFSET 0) s;
SELECT l.id, s.n, currval('turn') FROM lines l, numbered(nextval('turn') * 0 + l.a) s (n) WHERE l.id <= 3;
WITH w AS MATERIALIZED (SELECT nextval('turn') AS n FROM small WHERE x <= 3) SELECT n, currval('turn'), add_one(n) FROM w;
EXPLAIN (VERBOSE, COSTS OFF) SELECT currval('turn'), add_one(x) FROM small WHERE nextval('turn') > 0;
EXPLAIN (VERBOSE, COSTS OFF) SELECT nextval('turn'), z FROM (SELECT add_one(x + random()::bigint) AS z FROM small ORDER BY 1 OFFSET 0) s;
-- A ProjectSet evaluates what stands beside a set once more than there are results.
ALTER SEQUENCE turn RESTART;
SELECT nextval('turn'), numbered(2) FROM small WHERE x <= 3;
-- Settings, which STABLE functions read.
CREATE FUNCTION put(value text) RETURNS text LANGUAGE plpgsql VOLATILE AS $$ BEGIN RETURN set_config('surgery.put', value, false); END $$;
SELECT put(x::text), add_one(current_setting('surgery.put')::bigint) FROM small WHERE x <= 3;
SELECT put(x::text), add_one(current_setting('surgery.put')::bigint), put('9'), add_one(current_setting('surgery.put')::bigint) FROM small WHERE x <= 2;
SELECT CASE WHEN current_setting('surgery.put')::bigint % 2 = 0 THEN add_one(x) ELSE -1 END, put(x::text) FROM small WHERE x <= 5;
SELECT CASE WHEN current_setting('surgery.put')::bigint % 2 = 0 THEN add_one(x) ELSE -1 END, add_one(put(x::text)::bigint) FROM small WHERE x <= 5;
SELECT put(z::text), z FROM (SELECT add_one(current_setting('surgery.put')::bigint) AS z FROM small WHERE x <= 3 OFFSET 0) s;
SELECT set_config('surgery.put', x::text, false), add_one(current_setting('surgery.put')::bigint) FROM small WHERE x <= 3;
-- Functions of aggregates, and triggers.
CREATE FUNCTION drawing(sum bigint, x bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE AS 'BEGIN PERFORM nextval(''turn''); RETURN sum + x; END';
CREATE AGGREGATE drawing_sum (bigint) (SFUNC = drawing, STYPE = bigint, INITCOND = 0);
ALTER SEQUENCE turn RESTART;
SELECT nextval('turn');
SELECT drawing_sum(add_one(currval('turn'))) FROM small WHERE x <= 3;
CREATE FUNCTION put_new() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM put(new.n::text); RETURN new; END $$;
CREATE TRIGGER put_new BEFORE INSERT ON taken FOR EACH ROW EXECUTE FUNCTION put_new();
TRUNCATE taken;
INSERT INTO taken SELECT x, add_one(current_setting('surgery.put')::bigint) FROM small WHERE x <= 3;
SELECT * FROM taken;
-- Whoever runs a statement may stop it early: SELECT INTO, functions in SQL.
CREATE FUNCTION calls_of(statement text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  before bigint := (SELECT coalesce(max(calls), 0) FROM transship.stat_functions WHERE name = 'count_calls');
BEGIN
  EXECUTE statement;
  RETURN (SELECT calls FROM transship.stat_functions WHERE name = 'count_calls') - before;
END $$;
CREATE FUNCTION first_into() RETURNS bigint LANGUAGE plpgsql AS 'DECLARE v bigint; BEGIN SELECT count_calls(x) INTO v FROM small; RETURN v; END';
CREATE FUNCTION first_assigned() RETURNS bigint LANGUAGE plpgsql AS 'DECLARE v bigint; BEGIN v := count_calls(x) FROM small LIMIT 1; RETURN v; END';
CREATE FUNCTION first_of_sql() RETURNS bigint LANGUAGE sql VOLATILE AS 'SELECT count_calls(x) FROM small';
CREATE FUNCTION all_of_sql() RETURNS SETOF bigint LANGUAGE sql VOLATILE AS 'SELECT count_calls(x) FROM small';
SELECT calls_of('SELECT first_into()'), calls_of('SELECT first_assigned()'), calls_of('SELECT first_of_sql()'), calls_of('SELECT all_of_sql() LIMIT 3'),
  calls_of('SELECT count(*) FROM all_of_sql()'), calls_of('SELECT count(count_calls(x)) FROM small'), calls_of('SELECT first_into() FROM small WHERE x <= 3');
DO $$
DECLARE
  v bigint;
BEGIN
  SELECT fail_at(x, 2) INTO v FROM (SELECT * FROM small ORDER BY x OFFSET 0) s;
  RAISE NOTICE 'first %', v;
  BEGIN
    SELECT fail_at(x, 1) INTO v FROM (SELECT * FROM small ORDER BY x OFFSET 0) s;
  EXCEPTION WHEN OTHERS THEN
    RAISE NOTICE '%', sqlerrm;
  END;
  SELECT fail_at(add_one(x), 3) INTO v FROM (SELECT * FROM small ORDER BY x OFFSET 0) s;
  RAISE NOTICE 'first %', v;
  SELECT sum(fail_at(x, 0)) INTO v FROM small;
  RAISE NOTICE 'sum %', v;
END $$;
CREATE FUNCTION insert_first() RETURNS bigint LANGUAGE plpgsql AS 'DECLARE v bigint; BEGIN INSERT INTO taken SELECT x, count_calls(x) FROM small RETURNING n INTO v; RETURN v; END';
SELECT calls_of($$SELECT failure('SELECT insert_first()')$$);
-- A sort below a LIMIT keeps no more rows than are asked for.
CREATE FUNCTION sort_method(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  line text;
BEGIN
  FOR line IN EXECUTE 'EXPLAIN (ANALYZE, TIMING OFF, SUMMARY OFF) ' || statement LOOP
    IF line LIKE '%Sort Method%' THEN RETURN substring(line FROM 'Sort Method: (.*?)  '); END IF;
  END LOOP;
END $$;
SELECT sort_method('SELECT add_one(x) FROM small ORDER BY y, x LIMIT 3'), sort_method('SELECT add_one(add_one(x)) FROM small ORDER BY y, x LIMIT 3 OFFSET 2');
SELECT sort_method('SELECT add_one(x) FROM (SELECT * FROM small ORDER BY y, x OFFSET 0) s WHERE add_one(x) > 9 LIMIT 3');
SELECT add_one(x) FROM small ORDER BY y, x LIMIT 3;
SELECT count(*), sum(z) FROM (SELECT add_one(x) AS z FROM small ORDER BY y, x LIMIT 300 OFFSET 200) s;
SELECT add_one(y), y FROM small WHERE x > 990 ORDER BY y FETCH FIRST 3 ROWS WITH TIES;
SELECT l.id, s.z FROM lines l, LATERAL (SELECT add_one(x) AS z FROM small WHERE y = l.a ORDER BY x DESC LIMIT 2) s WHERE l.id <= 3;
BEGIN;
DECLARE c SCROLL CURSOR FOR SELECT add_one(x) FROM small ORDER BY y, x LIMIT 4;
FETCH ALL c;
FETCH BACKWARD 2 c;
FETCH ALL c;
COMMIT;
-- Functions that run as their owner, or with settings of their own, are called row by row.
CREATE FUNCTION owned(x bigint) RETURNS bigint LANGUAGE container IMMUTABLE STRICT SECURITY DEFINER AS E'image = "regress:1.0"\nfunction = "add_one"';
CREATE FUNCTION configured(x bigint) RETURNS bigint LANGUAGE container IMMUTABLE STRICT SET work_mem = '1MB' AS E'image = "regress:1.0"\nfunction = "add_one"';
EXPLAIN (VERBOSE, COSTS OFF) SELECT owned(x), configured(x) FROM small WHERE x < 3;
SELECT owned(x), configured(x) FROM small WHERE x < 3;
-- Expressions that nest deep.
SELECT 'SELECT add_one(x)' || repeat(' + x', 800) || ' AS deep FROM small WHERE x = 1' AS statement \gset
:statement;
SET enable_mergejoin = off;
SET enable_nestloop = off;
SELECT 'SELECT count(*) FROM small a JOIN small b ON add_one(a.x' || repeat(' + 1', 800) || ') = b.x' AS statement \gset
:statement;
SELECT 'SELECT count(*) FROM small a JOIN small b ON add_one(a.x' || repeat(' + 1', 3000) || ') = b.x' AS statement \gset
:statement;
RESET enable_mergejoin;
RESET enable_nestloop;
-- As many columns as there may be.
SELECT format('CREATE TABLE wide (%s)', string_agg(format('c%s bigint', i), ', ')) AS statement FROM generate_series(1, 1600) i \gset
:statement;
INSERT INTO wide (c1) VALUES (1), (2), (1);
SET enable_hashagg = off;
SELECT format('SELECT s1, s70, n1600 FROM (SELECT c1, %s, %s FROM wide GROUP BY c1) s', string_agg(format('sum(add_one(c1 + %s)) AS s%s', i, i), ', ') FILTER (WHERE i <= 70),
  string_agg(format('count(c%s) AS n%s', i, i), ', ') FILTER (WHERE i > 10)) AS statement FROM generate_series(1, 1600) i \gset
:statement;
RESET enable_hashagg;
-- The condition of an index scan counts as well: here it draws from a sequence between two calls.
CREATE TABLE places AS SELECT id::bigint FROM generate_series(1, 100) id;
CREATE UNIQUE INDEX places_id ON places (id);
SET enable_seqscan = off;
SET enable_bitmapscan = off;
SET enable_hashjoin = off;
SET enable_mergejoin = off;
SET enable_material = off;
SELECT setval('drawn', 1);
-- From version 18 on, PostgreSQL says which nodes it was told not to use.
CREATE FUNCTION pg_temp.plan_of(statement text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE line text;
BEGIN
  FOR line IN EXECUTE 'EXPLAIN (COSTS OFF) ' || statement LOOP
    IF line !~ '^ *Disabled: true$' THEN RETURN NEXT line; END IF;
  END LOOP;
END
$$;
SELECT * FROM pg_temp.plan_of($$SELECT n.x, n.c, p.id FROM (SELECT x, add_one_volatile(currval('drawn')) AS c FROM numbers WHERE x <= 4 OFFSET 0) n, places p WHERE p.id = (SELECT nextval('drawn') + n.x)$$);
SELECT n.x, n.c, p.id FROM (SELECT x, add_one_volatile(currval('drawn')) AS c FROM numbers WHERE x <= 4 OFFSET 0) n, places p WHERE p.id = (SELECT nextval('drawn') + n.x);
RESET enable_seqscan;
RESET enable_bitmapscan;
RESET enable_hashjoin;
RESET enable_mergejoin;
RESET enable_material;
DROP TABLE places;
-- What draws from a sequence below a sort is read once, also where the node above is scanned again.
CREATE SEQUENCE rewound;
SET enable_material = off;
SELECT o.k, s.n FROM (VALUES (1), (2)) o (k) LEFT JOIN (SELECT nextval('rewound') AS n FROM generate_series(1, 3) g ORDER BY n OFFSET 0) s ON add_one(s.n) > 0 ORDER BY 1, 2;
RESET enable_material;
SELECT last_value FROM rewound;
-- Window functions that are equal, but VOLATILE, are evaluated each for itself.
SELECT x, add_one(x), sum(nextval('rewound')) OVER (ORDER BY x) AS a, sum(nextval('rewound')) OVER (ORDER BY x) AS b FROM small WHERE x <= 3;
SELECT last_value FROM rewound;
DROP SEQUENCE rewound;
-- JSON that is converted to text stands as a placeholder in the conversion, as the argument of CASE does in a condition.
CREATE FUNCTION pg_temp.not_json() RETURNS TABLE (x bigint, y bigint) LANGUAGE plpgsql AS $$
BEGIN
  -- Version 15 has no such expression.
  RETURN QUERY EXECUTE 'SELECT x, CASE ''no'' || x WHEN '
    || CASE WHEN current_setting('server_version_num')::int < 160000 THEN '''{}''' ELSE 'JSON_OBJECT(''a'': x RETURNING text)' END
    || ' THEN 0 ELSE add_one(x) END FROM small WHERE x <= 3';
END
$$;
SELECT * FROM pg_temp.not_json() ORDER BY x;
-- A subquery with OFFSET alone skips rows before the bound of the query above counts.
SELECT z FROM (SELECT add_one(x) AS z FROM small OFFSET 2) s LIMIT 5;
SELECT z FROM (SELECT add_one(x) AS z FROM small OFFSET 10) s LIMIT 5;
SELECT EXISTS (SELECT FROM (SELECT add_one(x) AS z FROM small OFFSET 2) s WHERE z > 0);
SELECT z FROM (SELECT z FROM (SELECT add_one(x) AS z FROM small OFFSET 0) s WHERE z > 10 LIMIT NULL) s LIMIT 3;
-- Subplans of a lateral call's arguments take columns of the join.
SELECT l.id, s.word FROM lines l, LATERAL (SELECT w.word FROM words_of(CASE WHEN l.a IN (SELECT m.a FROM lines m WHERE m.id > l.id) THEN l.words ELSE 'none' END) w OFFSET 0) s WHERE l.id > 14 ORDER BY 1;
SELECT l.id, s.word FROM lines l, LATERAL (SELECT w.word FROM words_of(CASE WHEN l.a IN (SELECT m.a FROM lines m WHERE m.t > l.t) THEN l.words ELSE 'none' END) w OFFSET 0) s WHERE l.id > 14 ORDER BY 1;
-- A row without results has NULL in all columns of a lateral subselect, also where they are columns of the row itself.
SELECT l.id, s.a, s.word FROM lines l LEFT JOIN LATERAL (SELECT l.t AS a, w.word FROM words_of(l.words) w) s ON true WHERE l.id IN (3, 4) ORDER BY 1;
SELECT l.id FROM lines l LEFT JOIN LATERAL (SELECT l.t AS a, w.word FROM words_of(l.words) w) s ON true WHERE s.a IS NULL ORDER BY 1;
-- VOLATILE columns of a lateral subselect are evaluated once per row, however often they are named.
CREATE SEQUENCE beside;
SELECT bool_and(n = m), count(*) FROM (SELECT s.n, s.n AS m FROM lines l, LATERAL (SELECT nextval('beside') AS n, w.word FROM words_of(l.words) w) s WHERE l.id <= 3 OFFSET 0) r;
SELECT count(word) FROM (SELECT s.word FROM lines l, LATERAL (SELECT nextval('beside') AS n, w.word FROM words_of(l.words) w) s WHERE l.id <= 3 OFFSET 0) r;
SELECT last_value FROM beside;
DROP SEQUENCE beside;
-- An alias names the columns of a record.
SELECT row_to_json(s) FROM lines l, LATERAL words_of(l.words) AS s (pos, w) WHERE l.id = 1;
SELECT row_to_json(s) FROM lines l, LATERAL words_of(l.words) AS s WHERE l.id = 1;
EXPLAIN (COSTS OFF) SELECT s FROM lines l, LATERAL words_of(l.words) AS s WHERE l.id = 1;
-- Behind the rows that are asked for, a recursion may go on for ever.
WITH RECURSIVE r (n) AS (SELECT 1::bigint UNION ALL SELECT n + 1 FROM r) SELECT n FROM r WHERE n < 10 AND add_one(n) > 5 LIMIT 5;
-- A sort has read all of it.
EXPLAIN (COSTS OFF) WITH RECURSIVE r (n) AS (SELECT 1::bigint UNION ALL SELECT n + 1 FROM r WHERE n < 10) SELECT add_one(n) FROM (SELECT n FROM r ORDER BY n DESC OFFSET 1) s LIMIT 5;
WITH RECURSIVE r (n) AS (SELECT 1::bigint UNION ALL SELECT n + 1 FROM r WHERE n < 10) SELECT add_one(n) FROM (SELECT n FROM r ORDER BY n DESC OFFSET 1) s LIMIT 5;
BEGIN;
DECLARE endless CURSOR FOR WITH RECURSIVE r (n) AS (SELECT 1::bigint UNION ALL SELECT n + 1 FROM r) SELECT add_one(n) FROM r WHERE n < 10;
FETCH 9 FROM endless;
COMMIT;
DROP TABLE small, lines, written, taken, wide;
DROP SEQUENCE drawn, turn;
DROP AGGREGATE drawing_sum (bigint);
DROP FUNCTION words_of, numbered, written_so_far, owned, configured, put, put_new, drawing, calls_of, first_into, first_assigned, first_of_sql, all_of_sql, insert_first, sort_method;
-- Plans grow with their statements, and not faster: what is behind many filters or conditions that call stays where it is.
CREATE FUNCTION many_filters(count int) RETURNS text LANGUAGE sql AS $$
  SELECT 'SELECT count(*) FROM numbers WHERE x <= 50' || string_agg(format(' AND add_one(x + %s) > %s', i, i + 10), '') FROM generate_series(1, count) i
$$;
CREATE FUNCTION many_arms(count int) RETURNS text LANGUAGE sql AS $$
  SELECT 'SELECT sum(CASE' || string_agg(format(' WHEN x %% %s = 0 THEN add_one(x + %s)', i, i), '') || ' END) FROM numbers WHERE x <= 2000' FROM generate_series(300, 300 - count + 1, -1) i
$$;
CREATE FUNCTION both_ways(query text) RETURNS TABLE (batched numeric, alone numeric, nodes bigint) LANGUAGE plpgsql AS $$
DECLARE
  line text;
BEGIN
  nodes := 0;
  EXECUTE query INTO batched;
  FOR line IN EXECUTE 'EXPLAIN (COSTS OFF) ' || query LOOP
    nodes := nodes + (line ~ 'Container Batch')::int;
  END LOOP;
  SET LOCAL transship.batching = off;
  EXECUTE query INTO alone;
  SET LOCAL transship.batching = on;
  RETURN NEXT;
END
$$;
SELECT * FROM both_ways(many_filters(3));
SELECT * FROM both_ways(many_filters(100));
SELECT * FROM both_ways(many_arms(20));
SELECT * FROM both_ways(many_arms(250));
DROP FUNCTION many_filters, many_arms, both_ways;
-- CTEs that read each other, of which PostgreSQL plans one after the other.
CREATE FUNCTION planned(query text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  line text;
  lines bigint := 0;
BEGIN
  FOR line IN EXECUTE 'EXPLAIN (COSTS OFF) ' || query LOOP
    lines := lines + 1;
  END LOOP;
  RETURN lines;
END
$$;
SELECT planned('WITH c0 AS MATERIALIZED (SELECT 1::bigint AS a), '
  || (SELECT string_agg(format('c%s AS MATERIALIZED (SELECT a FROM c%s)', i, i - 1), ', ') FROM generate_series(1, 4000) i)
  || ' SELECT add_one(a) FROM c4000 LIMIT 5') > 8000 AS planned;
DROP FUNCTION planned;
