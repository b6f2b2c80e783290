"""How does a container's cost grow: with rows, columns, the width of a row, workers and sessions?  run.py [ROWS [ROUNDS [PART...]]]

ROWS is the number where it does not vary. Contenders take turns as bench/paired.py says; all must give the same result.
Sessions are pgbench's. The results of each part, or of those named, replace what is between its markers in bench/README.md, and
its picture in bench/plots.
"""

import datetime
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import psycopg

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import plots  # noqa: E402
from images import build_variant  # noqa: E402
from paired import ratio, seconds_of, spread  # noqa: E402
from readme import write_section  # noqa: E402

ROWS = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 5
PARTS = sys.argv[3:]
COLUMNS = [f"f{i}" for i in range(28)]
WIDTHS = [1, 2, 5, 10, 20, 50, 100, 200]
# PostgreSQL's functions have no more: beyond them, columns are the attributes of one argument.
MOST_ARGUMENTS = 100
TEXT_BYTES = [10, 100, 1000, 10_000, 100_000]
VALUES = {
    "bool": "i % 2 = 0", "int2": "(i % 1000)::int2", "int4": "i::int4", "int8": "i::int8", "float4": "i::float4", "float8": "i::float8",
    "text": "'row ' || i", "bytea": "int4send(i)", "date": "'2000-01-01'::date + i % 9999", "numeric": "i / 7::numeric",
    "timestamp": "'2000-01-01'::timestamp + i * '1 s'::interval", "timestamptz": "'2000-01-01'::timestamptz + i * '1 s'::interval",
    "uuid": "md5(i::text)::uuid", "json": "json_build_object('i', i)",
}  # fmt: skip
WORKERS = [0, 1, 2]
SESSIONS = [1, 2, 4, 8, 16, 32, 64]
SESSION_SECONDS = 3
SHM, SQL = "container, shared memory", "SQL expression"


def function(connection, name, arguments, result, body, volatility="IMMUTABLE"):
    """A container function; body is TOML."""
    connection.execute(f"""CREATE OR REPLACE FUNCTION {name}({arguments}) RETURNS {result} LANGUAGE container
        {volatility} STRICT PARALLEL SAFE COST 1000 AS $body${body}$body$""")


def in_turn(connection, queries):
    """Seconds per query and round; queries: {name: SQL}."""
    return seconds_of([(name, lambda sql=sql: connection.execute(sql).fetchone()[0], 1) for name, sql in queries.items()], ROUNDS)


def table(name, title, x_label, points):
    """A table and a picture of points: [(x, {contender: seconds})], the first contender the one that ratios refer to."""
    names = list(dict.fromkeys(contender for _, seconds in points for contender in seconds))
    lines = [f"| {x_label} | " + " | ".join(f"{contender}, s | ratio" for contender in names) + " |", "|---|" + "---|---|" * len(names)]
    for x, seconds in points:
        base = next(iter(seconds.values()))
        cells = []
        for contender in names:
            times = seconds.get(contender)
            cells += [spread(times), f"{ratio(times, base):.2f}"] if times else ["", ""]
        lines.append(f"| {x:,} | " + " | ".join(cells) + " |")
    series = {contender: [(x, seconds[contender]) for x, seconds in points if contender in seconds] for contender in names}
    plots.lines(f"scaling-{name}", title, x_label, "seconds", series)
    return "\n".join(lines) + f"\n\n![](plots/scaling-{name}.svg)"


def rows(connection):
    points = []
    count = 1000
    while count <= 10 * ROWS:
        connection.execute("DROP TABLE IF EXISTS scaling_rows")
        connection.execute(f"CREATE TABLE scaling_rows AS SELECT random() AS f0 FROM generate_series(1, {count})")
        connection.execute("VACUUM ANALYZE scaling_rows")
        queries = {SHM: "SELECT sum(add_one_batch(f0)) FROM scaling_rows", SQL: "SELECT sum(f0 + 1) FROM scaling_rows"}
        if count <= ROWS:
            queries["PL/Python per row"] = "SELECT sum(py_add_one(f0)) FROM scaling_rows"
        points.append((count, dict(zip(queries, in_turn(connection, queries)))))
        count *= 10
    return table("rows", "Rows, x + 1", "rows", points)


def forest_rows(connection):
    arguments = ", ".join(f"{name} float8" for name in COLUMNS)
    for transport in ("shm", "flight", "json"):
        body = f'image = "bench-overhead:1.0" function = "forest" transport = "{transport}"'
        function(connection, f"forest_{transport}", arguments, "float8", body)
    values = ", ".join(f"random() AS {name}" for name in COLUMNS)
    points = []
    count = 1000
    while count <= 10 * ROWS:
        connection.execute("DROP TABLE IF EXISTS scaling_forest_rows")
        connection.execute(f"CREATE TABLE scaling_forest_rows AS SELECT {values} FROM generate_series(1, {count})")
        connection.execute("VACUUM ANALYZE scaling_forest_rows")
        names = {SHM: "shm", "container, Flight, Unix socket": "flight"} | ({"container, JSON": "json"} if count <= ROWS else {})
        queries = {name: f"SELECT sum(forest_{way}({', '.join(COLUMNS)})) FROM scaling_forest_rows" for name, way in names.items()}
        points.append((count, dict(zip(queries, in_turn(connection, queries)))))
        count *= 10
    connection.execute("DROP TABLE scaling_forest_rows")
    connection.execute("DROP FUNCTION forest_shm, forest_flight, forest_json")
    return table("forest-rows", "Rows, small forest of 28 inputs", "rows", points)


def columns(connection):
    count = ROWS // 10
    names = [f"c{i}" for i in range(max(WIDTHS))]
    connection.execute("DROP TABLE IF EXISTS scaling_columns")
    values = ", ".join(f"random() AS {name}" for name in names)
    connection.execute(f"CREATE TABLE scaling_columns AS SELECT {values} FROM generate_series(1, {count})")
    connection.execute("VACUUM ANALYZE scaling_columns")
    points = []
    for width in WIDTHS:
        declared, listed = ", ".join(f"{name} float8" for name in names[:width]), ", ".join(names[:width])
        source, form = f"def total_{width}(*columns):\n    return numpy.sum(columns, axis=0)\n", "numpy"
        if width > MOST_ARGUMENTS:
            connection.execute(f"CREATE TYPE scaling_columns_{width} AS ({declared})")
            declared, listed = f"r scaling_columns_{width}", f"ROW({listed})::scaling_columns_{width}"
            source, form = f"import pyarrow\ndef total_{width}(r):\n    return pyarrow.array(numpy.sum([column.to_numpy() for column in r.flatten()], axis=0))\n", "arrow"
        body = f'template = "python" batch = "{form}" requirements = ["numpy==2.*"] source = """\nimport numpy\n{source}"""'
        function(connection, f"total_{width}", declared, "float8", body)
        queries = {
            SHM: f"SELECT sum(total_{width}({listed})) FROM scaling_columns",
            SQL: f"SELECT sum({' + '.join(names[:width])}) FROM scaling_columns",
        }
        points.append((width, dict(zip(queries, in_turn(connection, queries)))))
        connection.execute(f"DROP FUNCTION total_{width}")
        connection.execute(f"DROP TYPE IF EXISTS scaling_columns_{width}")
    return table("columns", f"Columns, their sum, {count:,} rows", "columns", points)


def width(connection):
    total = 10 * ROWS
    source = "import pyarrow.compute\ndef bytes_of(t):\n    return pyarrow.compute.binary_length(t)\n"
    function(connection, "bytes_of", "t text", "int4", f'template = "python" batch = "arrow" source = """\n{source}"""')
    points = []
    for size in TEXT_BYTES:
        connection.execute("DROP TABLE IF EXISTS scaling_texts")
        connection.execute("CREATE TABLE scaling_texts (t text)")
        # As they are, since decompression is no container's.
        connection.execute("ALTER TABLE scaling_texts ALTER t SET STORAGE EXTERNAL")
        connection.execute(f"""INSERT INTO scaling_texts SELECT substr(repeat(md5(i::text), {size // 32 + 1}), 1, {size})
            FROM generate_series(1, {total // size}) i""")
        connection.execute("VACUUM ANALYZE scaling_texts")
        queries = {
            SHM: "SELECT sum(bytes_of(t)) FROM scaling_texts",
            # Something that looks at the text, as sending it does.
            "SQL's hashtext": f"SELECT sum(octet_length(t)) + 0 * sum(hashtext(t)::bigint) FROM scaling_texts",
        }
        points.append((size, dict(zip(queries, in_turn(connection, queries)))))
    return table("width", f"Width of a row, {total:,} bytes of text in all", "bytes per row", points)


def types(connection):
    """Nanoseconds that a value takes from a row into a column, to the container, back, and into a row."""
    lines = ["| type | there and back, ns per value |", "|---|---|"]
    for name, value in VALUES.items():
        function(connection, f"pass_{name}", f"v {name}", name, 'image = "regress:1.0"')
        connection.execute("DROP TABLE IF EXISTS scaling_values")
        connection.execute(f"CREATE TABLE scaling_values AS SELECT {value} AS v FROM generate_series(1, {ROWS}) i")
        connection.execute("VACUUM ANALYZE scaling_values")
        queries = {"container": f"SELECT count(pass_{name}(v)) FROM scaling_values", "SQL": "SELECT count(v) FROM scaling_values"}
        there, bare = in_turn(connection, queries)
        lines.append(f"| {name} | {spread([own - base for own, base in zip(there, bare)], 1e9 / ROWS)} |")
        connection.execute(f"DROP FUNCTION pass_{name}")
    return "\n".join(lines)


def workers(connection):
    connection.execute("DROP TABLE IF EXISTS scaling_numbers")
    connection.execute("SELECT setseed(0.5)")
    connection.execute(f"""CREATE TABLE scaling_numbers AS SELECT (random() * 999999)::bigint + 1 AS n
        FROM generate_series(1, {ROWS // 5})""")
    connection.execute("VACUUM ANALYZE scaling_numbers")
    for setting in ("parallel_leader_participation = off", "parallel_setup_cost = 0", "parallel_tuple_cost = 0", "min_parallel_table_scan_size = 0"):
        connection.execute(f"SET {setting}")
    points = {count: {} for count in WORKERS}
    for name, query in ((SHM, "SELECT sum(factor(n)) FROM scaling_numbers"), ("PL/Python per row", "SELECT sum(py_factor(n)) FROM scaling_numbers")):
        def run(count, query=query):
            connection.execute(f"SET max_parallel_workers_per_gather = {count}")
            return connection.execute(query).fetchone()[0]

        seconds = seconds_of([(str(count), lambda count=count, run=run: run(count), 1) for count in WORKERS], ROUNDS)
        for count, times in zip(WORKERS, seconds):
            points[count][name] = times
    connection.execute("SET max_parallel_workers_per_gather = 0")
    lines = ["| workers | container, shared memory, s | faster than none | PL/Python per row, s | faster than none |", "|---|---|---|---|---|"]
    for count in WORKERS:
        cells = []
        for name in (SHM, "PL/Python per row"):
            times = points[count][name]
            cells += [spread(times), f"{1 / ratio(times, points[0][name]):.2f}"]
        lines.append(f"| {count} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def sessions(connection):
    shared = {"one container for all": 1, "four containers": 4}
    connection.execute("DROP TABLE IF EXISTS scaling_forest")
    values = ", ".join(f"random() AS {name}" for name in COLUMNS)
    connection.execute(f"CREATE TABLE scaling_forest AS SELECT {values} FROM generate_series(1, 1000)")
    connection.execute("VACUUM ANALYZE scaling_forest")
    arguments = ", ".join(f"{name} float8" for name in COLUMNS)
    for place, (name, replicas) in enumerate(shared.items()):
        build_variant(f"bench-sessions-{place}", replicas)
        function(connection, f"forest_{place}", arguments, "float8", f'image = "bench-sessions-{place}:1.0" function = "forest"', "VOLATILE")
        connection.execute(f"SELECT sum(forest_{place}({', '.join(COLUMNS)})) FROM scaling_forest").fetchone()
    points = {name: [] for name in shared}
    for count in SESSIONS:
        rates = {name: [] for name in shared}
        for _ in range(max(ROUNDS // 2, 1) + 1):
            for place, name in enumerate(shared):
                with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
                    file.write(f"SELECT sum(forest_{place}({', '.join(COLUMNS)})) FROM scaling_forest;\n")
                    file.flush()
                    words = [pgbench(), "--no-vacuum", f"--file={file.name}", f"--client={count}", "--jobs=2", f"--time={SESSION_SECONDS}"]
                    said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
                rates[name].append(float(re.search(r"tps = ([\d.]+)", said).group(1)))
        for name in shared:
            points[name].append((count, rates[name][1:]))
    lines = ["| sessions | " + " | ".join(f"{name}, queries per second" for name in shared) + " |", "|---|" + "---|" * len(shared)]
    for place, count in enumerate(SESSIONS):
        lines.append(f"| {count} | " + " | ".join(spread(points[name][place][1]) for name in shared) + " |")
    plots.lines("scaling-sessions", "Sessions, small forest over 1,000 rows", "sessions", "queries per second", points)
    connection.execute("DROP FUNCTION forest_0, forest_1")
    return "\n".join(lines) + "\n\n![](plots/scaling-sessions.svg)"


def pgbench():
    version = subprocess.run(["pg_config", "--bindir"], capture_output=True, text=True, check=True).stdout.strip()
    return pathlib.Path(version) / "pgbench"


def main():
    # Without prepared statements, whose plans would outlive a change of the number of workers.
    with psycopg.connect("", autocommit=True, prepare_threshold=None) as connection:
        for statement in ("CREATE EXTENSION IF NOT EXISTS transship", "CREATE EXTENSION IF NOT EXISTS plpython3u",
                          "SET max_parallel_workers_per_gather = 0", "SET jit = off"):  # fmt: skip
            connection.execute(statement)
        factor = "rest, largest, divisor = n, 1, 2\nwhile divisor * divisor <= rest:\n  if rest % divisor: divisor += 1\n  else: largest, rest = divisor, rest // divisor\nreturn max(largest, rest)"
        connection.execute("CREATE OR REPLACE FUNCTION py_add_one(x float8) RETURNS float8 LANGUAGE plpython3u IMMUTABLE STRICT PARALLEL SAFE AS 'return x + 1'")
        connection.execute(f"CREATE OR REPLACE FUNCTION py_factor(n bigint) RETURNS bigint LANGUAGE plpython3u IMMUTABLE STRICT PARALLEL SAFE AS $$\n{factor}\n$$")
        function(connection, "add_one_batch", "x float8", "float8", 'image = "bench-overhead:1.0"')
        function(connection, "factor", "n bigint", "bigint", 'image = "bench-overhead:1.0" function = "largest_prime_factor"')
        head = f"{datetime.date.today()}, {ROUNDS} rounds after one of warm-up; {os.cpu_count()} cores, runtime {os.environ['BENCH_RUNTIME']}."
        for measure in (rows, forest_rows, columns, width, types, workers, sessions):
            name = measure.__name__
            if not PARTS or name in PARTS:
                print(f"==> {name}", file=sys.stderr)
                text = f"{head}\n\n{measure(connection)}"
                print(text)
                write_section(f"scaling: {name}", text)


if __name__ == "__main__":
    main()
