"""Hands blocks of columns over to peer.py, and says how long that took: sender.py network HOST:PORT | memory FOLDER

Reads lines of a form ("bytes" or "ipc") and megabytes; answers each with what the receiver has seen and the seconds from the
matrix in memory to the receiver's answer.
"""

import contextlib
import io
import socket
import sys
import time

import numpy
import pyarrow as pa

COLUMNS = 28


def matrix_of(megabytes):
    return numpy.random.default_rng(0).random((int(megabytes * 1e6 / 8 / COLUMNS), COLUMNS))


def ipc(matrix):
    """A matrix as Arrow IPC."""
    sink = io.BytesIO()
    columns = [pa.array(numpy.ascontiguousarray(column)) for column in matrix.T]
    batch = pa.RecordBatch.from_arrays(columns, [f"f{i}" for i in range(COLUMNS)])
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getbuffer()


def connect(kind, where):
    for _ in range(100):
        with contextlib.suppress(OSError):
            if kind == "network":
                host, port = where.rsplit(":", 1)
                return socket.create_connection((host, int(port)))
            bell = socket.socket(socket.AF_UNIX)
            bell.connect(f"{where}/bell")
            return bell
        time.sleep(0.1)
    sys.exit("the receiver does not answer")


def write_all(file, piece):
    rest = memoryview(piece).cast("B")
    while rest:
        rest = rest[file.write(rest) :]


def main():
    kind, where = sys.argv[1:]
    matrices = {}
    connection = connect(kind, where)
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(connection.makefile("rwb"))
        block = stack.enter_context(open(f"{where}/block", "wb", buffering=0)) if kind == "memory" else None
        for line in sys.stdin:
            form, megabytes = line.split()
            if megabytes not in matrices:
                # One at a time, so that the largest fits.
                matrices = {megabytes: matrix_of(float(megabytes))}
            matrix = matrices[megabytes]
            start = time.perf_counter()
            piece = ipc(matrix) if form == "ipc" else memoryview(matrix).cast("B")
            if block:
                block.seek(0)
                write_all(block, piece)
            stream.write(f"{form} {len(piece)}\n".encode())
            stream.flush()
            if not block:
                connection.sendall(piece)
            seen = stream.readline().decode().strip()
            print(seen, time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
