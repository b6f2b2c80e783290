"""What do kept results save, and what does looking them up cost?  run.py [ROWS [ROUNDS [SLOW_ROWS]]]

Contenders take turns as bench/paired.py says. Before each first run, the results are forgotten. A function of 5 ms per row is
called once for each of SLOW_ROWS rows, before the rounds; its second runs read a table that repeats those rows ROWS / SLOW_ROWS
times, since each row of it is named, looked up and answered all the same. The results replace the part of bench/README.md
between the markers.
"""

import datetime
import os
import pathlib
import statistics
import sys

import psycopg

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from images import build  # noqa: E402
from paired import seconds_of, table  # noqa: E402
from readme import write_section  # noqa: E402

ROWS = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 5
SLOW_ROWS = int(sys.argv[3]) if len(sys.argv) > 3 else 10_000
COLUMNS = [f"f{i}" for i in range(28)]
ARGUMENTS = ", ".join(f"{name} float8" for name in COLUMNS)
LIST = ", ".join(COLUMNS)


def function(name, arguments, image, handler, keeps):
    options = f'image = "{image}" function = "{handler}"' + " cache = true" * keeps
    return f"""CREATE OR REPLACE FUNCTION {name}({arguments}) RETURNS float8 LANGUAGE container IMMUTABLE STRICT PARALLEL SAFE
        COST 1000 AS '{options}'"""


FUNCTIONS = [
    function("cache_forest", ARGUMENTS, "bench-overhead:1.0", "deep_forest", False),
    function("cache_forest_kept", ARGUMENTS, "bench-overhead:1.0", "deep_forest", True),
    function("cache_add_one", "x float8", "bench-overhead:1.0", "add_one_batch", False),
    function("cache_add_one_kept", "x float8", "bench-overhead:1.0", "add_one_batch", True),
    function("cache_slow", "x float8", "bench-cache:1.0", "slow", True),
    function("cache_slow_of_many", ARGUMENTS, "bench-cache:1.0", "slow_of_many", True),
]


def setup(connection):
    connection.execute("CREATE EXTENSION IF NOT EXISTS transship")
    for statement in FUNCTIONS:
        connection.execute(statement)
    connection.execute("DROP TABLE IF EXISTS cache_rows, cache_slow_rows")
    connection.execute("SELECT setseed(0.5)")
    inputs = ", ".join(f"random() AS {name}" for name in COLUMNS)
    connection.execute(f"CREATE TABLE cache_rows AS SELECT i, {inputs} FROM generate_series(1, {ROWS}) i")
    # The first rows again and again.
    connection.execute(f"""CREATE TABLE cache_slow_rows AS SELECT g.i, {LIST} FROM generate_series(1, {ROWS}) g (i)
        JOIN cache_rows r ON r.i = (g.i - 1) % {SLOW_ROWS} + 1 ORDER BY g.i""")
    connection.execute("VACUUM ANALYZE cache_rows")
    connection.execute("VACUUM ANALYZE cache_slow_rows")


def main():
    build(pathlib.Path(__file__).parent / "image")
    with psycopg.connect("", autocommit=True) as connection:
        setup(connection)
        connection.execute("SET max_parallel_workers_per_gather = 0")

        def asker(expression, source="cache_rows", forgets=None):
            def ask():
                return connection.execute(f"SELECT sum({expression}) FROM {source}").fetchone()[0]

            def ask_first():
                # Not a part of what is measured, and too short to matter.
                connection.execute(f"SELECT transship.cache_reset('{forgets}')")
                return ask()

            return ask_first if forgets else ask

        kept_forest = f"cache_forest_kept({', '.join(['float8'] * 28)})"
        forest = [
            ("nothing kept", asker(f"cache_forest({LIST})"), 1),
            ("kept, first run", asker(f"cache_forest_kept({LIST})", forgets=kept_forest), 1),
            ("kept, second run", asker(f"cache_forest_kept({LIST})"), 1),
        ]
        cheap = [
            ("nothing kept", asker("cache_add_one(f0)"), 1),
            ("`cache = true`, which switches itself off", asker("cache_add_one_kept(f0)"), 1),
        ]
        parts = []
        for title, contenders in (("deep forest, 28 inputs", forest), ("x + 1", cheap)):
            seconds = seconds_of(contenders, ROUNDS)
            parts.append(table(title, [name for name, _, _ in contenders], [(f"{ROWS:,} rows, s", seconds)]))
        lines = ["| 5 ms per row, second run | rows/s, median [least-most] |", "|---|---|"]
        for columns, expression in ((1, "cache_slow(f0)"), (28, f"cache_slow_of_many({LIST})")):
            connection.execute(f"SELECT sum({expression}) FROM cache_rows WHERE i <= {SLOW_ROWS}")
            (own,) = seconds_of([(expression, asker(expression, "cache_slow_rows"), 1)], ROUNDS)
            rates = [ROWS / time for time in own]
            lines.append(f"| {columns} column{'s' * (columns > 1)} | {statistics.median(rates):,.0f} [{min(rates):,.0f}-{max(rates):,.0f}] |")
        parts.append("\n".join(lines))
    head = (
        f"{datetime.date.today()}, {ROWS:,} rows, {ROUNDS} rounds after one of warm-up, {SLOW_ROWS:,} rows of the slow function; "
        f"{os.cpu_count()} cores, runtime {os.environ['BENCH_RUNTIME']}; no parallel workers."
    )
    text = "\n\n".join([head, *parts])
    print(text)
    write_section("cache", text)


if __name__ == "__main__":
    main()
