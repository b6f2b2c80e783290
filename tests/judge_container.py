"""Judges a container of the conformance suite in what needs another client than the engines': judge_container.py IMAGE

A Flight client that sends no metadata (RisingWave's) is told of an error by a status, never by a reply that is short
(docs/protocol.md §4), and so is one that reads late (§5). That a client closes its connection while calls wait on it is noticed: nobody computes them to
their end (§7). Columns in segments that no client of ours would send are refused (hostile_columns.py). Calls that take long keep neither
others waiting nor whoever asks for the greeting. A container that is asked to end while it answers a call gives the answer and ends in
good order (§8).
"""

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time

import hostile_columns
import pyarrow
import pyarrow.flight
from hostile_columns import UnixConnection

COLUMNS = "application/vnd.transship.columns"
# Calls that take long, and how long.
LONG_CALLS, LONG_S = 24, 15.0
# Servers that do not say when a call begins have so long to read it.
READ_S = 3.0
LOCKS = "--network=none --read-only --tmpfs=/tmp --cap-drop=ALL --security-opt=no-new-privileges --user=65534:65534 --pids-limit=128".split()


def docker(*words):
    return subprocess.run(["docker", *words], check=True, capture_output=True, text=True).stdout.strip()


def ask(path, method, place, body=None):
    connection = UnixConnection(path)
    connection.request(method, place, body)
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def greeting_of(folder):
    """What a server says of itself, once it listens wherever it says that it does; None before."""
    try:
        greeting = ask(f"{folder}/http.sock", "GET", "/v1")[1]
        if "flight" in greeting.get("transports", ["flight"]):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(f"{folder}/flight.sock")
        return greeting
    except OSError:
        return None


def fail_without_metadata(image, location):
    schema = pyarrow.schema([("", pyarrow.int64())])
    batch = pyarrow.RecordBatch.from_arrays([pyarrow.array([1, 13])], schema=schema)
    for name in ("fail_at", "no_such_function"):
        expected = "13 is bad" if name == "fail_at" else name
        try:
            # The path of a socket, which gRPC would send, is no authority to servers that look at it.
            options = [("grpc.default_authority", "localhost")]
            with pyarrow.flight.connect(location, generic_options=options) as client:
                writer, reader = client.do_exchange(pyarrow.flight.FlightDescriptor.for_path(name))
                with writer:
                    # A server that has ended the exchange takes no more; why it did is read.
                    with contextlib.suppress(OSError):
                        writer.begin(schema)
                        writer.write_batch(batch)
                        writer.done_writing()
                    found = reader.read_all()
            sys.exit(f"{image} ended a failed exchange of {name} as if all were well: {found}")
        except (pyarrow.flight.FlightError, pyarrow.ArrowException, KeyError) as error:
            # The words of the handler or of the server, not the connection's.
            if expected not in str(error):
                sys.exit(f"{image} failed {name} with {error!r}")


def fail_while_sending(image, location):
    """Sends batches behind one that fails, and reads once all are sent. Arrow's client drops what it has not read when a write fails."""
    schema = pyarrow.schema([("", pyarrow.int64())])
    for _ in range(50):
        found = []
        try:
            with pyarrow.flight.connect(location, generic_options=[("grpc.default_authority", "localhost")]) as client:
                writer, reader = client.do_exchange(pyarrow.flight.FlightDescriptor.for_path("fail_at"))
                with writer:
                    writer.begin(schema)
                    for number, values in enumerate(([1, 2], [3, 13], [4], [5], [6])):
                        batch = pyarrow.RecordBatch.from_arrays([pyarrow.array(values)], schema=schema)
                        writer.write_with_metadata(batch, json.dumps({"batch": number}).encode())
                        time.sleep(0.001)
                    writer.done_writing()
                    found = list(reader)
            sys.exit(f"{image} ended a failed exchange as if all were well: {found}")
        except (pyarrow.flight.FlightError, pyarrow.ArrowException) as error:
            if "13 is bad" not in str(error):
                sys.exit(f"{image} failed an exchange with {error!r}")


def hang_up(path):
    """Sends two batches that would take 100 seconds each, columns in memory, and closes the connection during the first."""
    rows = 20_000
    header = json.dumps({"batch": 0, "rows": rows, "buffers": [0, 0, 0, 8 * rows]}).encode()
    body = struct.pack("<I", len(header)) + header + bytes(-(4 + len(header)) % 8) + struct.pack("<d", 0.005) * rows
    head = f"POST /v1/functions/wait HTTP/1.1\r\nHost: localhost\r\nContent-Type: {COLUMNS}\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.settimeout(1)
        with contextlib.suppress(TimeoutError):
            # The second may have to wait for room.
            connection.sendall((head.encode() + body) * 2)
            time.sleep(1)
    time.sleep(3)


def rows_waited(path):
    """The calls of `wait` that have begun; None where there is no function that says so."""
    status, answer = ask(path, "POST", "/v1/functions/rows_waited", json.dumps({"batch": 0, "rows": 1, "columns": []}))
    return int(answer["columns"][0][0]) if status == 200 else None


def wait_until_begun(path, count):
    """Waits until so many calls of `wait` have begun, at most a third of LONG_S: a server may run fewer at a time."""
    if count is None:
        time.sleep(READ_S)
        return
    deadline = time.monotonic() + LONG_S / 3
    while rows_waited(path) < count and time.monotonic() < deadline:
        time.sleep(0.05)


def answer_beside_long_calls(image, path, has_one_thread):
    """Asks for the greeting and for a short call while many calls wait. R runs one call at a time: there it is the greeting alone, beside
    two calls."""
    connections = [UnixConnection(path) for _ in range(2 if has_one_thread else LONG_CALLS)]
    begun = rows_waited(path)
    start = time.monotonic()
    for connection in connections:
        connection.request("POST", "/v1/functions/wait", json.dumps({"batch": 0, "rows": 1, "columns": [[LONG_S]]}))
    wait_until_begun(path, None if begun is None else begun + LONG_CALLS)
    ask(path, "GET", "/v1")
    if has_one_thread:
        status, answer = 200, {"columns": [[3]]}
    else:
        status, answer = ask(path, "POST", "/v1/functions/add", json.dumps({"batch": 0, "rows": 1, "columns": [[1], [2]]}))
    seconds = time.monotonic() - start
    if (status, answer.get("columns")) != (200, [[3]]) or seconds > LONG_S:
        sys.exit(f"{image} answered {status} {answer} to a short call, {seconds:.1f} s after it began {LONG_CALLS} of {LONG_S} s")
    for connection in connections:
        if connection.getresponse().status != 200:
            sys.exit(f"{image} failed a long call beside others")


def seconds_to_end(container):
    """The time from the signal to a stopped container's end, by the engine's clock: on a busy machine its commands take long."""
    words = ["--filter", f"container={container}", "--format", "{{.Action}} {{.TimeNano}}", "--since=10m", f"--until={time.time():.9f}"]
    times = dict(reversed([line.split() for line in docker("events", *words).splitlines()]))
    return (int(times["die"]) - int(times["kill"])) / 1e9


def main(image):
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory(dir="/dev/shm") as segments:
        os.chmod(folder, 0o777)
        os.chmod(segments, 0o755)
        path = f"{folder}/http.sock"
        volumes = [f"--volume={folder}:/run/transship", f"--volume={segments}:/run/segments"]
        variables = ["--env=TRANSSHIP_SOCKET_DIR=/run/transship", "--env=TRANSSHIP_SEGMENT_DIR=/run/segments"]
        container = docker("run", "--detach", *LOCKS, *volumes, *variables, image)
        try:
            deadline = time.monotonic() + 60
            while (greeting := greeting_of(folder)) is None:
                if time.monotonic() > deadline:
                    sys.exit(f"{image} does not answer")
                time.sleep(0.1)
            if "flight" in greeting.get("transports", ["flight"]):
                fail_without_metadata(image, f"grpc+unix://{folder}/flight.sock")
                fail_while_sending(image, f"grpc+unix://{folder}/flight.sock")
            # Without pipelining there are none.
            if "socket" in greeting.get("transports", []) and greeting.get("pipelining", True):
                hang_up(path)
            hostile_columns.judge(image, path, segments)
            # Others have few processes or threads, each with a connection.
            if greeting.get("keep_alive"):
                answer_beside_long_calls(image, path, greeting["server"].startswith("transship-r/"))
            connection = UnixConnection(path)
            begun = rows_waited(path)
            waits_s = 2.0 if begun is not None else READ_S + 1
            body = json.dumps({"batch": 0, "rows": 1, "columns": [[waits_s]]})
            connection.request("POST", "/v1/functions/wait", body)
            wait_until_begun(path, None if begun is None else begun + 1)
            # Docker kills what does not end in time. Servers give what runs ten seconds.
            docker("stop", "--time", "30", container)
            response = connection.getresponse()
            answer = response.status, json.loads(response.read()).get("columns")
            status = docker("inspect", "--format", "{{.State.ExitCode}}", container)
            # 143 is 128 and SIGTERM's number: a JVM says so however well it ended.
            if answer != (200, [[waits_s]]) or status not in ("0", "143"):
                sys.exit(f"{image} ended with status {status} and answered {answer}")
            seconds = seconds_to_end(container)
            if seconds > 8:
                sys.exit(f"{image} took {seconds:.1f} s to end: it goes on with calls whose client has gone")
        finally:
            docker("rm", "--force", container)


main(sys.argv[1])
