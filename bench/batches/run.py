"""What does one batch cost, without an engine?  run.py [ROUNDS]

udf_protocol/client/benches/batches.rs sends batches of 10,000 rows, 28 doubles there and the first of them back, one after the other or two in flight.
The results replace the part of bench/README.md between the markers.
"""

import collections
import datetime
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from paired import spread  # noqa: E402
from readme import write_section  # noqa: E402

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 7


def main():
    words = ["cargo", "bench", "--quiet", "--package=udf_client", "--bench=batches", "--", os.environ["TRANSSHIP_SOCKET"], str(ROUNDS)]
    said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    times = collections.defaultdict(list)
    for line in said.splitlines():
        transport, in_flight, milliseconds = line.split()
        times[transport, in_flight].append(float(milliseconds))
    lines = [
        f"{datetime.date.today()}, {ROUNDS} rounds after one of warm-up; {os.cpu_count()} cores, runtime {os.environ['BENCH_RUNTIME']}. "
        "Milliseconds per batch, median [least-most].",
        "",
        "| transport | one at a time | two in flight |",
        "|---|---|---|",
    ]
    for transport in dict.fromkeys(transport for transport, _ in times):
        lines.append(f"| {transport} | " + " | ".join(spread(times[transport, count][1:]) for count in "12") + " |")
    text = "\n".join(lines)
    print(text)
    write_section("batches", text)


if __name__ == "__main__":
    main()
