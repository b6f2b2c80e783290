-- MERGE with WHEN NOT MATCHED BY SOURCE, which PostgreSQL has from version 17 on. It asks the join's condition again, of each row
-- that was joined.
CREATE TABLE stock (x bigint, z bigint);
CREATE SEQUENCE drawn;
CREATE FUNCTION merged(statement text) RETURNS TABLE (x bigint, z bigint) LANGUAGE plpgsql AS $$
BEGIN
  TRUNCATE stock;
  INSERT INTO stock SELECT n.x, 0 FROM numbers n WHERE n.x <= 6;
  PERFORM setval('drawn', 1, false);
  EXECUTE statement;
  RETURN QUERY SELECT s.x, s.z FROM stock s ORDER BY 1, 2;
END
$$;
-- The same without batches is the answer.
CREATE FUNCTION differences(statement text) RETURNS TABLE (which text, x bigint, z bigint) LANGUAGE plpgsql AS $$
BEGIN
  SET LOCAL transship.batching = off;
  CREATE TEMPORARY TABLE plain ON COMMIT DROP AS SELECT * FROM merged(statement);
  SET LOCAL transship.batching = on;
  CREATE TEMPORARY TABLE batched ON COMMIT DROP AS SELECT * FROM merged(statement);
  RETURN QUERY SELECT 'plain', * FROM (SELECT * FROM plain EXCEPT ALL SELECT * FROM batched) p;
  RETURN QUERY SELECT 'batched', * FROM (SELECT * FROM batched EXCEPT ALL SELECT * FROM plain) b;
  DROP TABLE plain, batched;
END
$$;
EXPLAIN (COSTS OFF) MERGE INTO stock USING (SELECT x, add_one(x) AS w FROM numbers WHERE x BETWEEN 4 AND 8) s
ON stock.x = s.x AND s.w <> 6
WHEN MATCHED THEN UPDATE SET z = s.w
WHEN NOT MATCHED BY SOURCE THEN DELETE;
-- Both sides may lack a row.
SELECT * FROM merged($$MERGE INTO stock USING (SELECT x, add_one(x) AS w FROM numbers WHERE x BETWEEN 4 AND 8) s
ON stock.x = s.x
WHEN MATCHED THEN UPDATE SET z = s.w
WHEN NOT MATCHED THEN INSERT VALUES (s.x, s.w * 10)
WHEN NOT MATCHED BY SOURCE THEN UPDATE SET z = -stock.x$$);
-- A call in the condition, which is asked again.
SELECT * FROM merged($$MERGE INTO stock USING (SELECT x, add_one(x) AS w FROM numbers WHERE x BETWEEN 4 AND 8) s
ON stock.x = s.x AND s.w <> 6
WHEN MATCHED THEN UPDATE SET z = s.w
WHEN NOT MATCHED BY SOURCE THEN DELETE$$);
SELECT * FROM merged($$MERGE INTO stock USING (SELECT x FROM numbers WHERE x BETWEEN 4 AND 8) s
ON stock.x = s.x AND add_one(s.x) <> 6 AND add_one(stock.x) < 7
WHEN MATCHED AND add_one(s.x) = 5 THEN UPDATE SET z = add_one(s.x)
WHEN NOT MATCHED BY SOURCE AND add_one(stock.x) <> 2 THEN UPDATE SET z = add_one(stock.z)$$);
-- A condition that reads what the source's expressions change.
SELECT * FROM differences($$MERGE INTO stock USING (SELECT x, add_one_volatile(nextval('drawn')) AS w FROM numbers WHERE x <= 8) s
ON stock.x = s.x AND currval('drawn') = s.w - 1
WHEN MATCHED THEN UPDATE SET z = s.w
WHEN NOT MATCHED BY SOURCE THEN DELETE$$);
SET enable_hashjoin = off;
SET enable_mergejoin = off;
SELECT * FROM differences($$MERGE INTO stock USING (SELECT x, add_one_volatile(nextval('drawn')) AS w FROM numbers WHERE x <= 8) s
ON stock.x = s.x AND currval('drawn') = s.w - 1
WHEN MATCHED THEN UPDATE SET z = s.w
WHEN NOT MATCHED BY SOURCE THEN DELETE$$);
SELECT * FROM differences($$MERGE INTO stock USING (SELECT x, add_one_volatile(nextval('drawn')) AS w FROM numbers WHERE x <= 8) s
ON stock.x = s.x AND nextval('drawn') > s.w
WHEN MATCHED THEN UPDATE SET z = add_one(s.w)
WHEN NOT MATCHED BY SOURCE AND currval('drawn') > 3 THEN UPDATE SET z = currval('drawn')$$);
RESET enable_hashjoin;
RESET enable_mergejoin;
-- What is returned, and rows that fail.
TRUNCATE stock;
INSERT INTO stock SELECT x, 0 FROM numbers WHERE x <= 3;
MERGE INTO stock USING (SELECT x, add_one(x) AS w FROM numbers WHERE x BETWEEN 2 AND 4) s ON stock.x = s.x
WHEN MATCHED THEN UPDATE SET z = s.w
WHEN NOT MATCHED THEN INSERT VALUES (s.x, s.w)
WHEN NOT MATCHED BY SOURCE THEN DELETE
RETURNING merge_action(), stock.x, add_one(stock.z);
SELECT code, message FROM failure($$MERGE INTO stock USING numbers s ON stock.x = s.x AND fail_at(s.x, 3) > 0
WHEN NOT MATCHED BY SOURCE THEN DELETE$$);
SELECT * FROM stock ORDER BY x;
DROP FUNCTION merged, differences;
DROP TABLE stock;
DROP SEQUENCE drawn;
