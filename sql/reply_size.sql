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
