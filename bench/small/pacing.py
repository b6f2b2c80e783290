"""One row, asked again at once or after a while: how long a call takes, and the processor time of both sides, spinning included."""

import statistics
import time

import psycopg
from paired import spread
from processor import Watch

# Nobody spins for that long: both sides sleep until the next call.
SLEEP_S = 0.01
SLEEPING_CALLS = 100


def calls(connection, function, image, seconds, sleep):
    """The median of the seconds of a call, and the processor time of one in the backend and in the container."""
    query, times = f"SELECT {function}(%s)", []
    # A session's first call, and the plan, are no part of it.
    for _ in range(20):
        connection.execute(query, (1.0,), prepare=True)
    watch, end = Watch(connection, image), time.perf_counter() + seconds
    while len(times) < SLEEPING_CALLS if sleep else time.perf_counter() < end:
        time.sleep(sleep)
        start = time.perf_counter()
        connection.execute(query, (float(len(times)),), prepare=True).fetchone()
        times.append(time.perf_counter() - start)
    return statistics.median(times), *(taken / len(times) for taken in watch.taken())


def measure(contenders, images, seconds, rounds):
    """A table of Markdown. contenders: {name: function}; images: the image of those that have one."""
    found = {(name, sleep): ([], [], []) for name in contenders for sleep in (0, SLEEP_S)}
    with psycopg.connect("", autocommit=True) as connection:
        for number in range(rounds + 1):
            for (name, sleep), columns in found.items():
                values = calls(connection, contenders[name], images.get(name), seconds, sleep)
                if number:
                    for column, value in zip(columns, values):
                        column.append(value)
    lines = ["| one row from one session | call, µs | backend's processor time, µs | container's |", "|---|---|---|---|"]
    for (name, sleep), columns in found.items():
        pace = f"{sleep * 1e3:.0f} ms between calls" if sleep else "one call after the other"
        cells = [spread(column, 1e6) if any(column) else "" for column in columns]
        lines.append(f"| {name}, {pace} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
