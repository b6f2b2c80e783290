-- The demo's table and function; rows come from export.py by COPY.
DROP TABLE IF EXISTS flights;
CREATE TABLE flights (id int PRIMARY KEY, distance float8, dep_delay float8, carrier text, month int, hour int, arr_delay float8);
\copy flights FROM pstdin WITH (FORMAT csv, HEADER)
ANALYZE flights;
CREATE OR REPLACE FUNCTION arrival_delay(distance float8, dep_delay float8, carrier text, month int, hour int) RETURNS float8
LANGUAGE container IMMUTABLE STRICT PARALLEL SAFE COST 1000
AS $$
image = "flights:1.0"
$$;
