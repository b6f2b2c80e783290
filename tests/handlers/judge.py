"""Judges what a template makes of handlers that misbehave, in a container: judge.py TEMPLATE

The image handlers-TEMPLATE:1.0 is built of the folder beside this file. A wrong result, an exception without words, an end of the process, a
call that waits beside others, and a loop without end: each is an error of its row or one clear end, and the next call works.
"""

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import time

import pyarrow as pa
import pyarrow.flight as flight

# Of `waits`, where calls may wait beside each other.
CONCURRENCY = 5
# Calls of a client that goes away: far more than are begun before that is noticed.
ABANDONED = 1000
LOCKS = "--network=none --read-only --tmpfs=/tmp --cap-drop=ALL --security-opt=no-new-privileges --user=65534:65534 --pids-limit=128".split()


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def docker(*words, timeout=None):
    return subprocess.run(["docker", *words], check=True, capture_output=True, text=True, timeout=timeout).stdout.strip()


def send(path, function, values, **more):
    connection = UnixConnection(path)
    columns = [] if values is None else [values]
    body = {"batch": 0, "rows": 1 if values is None else len(values), "columns": columns, **more}
    connection.request("POST", f"/v1/functions/{function}", json.dumps(body))
    return connection


def ask(path, function, values=None, **more):
    answer = json.loads(send(path, function, values, **more).getresponse().read())
    return answer.get("columns", answer.get("error"))


def check(what, found, *expected):
    if found not in expected:
        sys.exit(f"{what}: {found}, not {' or '.join(map(str, expected))}")


@contextlib.contextmanager
def container(template):
    """A replica, whose manifest says how many calls may wait."""
    image = f"handlers-{template}:1.0"
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        manifest = json.loads(docker("run", "--rm", "--entrypoint", "cat", image, "/opt/transship/manifest.json"))
        for function in manifest["functions"]:
            if function["name"] == "waits":
                function["concurrency"] = CONCURRENCY
        with open(f"{folder}/manifest.json", "w") as file:
            json.dump(manifest, file)
        volumes = [f"--volume={folder}:/run/transship", f"--volume={folder}/manifest.json:/opt/transship/manifest.json:ro"]
        found = docker("run", "--detach", *LOCKS, *volumes, "--env=TRANSSHIP_SOCKET_DIR=/run/transship", image)
        try:
            path, deadline = f"{folder}/http.sock", time.monotonic() + 60
            while True:
                with contextlib.suppress(OSError):
                    ask(path, "count")
                    break
                if time.monotonic() > deadline:
                    sys.exit(f"{image} does not answer: {docker('logs', found)}")
                time.sleep(0.1)
            yield path, found
        finally:
            docker("rm", "--force", found)


def wait_for_line(found, line):
    """Waits until a handler has written a line, which the container's log has."""
    deadline = time.monotonic() + 60
    while True:
        logs = subprocess.run(["docker", "logs", found], check=True, capture_output=True, text=True)
        if line in logs.stdout + logs.stderr:
            return
        if time.monotonic() > deadline:
            sys.exit(f"no handler has written {line!r}: {logs.stderr}")
        time.sleep(0.1)


def status_of(found):
    """The exit status, once the container has ended."""
    return int(docker("wait", found, timeout=60))


def map_rows(path, function, batches):
    """The results of a map function, in ascending order."""
    schema = pa.schema([("x", pa.int64())])
    with flight.connect(f"grpc+unix://{path}", generic_options=[("grpc.default_authority", "localhost")]) as client:
        writer, reader = client.do_exchange(flight.FlightDescriptor.for_path(function))
        with writer:
            writer.begin(schema)
            for values in batches:
                writer.write_batch(pa.RecordBatch.from_arrays([pa.array(values, pa.int64())], schema=schema))
                # The thread that takes rows waits for some.
                time.sleep(0.005)
            writer.done_writing()
            return sorted(reader.read_all()[0].to_pylist())


def judge_threads(path):
    """A map function takes rows on threads of its own."""
    batches = [range(100 * number, 100 * number + 100) for number in range(20)]
    for _ in range(5):
        check("rows that are taken in parallel", map_rows(path, "in_parallel", batches), list(range(1, 2001)))
        check("rows that are taken after the end", map_rows(path, "leaves", batches), [1])
    pairs = [[2 * number, 2 * number + 1] for number in range(30)]
    for function in ("triples", "pumped_triples"):
        check("results that ask for rows", map_rows(path, function, pairs), [[row, row + 1, row + 2] for row in range(0, 60, 3)])


def judge(template):
    with container(template) as (path, found):
        check("a wrong result", {key: ask(path, "wrong_type", [1, 2, 3]).get(key) for key in ("kind", "row")}, {"kind": "bad_result", "row": 1})
        # What the language would make NULL of.
        if name := {"node": "no_json", "r": "no_integer"}.get(template):
            check("a value that is not of the type", {key: ask(path, name, [1, 2, 3]).get(key) for key in ("kind", "row")}, {"kind": "bad_result", "row": 1})
        if template == "r":
            for name, value in [("same_day", "-0043-03-15"), ("same_day", "+10000-01-01"), ("same_moment", "-0043-03-15T00:00:00.000000")]:
                check(f"a value that R lacks, {value}", {key: ask(path, name, [None, value]).get(key) for key in ("kind", "row")}, {"kind": "out_of_range", "row": 1})
        error = ask(path, "throws", [1, 2, 3])
        # R leaves the batch, and not the row.
        check("an exception without words", (error["kind"], error.get("row")), ("user_code", None if template == "r" else 1))
        check("a call after it", ask(path, "right", [1, 2, 3]), [[1, 2, 3]])
        error = ask(path, "waits", list(range(8)))
        check("the first of two rows that fail", (error["kind"], error["row"]), ("user_code", 3))
        values, errors = ask(path, "waits", list(range(8)), row_errors="again")
        check("results beside errors of rows", values, [0, 1, 2, None, 4, None, 6, 7])
        check("rows that have errors", [row for row, error in enumerate(errors) if error], [3, 5])
        if template == "node":
            # A few bytes may say any number of rows, if those have no arguments: there is no room for the results of all.
            send(path, "count", None, rows=2**31 - 1).close()
            time.sleep(1)
            check("a call after one of countless rows", ask(path, "right", [1]), [[1]])
        if template == "csharp":
            judge_threads(path.replace("http.sock", "flight.sock"))
        # The client goes away in the midst of it.
        begun = ask(path, "count")[0][0]
        connection = send(path, "waits", list(range(100, 100 + ABANDONED)))
        wait_for_line(found, "the call of 100 has begun")
        connection.close()
        counts = [ask(path, "count")[0][0]]
        # A busy machine may take a while to notice that the client has gone.
        while len(counts) < 2 or (counts[-1] != counts[-2] and len(counts) < 30):
            time.sleep(1)
            counts.append(ask(path, "count")[0][0])
        if not begun < counts[-1] < begun + ABANDONED:
            sys.exit(f"{counts[-1] - begun} of {ABANDONED} calls were begun for a client that has gone")
    with container(template) as (path, found):
        with contextlib.suppress(OSError, http.client.HTTPException):
            ask(path, "exits", [1])
        check("the status of a handler's own end", status_of(found), 3)
    # C# has other threads.
    if template != "csharp":
        with container(template) as (path, found):
            connection = send(path, "loops", [1])
            wait_for_line(found, "the loop has begun")
            connection.close()
            waiting = send(path, "right", [1])
            check("the status of a process that is stuck", status_of(found), 1)
            waiting.close()


judge(sys.argv[1])
