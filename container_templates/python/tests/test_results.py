"""What handlers return: composite values whole, and decimals in digits, on every way out."""

import datetime
import decimal
import itertools
import json
import uuid

import numpy
import pandas
import pyarrow as pa
import pytest

from transship_server import columns, databend, dialects, function, json_values, types
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
    assert json_values.encode(entry.result, column) == [text]
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


def test_a_result_that_can_be_looked_at_once_is_looked_at_when_it_is_returned():
    seen = {}

    def words(x):
        seen[x] = True
        return seen.keys()

    def groups(x):
        numbers = (number for number in [1, 2, 11, 12, 21])
        for _, group in itertools.groupby(numbers, lambda number: number // 10):
            yield group

    def pairs(x):
        for key, group in itertools.groupby((number for number in [1, 2, 11]), lambda number: number // 10):
            yield key, group

    assert run(words, "int8[]")[1].to_pylist() == [[0], [0, 1]]
    assert run(groups, "int8[]", kind="table")[1].to_pylist() == 2 * [[1, 2], [11, 12], [21]]
    assert run(pairs, "(a int8, b int8[])", kind="table", rows=1)[1].to_pylist() == [{"a": 0, "b": [1, 2]}, {"a": 1, "b": [11]}]


def test_columns_that_a_handler_writes_to_again_stay_as_they_were():
    out = numpy.empty(2, "i8")

    def twice(x):
        for value in (5, 6):
            out[:] = value
            yield [value - 5] * 2, out

    assert run(twice, "int8", form="numpy", kind="table")[1].to_pylist() == [5, 5, 6, 6]

    def root(x):
        numpy.multiply(x, 10, out=out[: len(x)])
        return out[: len(x)]

    batch = pa.RecordBatch.from_arrays([pa.array([1, 2, 3], pa.int64())], ["x"])
    (reply,) = make(root, "int8", "numpy").with_row_errors("once").answer(batch)
    assert reply.column(0).to_pylist() == [10, 20, 30]


INF = float("inf")
# The largest value that float4 has, the first that rounds to none, and the one before that.
LARGEST, BEYOND = (2 - 2**-23) * 2.0**127, (2 - 2**-24) * 2.0**127
LAST = numpy.nextafter(BEYOND, 0)


@pytest.mark.parametrize("value", [1e300, -1e39, 10**60, D("1e60"), BEYOND])
def test_finite_values_that_float4_cannot_hold_are_refused(value):
    for returns, wrap in [("float4", lambda x: x), ("float4[]", lambda x: [None, x]), ("(a float4[])", lambda x: ([x],))]:
        for kind in ("scalar", "table"):
            given = (lambda x, wrap=wrap: wrap(value if x else INF)) if kind == "scalar" else lambda x, wrap=wrap: [wrap(value if x else INF)]
            with pytest.raises(CallError, match="out of range; the declared result is") as caught:
                run(given, returns, kind=kind)
            assert (caught.value.kind, caught.value.row) == ("bad_result", 1)


@pytest.mark.parametrize("form", ["numpy", "arrow", "pandas"])
def test_columns_of_values_that_float4_cannot_hold_are_refused(form):
    make_column = {"numpy": numpy.array, "arrow": pa.array, "pandas": pandas.Series}[form]
    for value in (1e300, D(10**60), BEYOND):
        column = make_column([type(value)(0), value])
        for target, returns in [(lambda x: column, "float4"), (lambda x: {"a": column}, "(a float4)"), (lambda x: [[value], None], "float4[]")]:
            with pytest.raises(CallError, match="out of range") as caught:
                run(target, returns, form)
            assert caught.value.kind == "bad_result"
    encoded = pa.array([1e300, 1.0]).dictionary_encode()
    with pytest.raises(CallError, match="out of range"):
        run(lambda x: encoded, "float4", form)
    # What no row has is no value.
    unused = pa.DictionaryArray.from_arrays(pa.array([0, 0]), pa.array([1.0, 1e300]))
    assert run(lambda x: unused, "float4", form)[1].to_pylist() == [1.0, 1.0]
    below_null = pa.StructArray.from_arrays([pa.array([1e300, 1.0])], ["a"], mask=pa.array([True, False]))
    assert run(lambda x: below_null, "(a float4)", form)[1].to_pylist() == [None, {"a": 1.0}]


@pytest.mark.parametrize("form", ["row", "numpy", "arrow", "pandas"])
def test_float4_holds_what_rounds_to_its_largest_value_and_infinite_values(form):
    for value in (LARGEST, -LARGEST, LAST, INF, -INF):
        wanted = value if value in (INF, -INF) else numpy.copysign(LARGEST, value)
        target = (lambda x, value=value: float(value)) if form == "row" else lambda x, value=value: numpy.array([value] * 2)
        assert run(target, "float4", form)[1].to_pylist() == [wanted] * 2
    assert json_values.decode(types.by_name("float4"), [LAST]).to_pylist() == [LARGEST]
    with pytest.raises(ValueError):
        json_values.decode(types.by_name("float4"), [BEYOND])


NAIVE = datetime.datetime(2024, 2, 29, 12, 30)
AWARE = NAIVE.replace(tzinfo=datetime.timezone.utc)
DAY = datetime.datetime(2024, 2, 29)


@pytest.mark.parametrize(
    ("returns", "value"),
    [
        ("timestamp", AWARE), ("date", AWARE), ("date", AWARE.replace(hour=0, minute=0)), ("date", NAIVE), ("time", NAIVE),
        ("bool", 1), ("bool", 1.0), ("bool", "true"), ("text", 1), ("text", 1.5), ("text", True), ("text", NAIVE), ("text", AWARE),
        ("text", DAY.date()), ("text", D("1.5")), ("bytea", 1), ("int8", True), ("float8", True), ("int4", "1"), ("float8", "1.5"),
        ("int8", NAIVE), ("int8", NAIVE.time()), ("int8", NAIVE - DAY), ("int4", DAY.date()), ("timestamp", 5), ("date", 5),
        ("time", 5), ("timestamp", "2024-02-29"), ("date", "2024-02-29"), ("numeric", True), ("numeric", 1.5), ("datetime2", NAIVE),
        ("timetz", NAIVE.time()), ("json", NAIVE), ("uuid", 5),
    ],
)  # fmt: skip
def test_columns_of_other_values_are_refused_as_rows_are(returns, value):
    columns_of = [
        (lambda x: [value, None], returns),
        (lambda x: pa.array([None, value]), returns),
        (lambda x: pa.array([value, None]).dictionary_encode(), returns),
        (lambda x: [[value], None], f"{returns}[]"),
        (lambda x: {"a": [value, None]}, f"(a {returns})"),
        (lambda x: [{"a": [value]}, None], f"(a {returns}[])"),
    ]
    for target, wanted in columns_of:
        for form in ("arrow", "numpy", "pandas"):
            with pytest.raises(CallError, match="the declared result is") as caught:
                run(target, wanted, form)
            assert caught.value.kind == "bad_result"
    if returns != "json":
        with pytest.raises(CallError):
            run(lambda x: value, returns)


ID = uuid.UUID(int=7)


@pytest.mark.parametrize(
    ("returns", "column", "values"),
    [
        ("int2", numpy.array([1, 2], "i8"), [1, 2]), ("int8", numpy.array([1.0, 2.0]), [1, 2]), ("int4", numpy.array([1, 2], "u1"), [1, 2]),
        ("float8", numpy.array([1, 2]), [1.0, 2.0]), ("float4", numpy.array([1, 2]), [1.0, 2.0]), ("float4", numpy.array([0.5, 2]), [0.5, 2.0]),
        ("float4", numpy.array([0.5, 2], "f2"), [0.5, 2.0]), ("float8", pa.array([D("1.5"), None]), [1.5, None]),
        ("bool", numpy.array([True, False]), [True, False]), ("bool", pandas.Series([True, None]), [True, None]),
        ("int8", pandas.Series([1, None]), [1, None]), ("int8", pandas.Series([1, None], dtype=object), [1, None]),
        ("text", numpy.array(["a", "ß"]), ["a", "ß"]), ("text", numpy.array([b"a", b"b"]), ["a", "b"]),
        ("text", pandas.Series(["a", None]), ["a", None]), ("text", pandas.Series(["a", None], dtype="category"), ["a", None]),
        ("text", pa.array(["a", None], pa.string_view()), ["a", None]), ("bytea", pa.array([b"a", None], pa.large_binary()), [b"a", None]),
        ("date", numpy.array(["2024-02-29", "NaT"], "M8[D]"), [DAY.date(), None]), ("date", pandas.Series([DAY, None]), [DAY.date(), None]),
        ("date", pa.array([DAY.date(), None], pa.date64()), [DAY.date(), None]),
        ("timestamp", numpy.array([NAIVE, None], "M8[ns]"), [NAIVE, None]), ("timestamp", pandas.Series([NAIVE, None]), [NAIVE, None]),
        ("timestamp", pa.array([NAIVE, None], pa.timestamp("s")), [NAIVE, None]), ("timestamp", numpy.array([DAY, None], "M8[D]"), [DAY, None]),
        ("timestamptz", pandas.Series([AWARE, None]), [AWARE, None]), ("timestamptz", numpy.array([NAIVE, None], "M8[us]"), [AWARE, None]),
        ("timestamptz", pa.array([NAIVE, None], pa.timestamp("s", "Asia/Tokyo")), [AWARE, None]),
        ("time", pa.array([NAIVE.time(), None], pa.time32("s")), [NAIVE.time(), None]),
        ("uuid", [ID, None], [ID.bytes, None]), ("uuid", numpy.array([ID.bytes, None], object), [ID.bytes, None]),
        ("interval", [pa.MonthDayNano([1, 2, 3]), None], [pa.MonthDayNano([1, 2, 3]), None]), ("numeric", [5, None], ["5", None]),
        ("json", ["{}", None], ["{}", None]), ("json", [5, None], ["5", None]), ("json", [True, None], ["true", None]),
        ("text", [None, None], [None, None]), ("int4[]", numpy.array([None, [1, 2]], object), [None, [1, 2]]),
        ("(a int4, b text)", pa.array([{"b": "x", "a": 1}, None]), [{"a": 1, "b": "x"}, None]),
    ],
)  # fmt: skip
def test_columns_of_the_same_values_in_another_form_are_taken(returns, column, values):
    form = "pandas" if isinstance(column, pandas.Series) else "arrow"
    assert run(lambda x: column, returns, form)[1].to_pylist() == values


def test_moments_that_would_lose_digits_are_refused():
    for column in (numpy.array(["2024-02-29T00:00:00.000000001"] * 2, "M8[ns]"), pandas.Series(pandas.to_datetime([1, 2], unit="ns"))):
        with pytest.raises(CallError, match="lose data"):
            run(lambda x, column=column: column, "timestamp", "pandas")


DATE, NAIVE = datetime.date(2020, 1, 2), datetime.datetime(2020, 1, 2, 3, 4, 5)
AWARE = NAIVE.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=2)))


@pytest.mark.parametrize(
    "first, second, returns",
    [
        (DATE, NAIVE, "date"),
        (DATE, NAIVE, "timestamp"),
        (NAIVE, AWARE, "timestamp"),
        (AWARE, NAIVE, "timestamptz"),
        (datetime.time(1), datetime.time(1, tzinfo=datetime.timezone.utc), "time"),
        (NAIVE, pandas.Timestamp("2020-01-01 00:00:00.123456789"), "timestamp"),
    ],
)
@pytest.mark.parametrize("form", ["arrow", "pandas"])
def test_moments_of_a_column_that_arrow_would_even_out_are_refused(first, second, returns, form):
    objects = numpy.empty(2, object)
    objects[:] = [first, second]
    for column, kind in [
        ([first, second], returns),
        (objects, returns),
        (pandas.Series([first, second], dtype=object), returns),
        (iter([first, second]), returns),
        ([[None, first], [second]], f"{returns}[]"),
        ([{"a": first}, {"a": second}], f"(a {returns})"),
        ({"a": [first, second]}, f"(a {returns})"),
    ]:
        with pytest.raises(CallError) as caught:
            run(lambda x: column, kind, form)
        assert caught.value.kind == "bad_result" and repr(second) in caught.value.message


def test_moments_of_one_kind_are_what_they_are():
    utc = AWARE.astimezone(datetime.timezone.utc)
    for values, returns in [
        ([DATE, None], "date"),
        ([NAIVE, NAIVE], "timestamp"),
        ([NAIVE, pandas.NaT], "timestamp"),
        ([AWARE, utc], "timestamptz"),
        ([[DATE], [None, DATE]], "date[]"),
        ([datetime.time(1), None], "time"),
    ]:
        expected = [None if value is pandas.NaT else utc if value is AWARE else value for value in values]
        assert run(lambda x: values, returns, "pandas")[1].to_pylist() == expected
