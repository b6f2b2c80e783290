-- Shared tables that memory has no room for lie in files on disk, if a superuser allows it.
CREATE FUNCTION on_disk(OUT segments bigint, OUT indexes bigint, OUT bytes bigint) LANGUAGE sql AS $$
SELECT count(*) FILTER (WHERE name LIKE '%.arrow'), count(*) FILTER (WHERE name LIKE '%.index'), sum((pg_stat_file(folder || '/' || name)).size)
FROM (VALUES ('base/pgsql_tmp/pgsql_tmp.transship-tables.1')) f (folder), pg_ls_dir(folder, true, false) name WHERE name <> 'lock'
$$;
CREATE TABLE spilled_source AS SELECT i AS id, md5(i::text) || md5(i::text) AS t FROM generate_series(1, 30000) i;
SET transship.tables_size = '1MB';
-- Off, it is an error.
SELECT code, message, detail, hint FROM failure($$SELECT transship.share('spilled', 'SELECT * FROM spilled_source', 'id')$$);
SELECT segments, indexes FROM on_disk();
SET transship.tables_disk_size = '16MB';
SELECT transship.share('spilled', 'SELECT * FROM spilled_source', 'id');
SELECT count(*), count(DISTINCT t) FROM spilled;
SELECT segments, indexes, bytes BETWEEN 2500000 AND 3500000 AS is_large FROM on_disk();
-- The same rows, by a scan, by the key, and by look-ups.
SELECT count(*) FROM (TABLE spilled EXCEPT ALL TABLE spilled_source) d;
SELECT count(*) FROM (TABLE spilled_source EXCEPT ALL TABLE spilled) d;
SELECT t FROM spilled WHERE id = 7;
SELECT count(*), count(s.t), count(*) FILTER (WHERE s.t = o.t) FROM spilled_source o JOIN spilled s ON s.id = o.id WHERE o.id % 100 = 1;
SELECT x, left(t, 8) FROM unnest('{29999,30000,30001}'::int[]) x LEFT JOIN LATERAL transship.lookup('spilled', x) AS p (id int, t text) ON true ORDER BY x;
-- Containers read the same files.
CREATE FUNCTION of_spilled(id int) RETURNS text LANGUAGE container STABLE AS $$
template = "python"
batch = "arrow"
tables = ["spilled"]
source = '''
import transship

def of_spilled(id):
    return transship.table("spilled").lookup(id)["t"]
'''
$$;
SELECT count(*), count(*) FILTER (WHERE of_spilled(id) = t) FROM spilled_source WHERE id % 3 = 0;
-- Appends, part of which may lie in memory.
SELECT transship.append('spilled', $$SELECT 30000 + i AS id, i::text AS t FROM generate_series(1, 100) i$$);
SELECT count(*), max(id) FROM spilled;
SELECT t, of_spilled(30050) FROM spilled WHERE id = 30050;
-- Other tables make room on disk, and are read again.
SET transship.tables_disk_size = '4MB';
SELECT transship.share('spilled2', $$SELECT id, md5(t) || md5(t) AS t FROM spilled_source$$, 'id');
SELECT count(*), count(DISTINCT t) FROM spilled2;
SELECT segments > 0 AS some, bytes <= 4 << 20 AS few FROM on_disk();
SELECT count(*), count(DISTINCT t) FROM spilled;
SELECT segments > 0 AS some, bytes <= 4 << 20 AS few FROM on_disk();
-- Both at a time fit neither.
SELECT code, message, hint FROM failure('SELECT (SELECT count(*) FROM spilled), (SELECT count(*) FROM spilled2)');
SET transship.tables_disk_size = '2MB';
SELECT code, message, detail, hint FROM failure('SELECT count(*) FROM spilled');
SELECT code, message, detail, hint FROM failure('SELECT of_spilled(1)');
SET transship.tables_disk_size = '16MB';
SELECT (SELECT count(*) FROM spilled), (SELECT count(*) FROM spilled2);
-- One is in memory and one on disk.
SET transship.tables_size = '4MB';
SET transship.tables_disk_size = '4MB';
SELECT (SELECT sum(length(t)) FROM spilled), (SELECT sum(length(t)) FROM spilled2);
RESET transship.tables_size;
RESET transship.tables_disk_size;
SELECT (SELECT sum(length(t)) FROM spilled), (SELECT sum(length(t)) FROM spilled2);
-- Only superusers set it.
CREATE ROLE spilling;
SET ROLE spilling;
SELECT code, message FROM failure('SET transship.tables_disk_size = 100');
RESET ROLE;
DROP ROLE spilling;
-- The files go with the table, once that is committed.
SET transship.tables_size = '1MB';
SET transship.tables_disk_size = '16MB';
SELECT (SELECT count(*) FROM spilled), (SELECT count(*) FROM spilled2);
BEGIN;
SELECT transship.unshare('spilled');
ROLLBACK;
SELECT segments > 0 AS some FROM on_disk();
DROP FUNCTION of_spilled;
SELECT transship.unshare('spilled'), transship.unshare('spilled2');
SELECT segments, indexes, bytes FROM on_disk();
DROP TABLE spilled_source;
DROP FUNCTION on_disk;
