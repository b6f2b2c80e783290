"""Functions that misbehave when they are asked to, and servers that do so at their start, as the file `mode` says."""

import os
import pathlib
import signal
import socket
import sys
import threading
import time

import transship


def add_one(x: int) -> int:
    return x + 1


def nap(x: int, ms: int) -> int:
    time.sleep(ms / 1000)
    return x + 1


def look_up(x: int, ms: int) -> int:
    time.sleep(ms / 1000)
    return transship.table("faults_rows").get(x)["y"]


def tell(x: int, ms: int) -> int:
    """Leaves a line in the log for each call."""
    print(f"call {x}", flush=True)
    time.sleep(ms / 1000)
    return x + 1


def refuse(x: int, bad: int) -> int:
    if x == bad:
        raise ValueError(f"row {x} is bad")
    return x + 1


def same(b: bytes) -> bytes:
    return b


def leave(x: int, bad: int) -> int:
    if x == bad:
        os._exit(9)
    return x + 1


def hog(x: int, bad: int) -> int:
    kept = []
    while x == bad:
        kept.append(b"x" * (16 << 20))
    return x + 1


def fill(x: int, bad: int, folder: str) -> int:
    """Fills a folder with files, which stay, and raises what the system says then."""
    number = 0
    while x == bad:
        with open(f"{folder}/fill-{os.getpid()}-{number}", "wb", buffering=0) as file:
            number += 1
            for _ in range(16):
                file.write(bytes(1 << 20))
    return x + 1


def fork(x: int, bad: int) -> int:
    while x == bad:
        if os.fork() == 0:
            while True:
                signal.pause()
    return x + 1


def hang_up(x: int, bad: int) -> int:
    """Ends every connection of the process, which lives on."""
    if x == bad:
        for name in os.listdir("/proc/self/fd"):
            try:
                connection = socket.socket(fileno=int(name))
            except OSError:
                continue
            try:
                # Sockets that listen have no peer, and stay.
                if connection.getpeername() is not None:
                    connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            finally:
                connection.detach()
        time.sleep(1)
    return x + 1


class total:
    """The sum of a group's numbers."""

    def __init__(self):
        self.sum = 0

    def step(self, x):
        self.sum += x

    def merge(self, other):
        self.sum += other.sum

    def finish(self):
        return self.sum


def crash_soon():
    time.sleep(0.5)
    os._exit(4)


if "serve" in sys.argv:
    mode = pathlib.Path(__file__).with_name("mode").read_text()
    if mode == "exit":
        sys.exit("the handler says goodbye")
    if mode == "silent":
        time.sleep(100_000)
    if mode == "crash":
        threading.Thread(target=crash_soon).start()
