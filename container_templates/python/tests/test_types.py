"""Values: the type table both ways, against the golden file that the client is tested with."""

import datetime
import decimal
import json
import pathlib
import uuid

import pyarrow as pa
import pytest
from transship_server import types

GOLDEN = pathlib.Path(__file__).parents[3] / "udf_protocol/tests/golden/call.json"


def test_golden_call_reads_and_writes_back():
    columns = json.loads(GOLDEN.read_text())["columns"]
    assert len(columns) == len(types.TYPES)
    for entry, values in zip(types.TYPES.values(), columns):
        array = types.decode_json(entry, values)
        assert array.type == entry.arrow
        assert types.encode_json(entry, array) == values, entry.name


def test_table_document_names_the_same_types():
    document = (GOLDEN.parents[3] / "docs/types.md").read_text()
    names = [line.split("`")[1] for line in document.splitlines() if line.startswith("| `")]
    assert names == list(types.TYPES)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bool", True), ("int2", -32768), ("int8", 2**63 - 1), ("float8", -0.0), ("text", "Grüße 🚢"), ("bytea", b"\0\xff"),
        ("date", datetime.date(2000, 2, 29)), ("timestamp", datetime.datetime(1969, 12, 31, 23, 59, 59, 999999)),
        ("timestamptz", datetime.datetime(2013, 1, 1, 5, tzinfo=datetime.timezone.utc)),
        ("numeric", decimal.Decimal("12345678901234567890.50")), ("uuid", uuid.UUID(int=7)),
        ("json", {"a": [1, None, "x"]}),
    ],
)  # fmt: skip
def test_python_values_survive(name, value):
    entry = types.by_name(name)
    array = pa.array([entry.from_python(value)], entry.arrow)
    read = array[0].as_py()
    assert (entry.to_python(read) if entry.to_python else read) == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bool", 1), ("int4", True), ("int4", 1.0), ("int4", "1"), ("int2", 32768), ("float8", "1"), ("float8", True), ("text", 1),
        ("text", b"x"), ("bytea", "x"), ("date", datetime.datetime(2000, 1, 1)), ("timestamp", datetime.date(2000, 1, 1)),
        ("timestamp", datetime.datetime(2000, 1, 1, tzinfo=datetime.timezone.utc)),
        ("timestamptz", datetime.datetime(2000, 1, 1)), ("numeric", 1.5), ("json", float("nan")), ("json", {1, 2}), ("uuid", "x"),
    ],
)  # fmt: skip
def test_values_that_do_not_fit_are_refused(name, value):
    entry = types.by_name(name)
    with pytest.raises((TypeError, ValueError, AttributeError, OverflowError, pa.ArrowException)):
        pa.array([entry.from_python(value)], entry.arrow)


@pytest.mark.parametrize(
    ("name", "values"),
    [("int4", [1.5]), ("int4", [2**31]), ("int4", [True]), ("float8", [True]), ("date", ["2013-02-30"]), ("uuid", ["x"]), ("text", [1])],
)
def test_json_that_does_not_fit_is_refused(name, values):
    with pytest.raises((TypeError, ValueError, OverflowError, pa.ArrowException)):
        types.decode_json(types.by_name(name), values)


def test_names_and_aliases():
    assert types.by_name(" Double Precision ").name == "float8"
    assert types.by_annotation(list).name == "json"
