"""Small queries, as applications send them: one row, or a hundred, in one session and in many.  run.py [SECONDS [ROUNDS]]

pgbench sends prepared statements for SECONDS per contender and round; contenders take turns, after a round of warm-up. Its log
gives the latency of each query, from which the 99th percentile comes. The results replace the part of bench/README.md between
the markers, and the pictures in bench/plots.
"""

import datetime
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile

import psycopg

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import plots  # noqa: E402
from images import ROOT, build  # noqa: E402
from paired import ratio, spread  # noqa: E402
from readme import write_section  # noqa: E402

SECONDS = int(sys.argv[1]) if len(sys.argv) > 1 else 3
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 7
SESSIONS = [1, 8, 32, 64]
CONTENDERS = {"PL/Python": "small_py", "container, Python": "small_container", "container, Rust": "small_rust", "SQL": "small_sql"}
QUERIES = {
    "one row": ("\\set x random(1, 100000)\n", "SELECT {f}(:x);\n"),
    "a hundred rows": ("\\set k random(1, 99900)\n", "SELECT sum({f}(x)) FROM small_rows WHERE id BETWEEN :k AND :k + 99;\n"),
}
SETUP = """
CREATE EXTENSION IF NOT EXISTS transship;
CREATE EXTENSION IF NOT EXISTS plpython3u;
CREATE OR REPLACE FUNCTION small_py(x bigint) RETURNS bigint LANGUAGE plpython3u IMMUTABLE STRICT AS 'return x + 1';
CREATE OR REPLACE FUNCTION small_sql(x bigint) RETURNS bigint LANGUAGE sql IMMUTABLE STRICT AS 'SELECT x + 1';
CREATE OR REPLACE FUNCTION small_container(x bigint) RETURNS bigint LANGUAGE container IMMUTABLE STRICT
  AS 'image = "bench-small-python:1.0" function = "add_one"';
CREATE OR REPLACE FUNCTION small_rust(x bigint) RETURNS bigint LANGUAGE container IMMUTABLE STRICT
  AS 'image = "bench-small-rust:1.0" function = "add_one"';
DROP TABLE IF EXISTS small_rows;
CREATE TABLE small_rows (id bigint PRIMARY KEY, x bigint);
INSERT INTO small_rows SELECT i, i FROM generate_series(1, 100000) i;
VACUUM ANALYZE small_rows;
"""


def build_images():
    """The functions with which a project of each template begins; one replica each, which stays warm."""
    with tempfile.TemporaryDirectory() as folder:
        for template in ("python", "rust"):
            name = f"bench-small-{template}"
            subprocess.run([ROOT / "target/release/transship", "new", "--template", template, name], cwd=folder, check=True, capture_output=True)
            project = pathlib.Path(folder) / name
            manifest = project / "transship.toml"
            head, rest = manifest.read_text().split("\n", 1)
            manifest.write_text(f'{head}\nreplicas = 1\nprewarm = 1\n{rest}')
            build(project)


def pgbench(function, query, sessions):
    """Queries per second, and the median and the 99th percentile of a query in milliseconds."""
    prepare, select = QUERIES[query]
    with tempfile.TemporaryDirectory() as folder:
        script = pathlib.Path(folder) / "script"
        script.write_text(prepare + select.format(f=function))
        command = [os.environ["PG_BIN"] + "/pgbench", "--no-vacuum", "--protocol=prepared", f"--client={sessions}", "--jobs=1",
                   f"--time={SECONDS}", "--file", script, "--log"]
        done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
        if "number of failed transactions: 0" not in done.stdout:
            sys.exit(done.stdout + done.stderr)
        latencies = []
        for log in pathlib.Path(folder).glob("pgbench_log.*"):
            latencies += [int(line.split()[2]) / 1000 for line in log.read_text().splitlines()]
    latencies.sort()
    rate = float(next(line for line in done.stdout.splitlines() if line.startswith("tps")).split()[2])
    return rate, statistics.median(latencies), latencies[int(len(latencies) * 0.99)]


def measure(query, sessions):
    """The figures of each contender, by round."""
    figures = {name: [] for name in CONTENDERS}
    for number in range(ROUNDS + 1):
        for name, function in CONTENDERS.items():
            outcome = pgbench(function, query, sessions)
            if number:
                figures[name].append(outcome)
    return figures


def main():
    build_images()
    with psycopg.connect("", autocommit=True) as connection:
        connection.execute(SETUP)
        server = connection.execute("SHOW server_version").fetchone()[0].split()[0]
        for function in CONTENDERS.values():
            if connection.execute(f"SELECT {function}(41), (SELECT sum({function}(x)) FROM small_rows)").fetchone() != (42, 5000150000):
                sys.exit(f"{function} gives wrong results")
    parts = [
        f"{datetime.date.today()}, {ROUNDS} rounds of {SECONDS} s after one of warm-up; {os.cpu_count()} cores, "
        f"{platform.system()} {platform.release()}, PostgreSQL {server}, runtime {os.environ['BENCH_RUNTIME']}."
    ]
    for query in QUERIES:
        lines = {name: [] for name in CONTENDERS}
        rows = [f"| {query} | sessions | ms, median | ms, 99th percentile | queries per second | time, ratio to PL/Python |", "|---|---|---|---|---|---|"]
        for sessions in SESSIONS:
            print(f"==> {query}, {sessions} sessions", file=sys.stderr)
            figures = measure(query, sessions)
            base = [1 / rate for rate, _, _ in figures["PL/Python"]]
            for name, rounds in figures.items():
                rates, medians, tails = zip(*rounds)
                lines[name].append((sessions, rates))
                rows.append(
                    f"| {name} | {sessions} | {spread(medians)} | {spread(tails)} | {spread(rates)} | {ratio([1 / rate for rate in rates], base):.2f} |"
                )
        parts.append("\n".join(rows))
        name = f"small-{query.replace(' ', '-')}"
        plots.lines(name, f"Queries of {query}", "sessions", "queries per second", lines)
        parts.append(f"![](plots/{name}.svg)")
    write_section("small", "\n\n".join(parts))


main()
