"""The manager is killed while queries look keys up in their container, and started again at once: what the queries say, and when new
sessions are answered again. It is a manager of its own, in folders of its own."""

import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import psycopg
from sessions import ROOT, connect, unshare

BUILD = ROOT / "target/release"
AT_A_TIME = 20
ROWS = 5000
KEYS = 1000
# A quarter of the queries have been answered when it is killed.
BEFORE = 4
PATIENCE_S = 60
QUERY = f"SELECT sum(tables_recovered(i % {KEYS} + 1)) FROM generate_series(1, {ROWS}::bigint) i"
EXPECTED = sum(i % KEYS + 2 for i in range(1, ROWS + 1))
FUNCTION = """CREATE OR REPLACE FUNCTION tables_recovered(k bigint) RETURNS bigint LANGUAGE container STABLE COST 1000
    AS 'image = "bench-tables:1.0" function = "plus_one_of" tables = ["tables_shared"]'"""


class Manager:
    """A manager in a folder with a short path, which is killed by its process id."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tsb", dir="/tmp"))
        # Replicas of the process runtime pass through it.
        self.folder.chmod(0o711)
        self.socket = self.folder / "m.sock"
        places = {"SOCKET": self.socket, "STATE_DIR": self.folder / "state", "RUN_DIR": self.folder / "r"}
        self.environment = os.environ | {f"TRANSSHIP_{name}": str(path) for name, path in places.items()}

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(timeout=60)
        shutil.rmtree(self.folder)

    def start(self):
        user = "postgres" if os.getuid() == 0 else str(os.getuid())
        with open(self.folder / "log", "a") as log:
            command = [BUILD / "transshipd", "--allow-user", user]
            self.process = subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def run(self, *words):
        return subprocess.run([BUILD / "transship", *words], env=self.environment, capture_output=True, text=True)

    def wait(self):
        deadline = time.monotonic() + PATIENCE_S
        while self.run("ps").returncode:
            if time.monotonic() > deadline or self.process.poll() is not None:
                sys.exit(f"the manager does not answer: {(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.05)

    def build(self, project):
        done = self.run("build", str(project))
        if done.returncode:
            sys.exit(f"{project} cannot be built: {done.stderr}")

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def session(manager):
    connection = connect()
    connection.execute("SELECT set_config('transship.manager_socket', %s, false)", (str(manager.socket),))
    return connection


def one_round(manager, queries):
    """How many queries were answered, how many could not reach the manager, and seconds from the kill to the next answer and to the
    first of a session that began afterwards."""
    lock, answered, refused, failures = threading.Lock(), [], [], []
    waiting = iter(range(queries))
    is_time = threading.Event()

    def work():
        while True:
            with lock:
                if failures or next(waiting, None) is None:
                    return
            try:
                # Each needs a lease.
                with session(manager) as connection:
                    (total,) = connection.execute(QUERY).fetchone()
                with lock:
                    answered.append(time.perf_counter())
                    if total != EXPECTED:
                        failures.append(f"{total}, not {EXPECTED}")
                    if len(answered) >= queries // BEFORE:
                        is_time.set()
            except psycopg.OperationalError as error:
                with lock:
                    if error.sqlstate == "08006" and error.diag.message_primary.startswith("could not reach the container manager"):
                        refused.append(error)
                    else:
                        failures.append(f"{error.sqlstate}: {error}")
                # Whoever is refused asks again later.
                time.sleep(0.01)
            except psycopg.Error as error:
                with lock:
                    failures.append(f"{error.sqlstate}: {error}")

    threads = [threading.Thread(target=work, daemon=True) for _ in range(AT_A_TIME)]
    for thread in threads:
        thread.start()
    is_time.wait(PATIENCE_S)
    killed = time.perf_counter()
    manager.kill()
    manager.start()
    new = first_answer(manager) - killed
    for thread in threads:
        thread.join(PATIENCE_S)
        if thread.is_alive():
            failures.append("a query hangs")
    if failures or len(answered) + len(refused) != queries:
        sys.exit(f"of {queries} queries {len(answered)} were answered, {len(refused)} refused: {failures[:3]}")
    manager.wait()
    after = [moment for moment in answered if moment > killed]
    return len(answered), len(refused), (min(after) - killed if after else new), new


def first_answer(manager):
    """When a new session is answered, which asks until it is."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            with session(manager) as connection:
                if connection.execute(QUERY).fetchone()[0] == EXPECTED:
                    return time.perf_counter()
                sys.exit("a wrong answer after the kill")
        except psycopg.OperationalError:
            time.sleep(0.005)
    sys.exit("no answer after the kill")


def measure(connection, options):
    """A sentence on each kill of the manager."""
    unshare(connection, "tables_shared")
    connection.execute(f"SELECT transship.share('tables_shared', 'SELECT i AS k, i AS a FROM generate_series(1, {KEYS}::bigint) i', 'k')")
    with Manager() as manager:
        manager.wait()
        manager.build(ROOT / "bench/tables/image")
        with session(manager) as own:
            own.execute(FUNCTION)
            own.execute(QUERY)
        rounds = [one_round(manager, options.queries) for _ in range(options.rounds)]
        connection.execute("DROP FUNCTION tables_recovered(bigint)")
    unshare(connection, "tables_shared")
    lines = [f"| {options.rounds} kills, each during {options.queries} queries, {AT_A_TIME} at a time | median | least | most |", "|---|---|---|---|"]
    titles = [
        ("answered rightly", 1, ".0f"), ("could not reach the manager, and said so", 1, ".0f"),
        ("from the kill to the next answer, ms", 1e3, ".0f"), ("from the kill to the first answer of a new session, ms", 1e3, ".0f"),
    ]  # fmt: skip
    for (title, scale, form), values in zip(titles, zip(*rounds)):
        values = [value * scale for value in values]
        lines.append(f"| {title} | " + " | ".join(f"{value:{form}}" for value in (statistics.median(values), min(values), max(values))) + " |")
    return "\n".join(lines)
