"""What does a container cost over the UDFs that PostgreSQL users have today?  run.py [ROWS [ROUNDS]]

Contenders run in turn, round by round, each on a connection of its own, after one round of warm-up that does not count.
A ratio is the median of the per-round ratios to the baseline. All contenders of a UDF must give the same sum. The
results replace the part of bench/README.md between the markers.
"""

import datetime
import importlib.util
import io
import os
import pathlib
import platform
import statistics
import sys
import sysconfig
import time

import psycopg
import pyarrow.csv

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from readme import write_section  # noqa: E402

ROWS = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 5
# Per row, PL/Python with scikit-learn takes about 0.7 ms: measured on fewer rows and scaled.
FOREST_ROW_SAMPLE = 1000
HERE = pathlib.Path(__file__).parent
COLUMNS = [f"f{i}" for i in range(28)]
ARGUMENTS = ", ".join(f"{name} float8" for name in COLUMNS)
LIST = ", ".join(COLUMNS)
# PL/Python is the system's Python; its packages are those of the virtual environment that was made with it.
PRELUDE = f"""
  if "model" not in GD:
      import sys
      sys.path.insert(0, {sysconfig.get_path("purelib")!r})
      import pickle, numpy
      GD["numpy"] = numpy
      GD["model"] = pickle.load(open({str(HERE / "image/model.pkl")!r}, "rb"))
  numpy, model = GD["numpy"], GD["model"]
"""

SETUP = f"""
CREATE EXTENSION IF NOT EXISTS transship;
CREATE EXTENSION IF NOT EXISTS plpython3u;
DROP TABLE IF EXISTS bench_rows;
SELECT setseed(0.5);
CREATE TABLE bench_rows AS SELECT {", ".join(f"random() AS {name}" for name in COLUMNS)},
  (random() * 999999)::bigint + 1 AS n, substr(md5(random()::text), 1, 20) AS t FROM generate_series(1, {ROWS});
VACUUM ANALYZE bench_rows;
CREATE OR REPLACE FUNCTION py_add_one(x float8) RETURNS float8 LANGUAGE plpython3u IMMUTABLE STRICT AS 'return x + 1';
CREATE OR REPLACE FUNCTION py_add_one_array(x float8[]) RETURNS float8[] LANGUAGE plpython3u IMMUTABLE STRICT
  AS 'return [v + 1 for v in x]';
CREATE OR REPLACE FUNCTION py_forest({ARGUMENTS}) RETURNS float8 LANGUAGE plpython3u IMMUTABLE STRICT AS $$
{PRELUDE}
  return float(model.predict([[{LIST}]])[0])
$$;
CREATE OR REPLACE FUNCTION py_forest_array(x float8[]) RETURNS float8[] LANGUAGE plpython3u IMMUTABLE STRICT AS $$
{PRELUDE}
  return model.predict(numpy.array(x).reshape(-1, 28)).tolist()
$$;
CREATE OR REPLACE FUNCTION py_upper(t text) RETURNS text LANGUAGE plpython3u IMMUTABLE STRICT AS 'return t.upper()';
CREATE OR REPLACE FUNCTION py_upper_array(t text[]) RETURNS text[] LANGUAGE plpython3u IMMUTABLE STRICT
  AS 'return [v.upper() for v in t]';
CREATE OR REPLACE FUNCTION py_factor(n bigint) RETURNS bigint LANGUAGE plpython3u IMMUTABLE STRICT PARALLEL SAFE AS $$
  rest, largest, divisor = n, 1, 2
  while divisor * divisor <= rest:
      if rest % divisor:
          divisor += 1
      else:
          largest, rest = divisor, rest // divisor
  return max(largest, rest)
$$;
CREATE OR REPLACE FUNCTION upper_batch(t text) RETURNS text LANGUAGE container IMMUTABLE STRICT COST 1000 AS 'image = "bench-overhead:1.0" function = "upper"';
CREATE OR REPLACE FUNCTION factor(n bigint) RETURNS bigint LANGUAGE container IMMUTABLE STRICT PARALLEL SAFE COST 1000
  AS 'image = "bench-overhead:1.0" function = "largest_prime_factor"';
CREATE OR REPLACE FUNCTION add_one(x float8) RETURNS float8 LANGUAGE container IMMUTABLE STRICT COST 1000 AS 'image = "bench-overhead:1.0"';
CREATE OR REPLACE FUNCTION add_one_batch(x float8) RETURNS float8 LANGUAGE container IMMUTABLE STRICT COST 1000 AS 'image = "bench-overhead:1.0"';
CREATE OR REPLACE FUNCTION forest({ARGUMENTS}) RETURNS float8 LANGUAGE container IMMUTABLE STRICT PARALLEL SAFE COST 1000 AS 'image = "bench-overhead:1.0"';
""".replace("\n  ", "\n")


def chunked(function, argument, result="sum(r)"):
    """The hand-made batch: rows in chunks of 10,000 as arrays, results unnested."""
    return f"""SELECT {result} FROM (SELECT unnest({function}(array_agg({argument}))) AS r FROM
        (SELECT *, row_number() OVER () / 10000 AS chunk FROM bench_rows) s GROUP BY chunk) t"""


SHM, FLIGHT, SOCKET, JSON = (f"SET transship.transport = {name}" for name in ("shm", "flight", "socket", "json"))

# A process per worker, and none for the leader: one for each core here.
WORKERS = "; ".join([
    "SET max_parallel_workers_per_gather = 2", "SET parallel_leader_participation = off", "SET parallel_setup_cost = 0",
    "SET parallel_tuple_cost = 0", "SET min_parallel_table_scan_size = 0",
])  # fmt: skip


class Floor:
    """A UDF in plain Python over the same rows, as Arrow batches of 10,000 in memory: what no transport can beat."""

    def __init__(self, columns, work):
        self.columns, self.work, self.batches = columns, work, None

    def load(self):
        query = f"COPY (SELECT {', '.join(self.columns)} FROM bench_rows) TO STDOUT (FORMAT csv)"
        with psycopg.connect("") as connection, connection.cursor().copy(query) as copy:
            text = io.BytesIO(b"".join(copy))
        options = pyarrow.csv.ReadOptions(column_names=self.columns)
        self.batches = pyarrow.csv.read_csv(text, options).combine_chunks().to_batches(max_chunksize=10_000)

    def __call__(self):
        return float(sum(self.work(batch) for batch in self.batches))


def handler():
    """The image's own functions."""
    path = HERE / "image/handler.py"
    spec = importlib.util.spec_from_file_location("handler", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HANDLER = handler()
FOREST_FLOOR = Floor(COLUMNS, lambda batch: HANDLER.forest(*(column.to_numpy() for column in batch.columns)).sum())
FACTOR_FLOOR = Floor(["n"], lambda batch: sum(map(HANDLER.largest_prime_factor, batch.column(0).to_pylist())))
PLAIN = "plain Python, no engine, no container"
# UDF -> [(contender, setting, query or Python, factor by which its time is multiplied)]; the first is the baseline.
CONTENDERS = {
    "x + 1": [
        ("container, shared memory, handler per batch", SHM, "SELECT sum(add_one_batch(f0)) FROM bench_rows", 1),
        ("container, shared memory, handler per row", SHM, "SELECT sum(add_one(f0)) FROM bench_rows", 1),
        ("container, Flight, handler per batch", FLIGHT, "SELECT sum(add_one_batch(f0)) FROM bench_rows", 1),
        ("container, Flight, handler per row", FLIGHT, "SELECT sum(add_one(f0)) FROM bench_rows", 1),
        ("container, columns over a socket, handler per batch", SOCKET, "SELECT sum(add_one_batch(f0)) FROM bench_rows", 1),
        ("container, JSON, handler per batch", JSON, "SELECT sum(add_one_batch(f0)) FROM bench_rows", 1),
        ("SQL expression", SHM, "SELECT sum(f0 + 1) FROM bench_rows", 1),
        ("PL/Python per row", SHM, "SELECT sum(py_add_one(f0)) FROM bench_rows", 1),
        ("PL/Python by hand in arrays", SHM, chunked("py_add_one_array", "f0"), 1),
    ],
    "upper(text), 20 characters": [
        ("container, shared memory, handler per batch", SHM, "SELECT sum(length(upper_batch(t))) FROM bench_rows", 1),
        ("container, Flight, handler per batch", FLIGHT, "SELECT sum(length(upper_batch(t))) FROM bench_rows", 1),
        ("container, JSON, handler per batch", JSON, "SELECT sum(length(upper_batch(t))) FROM bench_rows", 1),
        ("SQL's own upper", SHM, "SELECT sum(length(upper(t))) FROM bench_rows", 1),
        ("PL/Python per row", SHM, "SELECT sum(length(py_upper(t))) FROM bench_rows", 1),
        ("PL/Python by hand in arrays", SHM, chunked("py_upper_array", "t", "sum(length(r))"), 1),
    ],
    "random forest, 10 trees, 28 inputs": [
        ("container, shared memory", SHM, f"SELECT sum(forest({LIST})) FROM bench_rows", 1),
        (PLAIN, None, FOREST_FLOOR, 1),
        ("container, shared memory, two workers and replicas", f"{SHM}; {WORKERS}", f"SELECT sum(forest({LIST})) FROM bench_rows", 1),
        ("container, Flight", FLIGHT, f"SELECT sum(forest({LIST})) FROM bench_rows", 1),
        ("container, columns over a socket", SOCKET, f"SELECT sum(forest({LIST})) FROM bench_rows", 1),
        ("container, JSON", JSON, f"SELECT sum(forest({LIST})) FROM bench_rows", 1),
        ("SQL: sum of the 28 inputs (no forest)", SHM, f"SELECT sum({' + '.join(COLUMNS)}) FROM bench_rows", 1),
        (f"PL/Python per row (on {FOREST_ROW_SAMPLE:,} rows, scaled)", SHM,
         f"SELECT sum(py_forest({LIST})) FROM (SELECT * FROM bench_rows LIMIT {FOREST_ROW_SAMPLE}) s", ROWS / FOREST_ROW_SAMPLE),
        ("PL/Python by hand in arrays", SHM, chunked("py_forest_array", f"ARRAY[{LIST}]"), 1),
    ],
    "largest prime factor, handler per row": [
        ("container, shared memory", SHM, "SELECT sum(factor(n)) FROM bench_rows", 1),
        (PLAIN, None, FACTOR_FLOOR, 1),
        ("container, shared memory, two workers and replicas", f"{SHM}; {WORKERS}", "SELECT sum(factor(n)) FROM bench_rows", 1),
        ("container, Flight", FLIGHT, "SELECT sum(factor(n)) FROM bench_rows", 1),
        ("PL/Python per row", SHM, "SELECT sum(py_factor(n)) FROM bench_rows", 1),
        ("PL/Python per row, two workers", f"{SHM}; {WORKERS}", "SELECT sum(py_factor(n)) FROM bench_rows", 1),
    ],
}  # fmt: skip


def measure(contenders):
    """Seconds per contender and round; sums are compared where the rows are the same."""
    connections = []
    for _, setting, _, _ in contenders:
        connection = psycopg.connect("", autocommit=True)
        connection.execute("SET max_parallel_workers_per_gather = 0")
        connection.execute("SET jit = off")
        connection.execute("SET work_mem = '1GB'")
        if setting:
            connection.execute(setting)
        connections.append(connection)
    for _, _, query, _ in contenders:
        if isinstance(query, Floor):
            query.load()
    seconds = [[] for _ in contenders]
    sums = {}
    for round_number in range(ROUNDS + 1):
        for i, (name, _, query, factor) in enumerate(contenders):
            start = time.perf_counter()
            value = query() if isinstance(query, Floor) else connections[i].execute(query).fetchone()[0]
            elapsed = (time.perf_counter() - start) * factor
            if round_number:
                seconds[i].append(elapsed)
            if factor == 1 and "no forest" not in name:
                sums[name] = float(value)
    expected = next(iter(sums.values()))
    for name, value in sums.items():
        # The order of addition differs, so the last digits may.
        if abs(value - expected) > 1e-9 * abs(expected):
            sys.exit(f"{name} gives {value}, not {expected}")
    return seconds


def table(contenders, seconds):
    lines = ["| contender | s, median [min-max] | ratio to the first |", "|---|---|---|"]
    for (name, _, _, _), times in zip(contenders, seconds):
        ratios = [own / base for own, base in zip(times, seconds[0])]
        spread = f"{statistics.median(times):.3g} [{min(times):.3g}-{max(times):.3g}]"
        lines.append(f"| {name} | {spread} | {statistics.median(ratios):.2f} |")
    return "\n".join(lines)


def main():
    with psycopg.connect("", autocommit=True) as connection:
        for statement in SETUP.split(";\n"):
            if statement.strip():
                connection.execute(statement)
        version = connection.execute("SHOW server_version").fetchone()[0].split()[0]
    parts = [
        f"{datetime.date.today()}, {ROWS:,} rows, {ROUNDS} rounds after one of warm-up; {os.cpu_count()} cores, "
        f"Linux {platform.release()}, PostgreSQL {version}, runtime {os.environ['BENCH_RUNTIME']}, no parallel workers but where it is said."
    ]
    for udf, contenders in CONTENDERS.items():
        print(f"==> {udf}", file=sys.stderr)
        parts.append(f"### {udf}\n\n{table(contenders, measure(contenders))}")
    text = "\n\n".join(parts)
    print(text)
    write_section("overhead", text)


if __name__ == "__main__":
    main()
