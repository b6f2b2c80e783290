"""A thousand rows of the small forest from many sessions, against what the processors allow: their number, divided by the processor time of
the handler and of a backend for one query, each measured alone."""

import importlib.util
import os
import pathlib
import time

import numpy
import psycopg
from paired import spread
from processor import Watch

SESSIONS = 64
ROWS = 1000
CALLS = 100
IMAGE = "bench-overhead:1.0"
COLUMNS = [f"f{i}" for i in range(28)]
CALL = f"SELECT sum(small_forest({', '.join(COLUMNS)})) FROM small_forest_rows"
# What reads the same columns and does next to nothing with them.
BARE = f"SELECT sum({' + '.join(COLUMNS)}) FROM small_forest_rows"


def prepare(connection):
    inputs = ", ".join(f"random() AS {name}" for name in COLUMNS)
    arguments = ", ".join(f"{name} float8" for name in COLUMNS)
    connection.execute("DROP TABLE IF EXISTS small_forest_rows")
    connection.execute(f"CREATE TABLE small_forest_rows AS SELECT {inputs} FROM generate_series(1, {ROWS})")
    connection.execute("VACUUM ANALYZE small_forest_rows")
    connection.execute(f"""CREATE OR REPLACE FUNCTION small_forest({arguments}) RETURNS float8 LANGUAGE container VOLATILE
        AS 'image = "{IMAGE}" function = "forest" first_batch_rows = {ROWS}'""")


def handler_alone(connection):
    """Seconds of processor time of the handler for one query, in this process."""
    path = pathlib.Path(__file__).parents[1] / "overhead/image/handler.py"
    spec = importlib.util.spec_from_file_location("handler", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    columns = numpy.array(connection.execute("TABLE small_forest_rows").fetchall()).T
    module.forest(*columns)
    start = time.process_time()
    for _ in range(CALLS):
        module.forest(*columns)
    return (time.process_time() - start) / CALLS


def alone(connection, query, image=None):
    """Seconds of processor time of one query in the backend and in the container, from one session."""
    for _ in range(20):
        connection.execute(query, prepare=True)
    watch = Watch(connection, image)
    for _ in range(CALLS):
        connection.execute(query, prepare=True).fetchone()
    return [taken / CALLS for taken in watch.taken()]


def measure(latencies, rounds):
    """A table of Markdown. latencies(script, sessions) asks a script from so many sessions: seconds of each query, and queries per second."""
    found = []
    with psycopg.connect("", autocommit=True) as connection:
        prepare(connection)
        for number in range(rounds + 1):
            handler, bare = handler_alone(connection), alone(connection, BARE)[0]
            backend, container = alone(connection, CALL, IMAGE)
            times, rate = latencies(f"{CALL};\n", SESSIONS)
            if number:
                bound = os.cpu_count() / (handler + bare)
                p99 = sorted(times)[len(times) * 99 // 100]
                found.append((handler, bare, container, backend, rate, bound, rate / bound, p99))
        connection.execute("DROP TABLE small_forest_rows")
    titles = [
        ("handler alone, in plain Python, ms of processor time per query", 1e3), ("backend alone, adding the columns up, ms", 1e3),
        ("container, called by one session, ms", 1e3), ("its backend, ms", 1e3), (f"{SESSIONS} sessions, queries/s", 1),
        (f"{os.cpu_count()} cores / (handler + backend, each alone), queries/s", 1), ("of it, reached by the sessions", 1), ("their p99, ms", 1e3),
    ]  # fmt: skip
    lines = [f"| {ROWS:,} rows of the small forest | median [least-most] |", "|---|---|"]
    lines += [f"| {title} | {spread(column, scale)} |" for (title, scale), column in zip(titles, zip(*found))]
    return "\n".join(lines)
