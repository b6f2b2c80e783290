"""What do small queries cost, from one session or many?  run.py [SECONDS [ROUNDS]]

pgbench (prepared statements, one thread) asks each contender in turn, so many seconds a round; what is asked before all sessions have had
their first answer does not count. The function is `x + 1`, VOLATILE, by a handler for one row. The results replace the part of
bench/README.md between the markers, and the pictures in bench/plots.
"""

import datetime
import glob
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import psycopg

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import forest  # noqa: E402
import pacing  # noqa: E402
import plots  # noqa: E402
from images import build  # noqa: E402
from paired import ratio, spread  # noqa: E402
from readme import write_section  # noqa: E402

SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 1
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 7
SESSIONS = (1, 8, 32, 64, 256)
# How long sessions take to begin, each; where it is more, they are given it.
BEGIN_S = 0.005
PGBENCH = pathlib.Path(os.environ.get("PG_CONFIG", "/usr/lib/postgresql/15/bin/pg_config")).with_name("pgbench")
HERE = pathlib.Path(__file__).parent
CONTENDERS = {
    "PL/Python": "small_plpython",
    "SQL": "small_sql",
    "container, Python": "small_python",
    "container, Rust": "small_rust",
}
IMAGES = {"container, Python": "bench-small:1.0", "container, Rust": "bench-small-rust:1.0"}
QUERIES = {
    "one row": "\\set x random(1, 100000)\nSELECT {function}(:x);\n",
    "a hundred rows": "\\set k random(1, 99000)\nSELECT sum({function}(x)) FROM small_rows WHERE id BETWEEN :k AND :k + 99;\n",
}
SETUP = """
CREATE EXTENSION IF NOT EXISTS transship;
CREATE EXTENSION IF NOT EXISTS plpython3u;
CREATE OR REPLACE FUNCTION small_sql(x float8) RETURNS float8 LANGUAGE sql VOLATILE AS 'SELECT x + 1';
CREATE OR REPLACE FUNCTION small_plpython(x float8) RETURNS float8 LANGUAGE plpython3u VOLATILE AS 'return x + 1';
CREATE OR REPLACE FUNCTION small_python(x float8) RETURNS float8 LANGUAGE container VOLATILE AS 'image = "bench-small:1.0" function = "add_one"';
CREATE OR REPLACE FUNCTION small_rust(x float8) RETURNS float8 LANGUAGE container VOLATILE AS 'image = "bench-small-rust:1.0" function = "add_one"';
DROP TABLE IF EXISTS small_rows;
CREATE TABLE small_rows AS SELECT i AS id, i::float8 AS x FROM generate_series(1, 100000) i;
ALTER TABLE small_rows ADD PRIMARY KEY (id);
VACUUM ANALYZE small_rows;
"""
LOOP = """DO $$ DECLARE y float8; BEGIN FOR i IN 1..{count} LOOP y := {function}(i); END LOOP; END $$"""


BEGINNINGS = {}


def pgbench(script, sessions, seconds):
    """What was asked: session, seconds that it took, and when it was answered."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "query.sql")
        path.write_text(script)
        command = [PGBENCH, "--no-vacuum", "--protocol=prepared", f"--client={sessions}", "--jobs=1", f"--time={max(round(seconds), 1)}"]
        command += [f"--file={path}", "--log", f"--log-prefix={folder}/log"]
        done = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        if "number of failed transactions: 0 " not in done:
            sys.exit(done)
        lines = (line.split() for log in glob.glob(f"{folder}/log*") for line in open(log))
        return [(int(line[0]), int(line[2]) / 1e6, int(line[4]) + int(line[5]) / 1e6) for line in lines]


def latencies(script, sessions):
    """Seconds of each query, and queries per second, from when all sessions have had their first answer."""
    beginning = BEGINNINGS.get((script, sessions), BEGIN_S * sessions)
    while True:
        asked = pgbench(script, sessions, SECONDS + beginning)
        first = {}
        for session, _, moment in asked:
            first[session] = min(moment, first.get(session, moment))
        begin, end = max(first.values()), max(moment for _, _, moment in asked)
        if len(first) == sessions and end - begin >= SECONDS / 2:
            times = [seconds for _, seconds, moment in asked if moment > begin]
            return times, len(times) / (end - begin)
        beginning = BEGINNINGS[script, sessions] = 2 * beginning + SECONDS
        if beginning > 60:
            sys.exit(f"not all of {sessions} sessions are answered")


def whole(values):
    """Median, least and most, of numbers that need no fractions."""
    return f"{statistics.median(values):,.0f} [{min(values):,.0f}-{max(values):,.0f}]"


def p99(times):
    return sorted(times)[len(times) * 99 // 100]


def measure(query):
    """Rates and 99th percentiles, by contender and sessions, one of each a round."""
    rates = {(name, sessions): [] for name in CONTENDERS for sessions in SESSIONS}
    slowest = {key: [] for key in rates}
    for number in range(ROUNDS + 1):
        for name, sessions in rates:
            times, rate = latencies(QUERIES[query].format(function=CONTENDERS[name]), sessions)
            if number:
                rates[name, sessions].append(rate)
                slowest[name, sessions].append(p99(times))
    lines = [f"| {query} | " + " | ".join(f"{sessions} session{'s' * (sessions > 1)}, queries/s | of PL/Python | p99, ms" for sessions in SESSIONS) + " |"]
    lines.append("|---|" + "---|---|---|" * len(SESSIONS))
    for name in CONTENDERS:
        cells = []
        for sessions in SESSIONS:
            own, base = rates[name, sessions], rates["PL/Python", sessions]
            cells.append(f"{whole(own)} | {ratio(own, base):.2f} | {statistics.median(slowest[name, sessions]) * 1000:.3g}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    plots.lines(
        f"small-{query.replace(' ', '-')}", f"Queries of {query}", "sessions", "queries per second",
        {name: [(sessions, rates[name, sessions]) for sessions in SESSIONS] for name in CONTENDERS},
    )  # fmt: skip
    return "\n".join(lines) + f"\n\n![](plots/small-{query.replace(' ', '-')}.svg)"


def loops():
    """Microseconds of a call in a loop of PL/pgSQL."""
    count, times = 2000, {name: [] for name in CONTENDERS}
    with psycopg.connect("", autocommit=True) as connection:
        for number in range(ROUNDS + 1):
            for name, function in CONTENDERS.items():
                start = time.perf_counter()
                connection.execute(LOOP.format(count=count, function=function))
                if number:
                    times[name].append((time.perf_counter() - start) / count)
    lines = ["| a call in a PL/pgSQL loop | µs | of PL/Python |", "|---|---|---|"]
    base = times["PL/Python"]
    lines += [f"| {name} | {spread(own, 1e6)} | {ratio(own, base):.2f} |" for name, own in times.items()]
    return "\n".join(lines)


def main():
    for name in ("python", "rust"):
        build(HERE / name)
    with psycopg.connect("", autocommit=True) as connection:
        for statement in SETUP.split(";\n"):
            if statement.strip():
                connection.execute(statement)
        results = {connection.execute(f"SELECT sum({function}(x)) FROM small_rows").fetchone()[0] for function in CONTENDERS.values()}
        if len(results) > 1:
            sys.exit(f"the contenders give {results}")
    head = (
        f"{datetime.date.today()}, {ROUNDS} rounds of about {SECONDS:g} s after one of warm-up; {os.cpu_count()} cores, runtime "
        f"{os.environ['BENCH_RUNTIME']}. Medians, with the least and the most; ratios of queries per second are medians of the rounds' ratios."
    )
    parts = [*map(measure, QUERIES), pacing.measure(CONTENDERS, IMAGES, SECONDS, ROUNDS), forest.measure(latencies, ROUNDS), loops()]
    text = "\n\n".join([head, *parts])
    print(text)
    write_section("small", text)


if __name__ == "__main__":
    main()
