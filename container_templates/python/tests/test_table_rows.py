"""Rows of a shared table that is open, by whatever stands for a key."""

import copy
import ctypes
import datetime
import decimal
import pickle
import uuid
import zoneinfo

import numpy
import pandas
import pyarrow as pa
import pytest
from segments import BATCH_ROWS, numbers
from test_columns import ROWS
from transship_server import function, tables, types


def test_a_table_says_what_it_is(opened):
    table = opened(numbers("n"))
    assert table.schema.equals(pa.schema([("key", pa.int64()), ("name", pa.string())]), check_metadata=True)
    assert (table.key, len(table), table.num_rows) == (["key"], 10, 10)
    for take in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be copied"):
            take(table)


def test_all_rows_lie_where_they_are(opened):
    given = numbers("n", BATCH_ROWS + 5)
    before = pa.total_allocated_bytes()
    table = opened([given, given[:0], given[:7]])
    whole = table.to_arrow()
    assert [chunk.num_rows for chunk in whole.to_batches()] == [BATCH_ROWS, 5, 7]
    assert pa.total_allocated_bytes() - before < 10_000
    assert whole.equals(pa.concat_tables([given, given[:7]]))
    buffers = [buffer for column in whole["name"].chunks for buffer in column.buffers() if buffer is not None]
    assert not any(buffer.is_mutable for buffer in buffers)
    again = table.to_arrow()["name"].chunk(0).buffers()
    assert again[2].address == whole["name"].chunk(0).buffers()[2].address
    with pytest.raises(ValueError, match="read-only"):
        whole["key"].chunk(0).to_numpy()[0] = 5


@pytest.mark.parametrize(
    "keys",
    [
        pa.array([3, None, 77, 0], pa.int64()),
        pa.array([3, None, 77, 0], pa.int16()),
        pa.array([3.0, None, 77.0, 0.0]),
        pa.chunked_array([[3, None], [], [77, 0]]),
        pa.chunked_array([[3, None, 77, 0]], pa.int32()).dictionary_encode(),
        pa.array([9, 3, None, 77, 0], pa.int64())[1:],
        numpy.array([3, numpy.nan, 77, 0]),
        numpy.array([3, None, 77, 0], dtype=object),
        pandas.Series([3, None, 77, 0]),
        pandas.Series([3, None, 77, 0], dtype="Int32"),
        [3, None, 77, 0],
        (3, None, numpy.int64(77), 0),
        {"key": [3, None, 77, 0], "more": None},
        pa.table({"more": [0] * 4, "key": [3, None, 77, 0]}),
        pa.RecordBatch.from_pydict({"key": [3, None, 77, 0]}),
        pandas.DataFrame({"key": pandas.array([3, None, 77, 0], "Int64")}),
        pa.array([{"key": 3}, None, {"key": 77}, {"key": 0}]),
        pa.chunked_array([[{"key": 3}, None], [{"key": 77}, {"key": 0}]]),
    ],
)
def test_keys_may_be_of_any_form(opened, keys):
    table = opened(numbers("n"))
    found = table.lookup(keys)
    assert found.schema == table.schema
    assert found.to_pydict() == {"key": [3, None, None, 0], "name": ["n3", None, None, "n0"]}
    positions, rows = table.matches(keys)
    assert (positions.type, positions.to_pylist(), rows["name"].to_pylist()) == (pa.int32(), [0, 3], ["n3", "n0"])


TEXTS = pa.table({"key": ["zero", "größer"], "value": [0, 1]})


@pytest.mark.parametrize(
    "keys",
    [
        ["größer", None, "nothing"],
        pa.array(["größer", None, "nothing"], pa.large_string()),
        pa.array(["größer", None, "nothing"], pa.string_view()),
        pa.array(["größer", None, "nothing"]).dictionary_encode(),
        pa.DictionaryArray.from_arrays(pa.array([0, 1, 2]), pa.array(["größer", None, "nothing"])),
        pandas.Series(["größer", None, "nothing"]),
        pandas.Series(["größer", None, "nothing"], dtype="category"),
        numpy.array(["größer", None, "nothing"], dtype=object),
    ],
)
def test_keys_may_be_texts(opened, keys):
    assert opened(TEXTS).lookup(keys)["value"].to_pylist() == [1, None, None]


@pytest.mark.parametrize(
    ("keys", "kind", "fact"),
    [
        (["3"], TypeError, "'3' of type str"),
        ([True], TypeError, "True of type bool"),
        (pa.array(["3"]), TypeError, "a column of string"),
        (pa.array([True]), TypeError, "a column of bool"),
        (pa.array([3.5]), ValueError, "3.5"),
        (numpy.array([3.5]), ValueError, "3.5"),
        (pa.array([1 << 63], pa.uint64()), ValueError, "not in range"),
        ([1 << 70], ValueError, "too large"),
        ("3", TypeError, "which is no column"),
        (3, TypeError, "not iterable"),
        ({"other": [3]}, ValueError, 'the keys have no column "key"'),
        (pa.table({"other": [3]}), ValueError, 'the keys have no column "key"'),
        (pandas.DataFrame({"other": [3]}), ValueError, 'the keys have no column "key"'),
        (pa.array([{"other": 3}]), ValueError, 'the keys have no column "key"'),
    ],
)
def test_keys_that_do_not_fit_are_told(opened, keys, kind, fact):
    for question in (opened(numbers("n")).lookup, opened(numbers("n")).matches):
        with pytest.raises(kind) as caught:
            question(keys)
        assert fact in str(caught.value)
        assert "no column" in str(caught.value) or 'do not fit column "key" of type int8' in str(caught.value)


PAIRS = pa.table({"code": ["four", "four", "five", None], "day": pa.array([1, 2, 1, 1], pa.int32()), "value": [10, 20, 30, 40]})


@pytest.mark.parametrize(
    "keys",
    [
        (["four", "five", "five", None], [2, 1, 2, 1]),
        [pa.array(["four", "five", "five", None]), numpy.array([2, 1, 2, 1])],
        {"code": ["four", "five", "five", None], "day": [2, 1, 2, 1]},
        pa.table({"day": [2, 1, 2, 1], "code": ["four", "five", "five", None]}),
        pandas.DataFrame({"day": [2, 1, 2, 1], "code": ["four", "five", "five", None]}),
        pa.StructArray.from_arrays([pa.array([2, 1, 2, 1]), pa.array(["four", "five", "five", None])], ["day", "code"]),
    ],
)
def test_keys_of_several_columns(opened, keys):
    table = opened(PAIRS, ["code", "day"])
    assert table.key == ["code", "day"]
    assert table.lookup(keys)["value"].to_pylist() == [20, 30, None, None]
    assert table.get(("four", 1)) == {"code": "four", "day": 1, "value": 10}
    assert table.get(("four", None)) is table.get((None, 1)) is table.get(("none", 1)) is None


def test_keys_with_other_numbers_of_columns_are_told(opened):
    table = opened(PAIRS, ["code", "day"])
    for ask, wrong in [
        (table.lookup, ["four"]), (table.lookup, (["four"], [1], [1])), (table.matches, [["four"]]),
        (table.get, "four"), (table.get, ("four",)), (table.get, "fo"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match="the key has 2 columns: code, day"):
            ask(wrong)
    with pytest.raises(ValueError, match="length"):
        table.lookup((["four"], [1, 2]))
    without = opened(numbers("n"), [])
    assert without.key == [] and len(without.to_arrow()) == 10
    for ask, key in [(without.lookup, [1]), (without.matches, [1]), (without.get, 1), (without.lookup, []), (without.get, ())]:
        with pytest.raises(ValueError, match="the table has no key"):
            ask(key)


def test_keys_of_several_rows_have_matches(opened):
    rows = pa.table({"key": pa.array([5, None, 7, 5], pa.int64()), "value": ["a", "b", "c", "d"]})
    table = opened([rows, rows.slice(2), rows[:0]])
    positions, found = table.matches([7, 9, 5, None, 7])
    assert (positions.to_pylist(), found["value"].to_pylist()) == ([0, 0, 2, 2, 2, 4, 4], ["c", "c", "a", "d", "d", "c", "c"])
    for ask in (lambda: table.lookup([9, 5]), lambda: table.get(5)):
        for _ in range(2):
            with pytest.raises(ValueError, match='"it".*5'):
                ask()
    assert table.matches([])[0].to_pylist() == [] and len(table.lookup([])) == 0


def test_a_table_may_have_no_rows(opened):
    table = opened(numbers("n", 0))
    assert (len(table), bool(table), table.to_arrow().num_rows) == (0, False, 0)
    assert table.get(1) is None and table.lookup([1])["name"].to_pylist() == [None]
    assert [len(part) for part in table.matches([1])] == [0, 0]


def test_rows_are_dicts_of_the_values_that_handlers_get(opened):
    """Of every type, and a handler may change what it got."""
    names = [*ROWS, "json", "date", "timestamp", "inet", "timetz"]
    more = {"json": ['{"a": [1]}', None], "date": [18_000, None], "inet": ["1.2.3.4", None], "timetz": ["01:02+01", None]}
    texts = ROWS | more | {name: [0, None] for name in ("time", "timestamp", "timestamptz")}
    entries = [types.by_name(name) for name in names]
    arrays = [pa.array(texts[name][:2], entry.arrow) for name, entry in zip(names, entries)]
    schema = pa.schema([pa.field("key", pa.int64()), *[entry.field(f"c {name}") for name, entry in zip(names, entries)]])
    table = opened(pa.Table.from_arrays([pa.array([0, 1], pa.int64()), *arrays], schema=schema))
    assert table.schema.types == [pa.int64(), *[entry.arrow for entry in entries]]
    rows = [{"key": key} for key in range(2)]
    for name, entry, array in zip(names, entries, arrays):
        for row, value in zip(rows, function._python_values(entry, array)):
            row[f"c {name}"] = value
    for _ in range(2):
        assert [table.get(key) for key in range(2)] == rows
        table.get(0)["c json"]["a"].append(2)
        table.get(0)["c int4[]"].clear()
        table.get(0)["key"] = 5
    assert isinstance(table.get(0)["c uuid"], uuid.UUID) and table.get(0)["c range(int8)"].lower == 1


def test_a_value_that_python_does_not_have_is_told(opened):
    day = pa.array([86_400_000_000], pa.int64()).cast(pa.time64("us"), safe=False)
    table = opened(pa.table({"key": pa.array([1], pa.int64()), "t": day}))
    with pytest.raises(ValueError, match="hour must be in 0..23"):
        table.get(1)
    assert table.lookup([1])["t"].cast(pa.int64()).to_pylist() == [86_400_000_000]


@pytest.mark.parametrize(
    ("name", "key", "wrong"),
    [
        ("int2", 7, "7"), ("uuid", uuid.UUID(int=7), 7), ("text", "seven", b"seven"), ("bytea", b"seven", "seven"),
        ("date", datetime.date(2020, 1, 2), datetime.datetime(2020, 1, 2)),
    ],
)  # fmt: skip
def test_rows_are_found_by_the_values_that_handlers_get(name, key, wrong, monkeypatch, opened):
    """What the library is asked for: no index of most of these types is made here."""
    table = opened(numbers("n"))
    entry = types.by_name(name)
    table._key_types, table._key_struct = [entry], pa.struct([("key", entry.arrow)])
    asked = []
    monkeypatch.setattr(table._library, "lookup", lambda handle, keys, kind: asked.append(keys) or pa.nulls(1, kind))
    assert table.get(key) is None
    assert function._python_values(types.CompositeType([("key", entry)]), asked[0]) == [{"key": key}]
    with pytest.raises(TypeError, match=f'do not fit column "key" of type {name}'):
        table.get(wrong)


def test_rows_are_kept_within_bounds(opened, monkeypatch):
    monkeypatch.setattr(tables, "_MOST_KEPT", 3)
    table = opened(pa.table({"key": pa.array(range(10), pa.int64()), "name": ["x" * 10_000] + [f"n{key}" for key in range(1, 10)]}))
    assert [table.get(key)["name"] for key in range(10)] == ["x" * 10_000] + [f"n{key}" for key in range(1, 10)]
    assert 0 < len(table._kept) <= 3 and 0 not in table._kept
    assert table.get(77) is None and table._kept[77] is None


class Asked:
    """A library with one table, whose key is of a type, and which has no rows. It notes the keys that it is asked for."""

    def __init__(self, name):
        fields = [types.by_name(name).field("key"), pa.field("name", pa.string())]
        self._schema, self.keys = pa.schema(fields, {"transship:key": "0"}), []

    def schema(self, handle):
        return self._schema

    def rows(self, handle):
        return 0

    def close(self, handle):
        pass

    def lookup(self, handle, keys, kind):
        self.keys += keys.field(0).to_pylist()
        return pa.nulls(len(keys), kind)


def asked(name):
    """A table with a key of a type, and the keys that its library is asked for: no index of most types is made here."""
    library = Asked(name)
    return tables.Table(library, None), library.keys


class Number:
    """A key that changes, as a tensor without dimensions does."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


class Word(str):
    """It says that it is any other."""

    def __eq__(self, other):
        return True

    def __hash__(self):
        return hash("n")


def test_moments_that_are_equal_and_differ_have_rows_of_their_own():
    zone = zoneinfo.ZoneInfo("Europe/Berlin")
    first = datetime.datetime(2024, 10, 27, 2, 30, tzinfo=zone)
    second = first.replace(fold=1)
    assert first == second and first.timestamp() != second.timestamp()
    table, questions = asked("timestamptz")
    for key in (first, second, first):
        assert table.get(key) is None
    assert [moment.timestamp() for moment in questions] == [first.timestamp(), second.timestamp(), first.timestamp()]
    # Without a zone there is but one.
    table, questions = asked("timestamp")
    for key in (first, second):
        assert table.get(key.replace(tzinfo=None)) is None
    assert len(questions) == 1
    with pytest.raises(TypeError, match="without time zone"):
        table.get(first)


def test_keys_that_change_have_the_row_of_what_they_are_now(opened):
    table, key = opened(numbers("n")), Number(3)
    assert table.get(key)["name"] == "n3"
    key.value = 5
    assert table.get(key)["name"] == "n5" and table.get((5))["name"] == "n5"
    pairs = opened(PAIRS, ["code", "day"])
    key.value = 1
    assert pairs.get(("four", key))["value"] == 10
    key.value = 2
    assert pairs.get(("four", key))["value"] == 20


def test_keys_of_other_classes_fit_or_do_not_whatever_was_found_before(opened):
    table, pairs = opened(numbers("n")), opened(PAIRS, ["code", "day"])
    assert table.get(1)["name"] == "n1" and pairs.get(("four", 1))["value"] == 10
    for wrong in (True, 1.0, decimal.Decimal(1), numpy.bool_(True)):
        for one, key in [(table, wrong), (pairs, ("four", wrong))]:
            with pytest.raises(TypeError, match="do not fit column"):
                one.get(key)
    assert table.get(numpy.int64(1)) == table.get(1)
    texts = opened(TEXTS)
    assert texts.get("zero")["value"] == 0 and texts.get(Word("größer"))["value"] == 1
    for unhashable in ([1], {}, pa.array([1])):
        with pytest.raises(TypeError, match="do not fit"):
            table.get(unhashable)
    # NumPy's numbers are truth values to nobody.
    flags, questions = asked("bool")
    assert flags.get(True) is flags.get(True) is None and questions == [True]
    with pytest.raises(TypeError, match="do not fit"):
        flags.get(1)


def test_byte_strings_that_change_are_keys():
    table, questions = asked("bytea")
    key = bytearray(b"seven")
    assert table.get(key) is table.get(b"seven") is table.get(memoryview(key)) is None
    key[0] = 0x53
    assert table.get(key) is table.get(b"seven") is None
    assert questions == [b"seven", b"seven", b"seven", b"Seven"]


def test_long_keys_are_not_kept(opened):
    table = opened(TEXTS)
    for length in (1, 100, 2000, 100_000):
        assert table.get("x" * length) is table.get("ü" * length) is None
    assert set(map(len, table._kept)) == {1, 100}
    pairs = opened(PAIRS, ["code", "day"])
    assert pairs.get(("x" * 2000, 1)) is None and pairs._kept == {}


@pytest.mark.parametrize(("name", "zone"), [("timestamp", None), ("timestamptz", "UTC")])
def test_moments_between_microseconds_have_no_row(name, zone):
    table, questions = asked(name)
    whole, between = pandas.Timestamp("2024-01-01 00:00:00.000001", tz=zone), pandas.Timestamp("2024-01-01 00:00:00.000001002", tz=zone)
    assert table.get(whole) is None and len(questions) == 1
    for ask in (lambda: table.get(between), lambda: table.lookup([whole, between]), lambda: table.lookup(pandas.Series([between]))):
        with pytest.raises(ValueError, match="do not fit"):
            ask()
    assert len(questions) == 1


def test_not_a_time_is_no_key():
    with pytest.raises(ValueError, match="do not fit"):
        asked("timestamp")[0].get(pandas.NaT)


def test_rows_are_no_columns(opened):
    table = opened(PAIRS, ["code", "day"])
    for rows in ([("four", 1), ("five", 1)], [("four", 1)], [("four", 1), ("five", 1), ("four", 2)], [["four", 1], ("five", 1)]):
        for ask in (table.lookup, table.matches):
            with pytest.raises(TypeError, match="a tuple or a dict of the columns code, day"):
                ask(rows)
    assert table.lookup((("four", "five"), (1, 1)))["value"].to_pylist() == [10, 30]


def test_texts_are_no_uuids():
    table, questions = asked("uuid")
    found = uuid.UUID(int=7)
    for wrong in ("sixteen letters!", str(found)):
        for column in (
            pa.array([wrong]), pa.array([wrong], pa.large_string()), pa.array([wrong], pa.string_view()),
            pa.array([wrong]).dictionary_encode(), pandas.Series([wrong]), numpy.array([wrong], dtype=object), numpy.array([wrong]),
        ):  # fmt: skip
            with pytest.raises(TypeError, match="a column of"):
                table.lookup(column)
    for wrong in ("sixteen letters!", "x"):
        for ask in (lambda: table.get(wrong), lambda: table.lookup([wrong])):
            with pytest.raises(ValueError, match="badly formed"):
                ask()
    assert questions == []
    for column in ([found], [str(found)], pa.array([found.bytes]), pa.array([found.bytes], pa.binary(16)), pa.array([None])):
        table.lookup(column)
    assert questions == [found.bytes] * 4 + [None]


@pytest.mark.parametrize("name", [*types.TYPES, "int4[]", "(a numeric, b text[])", "range(date)", "range(int4)[]", "(u uuid)"])
def test_types_are_known_by_their_fields(name):
    entry = types.by_name(name)
    memory = (ctypes.c_char * 72)()
    pa.schema([entry.field("x")])._export_to_c(ctypes.addressof(memory))
    # pyarrow makes an extension type of some fields.
    for field in (entry.field("x"), pa.Schema._import_from_c(ctypes.addressof(memory)).field(0)):
        found = types.by_field(field)
        assert (found.name, found.arrow, type(found)) == (entry.name, entry.arrow, type(entry))


@pytest.mark.parametrize("kind", [pa.uint8(), pa.large_string(), pa.timestamp("ns"), pa.list_(pa.int8())])
def test_other_types_are_no_columns(kind):
    with pytest.raises(ValueError, match="is of unrecognized type"):
        types.by_field(pa.field("x", kind))
