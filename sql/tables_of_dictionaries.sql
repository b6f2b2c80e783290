-- Columns of shared tables with dictionaries hold what columns without hold.
CREATE TABLE rates AS SELECT i AS id, CASE WHEN i % 11 > 0 THEN (ARRAY['Oslo', 'Lagos', '', 'Łódź'])[i % 4 + 1] END AS city,
  ('c' || i % 3)::varchar(5) AS country, decode(lpad(to_hex(i % 5), 2, '0'), 'hex') AS code, i / 7.0::float8 AS rate FROM generate_series(1, 150000) i;
SELECT transship.share('plain_rates', 'TABLE rates', 'id');
SELECT transship.share('dict_rates', 'TABLE rates', key => 'id', dictionary => 'city, country,code');
\d dict_rates
SELECT d.rows = p.rows AS rows, d.bytes < p.bytes AS bytes FROM transship.shared_tables d, transship.shared_tables p WHERE d.name = 'dict_rates' AND p.name = 'plain_rates';
SELECT count(*) FROM (TABLE rates EXCEPT ALL TABLE dict_rates) d;
SELECT count(*) FROM (TABLE dict_rates EXCEPT ALL TABLE rates) d;
SELECT * FROM dict_rates LIMIT 3;
SELECT * FROM dict_rates WHERE id IN (11, 70000, 149999) ORDER BY id;
SELECT city, count(*), min(country), max(country), min(encode(code, 'hex')), max(encode(code, 'hex')) FROM dict_rates GROUP BY city ORDER BY city;
SELECT count(*) FROM dict_rates WHERE city = 'Łódź';
SELECT count(*) FROM dict_rates WHERE city IS NULL;
SELECT r.id, d.* FROM (VALUES (12), (22), (0), (NULL)) r (id) LEFT JOIN LATERAL transship.lookup('dict_rates', r.id) AS d (id int, city text, country varchar(5), code bytea, rate float8) ON true ORDER BY r.id;
SELECT x.city, d.id FROM (VALUES ('Oslo'), ('Rome')) x (city) LEFT JOIN dict_rates d ON d.city = x.city AND d.id < 10 ORDER BY 1, 2;
-- Statistics are those of the values.
SELECT attname, n_distinct, round(null_frac::numeric, 1) AS nulls FROM pg_stats WHERE tablename = 'dict_rates' AND attname IN ('city', 'country', 'code') ORDER BY 1;
-- Appended and merged rows have dictionaries of their own, with values that are new.
SELECT transship.append('dict_rates', $$SELECT -i AS id, 'new ' || i % 2 AS city, NULL::varchar(5) AS country, ''::bytea AS code, 0::float8 AS rate FROM generate_series(1, 10) i$$);
SELECT sum(transship.append('dict_rates', format($$SELECT %s AS id, 'late %s' AS city, 'x'::varchar(5) AS country, '\xff'::bytea AS code, 1::float8 AS rate$$, -i - 10, i))) FROM generate_series(1, 50) i;
SELECT segments < 20 AS merged, rows FROM transship.shared_tables WHERE name = 'dict_rates';
SELECT city, count(*), count(country), min(id) FROM dict_rates WHERE id < 0 AND id > -20 GROUP BY city ORDER BY city;
SELECT d.* FROM transship.lookup('dict_rates', -33) AS d (id int, city text, country varchar(5), code bytea, rate float8);
-- Where all values differ, a dictionary saves nothing and is right.
SELECT transship.share('dict_texts', $$SELECT 'text ' || i AS t, i FROM generate_series(1, 70000) i$$, dictionary => 't');
SELECT count(*), count(DISTINCT t), count(*) FILTER (WHERE t = 'text ' || i) FROM dict_texts;
-- Long values are there once; a sample of them is as large as it may be.
SELECT transship.share('dict_long', $$SELECT i, repeat(chr(97 + i % 2), 100000) AS t FROM generate_series(1, 20000) i$$, 'i', 't');
SELECT rows, bytes < 500000 AS bytes FROM transship.shared_tables WHERE name = 'dict_long';
SELECT count(*), count(*) FILTER (WHERE length(t) = 100000 AND t LIKE chr(97 + i % 2) || '%') FROM dict_long WHERE i <= 1000;
SELECT length(t), left(t, 1) FROM dict_long WHERE i = 777;
-- No rows, and no columns of the list.
SELECT transship.share('dict_none', 'SELECT id, city FROM rates WHERE false', dictionary => 'city');
TABLE dict_none;
SELECT transship.append('dict_none', 'SELECT id, city FROM rates WHERE id < 3');
TABLE dict_none;
SELECT transship.share('dict_empty', 'SELECT id, city FROM rates WHERE id < 3', dictionary => '');
SELECT transship.share('"Odd dictionary"', $$SELECT 'a' || i % 2 AS "b, c", i AS "V" FROM generate_series(1, 4) i$$, '"V"', '"b, c"');
\d "Odd dictionary"
SELECT "b, c" FROM "Odd dictionary" WHERE "V" = 3;
-- Shared again: with the same columns and dictionaries only.
SELECT transship.share('dict_rates', 'SELECT * FROM rates WHERE id < 5', 'id', 'code, city, country');
TABLE dict_rates;
SELECT name, code, message, hint FROM unnest(ARRAY['city', 'city, country', NULL, 'city, country, code, rate']) d (dictionary),
  format('share with %L', d.dictionary) name, failure(format('SELECT transship.share(%L, %L, %L, %L)', 'dict_rates', 'TABLE rates', 'id', d.dictionary));
SELECT code, message, hint FROM failure($$SELECT transship.share('plain_rates', 'TABLE rates', 'id', 'city')$$);
-- What cannot have a dictionary.
SELECT name, code, message, hint FROM unnest(ARRAY['id', 'rate', 'town', 'city, city', 'day', 'j', 'cities', 'a.b.c"', ',', '{city}']) name,
  failure(format($$SELECT transship.share('refused', 'SELECT id, city, rate, date ''today'' AS day, ''{}''::json AS j, ARRAY[city] AS cities FROM rates', 'id', %L)$$, name));
SELECT to_regclass('refused');
SELECT code, message FROM failure($$CREATE FOREIGN TABLE refused (a text) SERVER transship_tables OPTIONS (dictionary 'a b')$$);
SELECT code, message, hint FROM failure($$CREATE FOREIGN TABLE refused (a text) SERVER transship_tables OPTIONS (dictionaries 'a')$$);
-- The option is the table's: rows that were shared without it are not read with it.
ALTER FOREIGN TABLE dict_rates OPTIONS (SET dictionary 'city');
SELECT code, message, hint FROM failure('TABLE dict_rates');
ALTER FOREIGN TABLE dict_rates OPTIONS (SET dictionary 'id');
SELECT code, message, hint FROM failure('TABLE dict_rates');
ALTER FOREIGN TABLE dict_rates OPTIONS (SET dictionary 'city, country, code');
SELECT count(*) FROM dict_rates;
ALTER FOREIGN TABLE dict_rates RENAME city TO town;
SELECT code, message, hint FROM failure('TABLE dict_rates');
ALTER FOREIGN TABLE dict_rates RENAME town TO city;
-- Functions read them.
CREATE FUNCTION city_of(id int) RETURNS text LANGUAGE container STABLE AS $$
template = "python"
batch = "arrow"
tables = ["dict_rates"]
source = '''
import transship

def city_of(id):
    return transship.table("dict_rates").lookup(id)["city"]
'''
$$;
CREATE FUNCTION kinds(id int) RETURNS text LANGUAGE container STABLE AS $$
template = "python"
tables = ["dict_rates"]
source = '''
import transship

def kinds(id: int) -> str:
    table = transship.table("dict_rates")
    whole = table.to_arrow()
    row = table.get(id)
    return f"{whole.schema.field('city').type}, {table.schema.field('city').type}, {whole['city'].to_pylist()}, {row and row['city']}"
'''
$$;
SELECT id, city_of(id) FROM generate_series(0, 5) id;
SELECT kinds(1), kinds(9);
DROP FUNCTION city_of, kinds;
SELECT transship.unshare(t) FROM unnest(ARRAY['plain_rates', 'dict_rates', 'dict_texts', 'dict_long', 'dict_none', 'dict_empty', '"Odd dictionary"']) t;
DROP TABLE rates;
