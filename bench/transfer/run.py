"""What does it cost to hand columns to another process?  run.py [LARGEST_MB [ROUNDS]]

The Spark virtualization study's Table 2: shared memory and network, between two processes of this machine and into a
container, blocks of bytes and matrices that are written as Arrow IPC and read back. A block is handed over when the
receiver has answered with the sum of two of its values. Contenders take turns as bench/paired.py says. The results replace the
part of bench/README.md between the markers, and the picture in bench/plots.
"""

import contextlib
import datetime
import io
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

import numpy
import pyarrow as pa

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import plots  # noqa: E402
from paired import seconds_of, table  # noqa: E402
from readme import write_section  # noqa: E402

LARGEST_MB = float(sys.argv[1]) if len(sys.argv) > 1 else 500
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 5
SIZES_MB = [size for size in (6.5, 50, 500) if size <= LARGEST_MB]
COLUMNS = 28
PEER = pathlib.Path(__file__).parent / "peer.py"
IMAGE = "bench-overhead:1.0"
IS_DOCKER = os.environ["BENCH_RUNTIME"] == "docker"


def matrix_of(megabytes):
    return numpy.random.default_rng(0).random((int(megabytes * 1e6 / 8 / COLUMNS), COLUMNS))


class Peer:
    """A receiver, and the way to it: over TCP, or through a folder in memory."""

    def __init__(self, kind, in_container):
        self.kind, self.stack = kind, contextlib.ExitStack()
        self.folder = self.stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm"))
        os.chmod(self.folder, 0o777)
        port = free_port()
        where = str(port) if kind == "network" else "/blocks" if in_container else self.folder
        command = [sys.executable, PEER]
        if in_container:
            name = f"transship-transfer-{kind}-{os.getpid()}"
            network = f"--publish=127.0.0.1:{port}:{port}" if kind == "network" else "--network=none"
            command = ["docker", "run", "--rm", f"--name={name}", network, f"--volume={self.folder}:/blocks", f"--volume={PEER}:/peer.py:ro",
                       "--entrypoint=/opt/venv/bin/python", IMAGE, "/peer.py"]  # fmt: skip
            self.stack.callback(subprocess.run, ["docker", "kill", name], capture_output=True)
        process = subprocess.Popen([*command, kind, where], stdout=subprocess.PIPE)
        self.stack.callback(process.wait)
        if not in_container:
            self.stack.callback(process.terminate)
        process.stdout.readline()
        self.connection = self.stack.enter_context(connect(kind, port, self.folder))
        self.stream = self.stack.enter_context(self.connection.makefile("rwb"))
        self.block = None

    def send(self, form, pieces):
        """Hands a block over; what the receiver saw in it."""
        size = sum(len(piece) for piece in pieces)
        if self.kind == "memory":
            if self.block is None:
                self.block = self.stack.enter_context(open(f"{self.folder}/block", "wb", buffering=0))
            self.block.seek(0)
            for piece in pieces:
                write_all(self.block, piece)
        self.stream.write(f"{form} {size}\n".encode())
        self.stream.flush()
        if self.kind == "network":
            for piece in pieces:
                self.connection.sendall(piece)
        return float(self.stream.readline())


def write_all(file, piece):
    rest = memoryview(piece).cast("B")
    while rest:
        rest = rest[file.write(rest) :]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def connect(kind, port, folder):
    for _ in range(100):
        with contextlib.suppress(OSError):
            if kind == "network":
                return socket.create_connection(("127.0.0.1", port))
            bell = socket.socket(socket.AF_UNIX)
            bell.connect(f"{folder}/bell")
            return bell
        time.sleep(0.1)
    sys.exit("the receiver does not answer")


def ipc(matrix):
    """A matrix as Arrow IPC."""
    sink = io.BytesIO()
    columns = [pa.array(numpy.ascontiguousarray(column)) for column in matrix.T]
    batch = pa.RecordBatch.from_arrays(columns, [f"f{i}" for i in range(COLUMNS)])
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return [sink.getbuffer()]


def measure(megabytes, peers):
    matrix = matrix_of(megabytes)
    contenders = []
    for (kind, place), peer in peers.items():
        contenders.append((f"{kind}, {place}, bytes", lambda peer=peer: peer.send("bytes", [memoryview(matrix).cast("B")]), 1))
        contenders.append((f"{kind}, {place}, matrix as Arrow IPC", lambda peer=peer: peer.send("ipc", ipc(matrix)), 1))
    return [name for name, _, _ in contenders], seconds_of(contenders, ROUNDS)


def main():
    places = {"between processes": False} | ({"into a container": True} if IS_DOCKER else {})
    columns = []
    with contextlib.ExitStack() as stack:
        peers = {}
        for kind in ("memory", "network"):
            for place, in_container in places.items():
                peers[kind, place] = peer = Peer(kind, in_container)
                stack.enter_context(peer.stack)
        for size in SIZES_MB:
            print(f"==> {size} MB", file=sys.stderr)
            names, seconds = measure(size, peers)
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
