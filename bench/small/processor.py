"""Processor time of sessions' backends and of an image's containers."""

import json
import os
import pathlib
import subprocess
import sys

PROC = pathlib.Path("/proc")


def roots(connection, image):
    """The first process of each container of an image, as this machine numbers it."""
    names = [name for (name,) in connection.execute("SELECT name FROM transship.replicas WHERE image = %s", (image,))]
    if not names:
        sys.exit(f"no container of {image} runs")
    if os.environ["BENCH_RUNTIME"] == "process":
        records = [pathlib.Path(os.environ["TRANSSHIP_STATE_DIR"], "replicas", name, "process.json") for name in names]
        return [json.loads(record.read_text())["pid"] for record in records]
    command = [os.environ["BENCH_RUNTIME"], "inspect", "--format", "{{.State.Pid}}", *names]
    return [int(pid) for pid in subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()]


def family(pids):
    """Processes with all that descend from them."""
    parents = {}
    for path in PROC.glob("[0-9]*/stat"):
        try:
            # What follows the name, which may have spaces and parentheses.
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            pass
    found = set(pids)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def seconds(pids):
    """Seconds that the threads of these processes have run so far; those of threads that have ended are missing."""
    nanoseconds = 0
    for pid in pids:
        for path in PROC.glob(f"{pid}/task/*/schedstat"):
            try:
                nanoseconds += int(path.read_text().split()[0])
            except OSError:
                pass
    return nanoseconds / 1e9


class Watch:
    """Seconds of processor time that a session's backend, and an image's containers if there is one, take from now on."""

    def __init__(self, connection, image=None):
        self.groups = [{connection.info.backend_pid}, family(roots(connection, image)) if image else set()]
        self.before = [seconds(group) for group in self.groups]

    def taken(self):
        return [seconds(group) - before for group, before in zip(self.groups, self.before)]
