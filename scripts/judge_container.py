"""Judges a container of the conformance suite in what needs another client than the engines': judge_container.py IMAGE

A Flight client that sends no metadata (RisingWave's) is told of an error by a status, never by a reply that is short
(docs/protocol.md §4). A container that is asked to end while it answers a call gives the answer and ends in good order (§8).
"""

import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time

import pyarrow
import pyarrow.flight

LOCKS = "--network=none --read-only --tmpfs=/tmp --cap-drop=ALL --security-opt=no-new-privileges --user=65534:65534 --pids-limit=128".split()


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=30)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def docker(*words):
    return subprocess.run(["docker", *words], check=True, capture_output=True, text=True).stdout.strip()


def ask(path, method, place, body=None):
    connection = UnixConnection(path)
    connection.request(method, place, body)
    response = connection.getresponse()
    return response.status, json.loads(response.read())


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
                    writer.begin(schema)
                    writer.write_batch(batch)
                    writer.done_writing()
                    found = reader.read_all()
            sys.exit(f"{image} ended a failed exchange of {name} as if all were well: {found}")
        except (pyarrow.flight.FlightError, pyarrow.ArrowException, KeyError) as error:
            # The words of the handler or of the server, not the connection's.
            if expected not in str(error):
                sys.exit(f"{image} failed {name} with {error!r}")


def main(image):
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        path = f"{folder}/http.sock"
        volume, variable = f"--volume={folder}:/run/transship", "--env=TRANSSHIP_SOCKET_DIR=/run/transship"
        container = docker("run", "--detach", *LOCKS, volume, variable, image)
        try:
            deadline = time.monotonic() + 60
            while True:
                try:
                    greeting = ask(path, "GET", "/v1")[1]
                    break
                except OSError:
                    if time.monotonic() > deadline:
                        sys.exit(f"{image} does not answer")
                    time.sleep(0.1)
            if "flight" in greeting.get("transports", ["flight"]):
                fail_without_metadata(image, f"grpc+unix://{folder}/flight.sock")
            answers = []
            body = json.dumps({"batch": 0, "rows": 1, "columns": [[1.0]]})
            call = threading.Thread(target=lambda: answers.append(ask(path, "POST", "/v1/functions/wait", body)))
            call.start()
            time.sleep(0.3)
            # Docker kills what does not end in time.
            docker("stop", "--time", "15", container)
            call.join()
            status = docker("inspect", "--format", "{{.State.ExitCode}}", container)
            # 143 is 128 and SIGTERM's number: a JVM says so however well it ended.
            if not answers or answers[0][0] != 200 or answers[0][1]["columns"] != [[1.0]] or status not in ("0", "143"):
                sys.exit(f"{image} ended with status {status} and answered {answers}")
        finally:
            docker("rm", "--force", container)


main(sys.argv[1])
