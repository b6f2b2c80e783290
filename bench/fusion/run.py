"""How much does a call inside another call cost, fused and not?  run.py [ROWS [ROUNDS]]

Contenders take turns as bench/paired.py says; the first calls one function. The results replace the part of bench/README.md
between the markers.
"""

import datetime
import functools
import os
import pathlib
import shutil
import sys
import tempfile

import psycopg

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from images import build  # noqa: E402
from paired import seconds_of, table  # noqa: E402
from readme import write_section  # noqa: E402

ROWS = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 7
IMAGE = pathlib.Path(__file__).parent / "image"


def function(name, type, image, handler):
    options = f'image = "{image}" function = "{handler}"'
    return f"""CREATE OR REPLACE FUNCTION {name}(x {type}) RETURNS {type} LANGUAGE container IMMUTABLE STRICT PARALLEL SAFE
        COST 1000 AS '{options}'"""


FUNCTIONS = [
    function("fusion_add_one", "float8", "bench-fusion:1.0", "add_one"),
    function("fusion_half", "float8", "bench-fusion:1.0", "half"),
    function("fusion_half_elsewhere", "float8", "bench-fusion-other:1.0", "half"),
    function("fusion_upper", "text", "bench-fusion:1.0", "upper"),
    function("fusion_reverse", "text", "bench-fusion:1.0", "reverse"),
    function("fusion_reverse_elsewhere", "text", "bench-fusion-other:1.0", "reverse"),
]


def build_both():
    """The same functions in two images."""
    build(IMAGE)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(IMAGE, folder, dirs_exist_ok=True)
        manifest = pathlib.Path(folder) / "transship.toml"
        manifest.write_text(manifest.read_text().replace('"bench-fusion"', '"bench-fusion-other"'))
        build(folder)


def main():
    build_both()
    with psycopg.connect("", autocommit=True, prepare_threshold=None) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS transship")
        for statement in FUNCTIONS:
            connection.execute(statement)
        connection.execute("DROP TABLE IF EXISTS fusion_rows")
        connection.execute("SELECT setseed(0.5)")
        connection.execute(f"""CREATE TABLE fusion_rows AS
            SELECT i, random() AS x, left(md5(i::text), 20) AS t FROM generate_series(1, {ROWS}) i""")
        connection.execute("VACUUM ANALYZE fusion_rows")
        connection.execute("SET max_parallel_workers_per_gather = 0")

        def ask(aggregate, expression, is_fused):
            connection.execute(f"SET transship.fusion = {is_fused}")
            return connection.execute(f"SELECT {aggregate}({expression}) FROM fusion_rows").fetchone()[0]

        def contenders(calls):
            for name, expression in calls:
                # All contenders count as many results; what the results are is compared before.
                yield name, functools.partial(ask, "count", expression, True), 1
                if name != calls[0][0]:
                    if len({ask("max", expression, is_fused) for is_fused in (True, False)}) != 1:
                        sys.exit(f"{name} gives something else when it is fused")
                    yield f"{name}, `transship.fusion = off`", functools.partial(ask, "count", expression, False), 1

        parts = []
        for title, calls in {
            "`x + 1`, and half of it": [
                ("f(x)", "fusion_add_one(x)"),
                ("g(f(x)), one image", "fusion_half(fusion_add_one(x))"),
                ("g(f(x)), two images", "fusion_half_elsewhere(fusion_add_one(x))"),
            ],
            "upper case of 20 characters, and the reverse of it": [
                ("f(t)", "fusion_upper(t)"),
                ("g(f(t)), one image", "fusion_reverse(fusion_upper(t))"),
                ("g(f(t)), two images", "fusion_reverse_elsewhere(fusion_upper(t))"),
            ],
        }.items():
            asked = list(contenders(calls))
            seconds = seconds_of(asked, ROUNDS)
            parts.append(table(title, [name for name, _, _ in asked], [(f"{ROWS:,} rows, s", seconds)]))
    head = (
        f"{datetime.date.today()}, {ROUNDS} rounds after one of warm-up; {os.cpu_count()} cores, "
        f"runtime {os.environ['BENCH_RUNTIME']}; no parallel workers."
    )
    text = "\n\n".join([head, *parts])
    print(text)
    write_section("fusion", text)


if __name__ == "__main__":
    main()
