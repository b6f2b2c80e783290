-- There is room for 4,096 functions: those that were dropped make room, and then those that were called longest ago.
CREATE FUNCTION counted(name text) RETURNS bigint LANGUAGE sql AS
'SELECT calls FROM transship.stat_functions WHERE name = $1';
CREATE PROCEDURE call_functions(prefix text, numbers int, is_dropped boolean) LANGUAGE plpgsql AS $$
DECLARE
  -- With its digest, so that nobody asks the manager for it.
  body text := (SELECT prosrc FROM pg_proc WHERE oid = 'add_one'::regproc) || E'\nfunction = "add_one"';
  result bigint;
BEGIN
  FOR i IN 1 .. numbers LOOP
    EXECUTE format('CREATE FUNCTION %I(x bigint) RETURNS bigint LANGUAGE container AS %L', prefix || i, body);
    EXECUTE format('SELECT %I(1)', prefix || i) INTO result;
    IF is_dropped THEN
      EXECUTE format('DROP FUNCTION %I', prefix || i);
    END IF;
    COMMIT;
  END LOOP;
END
$$;
SET check_function_bodies = off;
SELECT transship.stat_reset('add_one'::regproc);
SELECT sum(add_one(x)) FROM numbers WHERE x <= 100;
-- They take their time on a busy machine.
SET statement_timeout = 0;
CALL call_functions('gone', 4100, true);
RESET statement_timeout;
-- The next ones are counted, and what exists still is.
CALL call_functions('new', 2, false);
SELECT counted('new1'), counted('new2'), counted('add_one');
SELECT sum(add_one(x)) FROM numbers WHERE x <= 100;
SELECT counted('add_one');
-- Functions that all exist.
SET statement_timeout = 0;
CALL call_functions('more', 4100, false);
RESET statement_timeout;
SELECT counted('more4100'), counted('new1'), count(*) <= 4096 AS bounded, count(*) > 3500 AS most FROM transship.stat_functions;
SELECT new1(1), new1(1), counted('new1');
RESET check_function_bodies;
DO $$
DECLARE
  name text;
BEGIN
  FOR name IN SELECT p.oid::regprocedure FROM pg_proc p WHERE proname ~ '^(new|more)[0-9]+$' LOOP
    EXECUTE 'DROP FUNCTION ' || name;
  END LOOP;
END
$$;
DROP PROCEDURE call_functions;
DROP FUNCTION counted;
