"""What does a container cost over the UDFs that PostgreSQL users have today?  run.py [ROWS[,ROWS...] [ROUNDS [UDF...]]]

The paper's comparison, with its three UDFs and two cheap ones, at several numbers of rows. Contenders take turns as
bench/paired.py says, each on a connection of its own. All contenders of a UDF must give the same sum. What takes far longer
than the others is measured on fewer rows, and scaled. The results of each UDF, or of those whose names contain one of the words
given, replace what is between its markers in bench/README.md, and its picture in bench/plots.
"""

import contextlib
import datetime
import importlib.util
import os
import pathlib
import platform
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time

import psycopg
import pyarrow.compute
import pyarrow.csv

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import plots  # noqa: E402
from paired import seconds_of, table  # noqa: E402
from readme import write_section  # noqa: E402

SIZES = [int(size) for size in sys.argv[1].split(",")] if len(sys.argv) > 1 else [100_000, 1_000_000, 10_000_000]
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 5
WORDS = sys.argv[3:]
HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
IMAGE = "bench-overhead:1.0"
IS_DOCKER = os.environ["BENCH_RUNTIME"] == "docker"
TCP_PORT, MLFLOW_PORT = 18815, 18850
COLUMNS = [f"f{i}" for i in range(28)]
ARGUMENTS = ", ".join(f"{name} float8" for name in COLUMNS)
LIST = ", ".join(COLUMNS)
# 27 doubles and an integer.
FACTOR_ARGUMENTS = ", ".join([f"{name} float8" for name in COLUMNS[:27]] + ["n bigint"])
FACTOR_LIST = ", ".join([*COLUMNS[:27], "n"])
FACTOR_ARRAYS = FACTOR_ARGUMENTS.replace(",", "[],") + "[]"
# PL/Python is the system's Python; its packages are those of the virtual environment that was made with it.
PRELUDE = """
  if "{model}" not in GD:
      import sys
      sys.path.insert(0, {packages!r})
      import pickle, numpy
      GD["numpy"] = numpy
      GD["{model}"] = pickle.load(open({path!r}, "rb"))
  numpy, model = GD["numpy"], GD["{model}"]
"""
FACTOR = """
  def factor(n):
      largest, divisor = 1, 2
      while divisor * divisor <= n:
          if n % divisor:
              divisor += 1
          else:
              largest, n = divisor, n // divisor
      return max(largest, n)
"""


def prelude(model):
    return PRELUDE.format(model=model, packages=sysconfig.get_path("purelib"), path=str(HERE / f"image/{model}.pkl"))


def python_function(name, arguments, result, body):
    return f"CREATE OR REPLACE FUNCTION {name}({arguments}) RETURNS {result} LANGUAGE plpython3u IMMUTABLE STRICT PARALLEL SAFE AS $${body}$$"


def container_function(name, arguments, result, function, place=f'image = "{IMAGE}"'):
    return f"""CREATE OR REPLACE FUNCTION {name}({arguments}) RETURNS {result} LANGUAGE container IMMUTABLE STRICT
        PARALLEL SAFE COST 1000 AS '{place} function = "{function}"'"""


# array_send's form of float8[][]: dimensions, then length and value of each element.
FROM_BYTES = 'numpy.frombuffer(x, [("length", ">i4"), ("value", ">f8")], offset=28)["value"].reshape(-1, 28)'
TCP = f'endpoint = "grpc://127.0.0.1:{TCP_PORT}"'
MLFLOW = f'endpoint = "http://127.0.0.1:{MLFLOW_PORT}" dialect = "mlflow"'
FUNCTIONS = [
    python_function("py_add_one", "x float8", "float8", "return x + 1"),
    python_function("py_add_one_array", "x float8[]", "float8[]", "return [v + 1 for v in x]"),
    python_function("py_upper", "t text", "text", "return t.upper()"),
    python_function("py_upper_array", "t text[]", "text[]", "return [v.upper() for v in t]"),
    python_function("py_forest", ARGUMENTS, "float8", f"{prelude('model')}\n  return float(model.predict([[{LIST}]])[0])\n"),
    python_function("py_forest_array", "x bytea", "float8[]", f"{prelude('model')}\n  return model.predict({FROM_BYTES}).tolist()\n"),
    python_function("py_deep_forest", ARGUMENTS, "float8",
                    f"{prelude('deep_model')}\n  return float(model.predict([[{LIST}]])[0])\n"),
    python_function("py_deep_forest_array", "x bytea", "float8[]",
                    f"{prelude('deep_model')}\n  return model.predict({FROM_BYTES}).tolist()\n"),
    python_function("py_factor", "n bigint", "bigint", f"{FACTOR}\n  return factor(n)\n"),
    python_function("py_factor_array", "n bigint[]", "bigint[]", f"{FACTOR}\n  return [factor(v) for v in n]\n"),
    python_function("py_factor_of_last", FACTOR_ARGUMENTS, "bigint", f"{FACTOR}\n  return factor(n)\n"),
    python_function("py_factor_of_last_array", FACTOR_ARRAYS, "bigint[]", f"{FACTOR}\n  return [factor(v) for v in n]\n"),
    container_function("add_one", "x float8", "float8", "add_one"),
    container_function("add_one_batch", "x float8", "float8", "add_one_batch"),
    container_function("upper_batch", "t text", "text", "upper"),
    container_function("forest", ARGUMENTS, "float8", "forest"),
    container_function("deep_forest", ARGUMENTS, "float8", "deep_forest"),
    container_function("factor", "n bigint", "bigint", "largest_prime_factor"),
    container_function("factor_of_last", FACTOR_ARGUMENTS, "bigint", "factor_of_last"),
    container_function("add_one_batch_tcp", "x float8", "float8", "add_one_batch", TCP),
    container_function("upper_batch_tcp", "t text", "text", "upper", TCP),
    container_function("factor_tcp", "n bigint", "bigint", "largest_prime_factor", TCP),
    container_function("forest_tcp", ARGUMENTS, "float8", "forest", TCP),
    container_function("deep_forest_tcp", ARGUMENTS, "float8", "deep_forest", TCP),
    container_function("factor_of_last_tcp", FACTOR_ARGUMENTS, "bigint", "factor_of_last", TCP),
    container_function("forest_mlflow", ARGUMENTS, "float8", "forest", MLFLOW),
]  # fmt: skip


def make_rows(connection):
    connection.execute("DROP TABLE IF EXISTS bench_rows")
    connection.execute("SELECT setseed(0.5)")
    inputs = ", ".join(f"random() AS {name}" for name in COLUMNS)
    connection.execute(f"""CREATE TABLE bench_rows AS SELECT {inputs}, (random() * 999999)::bigint + 1 AS n,
        substr(md5(random()::text), 1, 20) AS t FROM generate_series(1, {max(SIZES)})""")


def chunked(function, argument, result="sum(r)"):
    """The hand-made batch: rows in chunks of 10,000 as arrays, results unnested."""
    return f"""SELECT {result} FROM (SELECT unnest({function}({argument})) AS r FROM
        (SELECT *, row_number() OVER () / 10000 AS chunk FROM rows) s GROUP BY chunk) t"""


def over(transport):
    return f"SET transship.transport = {transport}"


# A process per worker, and none for the leader: one for each core here.
WORKERS = "; ".join([
    "SET max_parallel_workers_per_gather = 2", "SET parallel_leader_participation = off", "SET parallel_setup_cost = 0",
    "SET parallel_tuple_cost = 0", "SET min_parallel_table_scan_size = 0",
])  # fmt: skip


class Query:
    """A query of the table "rows", under some settings, on a connection of its own. Of more than most_rows it is measured on
    those, and scaled."""

    def __init__(self, sql, settings=None, most_rows=None):
        self.sql, self.settings, self.most_rows = sql, settings, most_rows

    def prepare(self, rows):
        connection = psycopg.connect("", autocommit=True)
        connection.execute("SET max_parallel_workers_per_gather = 0; SET jit = off; SET work_mem = '1GB'")
        if self.settings:
            connection.execute(self.settings)
        sql = self.sql.replace("FROM rows", f"FROM bench_rows_{rows}")
        return lambda: connection.execute(sql).fetchone()[0]


class Floor:
    """A UDF in plain Python over the same rows, as Arrow batches of 10,000 in memory: what no transport can beat. Of more than
    most_rows it is measured on those, and scaled."""

    def __init__(self, columns, work, most_rows=None):
        self.columns, self.work, self.most_rows = columns, work, most_rows

    def prepare(self, rows):
        query = f"COPY (SELECT {', '.join(self.columns)} FROM bench_rows_{rows}) TO STDOUT (FORMAT csv)"
        options = pyarrow.csv.ReadOptions(column_names=self.columns)
        with tempfile.TemporaryFile() as file:
            with psycopg.connect("") as connection, connection.cursor().copy(query) as copy:
                file.writelines(copy)
            file.seek(0)
            batches = pyarrow.csv.read_csv(file, options).combine_chunks().to_batches(max_chunksize=10_000)
        return lambda: float(sum(self.work(batch) for batch in batches))


def handler():
    """The image's own functions."""
    path = HERE / "image/handler.py"
    spec = importlib.util.spec_from_file_location("handler", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HANDLER = handler()


def predicts(function, most_rows=None):
    return Floor(COLUMNS, lambda batch: function(*(column.to_numpy() for column in batch.columns)).sum(), most_rows)


def sum_of(array):
    return pyarrow.compute.sum(array).as_py()


SHM = "container, shared memory"
PLAIN = "plain Python, no engine, no container"
PAIR = "container, shared memory, two workers and replicas"
BY_HAND = "PL/Python by hand in arrays"
# Most rows of what takes seconds per million of them, but for shared memory with one replica and with two.
MOST_DEAR_ROWS = 1_000_000


def transports(function, arguments, result="sum({})", most_rows=None):
    """A function over every transport; all but shared memory on at most most_rows, and scaled."""
    query = f"SELECT {result.format(f'{function}({arguments})')} FROM rows"
    entries = {
        SHM: Query(query, over("shm")),
        "container, Flight, Unix socket": Query(query, over("flight"), most_rows),
        "container, columns over a socket": Query(query, over("socket"), most_rows),
        "container, Parquet files": Query(query, over("parquet"), most_rows),
        "container, JSON": Query(query, over("json"), most_rows),
    }
    if IS_DOCKER:
        tcp = f"SELECT {result.format(f'{function}_tcp({arguments})')} FROM rows"
        entries["container, Flight, TCP, mapped port"] = Query(tcp, most_rows=most_rows)
    return entries


def pair(function, arguments):
    return Query(f"SELECT sum({function}({arguments})) FROM rows", f"{over('shm')}; {WORKERS}")


def by_row(function, arguments, most_rows):
    name = f"PL/Python per row (on {most_rows:,} rows, scaled)"
    return {name: Query(f"SELECT sum({function}({arguments})) FROM (SELECT * FROM rows LIMIT {most_rows}) s", most_rows=most_rows)}


# UDF -> {contender: what it is}; the first is the baseline.
CONTENDERS = {
    "x + 1": {
        **transports("add_one_batch", "f0"),
        "container, shared memory, handler per row": Query("SELECT sum(add_one(f0)) FROM rows", over("shm")),
        "container, Flight, handler per row": Query("SELECT sum(add_one(f0)) FROM rows", over("flight")),
        PLAIN: Floor(["f0"], lambda batch: sum_of(HANDLER.add_one_batch(batch.column(0)))),
        "SQL expression": Query("SELECT sum(f0 + 1) FROM rows"),
        "PL/Python per row": Query("SELECT sum(py_add_one(f0)) FROM rows"),
        BY_HAND: Query(chunked("py_add_one_array", "array_agg(f0)")),
    },
    "upper(text), 20 characters": {
        **transports("upper_batch", "t", "sum(length({}))"),
        PLAIN: Floor(["t"], lambda batch: sum_of(pyarrow.compute.utf8_length(HANDLER.upper(batch.column(0))))),
        "SQL's own upper": Query("SELECT sum(length(upper(t))) FROM rows"),
        "PL/Python per row": Query("SELECT sum(length(py_upper(t))) FROM rows"),
        BY_HAND: Query(chunked("py_upper_array", "array_agg(t)", "sum(length(r))")),
    },
    "random forest, 10 small trees, 28 inputs": {
        **transports("forest", LIST),
        PLAIN: predicts(HANDLER.forest),
        PAIR: pair("forest", LIST),
        "MLflow's own server, on 10,000 rows, scaled": Query(f"SELECT sum(forest_mlflow({LIST})) FROM rows", most_rows=10_000),
        BY_HAND: Query(chunked("py_forest_array", f"array_send(array_agg(ARRAY[{LIST}]))"), most_rows=MOST_DEAR_ROWS),
        **by_row("py_forest", LIST, 1000),
    },
    "random forest, 10 deep trees, 28 inputs": {
        **transports("deep_forest", LIST, most_rows=MOST_DEAR_ROWS),
        PLAIN: predicts(HANDLER.deep_forest, MOST_DEAR_ROWS),
        PAIR: pair("deep_forest", LIST),
        BY_HAND: Query(chunked("py_deep_forest_array", f"array_send(array_agg(ARRAY[{LIST}]))"), most_rows=MOST_DEAR_ROWS),
        **by_row("py_deep_forest", LIST, 1000),
    },
    "largest prime factor, handler per row": {
        **transports("factor", "n", most_rows=MOST_DEAR_ROWS),
        PLAIN: Floor(["n"], lambda batch: sum(map(HANDLER.largest_prime_factor, batch.column(0).to_pylist())), MOST_DEAR_ROWS),
        PAIR: pair("factor", "n"),
        "PL/Python per row": Query("SELECT sum(py_factor(n)) FROM rows", most_rows=MOST_DEAR_ROWS),
        BY_HAND: Query(chunked("py_factor_array", "array_agg(n)"), most_rows=MOST_DEAR_ROWS),
        "PL/Python per row, two workers": Query("SELECT sum(py_factor(n)) FROM rows", WORKERS, MOST_DEAR_ROWS),
    },
    "largest prime factor, with 27 more inputs": {
        **transports("factor_of_last", FACTOR_LIST, most_rows=MOST_DEAR_ROWS),
        PLAIN: Floor(
            [*COLUMNS[:27], "n"],
            lambda batch: sum(HANDLER.factor_of_last(*(column.to_numpy() for column in batch.columns))),
            MOST_DEAR_ROWS,
        ),
        PAIR: pair("factor_of_last", FACTOR_LIST),
        "PL/Python per row": Query(f"SELECT sum(py_factor_of_last({FACTOR_LIST})) FROM rows", most_rows=MOST_DEAR_ROWS),
        BY_HAND: Query(
            chunked("py_factor_of_last_array", ", ".join(f"array_agg({name})" for name in FACTOR_LIST.split(", "))),
            most_rows=MOST_DEAR_ROWS,
        ),
    },
}


@contextlib.contextmanager
def servers():
    """MLflow's server, and on Docker a container with a mapped port, as the paper has them."""
    with contextlib.ExitStack() as stack:
        if IS_DOCKER:
            words = ["docker", "run", "--detach", "--rm", f"--publish=127.0.0.1:{TCP_PORT}:8815", "--env=TRANSSHIP_FLIGHT_PORT=8815"]
            container = subprocess.run([*words, IMAGE], check=True, capture_output=True, text=True).stdout.strip()
            stack.callback(subprocess.run, ["docker", "kill", container], capture_output=True)
            wait_for(TCP_PORT)
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        words = [ROOT / "target/venv-mlflow/bin/python", HERE / "mlflow_server.py", HERE / "image/model.pkl", f"{folder}/model"]
        server = subprocess.Popen([*map(str, words), str(MLFLOW_PORT)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        stack.callback(server.wait)
        stack.callback(server.terminate)
        wait_for(MLFLOW_PORT)
        yield


def wait_for(port):
    for _ in range(600):
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            # docker's proxy listens before the server behind it.
            time.sleep(1)
            return
        time.sleep(0.1)
    sys.exit(f"nobody listens on port {port}")


def measure(contenders, rows):
    """Seconds of each contender and round."""
    entries = []
    for name, contender in contenders.items():
        own_rows = min(rows, contender.most_rows or rows)
        entries.append((name, contender.prepare(max(own_rows, 10_000)), rows / own_rows))
    return seconds_of(entries, ROUNDS)


def slug(title):
    return "overhead-" + "-".join("".join(c if c.isalnum() else " " for c in title).split())


def prepare():
    """Makes functions and tables; PostgreSQL's version."""
    sizes = sorted({*SIZES, 10_000, min(max(SIZES), MOST_DEAR_ROWS)})
    with psycopg.connect("", autocommit=True) as connection:
        for statement in ["CREATE EXTENSION IF NOT EXISTS transship", "CREATE EXTENSION IF NOT EXISTS plpython3u", *FUNCTIONS]:
            connection.execute(statement)
        make_rows(connection)
        for rows in sizes:
            connection.execute(f"DROP TABLE IF EXISTS bench_rows_{rows}")
            if rows == sizes[-1]:
                connection.execute(f"ALTER TABLE bench_rows RENAME TO bench_rows_{rows}")
            else:
                connection.execute(f"CREATE TABLE bench_rows_{rows} AS SELECT * FROM bench_rows LIMIT {rows}")
            connection.execute(f"VACUUM ANALYZE bench_rows_{rows}")
        return connection.execute("SHOW server_version").fetchone()[0].split()[0]


def main():
    with servers():
        version = prepare()
        head = (
            f"{datetime.date.today()}, {ROUNDS} rounds after one of warm-up; {os.cpu_count()} cores, Linux {platform.release()}, "
            f"PostgreSQL {version}, runtime {os.environ['BENCH_RUNTIME']}."
        )
        for udf, contenders in CONTENDERS.items():
            if not WORDS or any(word in udf for word in WORDS):
                text = f"{head}\n\n{measure_all(udf, contenders)}"
                print(text)
                write_section(f"overhead: {udf}", text)


def measure_all(udf, contenders):
    """A UDF's table, its picture drawn."""
    columns = []
    for rows in SIZES:
        print(f"==> {udf}, {rows:,} rows", file=sys.stderr)
        columns.append((f"{rows:,} rows", measure(contenders, rows)))
    heading, seconds = columns[-1]
    plots.bars(slug(udf), f"{udf}, {heading}", list(contenders), seconds)
    return f"{table('contender', list(contenders), columns)}\n\n![](plots/{slug(udf)}.svg)"


if __name__ == "__main__":
    main()
