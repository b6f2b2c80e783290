-- What becomes of a row on which the handler raises an error: on_error.
CREATE FUNCTION nulls_at(x bigint, d bigint) RETURNS bigint LANGUAGE container IMMUTABLE PARALLEL SAFE COST 1000 AS $$
template = "python"
on_error = "null"
source = '''
def nulls_at(x, d):
    if x is None:
        raise ValueError("x is None")
    if x % d == 0:
        raise ValueError(f"{x} is bad")
    return 10 * x
'''
$$;
CREATE TYPE reported_bigint AS (value bigint, error text);
CREATE FUNCTION reports_at(x bigint, d bigint) RETURNS reported_bigint LANGUAGE container IMMUTABLE PARALLEL SAFE COST 1000 AS $$
template = "python"
on_error = "report"
source = '''
def reports_at(x, d):
    if x is None:
        raise ValueError("x is None")
    if x % d == 0:
        raise ValueError(f"{x} is bad")
    return 10 * x
'''
$$;
SELECT x, nulls_at(x, 3), reports_at(x, 3) FROM numbers WHERE x <= 7 ORDER BY x;
SELECT nulls_at(NULL, 3), reports_at(NULL, 3), (reports_at(4, 3)).value, (reports_at(6, 3)).error;
-- As many errors as rows, the first and the last row, and none, in batches of one, of three, and of any size.
CREATE FUNCTION wrong_rows(d bigint, OUT nulls bigint, OUT reports bigint) LANGUAGE plpgsql AS $$
BEGIN
  SELECT count(*) FILTER (WHERE n IS DISTINCT FROM CASE WHEN x % d <> 0 THEN 10 * x END),
    count(*) FILTER (WHERE ((r).value, (r).error) IS DISTINCT FROM
      (CASE WHEN x % d <> 0 THEN 10 * x END, CASE WHEN x % d = 0 THEN 'ValueError: ' || x || ' is bad' END))
  INTO nulls, reports
  FROM (SELECT x, nulls_at(x, d) AS n, reports_at(x, d) AS r FROM numbers WHERE x <= 2000 OFFSET 0) s;
END
$$;
SELECT d, wrong_rows(d) FROM unnest('{1,2,1999,2000,5000}'::bigint[]) d;
SET transship.batch_rows = 1;
SELECT d, wrong_rows(d) FROM unnest('{1,2,1999,2000,5000}'::bigint[]) d;
SET transship.batch_rows = 3;
SELECT d, wrong_rows(d) FROM unnest('{1,2,1999,2000,5000}'::bigint[]) d;
RESET transship.batch_rows;
SELECT count(*), count(nulls_at(x, 7)), sum(nulls_at(x, 7)) - 10 * sum(x) FILTER (WHERE x % 7 <> 0) AS difference FROM numbers;
SELECT sum((r).value), count((r).error), min((r).error) FROM (SELECT reports_at(x, 4) AS r FROM numbers OFFSET 0) s;
-- Over each transport.
CREATE FUNCTION over_transports(OUT transport text, OUT value numeric, OUT errors bigint, OUT example text) RETURNS SETOF record
LANGUAGE plpgsql AS $$
BEGIN
  FOREACH transport IN ARRAY '{shm,socket,flight,json,parquet}'::text[] LOOP
    PERFORM set_config('transship.transport', transport, false);
    SELECT sum((r).value), count((r).error), max((r).error)
    INTO value, errors, example FROM (SELECT reports_at(x, 4) AS r FROM numbers OFFSET 0) s;
    RETURN NEXT;
  END LOOP;
END
$$;
SELECT * FROM over_transports();
RESET transship.transport;
-- Repeated rows share a result or an error; constants count in every row.
SELECT y, min((r).value), min((r).error), count(*) FROM (SELECT y, reports_at(y, 5) AS r FROM numbers OFFSET 0) s GROUP BY y ORDER BY y;
SELECT DISTINCT reports_at(5, y + 1) FROM numbers WHERE y IN (3, 4) ORDER BY 1;
-- In conditions, keys, aggregates, and calls of calls.
SELECT count(*) FROM numbers WHERE nulls_at(x, 10) IS NULL;
SELECT x FROM numbers WHERE (reports_at(x, 9999)).error IS NOT NULL ORDER BY x;
SELECT x FROM numbers WHERE x <= 6 ORDER BY nulls_at(-x, 2) NULLS FIRST, x;
SELECT x, nulls_at(nulls_at(x, 3) / 10, 2), reports_at((reports_at(x, 3)).value / 10, 2) FROM numbers WHERE x <= 6 ORDER BY x;
SELECT nulls_at(x, 2) IS NULL AS failed, count(*) FROM numbers GROUP BY 1 ORDER BY 1;
EXPLAIN (VERBOSE, COSTS OFF) SELECT (reports_at(x, 4)).error FROM numbers WHERE nulls_at(x, 3) IS NOT NULL;
-- Where a call is not part of a batch.
DO $$
DECLARE
  found reported_bigint;
BEGIN
  FOR i IN 1..4 LOOP
    found := reports_at(i, 2);
    RAISE NOTICE '% %', nulls_at(i, 3), found;
  END LOOP;
END
$$;
-- Prepared, in parallel, and in a cursor that goes back.
PREPARE asked(bigint) AS SELECT count(nulls_at(x, $1)), count((reports_at(x, $1)).error) FROM numbers WHERE x <= 100;
EXECUTE asked(10);
EXECUTE asked(3);
DEALLOCATE asked;
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
SET max_parallel_workers_per_gather = 2;
SELECT count(nulls_at(x, 7)), count((reports_at(x, 7)).error), max((reports_at(x, 7)).error) FROM numbers;
RESET parallel_setup_cost;
RESET parallel_tuple_cost;
RESET min_parallel_table_scan_size;
RESET max_parallel_workers_per_gather;
BEGIN;
DECLARE rows SCROLL CURSOR FOR SELECT nulls_at(x, 2) FROM numbers ORDER BY x;
FETCH 3 FROM rows;
FETCH BACKWARD 2 FROM rows;
COMMIT;
-- STRICT keeps its meaning: the function is not called for NULL.
CREATE FUNCTION strict_reports(x bigint, OUT value bigint, OUT error text) LANGUAGE container STABLE STRICT AS $$
template = "python"
on_error = "report"
source = '''
def strict_reports(x):
    raise LookupError()
'''
$$;
SELECT x, strict_reports(nullif(x, 2)), (strict_reports(nullif(x, 2))) IS NULL AS is_null FROM numbers WHERE x <= 3 ORDER BY x;
-- Handlers of whole columns, which raise for a batch.
CREATE FUNCTION columns_at(x bigint, d bigint) RETURNS reported_bigint LANGUAGE container IMMUTABLE AS $$
template = "python"
batch = "arrow"
on_error = "report"
source = '''
def columns_at(x, d):
    values, divisors = x.to_pylist(), d.to_pylist()
    if bad := [value for value, divisor in zip(values, divisors) if value % divisor == 0]:
        raise ValueError(f"{bad[0]} is bad")
    return [10 * value for value in values]
'''
$$;
SELECT sum((r).value), count((r).error), min((r).error), max((r).error) FROM (SELECT columns_at(x, 1000) AS r FROM numbers OFFSET 0) s;
SELECT x, columns_at(x, y + 1) FROM numbers WHERE x <= 4 ORDER BY x;
SELECT count(*) FROM numbers WHERE x <= 300 AND (columns_at(x, 1)).error = 'ValueError: ' || x || ' is bad';
-- A VOLATILE function is called once for each row, whatever fails, by rows or by columns; -1 asks how often it was.
CREATE FUNCTION counted(x bigint) RETURNS reported_bigint LANGUAGE container VOLATILE AS $$
template = "python"
on_error = "report"
source = '''
calls = []

def counted(x):
    if x == -1:
        answer = 1000000 * len(calls) + len(set(calls))
        calls.clear()
        return answer
    calls.append(x)
    if x % 3 == 0:
        raise ValueError(f"{x} is bad")
    return x
'''
$$;
CREATE FUNCTION counted_columns(x bigint) RETURNS reported_bigint LANGUAGE container VOLATILE AS $$
template = "python"
batch = "arrow"
on_error = "report"
source = '''
calls = []

def counted_columns(x):
    values = x.to_pylist()
    if values == [-1]:
        answer = 1000000 * len(calls) + len(set(calls))
        calls.clear()
        return [answer]
    calls.extend(values)
    if bad := [value for value in values if value % 3 == 0]:
        raise ValueError(f"{bad[0]} is bad")
    return values
'''
$$;
SELECT sum((r).value), count((r).error), max((r).error) FROM (SELECT counted(x) AS r FROM numbers WHERE x <= 3000 OFFSET 0) s;
SELECT counted(-1);
SELECT sum((r).value), count((r).error), max((r).error) FROM (SELECT counted_columns(x) AS r FROM numbers WHERE x <= 3000 OFFSET 0) s;
SELECT counted_columns(-1);
SET transship.transport = json;
SELECT sum((r).value), count((r).error), max((r).error) FROM (SELECT counted(x) AS r FROM numbers WHERE x <= 3000 OFFSET 0) s;
SELECT counted(-1);
RESET transship.transport;
-- Other types, also where a type says more than it travels as.
CREATE DOMAIN regress_small AS numeric(6, 2) CHECK (VALUE < 1000);
CREATE TYPE regress_pair AS (a bigint, b text);
CREATE FUNCTION as_text(x text, OUT value varchar(3), OUT error text) LANGUAGE container IMMUTABLE AS $$
template = "python"
on_error = "report"
source = '''
def as_text(x):
    return {"a": "A", "b": None, "c": ""}[x]
'''
$$;
CREATE FUNCTION as_numeric(x text, OUT value regress_small, OUT error text) LANGUAGE container IMMUTABLE AS $$
template = "python"
on_error = "report"
source = '''
import decimal

def as_numeric(x):
    return decimal.Decimal(x)
'''
$$;
CREATE FUNCTION as_pair(x bigint, OUT value regress_pair, OUT error text) LANGUAGE container IMMUTABLE AS $$
template = "python"
on_error = "report"
source = '''
def as_pair(x):
    return {"a": 12 // x, "b": "x" * x}
'''
$$;
CREATE FUNCTION as_array(x bigint) RETURNS text[] LANGUAGE container IMMUTABLE AS $$
template = "python"
on_error = "null"
source = '''
def as_array(x):
    return ["x"] * (12 // x)
'''
$$;
SELECT x, as_text(x) FROM unnest('{a,b,c,d,NULL}'::text[]) x;
SELECT x, as_numeric(x) FROM unnest('{1.255,many,NULL,7}'::text[]) x;
SELECT x, as_pair(x), as_array(4 * x) FROM generate_series(0, 2) x;
SELECT as_numeric('1000');
-- Where a domain refuses NULL, it refuses an error in place of a result; a result that it refuses is no error of its row.
CREATE DOMAIN regress_given AS bigint NOT NULL CHECK (VALUE < 3);
CREATE FUNCTION given(x bigint, bad bigint) RETURNS regress_given LANGUAGE container IMMUTABLE
AS E'image = "regress:1.0"\nfunction = "fail_at"\non_error = "null"';
CREATE FUNCTION given_or_why(x bigint, bad bigint, OUT value regress_given, OUT error text) LANGUAGE container IMMUTABLE
AS E'image = "regress:1.0"\nfunction = "fail_at"\non_error = "report"';
SELECT x, given(x, 3), given_or_why(x, 3) FROM numbers WHERE x < 3;
SELECT code, message, context FROM failure('SELECT given(x, 2) FROM numbers WHERE x < 3');
SELECT code, message, context FROM failure('SELECT given_or_why(x, 2) FROM numbers WHERE x < 3');
SELECT code, context FROM failure('SELECT given(x, 9) FROM numbers WHERE x < 4');
DROP FUNCTION given, given_or_why;
DROP DOMAIN regress_given;
-- What exceptions may be, and say.
CREATE FUNCTION raised(what text, OUT value int, OUT error text) LANGUAGE container IMMUTABLE AS $$
template = "python"
on_error = "report"
source = '''
class Silent(Exception):
    def __str__(self):
        raise RuntimeError

def raised(what):
    raise {
        "exit": SystemExit(3),
        "interrupt": KeyboardInterrupt(),
        "memory": MemoryError(),
        "nul": ValueError("a\0b"),
        "surrogate": ValueError("a\ud800b"),
        "lines": ValueError("a\nb"),
        "words": ValueError("größe 🚢"),
        "silent": Silent(),
        "long": ValueError("x" * 100000),
    }[what]
'''
$$;
SELECT what, length(e), replace(left(e, 30), chr(65533), '<fffd>') AS error
FROM unnest('{exit,interrupt,memory,nul,surrogate,lines,words,silent,long,none}'::text[]) what, LATERAL (SELECT (raised(what)).error AS e) s;
-- All other errors are the query's, as ever: bad results, values out of range, timeouts, lost containers.
CREATE FUNCTION bad_result(x bigint) RETURNS bigint LANGUAGE container IMMUTABLE AS E'image = "regress:1.0"\nfunction = "wrong_type"\non_error = "null"';
CREATE FUNCTION exits(x bigint, bad bigint) RETURNS bigint LANGUAGE container VOLATILE AS E'image = "regress:1.0"\nfunction = "exit_at"\non_error = "null"';
CREATE FUNCTION waits(seconds float8) RETURNS float8 LANGUAGE container IMMUTABLE AS E'image = "regress:1.0"\nfunction = "wait_for"\non_error = "null"\ntimeout_ms = 200';
CREATE FUNCTION day_of(x date) RETURNS date LANGUAGE container IMMUTABLE AS $$
template = "python"
on_error = "null"
source = '''
def day_of(x):
    return x
'''
$$;
SELECT code, message, detail, context FROM failure('SELECT bad_result(x) FROM numbers');
SELECT code FROM failure('SELECT sum(exits(x, 20000)) FROM numbers');
SELECT code, message FROM failure('SELECT waits(5)');
SELECT code, message, detail FROM failure($$SELECT day_of('infinity')$$);
SELECT fail_at(1, 2), code, message, context FROM failure('SELECT sum(fail_at(x, 20000)) FROM numbers');
SET statement_timeout = '100ms';
SELECT waits(0.15);
RESET statement_timeout;
-- Servers that say more than they should.
\getenv endpoint MISBEHAVING_ENDPOINT
CREATE FUNCTION make_bad(name text, endpoint text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format('CREATE FUNCTION %I(x bigint, OUT value bigint, OUT error text) LANGUAGE container STABLE AS %L', name,
    format(E'endpoint = "%s"\non_error = "report"', endpoint));
END
$$;
SELECT make_bad(name, :'endpoint') FROM unnest('{long_errors,value_and_error}'::text[]) name;
SELECT length((r).error), count(*), count((r).value) FROM (SELECT long_errors(x) AS r FROM numbers WHERE x <= 128 OFFSET 0) s GROUP BY 1;
SELECT code, message, detail FROM failure('SELECT value_and_error(x) FROM numbers');
DROP FUNCTION make_bad, long_errors, value_and_error;
-- What cannot be.
SELECT code, message, hint FROM failure($$CREATE FUNCTION f(x bigint) RETURNS bigint LANGUAGE container AS E'image = "regress:1.0"\nfunction = "add_one"\non_error = "report"'$$);
SELECT code, message FROM failure($$CREATE FUNCTION f(x bigint, OUT value bigint, OUT error varchar) LANGUAGE container AS E'image = "regress:1.0"\nfunction = "add_one"\non_error = "report"'$$);
SELECT code, message FROM failure($$CREATE FUNCTION f(x bigint, OUT result bigint, OUT error text) LANGUAGE container AS E'image = "regress:1.0"\nfunction = "add_one"\non_error = "report"'$$);
SELECT code, message FROM failure($$CREATE FUNCTION f(x bigint, OUT value bigint, OUT error text, OUT more int) LANGUAGE container AS E'image = "regress:1.0"\nfunction = "add_one"\non_error = "report"'$$);
SELECT code, message, detail FROM failure($$CREATE FUNCTION f(x bigint, OUT value int, OUT error text) LANGUAGE container AS E'image = "regress:1.0"\nfunction = "add_one"\non_error = "report"'$$);
SELECT code, message, detail FROM failure($$CREATE FUNCTION f(x bigint) RETURNS TABLE (value bigint, error text) LANGUAGE container AS E'image = "regress:1.0"\nfunction = "add_one"\non_error = "report"'$$);
SELECT code, message FROM failure($$CREATE FUNCTION f(x bigint) RETURNS bigint LANGUAGE container AS E'image = "regress:1.0"\nkind = "map"\non_error = "null"'$$);
SELECT code, message FROM failure($$CREATE FUNCTION f(internal, x bigint) RETURNS internal LANGUAGE container AS E'image = "regress:1.0"\non_error = "null"'$$);
SELECT code, message FROM failure($$CREATE FUNCTION f(x bigint) RETURNS bigint LANGUAGE container AS E'image = "regress:1.0"\non_error = "ignore"'$$);
DROP FUNCTION nulls_at, reports_at, wrong_rows, over_transports, strict_reports, columns_at, counted, counted_columns, as_text, as_numeric,
  as_pair, as_array, raised, bad_result, exits, waits, day_of;
DROP TYPE reported_bigint, regress_pair;
DROP DOMAIN regress_small;
