-- What PostgreSQL's own tests do not ask of a plan whose calls were lifted. Each query once gave wrong rows or ended the server.
CREATE TABLE numbers AS SELECT i::bigint AS x, i % 5 AS y FROM generate_series(1, 1000) i;
CREATE TABLE rt AS SELECT i::bigint AS id, (i % 4)::bigint AS a, 't' || i AS t FROM generate_series(1, 20) i;
ANALYZE numbers, rt;
CREATE TYPE r_row AS (i bigint, b bigint);
CREATE FUNCTION r_many(a bigint) RETURNS SETOF r_row LANGUAGE plpgsql STABLE STRICT
AS 'BEGIN RETURN QUERY SELECT i, a FROM generate_series(1, a) i; END';
CREATE FUNCTION r_up(t text) RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT AS 'BEGIN RETURN upper(t); END';
CREATE FUNCTION add_one(x bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE STRICT AS 'BEGIN RETURN x + 1; END';
CREATE FUNCTION seven() RETURNS bigint LANGUAGE plpgsql STABLE AS 'BEGIN RETURN 7; END';
CREATE FUNCTION beyond(x bigint, bad bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE STRICT
AS 'BEGIN IF x >= bad THEN RAISE ''% is beyond'', x; END IF; RETURN x; END';
-- 1. Plans that run once, of nodes that are replaced.
SELECT rt.id, s.i FROM rt, r_many(rt.a) s WHERE rt.id > (SELECT max(id) - 2 FROM rt);
SELECT count(*) FROM (SELECT rt.id, s.i FROM rt, r_many(rt.a) s WHERE rt.t > (SELECT min(t) FROM rt) OFFSET 0) s;
SELECT rt.id, (r_many(rt.a)).i FROM rt WHERE rt.id > (SELECT max(id) - 2 FROM rt);
-- 2. Calls outside of aggregates see the group.
SELECT y, add_one(y), sum(add_one(y)) FROM numbers GROUP BY ROLLUP (y) ORDER BY 1;
SELECT seven(), sum(seven()) FROM numbers WHERE x < 0;
SELECT r_up('a'), string_agg(r_up('a'), ',') FROM numbers WHERE x < 0;
-- 3. Conditions that a window node asks of its own results.
SELECT * FROM (SELECT row_number() OVER (ORDER BY x DESC) rn, add_one(x) z FROM numbers) s WHERE rn <= 3;
-- 4. What stands beside the result of a set is NULL where the set is empty.
SELECT rt.id, s.found FROM rt LEFT JOIN LATERAL (SELECT true AS found, m.i FROM r_many(rt.a) m) s ON true WHERE rt.id < 6 ORDER BY 1;
-- 5. Backwards.
BEGIN;
DECLARE c SCROLL CURSOR FOR SELECT x, add_one(x) FROM numbers LIMIT 100;
FETCH 3 c;
FETCH BACKWARD 2 c;
FETCH LAST c;
COMMIT;
SET enable_hashjoin = off;
SET enable_nestloop = off;
SET enable_material = off;
SELECT count(*), sum(b.z) FROM rt a JOIN (SELECT y, add_one(x) z FROM numbers WHERE add_one(x) < 40) b ON a.a = b.y;
RESET enable_hashjoin;
RESET enable_nestloop;
RESET enable_material;
-- 6. Subplans in a call's arguments depend on what is around them.
SELECT v.k, (SELECT sum(add_one(CASE WHEN n.x IN (SELECT u.x FROM numbers u WHERE u.x <= v.k) THEN 1 ELSE 0 END)) FROM numbers n WHERE n.x <= 20)
FROM (VALUES (1), (2), (3)) v (k);
-- Results of a subquery that sets several columns.
UPDATE rt SET (a, t) = (SELECT rt.a + 10, r_up(rt.t)), id = add_one(id) WHERE id < 3;
SELECT * FROM rt WHERE id < 4 ORDER BY id;
ALTER TABLE rt ADD COLUMN n name;
UPDATE rt SET (a, n) = (SELECT rt.a + 1, rt.t || '!' FROM numbers LIMIT 1) WHERE id < 4;
SELECT * FROM rt WHERE id < 4 ORDER BY id;
-- Rows that nobody asks for.
SELECT beyond(x, 4) FROM (SELECT * FROM numbers ORDER BY x OFFSET 0) s LIMIT 3;
SELECT EXISTS (SELECT FROM (SELECT * FROM numbers ORDER BY x OFFSET 0) s WHERE beyond(x, 2) > 0);
SELECT x, first_value(beyond(x, 2)) OVER (ORDER BY x) FROM numbers WHERE x < 4;
-- A row of NULLs is not NULL.
CREATE FUNCTION nothing(a bigint) RETURNS r_row LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN NULL; END';
SELECT count(s), count(*) FROM rt, nothing(rt.a) s;
SELECT count(s), count(*) FROM rt LEFT JOIN LATERAL r_many(rt.a) s ON true;
-- What stands before a call in its row, is read ahead of it, or is asked for by nobody.
CREATE SEQUENCE turn;
CREATE FUNCTION put(value text) RETURNS text LANGUAGE plpgsql VOLATILE AS $$ BEGIN RETURN set_config('surgery.put', value, false); END $$;
SELECT nextval('turn') AS n, add_one(currval('turn')) AS m FROM numbers LIMIT 3;
SELECT nextval('turn') AS n, add_one(currval('turn')) AS m FROM generate_series(1, 5);
SELECT currval('turn'), add_one(x) FROM numbers WHERE x <= 5 AND nextval('turn') > 0;
SELECT nextval('turn'), z FROM (SELECT add_one(nextval('turn')) AS z FROM numbers WHERE x <= 5 OFFSET 0) s;
SELECT sum(nextval('turn')), sum(add_one(currval('turn'))) FROM numbers WHERE x <= 5;
SELECT nextval('turn'), r_many(rt.a) FROM rt WHERE id <= 5;
CREATE FUNCTION first_into() RETURNS bigint LANGUAGE plpgsql AS
'DECLARE v bigint; BEGIN SELECT beyond(x, 2) + nextval(''turn'') INTO v FROM (SELECT * FROM numbers ORDER BY x OFFSET 0) s; RETURN v; END';
CREATE FUNCTION first_of_sql() RETURNS bigint LANGUAGE sql VOLATILE AS 'SELECT add_one(nextval(''turn'')) FROM numbers';
SELECT first_into(), first_of_sql(), currval('turn');
DO $$
DECLARE
  v bigint;
BEGIN
  SELECT beyond(x, 2) INTO v FROM (SELECT * FROM numbers ORDER BY x OFFSET 0) s;
  RAISE NOTICE 'first %', v;
END $$;
SELECT beyond(x, 4) FROM numbers ORDER BY x LIMIT 3;
DROP TABLE numbers, rt;
