"""One image, two engines, one answer: PostgreSQL and the test host call the same running replicas at the same time, and
every value is compared."""

import csv
import datetime
import decimal
import io
import ipaddress
import math
import os
import threading
import time
import uuid

import psycopg
import pytest

from conftest import ROOT, replicas

# Per type: its name in PostgreSQL and in T-SQL, how a value is written in CSV and read in Python, and values at the
# boundaries that both engines have.
TYPES = {
    "bool": ("bool", "bit", lambda text: text in ("1", "t", "true"), ["true", "false"]),
    "int2": ("int2", "smallint", int, ["-32768", "0", "32767"]),
    "int4": ("int4", "int", int, ["-2147483648", "0", "2147483647"]),
    "int8": ("int8", "bigint", int, ["-9223372036854775808", "9007199254740993", "9223372036854775807"]),
    "float4": ("float4", "real", float, ["1.5", "-0.0", "3.4028235e38", "1e-45"]),
    "float8": ("float8", "float", float, ["0.1", "-0.0", "1.7976931348623157e308", "5e-324"]),
    "text": ("text", "nvarchar(max)", str, ["", "Grüße 🚢", 'a\tb\n"\\,', "x" * 100_000]),
    "bytea": ("bytea", "varbinary(max)", lambda text: bytes.fromhex(text[2:]), ["0x", "0x00ff0a", "0x" + "00ff" * 5000]),
    "date": ("date", "date", datetime.date.fromisoformat, ["0001-01-01", "2000-02-29", "9999-12-31"]),
    "timestamp": (
        "timestamp", "datetime2(6)", datetime.datetime.fromisoformat,
        ["0001-01-01 00:00:00.000001", "1969-12-31 23:59:59.999999", "9999-12-31 23:59:59.999999"],
    ),
    "datetime2": (
        "text", "datetime2(7)", lambda text: text.replace("T", " "),
        ["0001-01-01 00:00:00.0000001", "2024-02-29 12:34:56.7654321", "9999-12-31 23:59:59.9999999"],
    ),
    "timestamptz": (
        "timestamptz", "nvarchar(40)", datetime.datetime.fromisoformat,
        ["2013-01-01T05:15:00.000001Z", "1969-12-31T23:59:59.500000Z"],
    ),
    "numeric": (
        "numeric", "decimal(38, 10)", decimal.Decimal,
        ["9999999999999999999999999999.9999999999", "-0.0000000001", "0", "12345678901234567890.5"],
    ),
    "uuid": ("uuid", "uniqueidentifier", uuid.UUID, ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "00000000-0000-0000-0000-000000000000"]),
    "time": ("time", "nvarchar(16)", datetime.time.fromisoformat, ["00:00:00.000000", "23:59:59.999999"]),
    "inet": ("inet", "nvarchar(50)", ipaddress.ip_interface, ["192.168.1.5/24", "::1"]),
}  # fmt: skip


@pytest.fixture(scope="module")
def postgres():
    with psycopg.connect(os.environ["PGDSN"], autocommit=True) as connection:
        connection.execute("SET client_min_messages = warning")
        connection.execute("CREATE EXTENSION IF NOT EXISTS transship")
        connection.execute("CREATE SCHEMA IF NOT EXISTS portability")
        connection.execute("SET search_path = portability, public")
        connection.execute("SET timezone = 'UTC'")
        yield connection


def declare(connection, name, arguments, returns, image="regress:1.0"):
    connection.execute(
        f"CREATE OR REPLACE FUNCTION {name}({arguments}) RETURNS {returns} LANGUAGE container AS 'image = \"{image}\"'"
    )


def read_csv(text):
    """Pairs of the host's CSV, whose second field may hold anything; one that is not quoted and empty is NULL."""
    pairs = []
    for number, value in csv.reader(io.StringIO(text.split("\n", 1)[1])):
        is_null = value == "" and f'{number},""' not in text
        pairs.append((number, None if is_null else value))
    return pairs


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("kind", ["pass", "echo"])
@pytest.mark.parametrize("transport", ["flight", "json"])
def test_every_value_is_the_same_from_both_engines(host, postgres, tmp_path, name, kind, transport):
    pg_type, sql_type, read, values = TYPES[name]
    function = f"{kind}_{name}"
    declare(postgres, function, f"x {pg_type}", pg_type)
    path = tmp_path / "values.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerow(["id", "v"])
        for number, value in enumerate(values):
            writer.writerow([number, {"true": "1", "false": "0"}.get(value, value)])
        file.write(f"{len(values)},\n")
    script = f'image = "regress:1.0" function = "{function}" passthrough = ["id"] transport = "{transport}"'
    run = host(f"""
CREATE TABLE t (id int NOT NULL, v {sql_type});
BULK INSERT t FROM '{path}';
EXEC sp_execute_external_script @script = N'{script}', @input_data_1 = N'SELECT id, v FROM t';
""")
    assert run.code == 0, run.out + run.err
    found = {int(number): value for number, value in read_csv(run.out)}

    postgres.execute(f"SET transship.transport = {transport}")
    given = [value.replace("0x", "\\x") if name == "bytea" else value.replace(" ", "T") if name == "datetime2" else value for value in values]
    cast = f"%s::text::{pg_type}"
    query = "SELECT i, {f}(v) FROM (VALUES {rows}) AS t (i, v) ORDER BY i".format(
        f=function, rows=", ".join(f"({number}, {cast})" for number in range(len(values) + 1))
    )
    expected = dict(postgres.execute(query, [*given, None]).fetchall())
    assert found.keys() == expected.keys() == set(range(len(values) + 1))
    for number, value in enumerate(values):
        mine, theirs = read(found[number]), expected[number]
        theirs = read(str(theirs)) if name in ("datetime2", "inet") else theirs
        assert mine == theirs, (number, mine, theirs)
        if name.startswith("float"):
            assert math.copysign(1, mine) == math.copysign(1, theirs)
        # What came back is what went, up to a decimal's digits.
        assert name == "float4" or mine == read({"true": "1", "false": "0"}.get(value, value))
    assert found[len(values)] is None and expected[len(values)] is None


def test_both_engines_call_the_same_running_replica_at_once(call, postgres):
    """The process behind the function is the same one, and it has a lease of each engine at the same time."""
    declare(postgres, "process_id", "x int8", "int8")
    declare(postgres, "wait_for", "seconds float8", "float8")
    seen = []
    watched = threading.Event()

    def watch():
        while not watched.is_set():
            seen.append(tuple(leases for _, _, leases in replicas("regress:1.0")))
            time.sleep(0.05)

    # The sleeping calls overlap; a server of Python runs them in threads.
    slow = threading.Thread(target=lambda: postgres.execute("SELECT wait_for(5.5)"))
    watcher = threading.Thread(target=watch)
    slow.start()
    watcher.start()
    waited = call('image = "regress:1.0" function = "wait_for"', columns="s float", rows=["5.5"])
    slow.join()
    watched.set()
    watcher.join()
    assert waited.out == "column1\n5.5\n"
    assert any(max(each, default=0) >= 2 for each in seen), seen
    theirs = postgres.execute("SELECT process_id(1)").fetchone()[0]
    mine = call('image = "regress:1.0" function = "process_id"', columns="x bigint", rows=["1"])
    assert mine.out == f"column1\n{theirs}\n"


def test_all_flights_are_predicted_alike_by_both_engines_at_once(host, postgres):
    """336,776 rows through either engine while the other is at work, on the replicas of one image."""
    runs = []
    thread = threading.Thread(target=lambda: runs.append(host(ROOT / "examples/flights/mssql.sql", timeout=600)))
    thread.start()
    query = "SELECT id, arrival_delay(distance, dep_delay, carrier, month, hour) FROM flights ORDER BY id"
    expected = postgres.execute(query).fetchall()
    thread.join()
    assert runs[0].code == 0, runs[0].err
    rows = csv.reader(io.StringIO(runs[0].out))
    assert next(rows) == ["id", "arrival_delay"]
    found = [(int(number), float(value) if value else None) for number, value in rows]
    assert len(found) == 336_776 and found == expected
    assert sum(value is None for _, value in found) == 8_255
