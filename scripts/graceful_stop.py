"""Asks a container of the conformance suite to end while it answers a call, and expects the answer and an end in good order
(docs/protocol.md §8): graceful_stop.py IMAGE"""

import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time

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
                    ask(path, "GET", "/v1")
                    break
                except OSError:
                    if time.monotonic() > deadline:
                        sys.exit(f"{image} does not answer")
                    time.sleep(0.1)
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
