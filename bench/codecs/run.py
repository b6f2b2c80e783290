"""What does it cost to write and to read a value, in each form in which columns travel?  run.py [ROUNDS]

udf_protocol/codec/benches/codecs.rs writes and reads columns of 10,000 values, without sending them. The results replace the part of
bench/README.md between the markers.
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
    words = ["cargo", "bench", "--quiet", "--package=udf_codec", "--bench=codecs", "--", str(ROUNDS)]
    said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    written, read = collections.defaultdict(list), collections.defaultdict(list)
    for line in said.splitlines():
        type_name, form, write_ns, read_ns = line.split()
        written[type_name, form].append(float(write_ns))
        read[type_name, form].append(float(read_ns))
    forms = list(dict.fromkeys(form for _, form in written))
    lines = [
        f"{datetime.date.today()}, {ROUNDS} rounds after one of warm-up; {os.cpu_count()} cores. Nanoseconds per value, median "
        "[least-most].",
        "",
        "| type | " + " | ".join(f"{form}, write | read" for form in forms) + " |",
        "|---|" + "---|---|" * len(forms),
    ]
    for type_name in dict.fromkeys(type_name for type_name, _ in written):
        cells = [spread(times[type_name, form][1:]) for form in forms for times in (written, read)]
        lines.append(f"| {type_name} | " + " | ".join(cells) + " |")
    text = "\n".join(lines)
    print(text)
    write_section("codecs", text)


if __name__ == "__main__":
    main()
