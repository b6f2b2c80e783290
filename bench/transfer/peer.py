"""Receives blocks of columns and says that it has seen each: peer.py network PORT | memory FOLDER

A block is announced by a line: its form ("bytes" or "ipc") and its size. Over the network it follows the line; in memory it
lies in FOLDER/block, and the line comes through a Unix socket beside it. Arrow IPC is unpacked into a matrix. The answer
is a line with the sum of the block's first and last values, which shows that it was there.
"""

import os
import socket
import sys

import numpy


def total(values):
    return float(values[0]) + float(values[-1])


def seen(form, data):
    if form == "bytes":
        return total(numpy.frombuffer(data, numpy.float64))
    import pyarrow as pa

    columns = pa.ipc.open_stream(data).read_all().columns
    return total(numpy.column_stack([column.to_numpy() for column in columns]).ravel())


def read_block(stream, size):
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = stream.readinto(view)
        if not count:
            sys.exit("the sender has gone")
        view = view[count:]
    return data


def main():
    kind, where = sys.argv[1:]
    if kind == "network":
        listener = socket.create_server(("0.0.0.0", int(where)))
    else:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(f"{where}/bell")
        os.chmod(f"{where}/bell", 0o666)
        listener.listen()
    print("ready", flush=True)
    connection, _ = listener.accept()
    with connection.makefile("rwb", buffering=1 << 16) as stream:
        while line := stream.readline():
            form, size = line.decode().split()
            if kind == "network":
                answer = seen(form, read_block(stream, int(size)))
            else:
                data = numpy.memmap(f"{where}/block", numpy.uint8, "r", shape=(int(size),))
                answer = seen(form, data)
            stream.write(f"{answer!r}\n".encode())
            stream.flush()


if __name__ == "__main__":
    main()
