"""What do shared tables cost, and what do they save?  run.py [PROBES [ROUNDS [PART...]]] [OPTION...]

Contenders take turns as bench/paired.py says. The results of each part, or of those named, replace what is between its markers in
bench/README.md. `run.py --help` lists the parts and the other sizes.
"""

import argparse
import datetime
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import appends  # noqa: E402
import flights  # noqa: E402
import joins  # noqa: E402
import memory  # noqa: E402
import recovery  # noqa: E402
import segments  # noqa: E402
from sessions import TABLES_SIZE, connect  # noqa: E402
from readme import write_section  # noqa: E402

# With whether contenders take turns in it.
PARTS = {
    "joins": (joins.measure, True),
    "memory": (memory.measure, False),
    "segments": (segments.measure, True),
    "appends": (appends.measure, False),
    "recovery": (recovery.measure, False),
    "flights": (flights.measure, True),
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("probes", nargs="?", type=int, default=10_000_000, help="rows that look a key up")
    parser.add_argument("rounds", nargs="?", type=int, default=3)
    parser.add_argument("parts", nargs="*", default=[], metavar="part", help=f"some of {', '.join(PARTS)}; all without one")
    parser.add_argument("--keys", nargs="+", type=int, default=[100_000, 1_000_000, 10_000_000], help="rows of the table that is joined")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the tables whose memory and segments are measured")
    parser.add_argument("--appends", type=int, default=1000)
    parser.add_argument("--queries", type=int, default=200, help="queries during which the manager is killed")
    parser.add_argument("--copies", type=int, default=30, help="how often the flights are repeated")
    parser.add_argument("--no-spark", dest="spark", action="store_false", help="without Spark, and without Java")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(unknown)}")
    return options


def main():
    options = arguments()
    machine = (
        f"{os.cpu_count()} cores, runtime {os.environ['BENCH_RUNTIME']}; "
        f"no parallel workers, work_mem 1 GB, transship.tables_size {TABLES_SIZE}, without JIT and memoize nodes."
    )
    with connect() as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS transship")
        for name in options.parts or PARTS:
            print(f"==> {name}", file=sys.stderr)
            measure, is_in_turn = PARTS[name]
            turns = f"{options.rounds} rounds after one of warm-up; " if is_in_turn else ""
            text = f"{datetime.date.today()}, {turns}{machine}\n\n{measure(connection, options)}"
            print(text, flush=True)
            write_section(f"tables: {name}", text)


if __name__ == "__main__":
    main()
