-- What PostgreSQL has from version 18 on, as queries of a container function (@one) and of a twin in PL/pgSQL.
CREATE FUNCTION plain_one(x bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE COST 1000 AS 'BEGIN RETURN x + 1; END';
CREATE TABLE doubled (id int PRIMARY KEY, x bigint, twice bigint GENERATED ALWAYS AS (x * 2) VIRTUAL, kept bigint GENERATED ALWAYS AS (x * 3) STORED, t text, CHECK (twice < 1000000));
INSERT INTO doubled (id, x, t) SELECT i, CASE WHEN i % 9 > 0 THEN i % 50 END, 't' || i % 7 FROM generate_series(1, 500) i;
CREATE INDEX ON doubled (t, id);
CREATE TABLE stays (room int4range, during int4range, guest bigint, PRIMARY KEY (room, during WITHOUT OVERLAPS), CHECK (guest > 0) NOT ENFORCED);
INSERT INTO stays SELECT int4range(i % 5, i % 5 + 1), int4range(i, i + 3), i % 20 - 2 FROM generate_series(1, 200) i;
CREATE TABLE visits (room int4range, during int4range, FOREIGN KEY (room, PERIOD during) REFERENCES stays (room, PERIOD during));
INSERT INTO visits SELECT room, during FROM stays WHERE guest > 3;
ANALYZE doubled, stays, visits;
-- What both give, and whether it is the same; what a statement changes is taken back.
CREATE FUNCTION twins(query text, checked text DEFAULT NULL, OUT rows int, OUT is_same boolean, OUT problem text) LANGUAGE plpgsql AS $$
DECLARE
  answers jsonb[];
  answer jsonb;
BEGIN
  FOREACH problem IN ARRAY ARRAY['plain_one', 'add_one'] LOOP
    BEGIN
      EXECUTE 'CREATE TEMP TABLE answer AS ' || replace(query, '@one', problem);
      SELECT jsonb_agg(a ORDER BY a) INTO answer FROM (SELECT replace(to_jsonb(a)::text, 'plain_one', 'add_one')::jsonb AS a FROM answer a) a;
      IF checked IS NOT NULL THEN
        EXECUTE format('SELECT jsonb_build_array(jsonb_agg(a ORDER BY a), $1) FROM (SELECT to_jsonb(a) AS a FROM %s a) a', checked) INTO answer USING answer;
      END IF;
      RAISE EXCEPTION USING ERRCODE = 'TWIN1';
    EXCEPTION WHEN SQLSTATE 'TWIN1' THEN
      answers := answers || answer;
    WHEN OTHERS THEN
      answers := answers || to_jsonb(replace(SQLERRM, 'plain_one', 'add_one'));
    END;
  END LOOP;
  is_same := answers[1] IS NOT DISTINCT FROM answers[2];
  problem := CASE WHEN jsonb_typeof(answers[2]) = 'string' OR NOT is_same THEN left(answers::text, 1000) END;
  rows := CASE WHEN problem IS NULL AND checked IS NULL THEN jsonb_array_length(answers[1]) END;
END
$$;
-- Virtual columns have no stored value.
SELECT query, twins.* FROM unnest(ARRAY[
  'SELECT id, @one(twice), twice, kept FROM doubled',
  'SELECT id, @one(twice + @one(kept)) FROM doubled WHERE @one(twice) > 20',
  'SELECT @one(d.twice) AS o, d FROM doubled d WHERE twice IS NOT NULL',
  'SELECT @one(twice) AS o, count(*), sum(@one(kept)) FROM doubled GROUP BY @one(twice)',
  'SELECT twice, @one(twice) AS o, count(*) FROM doubled GROUP BY twice',
  'SELECT twice, @one(twice) AS o, grouping(twice), count(*) FROM doubled GROUP BY GROUPING SETS (twice, ())',
  'SELECT a.id, @one(a.twice), b.twice FROM doubled a LEFT JOIN doubled b ON b.twice = @one(a.twice) - 1 AND b.id < 50',
  'SELECT n.x, @one(d.twice), d.twice FROM numbers n LEFT JOIN doubled d ON d.id = n.x - 3 WHERE n.x <= 20',
  'SELECT n.x, @one(coalesce(d.twice, 7)) AS o FROM numbers n LEFT JOIN doubled d ON d.id = n.x - 3 WHERE n.x <= 20',
  'SELECT id, (SELECT max(@one(b.twice)) FROM doubled b WHERE b.id < a.twice) FROM doubled a',
  'SELECT a.id, l.o FROM doubled a, LATERAL (SELECT @one(a.twice) AS o OFFSET 0) l',
  'SELECT @one(twice) OVER_ FROM doubled ORDER BY 1 LIMIT 7',
  'SELECT id, sum(@one(twice)) OVER (PARTITION BY t ORDER BY id) FROM doubled',
  'SELECT id FROM doubled WHERE CASE WHEN twice > 30 THEN @one(twice) ELSE @one(kept) END > 40']) query, twins(query);
-- RETURNING of old and new rows.
SELECT query, twins.is_same, twins.problem FROM unnest(ARRAY[
  'WITH w AS (UPDATE doubled SET x = @one(x) WHERE @one(twice) < 30 RETURNING old.twice AS a, new.twice AS b, @one(old.twice) AS c, @one(new.twice) AS d, old.kept AS e, new.kept AS f, twice AS g, old AS h, new AS i) TABLE w',
  'WITH w AS (UPDATE doubled SET x = @one(twice) RETURNING WITH (OLD AS o, NEW AS n) id, @one(o.x) AS a, @one(n.x + @one(o.kept)) AS b, o, n) SELECT *, @one(a) AS z FROM w',
  'WITH w AS (DELETE FROM doubled WHERE @one(twice) % 3 = 0 RETURNING @one(old.twice) AS a, new.x AS b, @one(new.twice) AS c, new IS NULL AS d) TABLE w',
  'WITH w AS (INSERT INTO doubled (id, x) SELECT 1000 + n.x, @one(n.x) FROM numbers n WHERE n.x < 20 RETURNING @one(old.twice) AS a, @one(new.twice) AS b, old IS NULL AS d) TABLE w',
  'WITH w AS (INSERT INTO doubled (id, x) SELECT 490 + n.x, @one(n.x) FROM numbers n WHERE n.x < 20 ON CONFLICT (id) DO UPDATE SET x = @one(excluded.x + doubled.twice) RETURNING @one(old.twice) AS a, @one(new.twice) AS b, old IS NULL AS d) TABLE w',
  'WITH w AS (MERGE INTO doubled d USING (SELECT x, @one(x) AS w FROM numbers WHERE x BETWEEN 490 AND 510) s ON d.id = s.x AND @one(d.twice) <> 3 WHEN MATCHED AND @one(d.twice) > 60 THEN DELETE WHEN MATCHED THEN UPDATE SET x = s.w WHEN NOT MATCHED THEN INSERT (id, x) VALUES (10000 + s.x, @one(s.w)) WHEN NOT MATCHED BY SOURCE AND @one(d.twice) = 1 THEN DELETE RETURNING merge_action() AS m, @one(old.twice) AS a, @one(new.twice) AS b, @one(s.w) AS c) TABLE w'
  ]) query, twins(query, 'doubled');
-- Joins of a table with itself, set operations, indexes without their first column, semi-joins, and constraints.
SELECT query, twins.* FROM unnest(ARRAY[
  'SELECT a.id, @one(b.twice) AS b, @one(a.x) FROM doubled a JOIN doubled b USING (id) WHERE @one(a.x) > 20',
  'SELECT a.id, @one(b.twice) FROM doubled a JOIN doubled b ON a.id = b.id LEFT JOIN doubled c ON c.id = a.id AND @one(c.x) = 7',
  'SELECT @one(x) FROM doubled INTERSECT ALL SELECT @one(twice) FROM doubled',
  'SELECT @one(x) FROM doubled EXCEPT SELECT @one(twice) FROM doubled WHERE id < 20',
  'SELECT @one(x) FROM doubled WHERE false INTERSECT SELECT @one(x) FROM doubled',
  'SELECT DISTINCT t, @one(twice) FROM doubled',
  'SELECT DISTINCT @one(x), t FROM doubled ORDER BY t, 1',
  'SELECT id, @one(x) FROM doubled WHERE id IN (77, 78)',
  'SELECT id FROM doubled WHERE id IN (SELECT @one(x) FROM numbers WHERE x < 100)',
  'SELECT x FROM numbers n WHERE EXISTS (SELECT FROM doubled d WHERE @one(d.x) = n.x)',
  'SELECT x FROM numbers n WHERE x < 300 AND x NOT IN (SELECT @one(d.id) FROM doubled d)',
  'SELECT id FROM doubled WHERE @one(x) = 3 OR @one(x) = 5 OR x = @one(id)',
  'SELECT id FROM doubled WHERE x = ANY (ARRAY[@one(1), @one(id), 7])',
  'SELECT id FROM doubled WHERE x IN (VALUES (@one(1)), (@one(7)), (9)) OR twice IN (VALUES (@one(9)), (12))',
  'SELECT s.room, count(*), sum(@one(s.guest)) FROM stays s JOIN visits v ON s.room = v.room AND s.during && v.during GROUP BY s.room, s.during HAVING sum(@one(s.guest)) > 3',
  'SELECT * FROM stays WHERE @one(guest) < 1 AND guest <= 0',
  'SELECT id, x, t, @one(x) FROM doubled GROUP BY id, x, t ORDER BY t, @one(x)',
  'SELECT room, @one(guest) FROM stays GROUP BY ROLLUP (room, @one(guest))',
  'SELECT room, @one(guest) AS o, sum(@one(guest)) FROM stays GROUP BY GROUPING SETS ((room, @one(guest)), (@one(guest)), ()) HAVING @one(guest) IS NULL OR @one(guest) > 3',
  'SELECT @one(lower(room)) AS o, @one(@one(lower(room))) AS p FROM stays GROUP BY CUBE (@one(lower(room)), 2)',
  'SELECT array_agg(@one(x) ORDER BY @one(twice) DESC, id), t FROM doubled GROUP BY t',
  'SELECT jsonb_agg(q.o) FROM (SELECT JSON_VALUE(jsonb_build_object(''a'', @one(x)), ''$.a'' RETURNING bigint) AS o FROM doubled ORDER BY id) q',
  'SELECT j.* FROM doubled d, JSON_TABLE(jsonb_build_array(@one(d.x)), ''$[*]'' COLUMNS (v bigint PATH ''$'')) j WHERE d.id < 30']) query, twins(query);
EXPLAIN (COSTS OFF) SELECT id, sum(add_one(twice)) OVER (PARTITION BY t ORDER BY id ROWS 2 PRECEDING) FROM doubled;
SET enable_hashjoin = off;
SELECT query, twins.* FROM unnest(ARRAY[
  'SELECT a.id, @one(b.twice) AS b, @one(a.x) FROM doubled a JOIN doubled b ON b.twice = a.x WHERE @one(a.x) > 20',
  'SELECT x FROM numbers n WHERE EXISTS (SELECT FROM doubled d WHERE @one(d.x) = n.x)']) query, twins(query);
RESET enable_hashjoin;
-- Shared tables of such columns, which can be followed only by queries that do not read them.
SELECT transship.share('shared_doubled', 'SELECT id, x, twice, kept, t FROM doubled', key => 'id');
SELECT count(*) FROM (TABLE shared_doubled EXCEPT ALL SELECT id, x, twice, kept, t FROM doubled) d;
SELECT count(*) FROM (SELECT id, x, twice, kept, t FROM doubled EXCEPT ALL TABLE shared_doubled) d;
SELECT count(*), sum(s.twice), sum(d.twice) FROM doubled d, transship.lookup('shared_doubled', d.id) AS s (id int, x bigint, twice bigint, kept bigint, t text);
SELECT transship.share('shared_twice', 'SELECT twice, kept FROM doubled WHERE twice IS NOT NULL', key => 'twice');
SELECT count(*), sum(s.kept) FROM doubled d, transship.lookup('shared_twice', d.twice) AS s (twice bigint, kept bigint);
SELECT count(*), sum(s.kept) FROM doubled d LEFT JOIN LATERAL transship.lookup('shared_twice', d.twice) AS s (twice bigint, kept bigint) ON s.kept > 10;
SELECT count(*), sum(s.kept) FROM doubled d LEFT JOIN doubled s ON s.twice = d.twice AND s.kept > 10;
SELECT count(*), sum(s.kept) FROM numbers n LEFT JOIN doubled d ON d.id = n.x - 3 LEFT JOIN LATERAL transship.lookup('shared_twice', d.twice) AS s (twice bigint, kept bigint) ON true WHERE n.x < 300;
SELECT count(*), sum(s.kept) FROM numbers n LEFT JOIN doubled d ON d.id = n.x - 3 LEFT JOIN doubled s ON s.twice = d.twice WHERE n.x < 300;
SELECT d.twice, s.twice AS found, count(*) FROM doubled d, transship.lookup('shared_twice', d.twice) AS s (twice bigint, kept bigint) WHERE d.twice < 10 GROUP BY d.twice, s.twice ORDER BY 1;
SELECT query, f.code, f.detail FROM unnest(ARRAY['SELECT twice FROM doubled', 'SELECT id FROM doubled WHERE twice > 3', 'SELECT kept FROM doubled', 'SELECT d FROM doubled d']) query,
  failure(format('SELECT transship.share(%L, %L, follow => true)', 'f', query)) f;
SELECT transship.share('followed_doubled', 'SELECT id, x, t FROM doubled WHERE x > 5', key => 'id', follow => true);
INSERT INTO doubled VALUES (1001, 7, DEFAULT, DEFAULT, 'a'), (1002, 3, DEFAULT, DEFAULT, 'a') RETURNING old.id, new.twice;
ALTER TABLE doubled ADD four bigint GENERATED ALWAYS AS (x * 4);
INSERT INTO doubled (id, x, t) VALUES (1003, 8, 'b');
UPDATE doubled SET x = 9 WHERE id = 1001 RETURNING old.twice, new.twice, new.four;
SELECT id, x, t FROM followed_doubled WHERE id > 1000 ORDER BY id;
SELECT count(*) FROM (SELECT id, x, t FROM doubled WHERE x > 5 EXCEPT ALL TABLE followed_doubled) d;
SELECT transship.unshare('followed_doubled'), transship.unshare('shared_doubled'), transship.unshare('shared_twice');
-- Shared tables as partitions, which are joined and grouped one by one.
CREATE TABLE parts (id int, x bigint) PARTITION BY RANGE (id);
CREATE FOREIGN TABLE parts1 PARTITION OF parts FOR VALUES FROM (0) TO (250) SERVER transship_tables OPTIONS (key 'id');
CREATE FOREIGN TABLE parts2 PARTITION OF parts FOR VALUES FROM (250) TO (10000) SERVER transship_tables OPTIONS (key 'id');
SELECT transship.append('parts1', 'SELECT id, x FROM doubled WHERE id < 250'), transship.append('parts2', 'SELECT id, x FROM doubled WHERE id >= 250');
CREATE TABLE pieces (id int, x bigint) PARTITION BY RANGE (id);
CREATE TABLE pieces1 PARTITION OF pieces FOR VALUES FROM (0) TO (250);
CREATE TABLE pieces2 PARTITION OF pieces FOR VALUES FROM (250) TO (10000);
INSERT INTO pieces SELECT id, x FROM doubled;
ANALYZE parts1, parts2, pieces, doubled;
SET enable_partitionwise_join = on;
SET enable_partitionwise_aggregate = on;
EXPLAIN (COSTS OFF) SELECT count(*), sum(p.x) FROM parts p JOIN pieces q USING (id) WHERE q.x = 5;
SELECT query, twins.* FROM unnest(ARRAY[
  'SELECT p.id, @one(p.x) AS o, @one(q.x) AS q FROM parts p JOIN pieces q USING (id) WHERE q.x < 10',
  'SELECT p.id, @one(p.x) AS o, q.x FROM parts p LEFT JOIN pieces q ON q.id = p.id AND @one(q.x) = 4',
  'SELECT id, @one(q.x) AS o, p.x FROM pieces q LEFT JOIN parts p USING (id) WHERE q.x = 7',
  'SELECT p.id, count(*), sum(@one(p.x)) FROM parts p GROUP BY p.id HAVING sum(@one(p.x)) > 30']) query, twins(query);
SET enable_hashjoin = off;
SET enable_mergejoin = off;
EXPLAIN (COSTS OFF) SELECT count(*), sum(p.x) FROM pieces q LEFT JOIN parts p USING (id) WHERE q.x = 5;
SELECT count(*), sum(p.x) FROM pieces q LEFT JOIN parts p USING (id) WHERE q.x = 5;
SELECT count(*), sum(p.x) FROM pieces q LEFT JOIN doubled p USING (id) WHERE q.x = 5;
SELECT count(*), sum(p.x) FROM doubled d JOIN parts p ON p.id = d.twice;
SELECT count(*), sum(p.x) FROM doubled d JOIN pieces p ON p.id = d.twice;
RESET enable_hashjoin;
RESET enable_mergejoin;
RESET enable_partitionwise_join;
RESET enable_partitionwise_aggregate;
DROP TABLE parts, pieces;
-- A shared table has what its rows had, which a column that is not stored would not show.
CREATE FOREIGN TABLE made (a int, b int GENERATED ALWAYS AS (a * 2) STORED) SERVER transship_tables OPTIONS (key 'a');
SELECT transship.append('made', 'SELECT 1 AS a, 7 AS b');
TABLE made;
CREATE FOREIGN TABLE unmade (a int, b int GENERATED ALWAYS AS (a * 2) VIRTUAL) SERVER transship_tables OPTIONS (key 'a');
SELECT code, message, hint FROM failure($$SELECT transship.append('unmade', 'SELECT 1 AS a, 7 AS b')$$);
SELECT code, message FROM failure('TABLE unmade');
ALTER FOREIGN TABLE made ADD c int GENERATED ALWAYS AS (a * 3) VIRTUAL;
SELECT code, message FROM failure('TABLE made');
ALTER FOREIGN TABLE made DROP c;
TABLE made;
SELECT * FROM transship.lookup('made', 1) AS m (a int, b int);
SELECT transship.unshare('made'), transship.unshare('unmade');
DROP TABLE visits, stays, doubled;
DROP FUNCTION twins, plain_one;
