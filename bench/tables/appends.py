"""Appends, and what readers see of them meanwhile: each query sees all rows up to one, and never fewer than the one before."""

import glob
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

import psycopg
from sessions import PGBENCH, connect, segments_of, unshare

READERS = 8
ROWS = 10
# Rows that there are before: scans take about as long at the end as at the beginning.
FIRST = 50_000
LARGE = 1_000_000
# Rows are numbered as they are appended. Division by zero ends a reader, and with it the benchmark.
SCAN = """SELECT count(*) / (count(*) >= :seen AND count(*) = max(number) AND sum(number) = count(*) * (count(*) + 1) / 2)::int AS seen
  FROM tables_appended
\\gset
"""
READ = "SELECT 1 / (count(*) = 1)::int FROM tables_appended WHERE number = :seen;\n"


class Readers:
    """pgbench with one session each, which scan the table and read its newest key in turn."""

    def __init__(self):
        self.log = []

    def run(self, seconds):
        with tempfile.TemporaryDirectory() as folder:
            command = [PGBENCH, "--no-vacuum", "--protocol=prepared", f"--client={READERS}", "--jobs=1", f"--time={seconds}"]
            command.append(f"--define=seen={FIRST}")
            for name, script in [("scan", SCAN), ("read", READ)]:
                path = pathlib.Path(folder, name)
                path.write_text(script)
                command.append(f"--file={path}")
            done = subprocess.run([*command, "--log", f"--log-prefix={folder}/log"], capture_output=True, text=True)
            if done.returncode or "number of failed transactions: 0 " not in done.stdout:
                sys.exit(f"a reader saw a hole, or failed: {done.stdout}{done.stderr}")
            for path in glob.glob(f"{folder}/log*"):
                for line in open(path):
                    _, _, taken, script, second, micros = line.split()[:6]
                    self.log.append((int(script), int(taken) / 1e6, int(second) + int(micros) / 1e6))

    def seconds(self, script, before=float("inf")):
        """Seconds of each query of one script, sorted, of those that ended before a time."""
        return sorted(taken for number, taken, end in self.log if number == script and end <= before)


def rows_from(first, count):
    return f"SELECT i AS number, i AS a, ''more '' || i AS t FROM generate_series({first}, {first + count - 1}::bigint) i"


def append(connection, name, first, count):
    connection.execute(f"SELECT transship.append('{name}', '{rows_from(first, count)}')")


def start(connection, name):
    unshare(connection, name)
    connection.execute(f"SELECT transship.share('{name}', '{rows_from(1, FIRST)}', 'number')")


def rate(connection, count, rows):
    """Rows per second of so many appends."""
    start(connection, "tables_appended")
    begin = time.perf_counter()
    for number in range(count):
        append(connection, "tables_appended", FIRST + 1 + number * rows, rows)
    return count * rows / (time.perf_counter() - begin)


def against_readers(connection, appends):
    """Seconds of each append, the readers' log, and when the last append had ended."""
    start(connection, "tables_appended")
    taken, failures, ended = [], [], []

    def append_all():
        try:
            with connect() as appender:
                for number in range(appends):
                    begin = time.perf_counter()
                    append(appender, "tables_appended", FIRST + 1 + number * ROWS, ROWS)
                    taken.append(time.perf_counter() - begin)
        except psycopg.Error as failure:
            failures.append(failure)
        ended.append(time.time())

    thread, meanwhile = threading.Thread(target=append_all), Readers()
    thread.start()
    while thread.is_alive():
        meanwhile.run(2)
    if failures:
        sys.exit(f"an append failed: {failures[0]}")
    return taken, meanwhile, ended[0]


def median_and_p99(seconds):
    seconds = sorted(seconds)
    return f"{seconds[len(seconds) // 2] * 1e3:.3g} | {seconds[len(seconds) * 99 // 100] * 1e3:.3g}"


def measure(connection, options):
    """Rates of appends, and a table of Markdown with latencies."""
    small, large = rate(connection, options.appends // 5, 1000), rate(connection, 1, LARGE)
    taken, meanwhile, end = against_readers(connection, options.appends)
    segments = segments_of(connection, "tables_appended")
    rows, last = connection.execute("SELECT count(*), max(number) FROM tables_appended").fetchone()
    if rows != last or rows != FIRST + options.appends * ROWS:
        sys.exit(f"{rows} rows after {options.appends} appends of {ROWS}, the last of them {last}")
    alone = Readers()
    alone.run(2)
    alone_append = []
    for number in range(options.appends // 5):
        begin = time.perf_counter()
        append(connection, "tables_appended", last + 1 + number * ROWS, ROWS)
        alone_append.append(time.perf_counter() - begin)
    unshare(connection, "tables_appended")
    reads, scans = meanwhile.seconds(1, end), meanwhile.seconds(0, end)
    lines = [
        f"Alone, appends of 1,000 rows write {small:,.0f} rows per second; one of {LARGE:,} rows writes {large:,.0f}.",
        "",
        f"| {options.appends:,} appends of {ROWS} rows against {READERS} readers | alone, median, ms | p99, ms | together, median, ms | p99, ms |",
        "|---|---|---|---|---|",
        f"| append | {median_and_p99(alone_append)} | {median_and_p99(taken)} |",
        f"| read by key, of the newest row that the session has seen | {median_and_p99(alone.seconds(1))} | {median_and_p99(reads)} |",
        f"| scan of all rows | {median_and_p99(alone.seconds(0))} | {median_and_p99(scans)} |",
        "",
        f"{len(reads) + len(scans):,} queries while rows were appended saw a prefix of them, and no session saw fewer than before. "
        f"{segments} segments afterwards.",
    ]
    return "\n".join(lines)
