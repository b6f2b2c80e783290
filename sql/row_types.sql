-- Row types that change after the function was created. Columns travel without names, and in memory without types.
CREATE TABLE spots (x float8, y float8);
INSERT INTO spots VALUES (1, 2), (3, NULL), (NULL, NULL);
CREATE FUNCTION first_of(s spots) RETURNS float8 LANGUAGE container IMMUTABLE AS $$
template = "python"
source = '''
def first_of(s):
    return None if s is None else s["x"]
'''
$$;
CREATE FUNCTION first_sum(s spots[]) RETURNS float8 LANGUAGE container IMMUTABLE AS $$
template = "python"
source = '''
def first_sum(s):
    return sum(spot["x"] or 0 for spot in s)
'''
$$;
CREATE FUNCTION echo_spot(s spots) RETURNS spots LANGUAGE container IMMUTABLE AS E'image = "regress:1.0"\nfunction = "echo_point"';
PREPARE firsts AS SELECT first_of(s), s FROM spots s;
EXECUTE firsts;
SELECT echo_spot(s) FROM spots s;
-- Columns that the container does not know of are left out of arguments.
ALTER TABLE spots ADD COLUMN z int DEFAULT 7;
ALTER TABLE spots ADD COLUMN t text;
EXECUTE firsts;
SELECT first_of(ROW(5, 6, 7, 'x')), first_sum(array_agg(s)) FROM spots s;
SET transship.transport = flight;
EXECUTE firsts;
SET transship.transport = json;
EXECUTE firsts;
RESET transship.transport;
SET transship.batching = off;
SELECT first_of(s), s FROM spots s;
RESET transship.batching;
ALTER TABLE spots DROP COLUMN z;
SELECT first_of(s), s FROM spots s;
-- Of a result they would be lost.
SELECT * FROM failure('SELECT echo_spot(s) FROM spots s');
SELECT code, message FROM failure('SELECT echo_spot(ROW(1, 2, ''x''))');
ALTER TABLE spots DROP COLUMN t;
SELECT echo_spot(s) FROM spots s;
-- Columns that are in another place, of another type or of another name are no more what the container takes.
ALTER TABLE spots ALTER COLUMN x TYPE bigint;
SELECT * FROM failure('SELECT first_of(s) FROM spots s');
SELECT code, message FROM failure('SELECT first_of(ROW(1, 2))');
ALTER TABLE spots DROP COLUMN x;
SELECT code, message, detail FROM failure('SELECT first_of(s) FROM spots s');
ALTER TABLE spots ADD COLUMN x float8 DEFAULT 8;
SELECT code, message, detail FROM failure('SELECT first_sum(array_agg(s)) FROM spots s');
SELECT code, message FROM failure('EXECUTE firsts');
CREATE OR REPLACE FUNCTION first_of(s spots) RETURNS float8 LANGUAGE container IMMUTABLE AS $$
template = "python"
source = '''
def first_of(s):
    return None if s is None else s["x"]
'''
$$;
EXECUTE firsts;
ALTER TABLE spots RENAME COLUMN x TO w;
SELECT code, message FROM failure('EXECUTE firsts');
-- A declaration that nobody has checked is checked before the first call.
SET check_function_bodies = off;
CREATE FUNCTION not_so(x float8) RETURNS bigint LANGUAGE container AS E'image = "regress:1.0"\nfunction = "add_one"';
RESET check_function_bodies;
SELECT code, message, detail FROM failure('SELECT not_so(x) FROM numbers');
SELECT code, message FROM failure('SELECT not_so(1)');
DEALLOCATE firsts;
DROP FUNCTION not_so, echo_spot, first_of, first_sum;
DROP TABLE spots;
-- An array whose elements are a bit each, and more than PostgreSQL can hold as rows.
CREATE TYPE said AS (so boolean);
CREATE FUNCTION many_said(n bigint) RETURNS said[] LANGUAGE container AS $$
template = "python"
batch = "arrow"
source = '''
import pyarrow as pa

def many_said(n):
    count = n[0].as_py()
    so = pa.Array.from_buffers(pa.bool_(), count, [None, pa.py_buffer(bytes(count // 8 + 1))])
    return pa.ListArray.from_arrays([0, count], pa.StructArray.from_arrays([so], ["so"]))
'''
$$;
SELECT (many_said(3))[2], cardinality(many_said(10000));
SELECT code, message, detail FROM failure($$SELECT many_said(50000000)$$);
DROP FUNCTION many_said;
DROP TYPE said;
-- Types whose parts have parts, and so on: more than anybody could call a function with, or wait for.
CREATE FUNCTION part_name(level int) RETURNS text LANGUAGE sql RETURN 'parts_' || level;
DO $$
BEGIN
  CREATE TYPE parts_0 AS (a0 int, a1 int, a2 int, a3 int, a4 int, a5 int, a6 int, a7 int, a8 int, a9 int);
  FOR level IN 1..5 LOOP
    EXECUTE format('CREATE TYPE %s AS (%s)', part_name(level), (SELECT string_agg(format('a%s %s', i, part_name(level - 1)), ', ') FROM generate_series(0, 9) i));
  END LOOP;
END
$$;
CREATE DOMAIN many_parts AS parts_5 CHECK (true);
SELECT code, message, detail FROM failure($$SELECT transship.share('many_parts', 'SELECT NULL::parts_5')$$);
SELECT code, message, detail FROM failure($$CREATE FUNCTION take_parts(x parts_4) RETURNS int LANGUAGE container AS E'image = "regress:1.0"\nfunction = "echo_int4"'$$);
SELECT add_one(x), NULL::many_parts FROM numbers WHERE x = 1;
DROP DOMAIN many_parts;
DROP TYPE parts_5, parts_4, parts_3, parts_2, parts_1, parts_0;
DROP FUNCTION part_name;
