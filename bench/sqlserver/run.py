"""What does a container cost on SQL Server's side?  run.py [MAX_ROWS [ROUNDS]]

The paper's Figure 10: a random forest scores 1,000 to 10,000,000 rows of 28 floats through the language extension, which
the test host drives. The host and the floor, the same model in plain Python over the same rows in batches of 10,000, run
in turn, round by round, after one round of warm-up that does not count. The host's process is new for every call, as in
SQL Server; the container is warm. Time is told by the host (its own buffers, and the calls of the extension), by the
extension (conversion each way, as processor time) and by the container (the function). What is left of the extension's time is
the transport and the waiting that no work overlapped.

A second table has the extension's conversions alone, in values per second, as its counters tell them.
"""

import datetime
import os
import pathlib
import pickle
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time

import numpy
import pyarrow

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from paired import ratio, spread  # noqa: E402
from readme import write_section  # noqa: E402

MAX_ROWS = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 5
HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
BUILD = ROOT / "target/release"
MODEL = pickle.loads((HERE.parent / "overhead/image/model.pkl").read_bytes())
COLUMNS = [f"f{i}" for i in range(28)]
BATCH = 10_000
CONVERTED_ROWS = 1_000_000


def run_host(folder, declared, script):
    """One call of a script over a table that lies in files; the statistics that the host prints."""
    job = folder / "job.sql"
    job.write_text(
        f"CREATE TABLE t ({declared});\nBULK INSERT t FROM '{folder}' WITH (DATAFILETYPE = 'native');\n"
        f"EXEC sp_execute_external_script @language = N'Container', @script = N'{script}', @input_data_1 = N'SELECT * FROM t';\n"
    )
    command = [BUILD / "exthost", "--extension", BUILD / "libtransship_mssql.so", "--quiet", "--statistics", job]
    environment = os.environ | {"TRANSSHIP_ALLOWED": "*"}
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return {name: int(value) for name, value in re.findall(r"^(\w+) (\d+)$", done.stderr, re.MULTILINE)}


def floor(columns):
    """Seconds that the model takes in plain Python, columns being Arrow's as the container gets them."""
    arrays = [pyarrow.array(column) for column in columns]
    start = time.perf_counter()
    for first in range(0, len(arrays[0]), BATCH):
        parts = [array.slice(first, BATCH).to_numpy() for array in arrays]
        MODEL.predict(numpy.column_stack(parts))
    return time.perf_counter() - start


def figure_10():
    lines = [
        "| rows | floor, s | extension, s, whole | ratio to the floor | host, s | conversion, s | of the floor | function, s | rest, s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    generator = numpy.random.default_rng(1)
    rows = 1000
    while rows <= MAX_ROWS:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            columns = [generator.random(rows) for _ in COLUMNS]
            for column, values in zip(COLUMNS, columns):
                values.tofile(folder / f"{column}.bin")
            declared = ", ".join(f"{column} float NOT NULL" for column in COLUMNS)
            taken = []
            for round_number in range(ROUNDS + 1):
                base = floor(columns)
                told = run_host(folder, declared, 'image = "bench-overhead:1.0" function = "forest"')
                if round_number:
                    convert = told["transship_convert_in_us"] + told["transship_convert_out_us"]
                    whole, function = told["extension_us"], told["transship_function_us"]
                    rest = max(0, whole - convert - function)
                    taken.append([base, whole / 1e6, told["host_us"] / 1e6, convert / 1e6, function / 1e6, rest / 1e6])
        base, whole, host, convert, function, rest = zip(*taken)
        middle = [f"{statistics.median(values):.3g}" for values in (host, convert, function, rest)]
        lines.append(
            f"| {rows:,} | {spread(base)} | {spread(whole)} | {ratio(whole, base):.2f} | {middle[0]} | {middle[1]} | {ratio(convert, base):.1%} | {middle[2]} | {middle[3]} |"
        )
        print(lines[-1], file=sys.stderr)
        rows *= 10
    return "\n".join(lines)


def values_of(sql):
    """A million values of a type, as the API passes them."""
    n = CONVERTED_ROWS
    generator = numpy.random.default_rng(2)
    if sql == "date":
        day = numpy.dtype([("year", "<i2"), ("month", "<u2"), ("day", "<u2")])
        values = numpy.zeros(n, day)
    elif sql.startswith("datetime2"):
        fields = [(part, "<u2") for part in ("year", "month", "day", "hour", "minute", "second")]
        values = numpy.zeros(n, numpy.dtype([*fields, ("fraction", "<u4")]))
        values["fraction"] = generator.integers(0, 999_999, n) * 1000
    elif sql.startswith("decimal"):
        values = numpy.zeros(n, numpy.dtype([("precision", "u1"), ("scale", "i1"), ("sign", "u1"), ("low", "<u8"), ("high", "<u8")]))
        values["precision"], values["scale"], values["sign"] = 19, 4, 1
        values["low"] = generator.integers(0, 10**15, n)
    else:
        kind = {"bit": "u1", "int": "<i4", "bigint": "<i8", "real": "<f4", "float": "<f8", "uniqueidentifier": "V16"}[sql]
        if sql == "bit":
            return generator.integers(0, 2, n).astype(kind)
        if sql == "uniqueidentifier":
            return numpy.frombuffer(generator.bytes(16 * n), kind)
        return generator.integers(0, 1 << 30, n).astype(kind)
    if "year" in values.dtype.names:
        values["year"], values["month"], values["day"] = generator.integers(1, 9999, n), generator.integers(1, 12, n), 7
    return values


def conversions():
    lines = ["| type | to Arrow, million values per second | from Arrow |", "|---|---|---|"]
    functions = {
        "bit": "pass_bool", "int": "pass_int4", "bigint": "pass_int8", "real": "pass_float4", "float": "pass_float8",
        "decimal(19, 4)": "pass_numeric", "date": "pass_date", "datetime2(6)": "pass_timestamp", "datetime2(7)": "pass_datetime2",
        "uniqueidentifier": "pass_uuid",
    }  # fmt: skip
    for sql, function in functions.items():
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            values_of(sql).tofile(folder / "v.bin")
            both = []
            for round_number in range(ROUNDS + 1):
                told = run_host(folder, f"v {sql}", f'image = "regress:1.0" function = "{function}"')
                if round_number:
                    both.append([CONVERTED_ROWS / told[f"transship_convert_{way}_us"] for way in ("in", "out")])
        lines.append(f"| {sql} | {spread([way[0] for way in both])} | {spread([way[1] for way in both])} |")
        print(lines[-1], file=sys.stderr)
    return "\n".join(lines)


def main():
    parts = [
        f"{datetime.date.today()}, {ROUNDS} rounds after one of warm-up; {os.cpu_count()} cores, Linux {platform.release()}, "
        f"runtime {os.environ['BENCH_RUNTIME']}, shared memory, batches of {BATCH:,} rows.",
        figure_10(),
        f"Conversions of nullable columns, {CONVERTED_ROWS:,} rows, one core:",
        conversions(),
    ]
    text = "\n\n".join(parts)
    print(text)
    write_section("sqlserver", text)


if __name__ == "__main__":
    main()
