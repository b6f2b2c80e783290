-- A reply may be no larger than transship.max_reply_size, whatever the way that it takes.
SET transship.max_reply_size = '1MB';
CREATE FUNCTION reply_over(way text, query text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  answer text;
  state text;
BEGIN
  PERFORM set_config('transship.transport', way, true);
  EXECUTE query INTO answer;
  RETURN answer;
EXCEPTION WHEN out_of_memory THEN
  GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, answer = MESSAGE_TEXT;
  RETURN state || ': ' || answer;
END
$$;
-- One row that is too large; a batch of 100 that is; the next call, which works.
SELECT way, reply_over(way, $$SELECT length(shout(repeat('x', 2000000 * x::int))) FROM numbers WHERE x = 1$$) AS a_row,
  reply_over(way, $$SELECT sum(length(shout(repeat('x', 30000) || x))) FROM numbers WHERE x <= 100$$) AS a_batch,
  reply_over(way, $$SELECT max(shout('on ' || x)) FROM numbers WHERE x < 10$$) AS the_next
FROM unnest('{shm,flight,socket,parquet,json}'::text[]) way;
-- A call by itself.
SELECT way, reply_over(way, $$SELECT length(shout(repeat('x', 2000000)))$$) FROM unnest('{shm,flight,socket,parquet,json}'::text[]) way;
-- Fewer rows in each batch.
SET transship.batch_rows = 5;
SELECT way, reply_over(way, $$SELECT sum(length(shout(repeat('x', 30000) || x))) FROM numbers WHERE x <= 100$$) FROM unnest('{shm,flight,socket,parquet,json}'::text[]) way;
RESET transship.batch_rows;
-- The default.
RESET transship.max_reply_size;
SELECT way, reply_over(way, $$SELECT length(shout(repeat('x', 2000000 * x::int))) FROM numbers WHERE x = 1$$) FROM unnest('{shm,flight,socket,parquet,json}'::text[]) way;
-- Rows, groups and tables.
SET transship.max_reply_size = '64kB';
CREATE FUNCTION reply_words(text text) RETURNS TABLE ("position" int, word text) LANGUAGE container STABLE STRICT AS E'image = "regress:1.0"\nfunction = "words"';
SELECT reply_over('shm', $$SELECT count(word) FROM reply_words(repeat('word ', 100000))$$);
DROP FUNCTION reply_words;
DROP FUNCTION reply_over;
-- What would take far more memory than it comes with: an array of bits, and a body of tables.
RESET transship.max_reply_size;
\getenv endpoint MISBEHAVING_ENDPOINT
CREATE FUNCTION make_long(endpoint text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format('CREATE FUNCTION long_array(x bigint) RETURNS boolean[] LANGUAGE container AS %L', format('endpoint = "%s"', endpoint));
END
$$;
SELECT make_long(:'endpoint');
SELECT code, message, detail FROM failure('SELECT long_array(1)');
SELECT code, message, detail FROM failure(format('CREATE FUNCTION f(x bigint) RETURNS bigint LANGUAGE container AS %L',
  'x = [' || repeat('{},', 1000000) || ']'));
DROP FUNCTION make_long, long_array;
