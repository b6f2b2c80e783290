-- Every kind of statement that may hold a call.
CREATE TABLE target (x bigint, z bigint);
INSERT INTO target SELECT x, add_one(x) FROM numbers WHERE x <= 1000;
SELECT count(*), sum(z) FROM target;
EXPLAIN (VERBOSE, COSTS OFF) UPDATE target SET z = add_one(z) WHERE add_one(x) <= 500;
UPDATE target SET z = add_one(z) WHERE add_one(x) <= 500;
SELECT count(*), sum(z) FROM target;
DELETE FROM target WHERE add_one(x) > 900;
SELECT count(*) FROM target;
MERGE INTO target USING (SELECT x FROM numbers WHERE x BETWEEN 890 AND 910) s ON target.x = s.x
WHEN MATCHED AND add_one(target.x) > 0 THEN UPDATE SET z = 0
WHEN NOT MATCHED THEN INSERT VALUES (s.x, add_one(s.x));
SELECT count(*), sum(z) FROM target WHERE x >= 890;
INSERT INTO target VALUES (5000, add_one(5000)) RETURNING add_one(z);
COPY (SELECT add_one(x) FROM target WHERE x <= 3 ORDER BY x) TO STDOUT;
CREATE TABLE made AS SELECT add_one(x) AS z FROM numbers;
CREATE MATERIALIZED VIEW viewed AS SELECT add_one(z) AS z FROM made;
REFRESH MATERIALIZED VIEW viewed;
SELECT sum(z) FROM viewed;
SELECT x FROM target WHERE x <= 3 AND add_one(x) > 0 ORDER BY x FOR UPDATE;
-- Places where the call handler answers row by row.
CREATE TABLE checked (x bigint CHECK (add_one(x) < 10), y bigint DEFAULT seven(), g bigint GENERATED ALWAYS AS (add_one(x)) STORED);
INSERT INTO checked (x) VALUES (1), (2);
INSERT INTO checked (x) VALUES (20);
SELECT * FROM checked ORDER BY x;
CREATE INDEX ON made (add_one(z)) WHERE z < 200;
SET enable_seqscan = off;
SELECT z FROM made WHERE add_one(z) = 100 AND z < 200;
RESET enable_seqscan;
CREATE FUNCTION announce() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE NOTICE 'inserted %', NEW.x;
  RETURN NEW;
END
$$;
CREATE TRIGGER announce AFTER INSERT ON checked FOR EACH ROW WHEN (add_one(NEW.x) > 5) EXECUTE FUNCTION announce();
INSERT INTO checked (x) VALUES (3), (6);
CREATE DOMAIN small AS bigint CHECK (add_one(VALUE) < 10);
SELECT 8::small;
SELECT 9::small;
CREATE TABLE keyed (x bigint) PARTITION BY RANGE (add_one(x));
CREATE TABLE keyed_1 PARTITION OF keyed FOR VALUES FROM (0) TO (5);
CREATE TABLE keyed_2 PARTITION OF keyed FOR VALUES FROM (5) TO (100);
INSERT INTO keyed VALUES (3), (4), (50);
SELECT tableoid::regclass, x FROM keyed ORDER BY x;
DROP TABLE keyed;
DROP DOMAIN small;
-- What MERGE joins is batched.
CREATE TABLE merged AS SELECT x, 0::bigint AS z FROM numbers WHERE x <= 5;
ANALYZE merged;
EXPLAIN (COSTS OFF) MERGE INTO merged USING numbers n ON merged.x = add_one(n.x) WHEN MATCHED THEN UPDATE SET z = add_one(n.x);
MERGE INTO merged USING numbers n ON merged.x = add_one(n.x) WHEN MATCHED THEN UPDATE SET z = add_one(n.x);
SELECT * FROM merged ORDER BY x;
DROP TABLE merged;
-- Set operations.
SELECT add_one(x) FROM numbers WHERE x <= 4 INTERSECT SELECT add_one(add_one(x)) FROM numbers WHERE x <= 2 ORDER BY 1;
SELECT add_one(x) FROM numbers WHERE x <= 4 EXCEPT SELECT add_one(add_one(x)) FROM numbers WHERE x <= 2 ORDER BY 1;
-- An IMMUTABLE call of constants is folded when the query is planned.
EXPLAIN (VERBOSE, COSTS OFF) SELECT x FROM numbers WHERE x = add_one(41);
-- Partitions.
CREATE TABLE parts (x bigint) PARTITION BY RANGE (x);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (100);
CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (100) TO (1000);
INSERT INTO parts SELECT x FROM numbers WHERE x < 1000;
SELECT count(*), sum(add_one(x)) FROM parts WHERE add_one(x) > 50;
DROP TABLE target, checked, parts;
DROP FUNCTION announce;
DROP TABLE made CASCADE;
