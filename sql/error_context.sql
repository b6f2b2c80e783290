-- Which function, and which row, an error is of, where calls stand in calls: each line of its context, the innermost first.
CREATE FUNCTION origin(statement text, OUT message text, OUT context text) LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE statement;
  message := 'no failure';
EXCEPTION WHEN others THEN
  GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, context = PG_EXCEPTION_CONTEXT;
  context := rtrim(split_part(context, format('SQL statement "%s"', statement), 1), E'\n');
END
$$;
\pset format unaligned
-- A domain's constraint calls a container function. It is false for one result.
CREATE DOMAIN small AS bigint CHECK (add_one(VALUE) < 20001);
CREATE FUNCTION to_small(x bigint) RETURNS small LANGUAGE container IMMUTABLE AS E'image = "regress:1.0"\nfunction = "add_one"';
SELECT * FROM origin('SELECT to_small(x) FROM numbers WHERE x > 19500 ORDER BY x');
SELECT * FROM origin('SELECT to_small(20000)');
SELECT * FROM origin('SELECT to_small(x) FROM numbers WHERE NULLIF(x, 1) > 19510 ORDER BY x');
-- The constraint's call fails itself.
CREATE DOMAIN good AS bigint CHECK (fail_at(VALUE, 20000) > 0);
CREATE FUNCTION to_good(x bigint) RETURNS good LANGUAGE container IMMUTABLE AS E'image = "regress:1.0"\nfunction = "add_one"';
SELECT * FROM origin('SELECT to_good(x) FROM numbers WHERE x > 19500 ORDER BY x');
SELECT * FROM origin('SELECT to_good(19999)');
-- The constraint calls a function that asks a query with a batch of its own.
CREATE FUNCTION fails_inside(v bigint, bad bigint) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
  PERFORM fail_at(x, 130) FROM numbers WHERE v = bad;
  RETURN true;
END
$$;
CREATE DOMAIN checked AS bigint CHECK (fails_inside(VALUE, 5));
CREATE FUNCTION to_checked(x bigint) RETURNS checked LANGUAGE container IMMUTABLE AS E'image = "regress:1.0"\nfunction = "add_one"';
SELECT * FROM origin('SELECT to_checked(x) FROM numbers WHERE x < 10 ORDER BY x');
SELECT * FROM origin('SELECT to_checked(4)');
-- An argument does.
SELECT * FROM origin('SELECT add_one(fails_inside(x, 7)::int) FROM numbers WHERE x < 10 ORDER BY x');
SELECT * FROM origin('SELECT to_checked(fails_inside(x, 7)::int) FROM numbers WHERE x < 10 ORDER BY x');
-- What was caught is not said of a later error with other words, nor of one with the same.
CREATE FUNCTION catches(v bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
  PERFORM fail_at(x, 130) FROM numbers WHERE v = 3;
  RETURN v;
EXCEPTION WHEN external_routine_exception THEN
  RETURN 0;
END
$$;
SELECT * FROM origin('SELECT to_small(catches(x) + 20000) FROM numbers WHERE x < 10 ORDER BY x');
SELECT * FROM origin('SELECT fail_at(catches(x), 0) FROM numbers WHERE x < 10 ORDER BY x');
CREATE FUNCTION divides(v bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
  RETURN to_checked(v / 0);
EXCEPTION WHEN division_by_zero THEN
  RETURN v;
END
$$;
SELECT * FROM origin('SELECT add_one(10 / (divides(x) - 3)) FROM numbers WHERE x < 10 ORDER BY x');
-- A map function's query fails, and what reads its results.
CREATE FUNCTION sums(x bigint) RETURNS TABLE (x bigint, total bigint) LANGUAGE container AS E'image = "regress:1.0"\nfunction = "running_total"\nkind = "map"';
SELECT * FROM origin($$SELECT * FROM transship.map('sums', 'SELECT fail_at(x, 150) FROM numbers ORDER BY x') AS t (x bigint, total bigint)$$);
SELECT * FROM origin($$SELECT * FROM transship.map('sums', 'SELECT 1 / (x - 3) FROM numbers ORDER BY x') AS t (x bigint, total bigint)$$);
-- An error keeps the user's own SQLSTATE, and says what it is about, where it passes the extension.
CREATE FUNCTION about(statement text, OUT code text, OUT "table" text, OUT restriction text) LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE statement;
EXCEPTION WHEN others THEN
  GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, "table" = TABLE_NAME, restriction = CONSTRAINT_NAME;
END
$$;
CREATE FUNCTION raises(v bigint) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
  IF v = 3 THEN
    RAISE EXCEPTION 'raised' USING ERRCODE = 'UE001', TABLE = 'some table', CONSTRAINT = 'some constraint';
  END IF;
  RETURN v;
END
$$;
CREATE DOMAIN unraised AS bigint CHECK (raises(VALUE) > 0);
CREATE FUNCTION to_unraised(x bigint) RETURNS unraised LANGUAGE container IMMUTABLE AS E'image = "regress:1.0"\nfunction = "add_one"';
SELECT * FROM about('SELECT to_unraised(x) FROM numbers WHERE x < 10');
SELECT * FROM about('SELECT to_unraised(2)');
SELECT * FROM about('SELECT to_small(x) FROM numbers WHERE x > 19500');
SELECT * FROM about('SELECT add_one(raises(x)) FROM numbers WHERE x < 10');
SELECT * FROM about($$SELECT * FROM transship.map('sums', 'SELECT raises(x) FROM numbers ORDER BY x') AS t (x bigint, total bigint)$$);
SELECT * FROM about($$SELECT transship.share('unraised_numbers', 'SELECT raises(x) AS x FROM numbers')$$);
SELECT transship.share('unraised_numbers', 'SELECT x FROM numbers WHERE x < 10', 'x');
SELECT * FROM about($$SELECT transship.append('unraised_numbers', 'SELECT raises(x) AS x FROM numbers')$$);
SELECT * FROM about('SELECT * FROM unraised_numbers WHERE x = raises((SELECT 3))');
SELECT transship.unshare('unraised_numbers');
-- Rows that are not sent count as well.
SELECT * FROM origin('SELECT CASE WHEN x > 19700 THEN to_small(x) END FROM numbers WHERE x > 19500 ORDER BY x');
\pset format aligned
DROP FUNCTION sums, divides, catches, to_checked, to_good, to_small, origin;
DROP DOMAIN checked, good, small;
DROP FUNCTION fails_inside;
