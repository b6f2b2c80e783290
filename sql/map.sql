-- transship.map: a whole query in, a set out.
CREATE FUNCTION running_total(x bigint) RETURNS TABLE (x bigint, total bigint) LANGUAGE container AS $$
image = "regress:1.0"
kind = "map"
$$;
CREATE FUNCTION largest(x bigint, t text) RETURNS SETOF text LANGUAGE container AS $$
image = "regress:1.0"
kind = "map"
$$;
CREATE FUNCTION first_only(x bigint) RETURNS SETOF bigint LANGUAGE container AS $$
image = "regress:1.0"
kind = "map"
$$;
SELECT * FROM transship.map('running_total', 'SELECT x FROM numbers WHERE x <= 5 ORDER BY x') AS t (x bigint, total bigint);
SELECT count(*), max(total) FROM transship.map('running_total', 'SELECT x FROM numbers') AS t (x bigint, total bigint);
SELECT * FROM transship.map('largest', 'SELECT x + 20, t FROM numbers') AS t (t text);
SELECT * FROM transship.map('largest', 'SELECT x, t FROM numbers WHERE false') AS t (t text);
-- A function that wants no more rows.
SELECT * FROM transship.map('first_only', 'SELECT x FROM numbers ORDER BY x') AS t (x bigint);
-- Joined like any set; twice in one query.
SELECT a.x, a.total, b.total FROM transship.map('running_total', 'SELECT x FROM numbers WHERE x <= 3') AS a (x bigint, total bigint)
  JOIN transship.map('running_total', 'SELECT -x FROM numbers WHERE x <= 3') AS b (x bigint, total bigint) ON a.x = -b.x ORDER BY 1;
-- The query may itself call container functions.
SELECT * FROM transship.map('running_total', 'SELECT add_one(x) FROM numbers WHERE x <= 3') AS t (x bigint, total bigint);
SELECT code, message, context FROM failure($$SELECT * FROM transship.map('largest', 'SELECT x, t FROM numbers') AS t (t text)$$);
SELECT code, message, context FROM failure($$SELECT * FROM transship.map('running_total', 'SELECT 1 / (x - 100) FROM numbers') AS t (x bigint, total bigint)$$);
SELECT code, message, detail FROM failure($$SELECT * FROM transship.map('running_total', 'SELECT t FROM numbers') AS t (x bigint, total bigint)$$);
SELECT code, message, detail FROM failure($$SELECT * FROM transship.map('running_total', 'SELECT x, x FROM numbers') AS t (x bigint, total bigint)$$);
SELECT code, message, hint FROM failure($$SELECT * FROM transship.map('running_total', 'SELECT x FROM numbers') AS t (x int, total bigint)$$);
SELECT code, message FROM failure($$SELECT * FROM transship.map('running_total', 'DELETE FROM numbers') AS t (x bigint, total bigint)$$);
SELECT code, message, hint FROM failure($$SELECT * FROM transship.map('add_one', 'SELECT x FROM numbers') AS t (x bigint)$$);
SELECT code, message, hint FROM failure($$SELECT running_total(1)$$);
SELECT code, message, hint FROM failure($$SET LOCAL transship.transport = json; SELECT * FROM transship.map('running_total', 'SELECT x FROM numbers') AS t (x bigint, total bigint)$$);
-- Among a query's results it could be of other columns each time.
SELECT code, message, hint FROM failure($$SELECT transship.map(f, q) FROM (VALUES ('running_total'::regproc, 'SELECT x FROM numbers'), ('largest', 'SELECT x, t FROM numbers')) v (f, q)$$);
-- What a domain's constraint calls cannot close the query whose rows are being read.
CREATE FUNCTION closes(v bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE 'CLOSE ALL';
  RETURN true;
END
$$;
CREATE DOMAIN closing AS bigint CHECK (closes(VALUE));
CREATE FUNCTION closing_total(x bigint) RETURNS TABLE (x bigint, total closing) LANGUAGE container AS E'image = "regress:1.0"\nkind = "map"\nfunction = "running_total"';
SELECT code FROM failure($$SELECT * FROM transship.map('closing_total', 'SELECT x FROM numbers') AS t (x bigint, total closing)$$);
SELECT count(*) FROM transship.map('running_total', 'SELECT x FROM numbers') AS t (x bigint, total bigint);
DROP FUNCTION closing_total;
DROP DOMAIN closing;
DROP FUNCTION closes;
-- A row type that has lost an attribute: the list of columns has none for it.
CREATE TYPE running AS (gone text, x bigint, lost int, total bigint);
ALTER TYPE running DROP ATTRIBUTE gone;
ALTER TYPE running DROP ATTRIBUTE lost;
CREATE FUNCTION running_row(x bigint) RETURNS SETOF running LANGUAGE container AS E'image = "regress:1.0"\nkind = "map"\nfunction = "running_total"';
SELECT * FROM transship.map('running_row', 'SELECT x FROM numbers WHERE x <= 3 ORDER BY x') AS t (x bigint, total bigint);
SELECT code, hint FROM failure($$SELECT * FROM transship.map('running_row', 'SELECT x FROM numbers') AS t (gone text, x bigint, lost int, total bigint)$$);
DROP FUNCTION running_row;
DROP TYPE running;
CREATE ROLE mapper;
GRANT SELECT ON numbers TO mapper;
GRANT USAGE ON SCHEMA transship TO mapper;
REVOKE EXECUTE ON FUNCTION running_total FROM PUBLIC;
SET ROLE mapper;
SELECT * FROM transship.map('running_total', 'SELECT x FROM numbers') AS t (x bigint, total bigint);
RESET ROLE;
DROP OWNED BY mapper;
DROP ROLE mapper;
-- A batch has no more rows than it may have.
CREATE FUNCTION batch_sizes(x bigint) RETURNS SETOF bigint LANGUAGE container AS $$
template = "python"
kind = "map"
batch = "arrow"
max_batch_rows = 3
source = '''
def batch_sizes(batches):
    for batch in batches:
        yield [batch.num_rows] * batch.num_rows
'''
$$;
SELECT size, count(*) FROM transship.map('batch_sizes', 'SELECT x FROM generate_series(1, 100::bigint) x') AS t (size bigint) GROUP BY size ORDER BY size;
