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
-- Partitions.
CREATE TABLE parts (x bigint) PARTITION BY RANGE (x);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (100);
CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (100) TO (1000);
INSERT INTO parts SELECT x FROM numbers WHERE x < 1000;
SELECT count(*), sum(add_one(x)) FROM parts WHERE add_one(x) > 50;
DROP TABLE target, checked, parts;
DROP TABLE made CASCADE;
