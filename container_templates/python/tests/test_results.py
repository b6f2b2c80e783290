"""What handlers return: composite values whole, and decimals in digits, on every way out."""

import decimal
import json

import numpy
import pandas
import pyarrow as pa
import pytest

from transship_server import columns, databend, dialects, function, types
from transship_server.errors import CallError

COMPOSITE = "(a int8, b text)"
D = decimal.Decimal


def make(target, returns, form="row", kind="scalar"):
    entry = {"name": "f", "arguments": ["int8"], "returns": returns, "kind": kind, "batch": form}
    return function._describe("f", target, json.loads(json.dumps(entry)))


def run(target, returns, form="row", kind="scalar", rows=2):
    batch = pa.RecordBatch.from_arrays([pa.array(range(rows), pa.int64())], ["x"])
    made = make(target, returns, form, kind)
    parts = [part.column(part.num_columns - 1) for part in made.answer(batch)]
    return made, pa.chunked_array([part.storage if isinstance(part, pa.ExtensionArray) else part for part in parts]).combine_chunks()


def test_a_dict_has_every_attribute():
    assert run(lambda x: {"b": None, "a": x}, COMPOSITE)[1].to_pylist() == [{"a": 0, "b": None}, {"a": 1, "b": None}]
    assert run(lambda x: None, COMPOSITE)[1].to_pylist() == [None, None]
    for kind, target in [
        ("scalar", lambda x: {"a": x, "b": ""} if x == 0 else {"a": x}),
        ("table", lambda x: [{"a": x, "b": ""} if x == 0 else {"a": x}]),
    ]:
        with pytest.raises(CallError) as caught:
            run(target, COMPOSITE, kind=kind)
        assert (caught.value.kind, caught.value.row) == ("bad_result", 1)
        assert caught.value.message == "It returned a dict without 'b'; the declared result is (a int8, b text)."
    with pytest.raises(CallError, match="a dict with 'c', which is no attribute"):
        run(lambda x: {"a": 1, "b": "", "c": 2}, COMPOSITE)
    with pytest.raises(CallError, match="a dict with 5, which is no attribute"):
        run(lambda x: {"a": 1, "b": "", 5: 2, 6: 3}, COMPOSITE)
    with pytest.raises(CallError, match="a dict without 'y'"):
        run(lambda x: {"a": {}}, "(a (y int8))")


@pytest.mark.parametrize(
    "target",
    [
        lambda x: {"a": x},
        lambda x: pa.RecordBatch.from_arrays([x], ["a"]),
        lambda x: [{"a": 1, "b": ""}, {"a": 1}],
        lambda x: pa.array([{"a": 1}, {"a": 2}]),
        lambda x: pandas.DataFrame({"a": x.to_pylist()}),
    ],
)
def test_a_column_has_every_attribute(target):
    with pytest.raises(CallError, match="without 'b'"):
        run(target, COMPOSITE, "arrow")


DECIMALS = [
    (D("0.00000001"), "0.00000001"),
    (D("1E+5"), "100000"),
    (D("-1.50E-10"), "-0.000000000150"),
    (D("0E-8"), "0.00000000"),
    (D("1E-300"), "0." + "0" * 299 + "1"),
    (D("1E+300"), "1" + "0" * 300),
    (D("1.50"), "1.50"),
    (D("NaN"), "NaN"),
    (D("-Infinity"), "-Infinity"),
    (D("12345678901234567890.123"), "12345678901234567890.123"),
    (7, "7"),
]


@pytest.mark.parametrize(("value", "text"), DECIMALS)
def test_decimals_of_rows_are_digits(value, text):
    entry, column = run(lambda x: value, "numeric", rows=1)
    assert column.to_pylist() == [text]
    assert run(lambda x: [value], "numeric", kind="table", rows=1)[1].to_pylist() == [text]
    assert run(lambda x: [value, None], "numeric[]", rows=1)[1].to_pylist() == [[text, None]]
    assert run(lambda x: (value,), "(n numeric)", rows=1)[1].to_pylist() == [{"n": text}]
    assert run(lambda x: types.Range(value, None), "numrange", rows=1)[1].to_pylist()[0]["lower"] == text
    # As other engines see it.
    assert types.encode_json(entry.result, column) == [text]
    assert databend._to(entry.result, column).to_pylist() == [text]
    for dialect in ("snowflake", "redshift", "bigquery", "mlflow"):
        assert dialects._call(entry, dialect, [[1]]) == [text]
    pieces = list(columns._buffers(entry.result, column))
    assert pieces[2].to_pybytes() == text.encode()


@pytest.mark.parametrize(
    ("target", "form"),
    [
        (lambda x: pa.array([D("0.00000001"), None], pa.decimal128(38, 8)), "arrow"),
        (lambda x: pa.array(["1E-8", None]), "arrow"),
        (lambda x: pa.array(["1E-8", None], pa.large_utf8()), "arrow"),
        (lambda x: pa.chunked_array([pa.array([D("1E-8")]), pa.array([None], pa.decimal128(8, 8))]), "arrow"),
        (lambda x: [D("1E-8"), None], "arrow"),
        (lambda x: pandas.Series([D("1E-8"), None]), "pandas"),
        (lambda x: numpy.array([D("1E-8"), None]), "numpy"),
    ],
)
def test_decimals_of_columns_are_digits(target, form):
    assert run(target, "numeric", form)[1].to_pylist() == ["0.00000001", None]


def test_decimals_within_columns_are_digits():
    small = pa.array([D("1E-8"), None], pa.decimal128(38, 8))
    assert run(lambda x: {"n": small, "t": ["E", "e"]}, "(n numeric, t text)", "arrow")[1].to_pylist() == [
        {"n": "0.00000001", "t": "E"},
        {"n": None, "t": "e"},
    ]
    lists = pa.array([[D("1E-8"), None], None], pa.list_(pa.decimal128(38, 8)))
    assert run(lambda x: lists, "numeric[]", "arrow")[1].to_pylist() == [["0.00000001", None], None]


def test_decimals_that_numeric_has_no_room_for_are_refused():
    for value in (D("1E+200000"), D("1E-20000")):
        with pytest.raises(CallError) as caught:
            run(lambda x, value=value: D(1) if x == 0 else value, "numeric")
        assert (caught.value.kind, caught.value.row) == ("bad_result", 1)


def test_a_result_that_its_handler_goes_on_changing_stays_as_it_was():
    seen, told, taken = [], {"a": 0, "b": []}, bytearray(1)

    def prefixes(x):
        seen.append(x)
        return seen

    def whole(x):
        told["a"] = x
        told["b"].append(x)
        return told

    def byte(x):
        taken[0] = x
        return taken

    def growing(x):
        values = []
        for i in range(x + 1):
            values.append(i)
            yield values

    assert run(prefixes, "int8[]")[1].to_pylist() == [[0], [0, 1]]
    assert run(whole, "(a int8, b int8[])")[1].to_pylist() == [{"a": 0, "b": [0]}, {"a": 1, "b": [0, 1]}]
    assert run(byte, "bytea", rows=3)[1].to_pylist() == [b"\0", b"\1", b"\2"]
    assert run(growing, "int8[]", kind="table")[1].to_pylist() == [[0], [0], [0, 1]]
    told["b"].clear()
    assert [json.loads(text) for text in run(whole, "json")[1].to_pylist()] == [{"a": 0, "b": [0]}, {"a": 1, "b": [0, 1]}]


def test_columns_that_a_handler_writes_to_again_stay_as_they_were():
    out = numpy.empty(2, "i8")

    def twice(x):
        for value in (5, 6):
            out[:] = value
            yield [0, 1], out

    assert run(twice, "int8", form="numpy", kind="table")[1].to_pylist() == [5, 5, 6, 6]

    def root(x):
        numpy.multiply(x, 10, out=out[: len(x)])
        return out[: len(x)]

    batch = pa.RecordBatch.from_arrays([pa.array([1, 2, 3], pa.int64())], ["x"])
    (reply,) = make(root, "int8", "numpy").with_row_errors("once").answer(batch)
    assert reply.column(0).to_pylist() == [10, 20, 30]
