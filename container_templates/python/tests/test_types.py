"""Values: the type table both ways, against the golden file that the client is tested with."""

import datetime
import decimal
import ipaddress
import json
import pathlib
import uuid

import pyarrow as pa
import pytest
from transship_server import json_values, types

GOLDEN = pathlib.Path(__file__).parents[3] / "udf_protocol/codec/tests/golden/call.json"


def test_golden_call_reads_and_writes_back():
    columns = json.loads(GOLDEN.read_text())["columns"]
    # The table's types, and behind them some that are built of them.
    built = ["int4[]", "range(timestamptz)", '(a int8, "b c" bytea[], d (e uuid, f range(numeric)))[]']
    entries = [*types.TYPES.values(), *map(types.by_name, built)]
    assert len(columns) == len(entries)
    for entry, values in zip(entries, columns):
        array = json_values.decode(entry, values)
        assert array.type == entry.arrow
        assert json_values.encode(entry, array) == values, entry.name


def test_table_document_names_the_same_types():
    document = (GOLDEN.parents[4] / "docs/types.md").read_text()
    names = [line.split("`")[1] for line in document.splitlines() if line.startswith("| `")]
    assert names == [*types.TYPES, "T[]", "range(T)", "(name T, ...)"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bool", True), ("int2", -32768), ("int8", 2**63 - 1), ("float8", -0.0), ("text", "Grüße 🚢"), ("bytea", b"\0\xff"),
        ("date", datetime.date(2000, 2, 29)), ("timestamp", datetime.datetime(1969, 12, 31, 23, 59, 59, 999999)),
        ("timestamptz", datetime.datetime(2013, 1, 1, 5, tzinfo=datetime.timezone.utc)),
        ("numeric", decimal.Decimal("12345678901234567890.50")), ("uuid", uuid.UUID(int=7)),
        ("json", {"a": [1, None, "x"]}), ("time", datetime.time(23, 59, 59, 999999)),
        ("timetz", datetime.time(12, 30, 0, 5, datetime.timezone(datetime.timedelta(hours=-5, minutes=-30)))),
        ("interval", pa.MonthDayNano([1, -2, 3_500_000_000])), ("inet", ipaddress.ip_interface("192.168.1.5/24")),
        ("inet", ipaddress.ip_interface("::1")), ("cidr", ipaddress.ip_network("10.0.0.0/8")), ("macaddr", "08:00:2b:01:02:03"),
        ("datetime2", "0001-01-01T00:00:00.0000001"), ("datetime2", "2024-02-29T23:59:59"),
        ("uuid[]", [uuid.UUID(int=7), None]), ("text[][]", [["a", None], [], None]),
        ("(a int4, b (c numeric)[])", {"a": 1, "b": [{"c": decimal.Decimal("1.50")}, None]}),
        ("range(numeric)", types.Range(decimal.Decimal(1), None, True, False, False)),
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
        ("time", datetime.time(1, tzinfo=datetime.timezone.utc)), ("timetz", datetime.time(1)), ("interval", 5), ("inet", "::1"),
        ("datetime2", "2023-02-29T00:00:00"), ("datetime2", "2024-01-01"), ("datetime2", datetime.datetime(2000, 1, 1)),
        ("int4[]", "12"), ("int4[]", 1), ("int4[]", [1, "2"]), ("(a int4)", {"b": 1}), ("(a int4)", (1, 2)), ("(a int4)", 1),
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
        json_values.decode(types.by_name(name), values)


def test_names_and_aliases():
    assert types.by_name(" Double Precision ").name == "float8"
    assert types.by_annotation(list).name == "json"


def test_other_forms_of_results():
    convert = types.by_name("(a int4, b text)").from_python
    assert convert((1, "x")) == convert({"b": "x", "a": 1}) == {"a": 1, "b": "x"}
    assert convert({"a": 1, "b": None}) == {"a": 1, "b": None}
    for wrong, fact in [({"a": 1}, "without .b."), ({"a": 1, "b": "x", "c": 2}, ".c., which is no attribute")]:
        with pytest.raises(TypeError, match=fact):
            convert(wrong)
    assert types.by_name("interval").from_python(datetime.timedelta(days=-1, microseconds=5)) == pa.MonthDayNano([0, -1, 5000])
    assert types.by_name("int4[]").from_python(range(3)) == [0, 1, 2]


@pytest.mark.parametrize("text", ["", "[]", "int4[", "int4[3]", "(", "()", "(int4)", "(a int4", "range(int4", "int4 x", "(a int4,)"])
def test_texts_that_are_no_type(text):
    with pytest.raises(ValueError):
        types.by_name(text)


def test_texts_of_types_are_the_clients():
    for text in ["int4[]", "text[][]", "range(timestamptz)", '(a int4, "b "" c" (d text[], größe range(numeric)[])[])']:
        assert types.by_name(text).name == text
    assert types.by_name(" TSTZRANGE [] ").name == "range(timestamptz)[]"
    with pytest.raises(ValueError):
        types.by_name("(a " * 100_000)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("timestamp", "2024-01-01T00:00:00.1234567"), ("timestamp", "2024-01-01T00:00:00,12345600001"), ("time", "01:02:03.0000001"),
        ("timestamptz", "2024-01-01T00:00:00.1234567Z"), ("timestamptz", "2024-01-01T00:00:00.000000001+02:00"),
    ],
)  # fmt: skip
def test_digits_below_a_microsecond_are_refused(name, text):
    with pytest.raises(ValueError, match="below a microsecond"):
        json_values.decode(types.by_name(name), [text])


def test_zeros_below_a_microsecond_are_no_loss():
    moment = datetime.datetime(2024, 1, 1, 0, 0, 0, 123456)
    assert json_values.decode(types.by_name("timestamp"), ["2024-01-01T00:00:00.123456000"]).to_pylist() == [moment]
    aware = json_values.decode(types.by_name("timestamptz"), ["2024-01-01T02:00:00.1234560+02:00"])
    assert aware.to_pylist() == [moment.replace(tzinfo=datetime.timezone.utc)]
    assert json_values.decode(types.by_name("time"), ["00:00:00.1234560", "24:00:00.0000000"]).cast(pa.int64()).to_pylist() == [123456, 86_400_000_000]


def test_a_timetz_is_not_cut():
    convert = types.by_name("timetz").to_python
    assert convert("12:30:00.1234560+02") == datetime.time(12, 30, 0, 123456, datetime.timezone(datetime.timedelta(hours=2)))
    with pytest.raises(ValueError, match="below a microsecond"):
        convert("12:30:00.1234567+02")


def test_base64_is_read_whole_or_not_at_all():
    entry = types.by_name("bytea")
    assert json_values.decode(entry, [" AP8=\n", "A P\t8\r\n=", "", None]).to_pylist() == [b"\0\xff", b"\0\xff", b"", None]
    for wrong in ("AP8!=", "A-_8", "AP8", "AP8=x", "AP8=AP8=", "AP\u00a08=", "é", 5, ["AP8="]):
        with pytest.raises((ValueError, TypeError)):
            json_values.decode(entry, [wrong])


def test_large_parts_of_intervals_are_strings():
    entry = types.by_name("interval")
    for micros, written in [(2**53, 2**53), (2**53 + 1, str(2**53 + 1)), (-(2**53) - 1, str(-(2**53) - 1))]:
        array = pa.array([pa.MonthDayNano([1, 2, micros * 1000])], entry.arrow)
        assert json_values.encode(entry, array) == [{"months": 1, "days": 2, "microseconds": written}]
        for form in (micros, str(micros)):
            assert json_values.decode(entry, [{"months": "1", "days": 2, "microseconds": form}]).equals(array)


def test_arrays_are_checked_and_may_have_the_time_24_00():
    times = pa.array([86_400_000_000, None, 1], pa.time64("us"))
    one = pa.array([0, 0, 0], pa.int8())
    columns = [
        times,
        pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), times),
        pa.StructArray.from_arrays([times, pa.array(["a", "b", "c"])], ["x", "y"]),
        pa.DictionaryArray.from_arrays(one, times[:1]),
        pa.DictionaryArray.from_arrays(pa.array([None] * 3, pa.int8()), pa.array([], pa.utf8())),
    ]
    batch = pa.RecordBatch.from_arrays(columns, [str(position) for position in range(len(columns))])
    types.validate(batch)
    types.validate(batch[1:])
    offsets = pa.array([0, 5, 2, 2], pa.int32()).buffers()[1]
    broken = pa.Array.from_buffers(pa.utf8(), 3, [None, offsets, pa.py_buffer(b"abcde")])
    for column in [
        broken,
        pa.StructArray.from_arrays([times, broken], ["x", "y"]),
        pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int8()), times[:1], safe=False),
        pa.DictionaryArray.from_arrays(one, broken),
    ]:
        with pytest.raises(pa.ArrowInvalid):
            types.validate(pa.RecordBatch.from_arrays([column], ["0"]))
