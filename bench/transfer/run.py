"""What does it cost to hand columns to another process?  run.py [LARGEST_MB [ROUNDS]]

The Spark virtualization study's Table 2: shared memory and network, between two processes of this machine and between two
containers, blocks of bytes and matrices that are written as Arrow IPC and read back. A block is handed over when the receiver
has answered with the sum of two of its values; the sender (sender.py) takes the time. Contenders take turns as bench/paired.py
says. The results replace the part of bench/README.md between the markers, and the picture in bench/plots.
"""

import contextlib
import datetime
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import plots  # noqa: E402
from paired import seconds_of, table  # noqa: E402
from readme import write_section  # noqa: E402

LARGEST_MB = float(sys.argv[1]) if len(sys.argv) > 1 else 500
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 5
SIZES_MB = [size for size in (6.5, 50, 500) if size <= LARGEST_MB]
HERE = pathlib.Path(__file__).parent
IMAGE = "bench-overhead:1.0"
IS_DOCKER = os.environ["BENCH_RUNTIME"] == "docker"


class Pair:
    """A sender and a receiver, and the way between them: TCP, or a folder in memory."""

    def __init__(self, kind, in_containers, stack):
        self.stack = stack
        if in_containers:
            self.folder = self.make_folder()
            where = "5000" if kind == "network" else "/blocks"
            receiver, name = self.start_container("peer", kind, where)
            receiver.stdout.readline()
            if kind == "network":
                words = ["docker", "inspect", "--format={{.NetworkSettings.IPAddress}}", name]
                address = subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
                where = f"{address}:{where}"
            self.sender, _ = self.start_container("sender", kind, where)
        else:
            port = str(free_port())
            self.folder = self.make_folder()
            receiver = self.start([sys.executable, HERE / "peer.py", kind, port if kind == "network" else self.folder])
            stack.callback(receiver.terminate)
            receiver.stdout.readline()
            where = f"127.0.0.1:{port}" if kind == "network" else self.folder
            self.sender = self.start([sys.executable, HERE / "sender.py", kind, where])

    def make_folder(self):
        folder = self.stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm"))
        os.chmod(folder, 0o777)
        return folder

    def start(self, command):
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.stack.callback(process.wait)
        self.stack.callback(process.stdin.close)
        return process

    def start_container(self, role, kind, where):
        name = f"transship-transfer-{kind}-{role}-{os.getpid()}"
        network = "--network=bridge" if kind == "network" else "--network=none"
        words = ["docker", "run", "--rm", "--interactive", f"--name={name}", network, f"--volume={self.folder}:/blocks",
                 f"--volume={HERE / role}.py:/{role}.py:ro", "--entrypoint=/opt/venv/bin/python", IMAGE, f"/{role}.py", kind, where]  # fmt: skip
        process = self.start(words)
        self.stack.callback(subprocess.run, ["docker", "kill", name], capture_output=True)
        return process, name

    def send(self, form, megabytes):
        """Hands a block over; what the receiver saw in it, and the seconds."""
        print(form, megabytes, file=self.sender.stdin, flush=True)
        seen, seconds = self.sender.stdout.readline().split()
        return float(seen), float(seconds)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def measure(megabytes, pairs):
    contenders = []
    for (kind, place), pair in pairs.items():
        for form, name in (("bytes", "bytes"), ("ipc", "matrix as Arrow IPC")):
            contenders.append((f"{kind}, {place}, {name}", lambda pair=pair, form=form: pair.send(form, megabytes), 1))
    return [name for name, _, _ in contenders], seconds_of(contenders, ROUNDS)


def main():
    places = {"between processes": False} | ({"between containers": True} if IS_DOCKER else {})
    columns = []
    with contextlib.ExitStack() as stack:
        pairs = {(kind, place): Pair(kind, in_containers, stack) for kind in ("memory", "network") for place, in_containers in places.items()}
        for size in SIZES_MB:
            print(f"==> {size} MB", file=sys.stderr)
            names, seconds = measure(size, pairs)
            columns.append((f"{size:g} MB", seconds))
    series = {name: [(size, seconds[place]) for size, (_, seconds) in zip(SIZES_MB, columns)] for place, name in enumerate(names)}
    plots.lines("transfer", "Handing columns over", "MB", "seconds", series)
    head = (
        f"{datetime.date.today()}, {ROUNDS} rounds after one of warm-up; {os.cpu_count()} cores, runtime {os.environ['BENCH_RUNTIME']}. "
        "Seconds, median [least-most]; ratios to the first line."
    )
    text = f"{head}\n\n{table('way', names, columns)}\n\n![](plots/transfer.svg)"
    print(text)
    write_section("transfer", text)


if __name__ == "__main__":
    main()
