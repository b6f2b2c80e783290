"""What does a container cost a session and a machine: first calls, starts, builds, memory, equal calls?  run.py [ROWS [ROUNDS]]

Sessions are new connections, and contenders take turns. Memory is what the backend has for itself (RssAnon of /proc, which
leaves shared buffers out) at its most, looked at every 2 ms. The results replace the part of bench/README.md between the
markers, and the picture in bench/plots.
"""

import contextlib
import datetime
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import psycopg

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import plots  # noqa: E402
from images import build, build_variant  # noqa: E402
from paired import spread  # noqa: E402
from readme import write_section  # noqa: E402

ROWS = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 5
SESSIONS = 10 * ROUNDS
IMAGE = "bench-overhead:1.0"
SETUP = f"""
CREATE EXTENSION IF NOT EXISTS transship;
CREATE EXTENSION IF NOT EXISTS plpython3u;
CREATE OR REPLACE FUNCTION py_session_call(x float8) RETURNS float8 LANGUAGE plpython3u VOLATILE AS 'return x + 1';
CREATE OR REPLACE FUNCTION session_call(x float8) RETURNS float8 LANGUAGE container VOLATILE AS 'image = "{IMAGE}" function = "add_one"';
CREATE OR REPLACE FUNCTION cheap(x float8) RETURNS float8 LANGUAGE container IMMUTABLE AS 'image = "{IMAGE}" function = "add_one_batch"';
CREATE OR REPLACE FUNCTION cheap_all(x float8) RETURNS float8 LANGUAGE container VOLATILE AS 'image = "{IMAGE}" function = "add_one_batch"';
CREATE OR REPLACE FUNCTION dear(n bigint) RETURNS bigint LANGUAGE container IMMUTABLE AS 'image = "{IMAGE}" function = "largest_prime_factor"';
CREATE OR REPLACE FUNCTION dear_all(n bigint) RETURNS bigint LANGUAGE container VOLATILE AS 'image = "{IMAGE}" function = "largest_prime_factor"';
DROP TABLE IF EXISTS session_rows;
SELECT setseed(0.5);
CREATE TABLE session_rows AS SELECT i::float8 AS x, (random() * 999999)::bigint + 1 AS n FROM generate_series(1, {ROWS}) i;
VACUUM ANALYZE session_rows;
"""


def timed(connection, query):
    start = time.perf_counter()
    connection.execute(query).fetchall()
    return time.perf_counter() - start


# A lease that no query has used for a second ends.
PAUSE_S = 1.2


def after_pauses(queries):
    """Seconds of a query in sessions that have called before, but not lately."""
    times = {name: [] for name in queries}
    with contextlib.ExitStack() as stack:
        sessions = {name: stack.enter_context(psycopg.connect("", autocommit=True, prepare_threshold=None)) for name in queries}
        for name, query in queries.items():
            sessions[name].execute(query)
        for _ in range(2 * ROUNDS):
            time.sleep(PAUSE_S)
            for name, query in queries.items():
                times[name].append(timed(sessions[name], query))
    return times


def first_calls():
    """Milliseconds of a query of one row: a session's first, one of a later transaction, at once and after a pause, one of the same."""
    queries = {
        "container, warm replica": "SELECT session_call(x) FROM (VALUES (1.0::float8)) v (x)",
        "SQL expression": "SELECT x + 1 FROM (VALUES (1.0::float8)) v (x)",
        "PL/Python": "SELECT py_session_call(x) FROM (VALUES (1.0::float8)) v (x)",
    }
    # The replica is warm from here on.
    with psycopg.connect("", autocommit=True) as connection:
        connection.execute(queries["container, warm replica"])
    times = {name: ([], [], []) for name in queries}
    for _ in range(SESSIONS):
        for name, query in queries.items():
            first, later, same = times[name]
            with psycopg.connect("", autocommit=True, prepare_threshold=None) as connection:
                connection.execute("SELECT 1")
                first.append(timed(connection, query))
                later.append(statistics.median(timed(connection, query) for _ in range(5)))
                with connection.transaction():
                    connection.execute(query)
                    same.append(statistics.median(timed(connection, query) for _ in range(5)))
    paused = after_pauses(queries)
    pause = f"of one after {PAUSE_S:g} s without calls, ms"
    lines = [f"| query of one row | first of a session, ms | of a later transaction, ms | {pause} | of the same transaction, ms |"]
    lines.append("|---|---|---|---|---|")
    for name, (first, later, same) in times.items():
        lines.append(f"| {name} | " + " | ".join(spread(column, 1000) for column in (first, later, paused[name], same)) + " |")
    (first, _, same), (bare_first, _, bare_same) = times["container, warm replica"], times["SQL expression"]
    added = [a - b - (c - d) for a, b, c, d in zip(first, bare_first, same, bare_same)]
    over = [a - b for a, b in zip(first, bare_first)]
    lines += [
        "",
        f"A session's first call takes {spread(over, 1000)} ms more than SQL's first query, of which {spread(added, 1000)} ms are not the call itself "
        "(of the same transaction).",
    ]
    return "\n".join(lines)


def round_trips():
    """Milliseconds of a call of one row within a transaction, by transport, without what SQL itself takes."""
    query = "SELECT session_call(x) FROM (VALUES (1.0::float8)) v (x)"
    lines = ["| transport | one row there and back, ms |", "|---|---|"]
    with psycopg.connect("", autocommit=True, prepare_threshold=None) as connection:
        for transport in ("shm", "socket", "flight", "parquet", "json"):
            times = []
            connection.execute(f"SET transship.transport = {transport}")
            with connection.transaction():
                connection.execute(query)
                for _ in range(20 * ROUNDS):
                    bare = timed(connection, "SELECT x + 1 FROM (VALUES (1.0::float8)) v (x)")
                    times.append(timed(connection, query) - bare)
            lines.append(f"| {transport} | {spread(times, 1000)} |")
    return "\n".join(lines)


def cold_starts():
    """Seconds of the first call of an image of which no container runs, and of a container that says what is in it."""
    if os.environ["BENCH_RUNTIME"] != "docker":
        return "Cold starts are measured on Docker."
    cold, bare = [], []
    with psycopg.connect("", autocommit=True) as connection:
        for number in range(ROUNDS):
            source = f"def cold_start(x: float) -> float:\n    return x + {number + time.time()}\n"
            body = f'''template = "python"\nsource = \"\"\"\n{source}\"\"\"\n'''
            connection.execute(f"CREATE OR REPLACE FUNCTION cold_start(x float8) RETURNS float8 LANGUAGE container AS $body${body}$body$")
            cold.append(timed(connection, "SELECT cold_start(x) FROM (VALUES (1.0::float8)) v (x)"))
            images = subprocess.run(["docker", "image", "ls", "--quiet", "transship-inline"], capture_output=True, check=True, text=True)
            start = time.perf_counter()
            subprocess.run(["docker", "run", "--rm", "--network=none", images.stdout.split()[0], "describe"], capture_output=True, check=True)
            bare.append(time.perf_counter() - start)
        connection.execute("DROP FUNCTION cold_start")
    starts = {
        "first call, no container runs": cold,
        "docker run of the same image, which loads the handler and ends": bare,
        "first call of a session, the container is paused": paused_starts(),
        "the same, the container is warm": warm_starts(),
    }
    plots.bars("session-starts", "Starts", list(starts), list(starts.values()))
    lines = ["| start | s |", "|---|---|", *(f"| {name} | {spread(seconds)} |" for name, seconds in starts.items())]
    return "\n".join(lines) + "\n\n![](plots/session-starts.svg)"


PAUSED = "bench-paused"


def warm_starts():
    return [first_call() for _ in range(2 * ROUNDS)]


def paused_starts():
    """Seconds of a call whose container is paused."""
    build_variant(PAUSED, 1, pause=True)
    with psycopg.connect("", autocommit=True) as connection:
        connection.execute(f"""CREATE OR REPLACE FUNCTION paused_call(x float8) RETURNS float8 LANGUAGE container VOLATILE
            AS 'image = "{PAUSED}:1.0" function = "add_one"'""")
        seconds = []
        for _ in range(ROUNDS):
            for _ in range(300):
                states = connection.execute("SELECT state FROM transship.replicas WHERE image = %s", [f"{PAUSED}:1.0"]).fetchall()
                # An image that was built before may have containers, too.
                if states and set(states) == {("paused",)}:
                    break
                time.sleep(0.1)
            else:
                sys.exit(f"the container is not paused: {states}")
            seconds.append(first_call())
    return seconds


def first_call():
    with psycopg.connect("", autocommit=True, prepare_threshold=None) as connection:
        connection.execute("SELECT 1")
        return timed(connection, "SELECT paused_call(x) FROM (VALUES (1.0::float8)) v (x)")


PROJECT = """name = "bench-build"
version = "1.0"
template = "python"
requirements = ['numpy==2.*;{spaces}python_version > "3"']
files = ["model.bin"]
[[functions]]
name = "add_one"
"""


def builds():
    """Seconds to build an image: of a new project, and after a change."""
    if os.environ["BENCH_RUNTIME"] != "docker":
        return "Builds are measured on Docker."
    times = {"new project, packages are installed": [], "changed handler": [], "changed model of 1 MB": [], "nothing changed": []}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)

        def write(path, data):
            (folder / path).write_bytes(data)

        for _ in range(max(ROUNDS // 2, 1)):
            # A requirement that no cache knows, and that changes nothing.
            write("transship.toml", PROJECT.replace("{spaces}", " " * random.randrange(1, 1_000)).encode())
            write("handler.py", f"# {time.time_ns()}\ndef add_one(x: float) -> float:\n    return x + 1\n".encode())
            write("model.bin", os.urandom(1 << 20))
            changes = {"changed handler": ("handler.py", b"def add_one(x: float) -> float:\n    return 1 + x\n# %d" % time.time_ns()),
                       "changed model of 1 MB": ("model.bin", os.urandom(1 << 20))}  # fmt: skip
            for change, seconds in times.items():
                if change in changes:
                    write(*changes[change])
                start = time.perf_counter()
                build(folder)
                seconds.append(time.perf_counter() - start)
    lines = ["| build | s |", "|---|---|"]
    return "\n".join(lines + [f"| {change} | {spread(seconds)} |" for change, seconds in times.items()])


def containers():
    """Size of images, and memory of idle containers."""
    if os.environ["BENCH_RUNTIME"] != "docker":
        return "Containers are measured on Docker."
    # An image of its own, of the template as it is.
    source = f"def small(x: float) -> float:\n    return x + 1\n# {time.time()}\n"
    with psycopg.connect("", autocommit=True) as connection:
        connection.execute(f"""CREATE OR REPLACE FUNCTION small(x float8) RETURNS float8 LANGUAGE container AS
            $body$template = "python" source = '''\n{source}'''$body$""")
        lines = ["| container | image, MB | resident, MB | of it private, MB |", "|---|---|---|---|"]
        for name, query in {
            "Python, no packages": "SELECT small(x) FROM (VALUES (1.0::float8)) v (x)",
            "Python with scikit-learn and both forests": "SELECT session_call(x) FROM (VALUES (1.0::float8)) v (x)",
        }.items():
            connection.execute(query)
            function = query.split()[1].split("(")[0]
            (digest,) = connection.execute("SELECT digest FROM transship.functions WHERE name = %s", [function]).fetchone()
            size = int(docker("image", "inspect", "--format={{.Size}}", digest)) / 1e6
            container = docker("ps", "--quiet", f"--filter=ancestor={digest}").split()[0]
            # The largest process: the first may be a small one that only waits for the others.
            processes = docker("top", container, "-eo", "pid").split()[1:]
            sizes = max(map(memory_of, processes), key=lambda sizes: sizes["Rss:"])
            private = sizes["Private_Dirty:"] + sizes["Private_Clean:"]
            lines.append(f"| {name} | {size:.0f} | {sizes['Rss:']:.1f} | {private:.1f} |")
        connection.execute("DROP FUNCTION small")
    return "\n".join(lines)


def memory_of(pid):
    """Kinds of memory of a process, in MB."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return {line.split()[0]: int(line.split()[1]) / 1024 for line in file if line.endswith("kB\n")}


def docker(*words):
    return subprocess.run(["docker", *words], check=True, capture_output=True, text=True).stdout.strip()


def resident(pid, what):
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(what + ":")) / 1024


def peak_of(query):
    """The most memory of its own that a backend has while it runs a query, in MB more than before its first."""
    with psycopg.connect("", autocommit=True) as connection:
        connection.execute("SET max_parallel_workers_per_gather = 0")
        before = resident(connection.info.backend_pid, "RssAnon")
        peak, is_done = before, threading.Event()

        def watch():
            nonlocal peak
            while not is_done.wait(0.002):
                peak = max(peak, resident(connection.info.backend_pid, "RssAnon"))

        watcher = threading.Thread(target=watch)
        watcher.start()
        connection.execute(query).fetchall()
        is_done.set()
        watcher.join()
        return peak - before


def memory():
    lines = ["| rows | backend's memory at its most, MB |", "|---|---|"]
    for rows in (ROWS // 10, ROWS, 10 * ROWS):
        # Repeated rows are as many; none of a VOLATILE function's are spared.
        query = f"SELECT sum(cheap_all(x + k)) FROM session_rows, generate_series(1, {max(rows // ROWS, 1)}) k WHERE x <= {rows}"
        lines.append(f"| {rows:,} | {spread([peak_of(query) for _ in range(3)])} |")
    return "\n".join(lines)


def duplicates():
    """Seconds with equal calls sent once and with all sent, of a cheap function and of a dear one."""
    lines = ["| function | distinct arguments | all calls sent, s | equal ones once, s | ratio |", "|---|---|---|---|---|"]
    for title, once, argument in [("x + 1, handler per batch", "cheap", "x"), ("largest prime factor", "dear", "n")]:
        for distinct in (10, 1000, None):
            taken = f"mod({argument}::bigint, {distinct})::{'float8' if argument == 'x' else 'bigint'}" if distinct else argument
            rows = ROWS if once == "cheap" else ROWS // 10
            queries = [f"SELECT sum({name}({taken})) FROM session_rows WHERE x <= {rows}" for name in (f"{once}_all", once)]
            times = [[], []]
            with psycopg.connect("", autocommit=True) as connection:
                connection.execute("SET max_parallel_workers_per_gather = 0")
                for number in range(ROUNDS + 1):
                    for place, query in enumerate(queries):
                        seconds = timed(connection, query)
                        if number:
                            times[place].append(seconds)
                results = {connection.execute(query).fetchone()[0] for query in queries}
            if len(results) > 1:
                sys.exit(f"{title}: {results}")
            ratio = statistics.median(own / base for base, own in zip(*times))
            lines.append(f"| {title} | {distinct or rows:,} | {spread(times[0])} | {spread(times[1])} | {ratio:.2f} |")
    return "\n".join(lines)


def main():
    with psycopg.connect("", autocommit=True) as connection:
        for statement in SETUP.split(";\n"):
            if statement.strip():
                connection.execute(statement)
    head = (
        f"{datetime.date.today()}, {ROWS:,} rows, {ROUNDS} rounds, {SESSIONS} sessions; {os.cpu_count()} cores, "
        f"runtime {os.environ['BENCH_RUNTIME']}. Medians, with the least and the most."
    )
    parts = [head]
    for title, measure in [
        ("First calls", first_calls), ("Round trips", round_trips), ("Starts", cold_starts), ("Builds", builds), ("Containers", containers), ("Memory", memory),
        ("Equal calls", duplicates),
    ]:  # fmt: skip
        print(f"==> {title}", file=sys.stderr)
        parts.append(f"### {title}\n\n{measure()}")
    text = "\n\n".join(parts)
    print(text)
    write_section("session", text)


if __name__ == "__main__":
    main()
