-- Shared tables that functions read in their containers.
CREATE TABLE fleet (tailnum text, year int, seats int, weight float8, made date);
INSERT INTO fleet SELECT 'N' || i, CASE WHEN i % 7 > 0 THEN 1950 + i % 70 END, i % 300, i / 3.0, date '1950-01-01' + i FROM generate_series(1, 3000) i;
SELECT transship.share('shared_fleet', 'SELECT * FROM fleet', key => 'tailnum');
CREATE TABLE trips AS SELECT i AS id, CASE WHEN i % 11 > 0 THEN 'N' || (i * 7) % 4000 END AS tailnum FROM generate_series(1, 5000) i;
CREATE FUNCTION fleet_seats(tailnum text) RETURNS int LANGUAGE container STABLE PARALLEL SAFE AS $$
template = "python"
batch = "arrow"
tables = ["shared_fleet"]
source = '''
import transship

def fleet_seats(tailnum):
    return transship.table("shared_fleet").lookup(tailnum)["seats"]
'''
$$;
CREATE FUNCTION fleet_year(tailnum text) RETURNS text LANGUAGE container STABLE AS $$
template = "python"
tables = ["shared_fleet"]
source = '''
import transship

def fleet_year(tailnum: str) -> str:
    plane = transship.table("shared_fleet").get(tailnum)
    return None if plane is None else f"{plane['year']} {plane['weight']} {plane['made']}"
'''
$$;
-- The same rows as a join gives.
EXPLAIN (COSTS OFF) SELECT id, fleet_seats(tailnum) FROM trips;
SELECT count(*) FROM trips t LEFT JOIN fleet p USING (tailnum) WHERE fleet_seats(tailnum) IS DISTINCT FROM seats;
SELECT count(*), count(fleet_seats(tailnum)), sum(fleet_seats(tailnum)) FROM trips;
SELECT count(*), count(seats), sum(seats) FROM trips t LEFT JOIN fleet p USING (tailnum);
SELECT id, tailnum, fleet_year(tailnum) FROM trips WHERE id IN (1, 2, 6, 7, 11, 600) ORDER BY id;
SELECT fleet_seats('N12'), fleet_seats('none'), fleet_seats(NULL);
-- However rows travel.
DO $$
DECLARE
    name text;
    total bigint;
BEGIN
    FOREACH name IN ARRAY '{shm,flight,socket,json,parquet}'::text[] LOOP
        PERFORM set_config('transship.transport', name, true);
        EXECUTE 'SELECT sum(fleet_seats(tailnum)) FROM trips' INTO total;
        RAISE NOTICE '% %', name, total;
    END LOOP;
END
$$;
-- In parallel workers, and row by row.
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
EXPLAIN (COSTS OFF) SELECT sum(fleet_seats(tailnum)) FROM trips;
SELECT sum(fleet_seats(tailnum)) FROM trips;
RESET parallel_setup_cost;
RESET parallel_tuple_cost;
RESET min_parallel_table_scan_size;
SET transship.batch_rows = 100;
SELECT sum(fleet_seats(tailnum)) FROM trips;
RESET transship.batch_rows;
SET transship.batching = off;
SELECT sum(fleet_seats(tailnum)) FROM trips WHERE id <= 20;
SELECT sum(seats) FROM trips t LEFT JOIN fleet p USING (tailnum) WHERE id <= 20;
RESET transship.batching;
-- Versions: a query sees one, and later queries later ones.
BEGIN;
DECLARE before CURSOR FOR SELECT fleet_seats(tailnum) FROM (VALUES (1, 'N1'), (2, 'X1')) t (i, tailnum) ORDER BY i;
SELECT transship.append('shared_fleet', $$SELECT 'X1' AS tailnum, 2020 AS year, 111 AS seats, 1.5::float8 AS weight, date '2020-01-01' AS made$$);
SELECT fleet_seats('X1'), fleet_year('X1');
FETCH ALL FROM before;
ROLLBACK;
SELECT fleet_seats('X1'), fleet_year('X1');
CREATE PROCEDURE append_planes() LANGUAGE plpgsql AS $$
DECLARE
    seats int;
BEGIN
    FOR i IN 1..3 LOOP
        PERFORM transship.append('shared_fleet', format($q$SELECT 'Y%s' AS tailnum, 2020 AS year, %s AS seats, 1.5::float8 AS weight, date '2020-01-01' AS made$q$, i, i * 10));
        seats := fleet_seats('Y' || i);
        RAISE NOTICE 'Y% %', i, seats;
        COMMIT;
    END LOOP;
END
$$;
CALL append_planes();
SELECT t, fleet_seats(t) FROM unnest('{Y1,Y2,Y3,N1}'::text[]) t;
-- Its rows at once, and all rows of a key: of several columns, not unique, and NULL.
SELECT transship.share('"Odd Pairs"', $$SELECT i % 10 AS a, CASE WHEN i % 5 > 0 THEN 'k''' || i % 3 END AS "b, c", i AS "V" FROM generate_series(1, 1000) i$$, key => '"b, c", a');
CREATE FUNCTION odd_values(b text, a int) RETURNS SETOF int LANGUAGE container STABLE AS $$
template = "python"
batch = "arrow"
tables = ['"Odd Pairs"']
source = '''
import transship

def odd_values(b, a):
    positions, rows = transship.table('"Odd Pairs"').matches((b, a))
    yield positions, rows["V"]
'''
$$;
SELECT count(*), sum(v) FROM odd_values('k''1', 7) v;
SELECT count(*), sum(i) FROM generate_series(1, 1000) i WHERE i % 10 = 7 AND i % 5 > 0 AND i % 3 = 1;
SELECT k, count(v), sum(v), min(v) FROM (VALUES ('k''1', 7), ('k''1', 11), (NULL, 5), ('k''2', NULL), ('k''0', 4)) t (k, a) LEFT JOIN LATERAL odd_values(k, a) v ON true GROUP BY k, a ORDER BY k, a;
CREATE FUNCTION odd_total(n int) RETURNS bigint LANGUAGE container STABLE AS $$
template = "python"
tables = ['public."Odd Pairs"']
source = '''
import pyarrow.compute as pc
import transship

def odd_total(n: int) -> int:
    table = transship.table('public."Odd Pairs"')
    return n * pc.sum(table.to_arrow()["V"]).as_py() + len(table)
'''
$$;
SELECT odd_total(2);
CREATE FUNCTION odd_one(b text, a int) RETURNS int LANGUAGE container STABLE AS $$
template = "python"
tables = ['"Odd Pairs"']
source = '''
import transship

def odd_one(b: str, a: int) -> int:
    return transship.table('"Odd Pairs"').get((b, a))["V"]
'''
$$;
SELECT code, split_part(message, E'\n', 1) AS message FROM failure($$SELECT odd_one('k''1', 7)$$);
-- Maps, and errors of rows.
CREATE FUNCTION fleet_names(tailnum text) RETURNS TABLE (plane text, seats int) LANGUAGE container STABLE AS $$
template = "python"
kind = "map"
tables = ["shared_fleet"]
source = '''
import transship

def fleet_names(rows):
    table = transship.table("shared_fleet")
    for (tailnum,) in rows:
        if plane := table.get(tailnum):
            yield tailnum, plane["seats"]
'''
$$;
SELECT count(*), sum(seats) FROM transship.map('fleet_names', 'SELECT tailnum FROM trips') AS m (plane text, seats int);
SELECT count(*), sum(seats) FROM trips JOIN fleet USING (tailnum);
CREATE FUNCTION fleet_or_null(tailnum text) RETURNS int LANGUAGE container STABLE AS $$
template = "python"
on_error = "null"
tables = ["shared_fleet"]
source = '''
import transship

def fleet_or_null(tailnum: str) -> int:
    return transship.table("shared_fleet").get(tailnum)["seats"]
'''
$$;
SELECT count(*), count(fleet_or_null(tailnum)), sum(fleet_or_null(tailnum)) FROM trips;
-- A table without rows, and one without a key.
SELECT transship.share('no_planes', 'SELECT * FROM fleet WHERE false', key => 'tailnum');
SELECT transship.share('plain_planes', 'SELECT tailnum, seats FROM fleet');
CREATE FUNCTION of_none(tailnum text) RETURNS text LANGUAGE container STABLE AS $$
template = "python"
tables = ["no_planes", "plain_planes"]
source = '''
import transship

def of_none(tailnum: str) -> str:
    none, plain = transship.table("no_planes"), transship.table("plain_planes")
    return f"{len(none)} {none.key} {none.get(tailnum)} {none.schema.names}, {len(plain)} {plain.key}"
'''
$$;
SELECT of_none('N1');
SELECT transship.append('no_planes', $$SELECT 'N1' AS tailnum, 1 AS year, 2 AS seats, 3::float8 AS weight, NULL::date AS made$$);
SELECT of_none('N1');
-- What is refused.
CREATE FUNCTION of_nobody(tailnum text) RETURNS int LANGUAGE container STABLE AS $$
template = "python"
source = '''
import transship

def of_nobody(tailnum: str) -> int:
    return transship.table("shared_fleet").get(tailnum)["seats"]
'''
$$;
SELECT code, message FROM failure($$SELECT of_nobody('N1')$$);
CREATE FUNCTION of_missing(tailnum text) RETURNS int LANGUAGE container STABLE AS $$
template = "python"
tables = ["no_such_table"]
source = '''
def of_missing(tailnum: str) -> int:
    return 1
'''
$$;
SELECT code, message FROM failure($$SELECT of_missing('N1')$$);
CREATE TABLE no_such_table (tailnum text);
SELECT code, message FROM failure($$SELECT of_missing('N1')$$);
SELECT code, message, hint FROM failure($q$CREATE FUNCTION fleet_never(t text) RETURNS int LANGUAGE container IMMUTABLE AS $$image = 'x:1' tables = ['shared_fleet']$$$q$);
SELECT code, message, detail FROM failure($q$CREATE FUNCTION fleet_never(t text) RETURNS int LANGUAGE container STABLE AS $$endpoint = 'grpc://127.0.0.1:1' tables = ['shared_fleet']$$$q$);
ALTER FUNCTION fleet_seats(text) IMMUTABLE;
SELECT code, message FROM failure($$SELECT fleet_seats('N1')$$);
ALTER FUNCTION fleet_seats(text) STABLE;
-- The caller's rights, and the caller's names.
CREATE ROLE tables_reader;
GRANT SELECT ON trips TO tables_reader;
SET ROLE tables_reader;
SELECT code, message FROM failure($$SELECT fleet_seats('N1')$$);
SELECT code, message FROM failure($$SELECT sum(fleet_seats(tailnum)) FROM trips$$);
RESET ROLE;
GRANT SELECT ON shared_fleet TO tables_reader;
SET ROLE tables_reader;
SELECT fleet_seats('N1'), sum(fleet_seats(tailnum)) FROM trips;
RESET ROLE;
CREATE SCHEMA other_fleet;
SELECT transship.share('other_fleet.shared_fleet', $$SELECT 'N1' AS tailnum, 7 AS seats$$, key => 'tailnum');
SET search_path = other_fleet, public;
SELECT fleet_seats('N1'), fleet_seats('N2');
RESET search_path;
SELECT fleet_seats('N1'), fleet_seats('N2');
-- A cursor has the names of whoever opened it, as it has the rights.
CREATE FUNCTION open_fleet() RETURNS refcursor LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
DECLARE
    c refcursor := 'fleet_cursor';
BEGIN
    OPEN c FOR SELECT fleet_seats(t) FROM unnest('{N1,N2}'::text[]) t;
    RETURN c;
END
$$;
GRANT USAGE ON SCHEMA other_fleet TO tables_reader;
SET ROLE tables_reader;
BEGIN;
SELECT open_fleet();
SET LOCAL search_path = other_fleet, public;
FETCH ALL FROM fleet_cursor;
SELECT code, message FROM public.failure($$SELECT fleet_seats('N1')$$);
COMMIT;
RESET ROLE;
-- Where a query itself changes the names, each row finds its own.
CREATE FUNCTION use_schema(name text) RETURNS text LANGUAGE plpgsql VOLATILE AS $$BEGIN RETURN set_config('search_path', name, true); END$$;
EXPLAIN (COSTS OFF) SELECT use_schema(s), fleet_seats('N1') FROM (VALUES ('public'), ('other_fleet, public')) v (s);
SELECT use_schema(s), fleet_seats('N1') FROM (VALUES ('public'), ('other_fleet, public'), ('public')) v (s);
SET transship.batching = off;
SELECT use_schema(s), fleet_seats('N1') FROM (VALUES ('public'), ('other_fleet, public'), ('public')) v (s);
RESET transship.batching;
-- So it is where a trigger does before a statement writes.
CREATE TABLE fleet_log (seats int);
CREATE FUNCTION use_other() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN PERFORM set_config('search_path', 'other_fleet, public', true); RETURN NULL; END$$;
CREATE TRIGGER use_other BEFORE INSERT ON fleet_log FOR EACH STATEMENT EXECUTE FUNCTION use_other();
INSERT INTO fleet_log SELECT fleet_seats(t) FROM unnest('{N1,N2}'::text[]) t RETURNING seats;
SET transship.batching = off;
INSERT INTO fleet_log SELECT fleet_seats(t) FROM unnest('{N1,N2}'::text[]) t RETURNING seats;
RESET transship.batching;
DROP TABLE fleet_log;
DROP FUNCTION use_other;
-- Calls that are not made need no table.
SELECT t, CASE WHEN to_regclass('no_fleet') IS NOT NULL THEN of_missing(t) END FROM (VALUES ('N1')) v (t);
SELECT of_missing(t) FROM (VALUES ('N1')) v (t) WHERE t = 'N2';
DROP SCHEMA other_fleet CASCADE;
-- The rows of a map are of the same version as its tables.
BEGIN;
SELECT a, count(m), sum(seats) FROM (SELECT transship.append('shared_fleet', $$SELECT 'Z1' AS tailnum, 2020 AS year, 77 AS seats, 1.5::float8 AS weight, date '2020-01-01' AS made$$) AS a OFFSET 0) s,
    LATERAL transship.map('fleet_names', format('SELECT tailnum FROM shared_fleet WHERE tailnum = ''Z%s''', a)) AS m (plane text, seats int) GROUP BY a;
ROLLBACK;
-- Row by row, a table that was altered meanwhile is not taken for what it was.
BEGIN;
SET LOCAL transship.batching = off;
SELECT fleet_seats('N1');
ALTER FOREIGN TABLE shared_fleet RENAME COLUMN seats TO chairs;
SELECT code, message FROM failure($$SELECT fleet_seats('N1')$$);
ROLLBACK;
SELECT fleet_seats('N1');
-- All tables of a function fit into memory together, or there is an error.
SELECT transship.share(name, format('SELECT i, repeat(%L, 100) AS t FROM generate_series(1, 20000) i', name)) FROM unnest('{large_one,large_two}'::text[]) name;
CREATE FUNCTION of_large(n int) RETURNS bigint LANGUAGE container STABLE AS $$
template = "python"
tables = ["large_one", "large_two"]
source = '''
import transship

def of_large(n: int) -> int:
    return n + len(transship.table("large_one")) + len(transship.table("large_two"))
'''
$$;
SELECT of_large(1);
SET transship.tables_size = '30MB';
SELECT count(t) FROM large_one;
SELECT code, message FROM failure('SELECT of_large(1)');
RESET transship.tables_size;
SELECT of_large(1);
-- What calls row by row keep for later ones gives way to other tables.
CREATE FUNCTION of_one(n int) RETURNS bigint LANGUAGE container STABLE AS $$
template = "python"
tables = ["large_one"]
source = '''
import transship

def of_one(n: int) -> int:
    return n + len(transship.table("large_one"))
'''
$$;
SET transship.tables_size = '30MB';
SET transship.batching = off;
BEGIN;
SELECT of_one(1);
SELECT of_one(1);
SELECT count(t) FROM large_two;
SELECT of_one(1);
COMMIT;
RESET transship.batching;
RESET transship.tables_size;
DROP FUNCTION of_large, of_one;
SELECT transship.unshare(relid) FROM transship.shared_tables WHERE name LIKE 'large_%';
DROP FUNCTION open_fleet, use_schema;
DROP FUNCTION fleet_seats, fleet_year, odd_values, odd_total, odd_one, fleet_names, fleet_or_null, of_none, of_nobody, of_missing;
DROP PROCEDURE append_planes;
DROP FOREIGN TABLE shared_fleet, "Odd Pairs", no_planes, plain_planes;
DROP TABLE fleet, trips, no_such_table;
DROP ROLE tables_reader;
