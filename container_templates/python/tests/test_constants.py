"""Constants: columns of which a client sends one row (docs/protocol.md §4.10, §6, §7.11)."""

import json

import pyarrow as pa
import pytest
from test_columns import ROWS, body_of, lay_out
from transship_server import columns, constants, json_columns, rest, types
from transship_server.errors import CallError
from transship_server.function import Function
from transship_server.table_function import TableFunction


def request_of(segments, arguments, rows, header=None, same=False):
    """A request whose arguments are (type, array) pairs; those of one row are constants."""
    entries = [(types.by_name(name), array) for name, array in arguments]
    positions = [i for i, (_, array) in enumerate(entries) if len(array) == 1]
    sent = [pair for pair in entries if not (same and len(pair[1]) == 1)]
    # One column at a time: a batch's columns are equally long.
    places, data = [], b""
    for pair in sent:
        its_places, its_data = lay_out([pair])
        data += bytes(-len(data) % 64)
        places += [place + len(data) if i % 2 == 0 else place for i, place in enumerate(its_places)]
        data += bytes(its_data)
    known = {"rows": rows, "buffers": places, "constants": positions, "constants_id": "a"}
    known |= {"same_constants": True} if same else {}
    return columns.Request(body_of(known | (header or {}), data), segments)


def columns_of(arguments):
    return [(f"x{i}", types.by_name(name)) for i, (name, _) in enumerate(arguments)]


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("form", ["row", "arrow"])
def test_every_type_is_the_same_in_each_row(name, form):
    entry = types.by_name(name)
    for value in ROWS[name][:2]:
        arguments = [("int4", pa.array([1, 2, 3], pa.int32())), (name, pa.array([value], entry.arrow))]
        batch = request_of(columns.Segments(None), arguments, 3).batch(columns_of(arguments))
        seen = []

        def handler(x, y):
            seen.append((x, y))
            return x

        function = Function("f", handler, form, columns_of(arguments), types.TYPES["int4"])
        assert list(next(function.answer(batch)).column(0).to_pylist()) == [1, 2, 3]
        if form == "row":
            plain = pa.array([value], entry.arrow).to_pylist()[0]
            plain = plain if plain is None or entry.to_python is None else entry.to_python(plain)
            assert seen == [(1, plain), (2, plain), (3, plain)]
        else:
            ((numbers, values),) = seen
            assert numbers.to_pylist() == [1, 2, 3] and values == pa.array([value] * 3, entry.arrow)


def test_constants_are_kept_for_later_batches_of_the_connection():
    segments = columns.Segments(None)
    for value in (b"first", b"second" * 20_000):
        arguments = [("bytea", pa.array([value])), ("int8", pa.array([1, 2]))]
        for same in (False, True, True):
            batch = request_of(segments, arguments, 2, same=same).batch(columns_of(arguments))
            assert batch.column(0).to_pylist() == [value, value] and batch.column(1).to_pylist() == [1, 2]
    # The value travelled once.
    arguments[0] = ("bytea", pa.array([b"x" * 1_000_000]))
    assert len(request_of(segments, arguments, 2, same=True)._data) < 1000


@pytest.mark.parametrize(
    "header, message",
    [
        ({"constants": [2]}, "numbers of columns"),
        ({"constants": "0"}, "numbers of columns"),
        ({"constants": [True]}, "numbers of columns"),
        ({"constants": [-1]}, "numbers of columns"),
        ({"constants": [0], "same_constants": True}, "were not sent"),
        ({"constants": []}, "a buffer has"),
    ],
)
def test_wrong_constants_are_refused(header, message):
    arguments = [("text", pa.array(["a"])), ("int8", pa.array([1, 2, 3]))]
    with pytest.raises(CallError, match=message) as caught:
        request_of(columns.Segments(None), arguments, 3, header).batch(columns_of(arguments))
    assert caught.value.kind == "protocol_violation"


@pytest.mark.parametrize("brought, asked", [("a", "b"), ("a", None), (None, None), (["a"], ["b"])])
def test_constants_of_somebody_else_are_not_taken(brought, asked):
    # A proxy shares its connections among clients.
    segments = columns.Segments(None)
    arguments = [("text", pa.array(["a"])), ("int8", pa.array([1, 2]))]
    request_of(segments, arguments, 2, {"constants_id": brought}).batch(columns_of(arguments))
    with pytest.raises(CallError, match="were not sent"):
        request_of(segments, arguments, 2, {"constants_id": asked}, same=True).batch(columns_of(arguments))


def test_constants_of_another_type_are_not_taken():
    segments = columns.Segments(None)
    arguments = [("text", pa.array(["a"])), ("int8", pa.array([1, 2]))]
    request_of(segments, arguments, 2).batch(columns_of(arguments))
    arguments[0] = ("bytea", pa.array([b"a"]))
    with pytest.raises(CallError, match="another function"):
        request_of(segments, arguments, 2, same=True).batch(columns_of(arguments))


def test_a_handler_that_changes_its_argument_does_not_change_the_next_rows():
    for name, value in [("int4[]", [1, 2]), ("json", json.dumps({"a": [1]})), ("(a int4)", {"a": 1})]:
        entry = types.by_name(name)
        arguments = [(name, pa.array([value], entry.arrow)), ("int8", pa.array([1, 2, 3]))]
        batch = request_of(columns.Segments(None), arguments, 3).batch(columns_of(arguments))

        def handler(x, y):
            size = len(x)
            x.clear()
            return size

        function = Function("f", handler, "row", columns_of(arguments), types.TYPES["int4"])
        assert next(function.answer(batch)).column(0).to_pylist() == [len(entry.to_python(value) if entry.to_python else value)] * 3


def test_an_immutable_value_is_one_object():
    arguments = [("bytea", pa.array([b"m" * 1000])), ("int8", pa.array(range(50)))]
    batch = request_of(columns.Segments(None), arguments, 50).batch(columns_of(arguments))
    seen = set()

    def handler(model, x):
        seen.add(id(model))
        return len(model) + x

    function = Function("f", handler, "row", columns_of(arguments), types.TYPES["int8"])
    assert next(function.answer(batch)).column(0).to_pylist() == [1000 + x for x in range(50)]
    assert len(seen) == 1


@pytest.mark.parametrize("form", ["arrow", "numpy", "pandas"])
def test_batch_functions_get_as_many_rows_as_have_room(form, monkeypatch):
    monkeypatch.setattr(constants, "_MOST_REPEATED_BYTES", 4096)
    arguments = [("bytea", pa.array([b"m" * 1000])), ("int8", pa.array(range(10)))]
    batch = request_of(columns.Segments(None), arguments, 10).batch(columns_of(arguments))
    sizes = []

    def handler(model, x):
        sizes.append(len(x))
        return pa.array([len(m if isinstance(m, bytes) else m.as_py()) + int(v if form != "arrow" else v.as_py()) for m, v in zip(model, x)])

    function = Function("f", handler, form, columns_of(arguments), types.TYPES["int8"])
    assert next(function.answer(batch, may_encode=True)).column(0).to_pylist() == [1000 + x for x in range(10)]
    assert sizes == [4, 4, 2]


def test_table_functions_number_the_rows_of_the_whole_batch(monkeypatch):
    monkeypatch.setattr(constants, "_MOST_REPEATED_BYTES", 4096)
    arguments = [("bytea", pa.array([b"m" * 1000])), ("int8", pa.array(range(10)))]
    batch = request_of(columns.Segments(None), arguments, 10).batch(columns_of(arguments))

    def of_batch(model, x):
        return range(len(x)), x

    for form, handler in [("arrow", of_batch), ("row", lambda model, x: [x])]:
        function = TableFunction("f", handler, form, columns_of(arguments), types.TYPES["int8"])
        answer = pa.Table.from_batches(list(function.answer(batch)))
        assert answer.column(0).to_pylist() == list(range(10)) and answer.column(1).to_pylist() == list(range(10))


def test_a_column_that_is_not_there_is_still_refused():
    function = Function("f", len, "row", [("x", types.TYPES["text"])], types.TYPES["int4"])
    batch = pa.RecordBatch.from_arrays([constants.repeated(pa.array([b"a"]), 2)], ["x"])
    with pytest.raises(CallError, match="does not fit"):
        next(function.answer(batch))
    # Dictionaries of other clients may have other sizes.
    batch = pa.RecordBatch.from_arrays([pa.DictionaryArray.from_arrays(pa.array([0, None, 1], pa.int8()), ["a", "bb"])], ["x"])
    function = Function("f", lambda x: None if x is None else len(x), "row", function.arguments, types.TYPES["int4"])
    assert next(function.answer(batch)).column(0).to_pylist() == [1, None, 2]


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("form", ["row", "arrow"])
def test_dictionaries_of_one_value_are_constants(name, form):
    # Over Flight (§4.10), with offsets of 64 bits as well.
    entry = types.by_name(name)
    numbers = pa.array([1, 2, 3], pa.int32())
    for value in ROWS[name][:2]:
        array = pa.array([value], entry.arrow)
        large = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(entry.arrow)
        for sent in [array] if large is None else [array, array.cast(large)]:
            batch = pa.RecordBatch.from_arrays([numbers, constants.repeated(sent, 3)], ["a", "b"])
            seen = []

            def handler(x, y):
                seen.append(y)
                return x

            arguments = [("a", types.TYPES["int4"]), ("b", entry)]
            function = Function("f", handler, form, arguments, types.TYPES["int4"])
            assert next(function.answer(batch)).column(0).to_pylist() == [1, 2, 3]
            plain = array.to_pylist()[0]
            plain = plain if plain is None or entry.to_python is None else entry.to_python(plain)
            assert seen == ([plain] * 3 if form == "row" else [pa.array([value] * 3, entry.arrow)])


@pytest.mark.parametrize("rows", [3, 2000])
def test_constants_in_json(rows):
    # Long requests of numbers are read another way.
    arguments = [("x", types.TYPES["int8"]), ("y", types.TYPES["int4"]), ("z", types.TYPES["float8"])]
    function = Function("f", lambda x, y, z: x, "row", arguments, types.TYPES["int8"])
    for constant in ([], [1], [2], [1, 2], [0, 1, 2]):
        lengths = [1 if position in constant else rows for position in range(3)]
        columns_sent = [[7] * length for length in lengths]
        columns_sent[1][0] = None
        body = json.dumps({"rows": rows, "constants": constant, "columns": columns_sent}).encode()
        request = rest._read_request(function, body)
        batch = rest._read_batch(function, request)
        quick = json_columns.Reader().read(function, body)
        assert (quick is not None) == (len(body) >= json_columns._LEAST_BYTES)
        for found in [batch] + ([quick[1]] if quick else []):
            assert [isinstance(column, pa.DictionaryArray) for column in found.columns] == [i in constant for i in range(3)]
            whole = function.check_arguments(found)
            assert whole.column(0).to_pylist() == [7] * rows
            assert whole.column(1).to_pylist()[1:] == [None if 1 in constant else 7] * (rows - 1)
            assert whole.column(2).to_pylist() == [7.0] * rows


@pytest.mark.parametrize("constant", [[3], "0", [True], [-1], [0, 0], {"0": 1}, 5])
@pytest.mark.parametrize("padding", [0, 5000])
def test_wrong_constants_in_json_are_refused(constant, padding):
    function = Function("f", len, "row", [("x", types.TYPES["int8"]), ("y", types.TYPES["int8"])], types.TYPES["int8"])
    body = json.dumps({"rows": 2, "constants": constant, "columns": [[1], [1, 2]]}).encode() + b" " * padding
    assert json_columns.Reader().read(function, body) is None
    with pytest.raises(CallError, match="cannot be read"):
        rest._read_batch(function, rest._read_request(function, body))


@pytest.mark.parametrize("rows", [-1, "2", 1.5, None])
@pytest.mark.parametrize("padding", [0, 5000])
def test_wrong_numbers_of_rows_of_constants_are_refused(rows, padding):
    function = Function("f", len, "row", [("x", types.TYPES["int8"])], types.TYPES["int8"])
    body = json.dumps({"rows": rows, "constants": [0], "columns": [[1]]}).encode() + b" " * padding
    assert json_columns.Reader().read(function, body) is None
    with pytest.raises(CallError):
        rest._read_batch(function, rest._read_request(function, body))
