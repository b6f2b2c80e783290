"""Handlers: how batches become calls, and results columns."""

import http.client
import json

import pyarrow as pa
import pytest
from transship_server import function
from transship_server.errors import CallError


def batch(*columns):
    return pa.RecordBatch.from_arrays([pa.array(values, kind) for values, kind in columns], [str(i) for i in range(len(columns))])


def int8(*values):
    return (list(values), pa.int64())


def test_rows_in_order_with_nulls(functions):
    result = functions["add"].call(batch(int8(1, 2, 3), int8(10, None, 30)))
    assert result.to_pylist() == [11, None, 33]
    assert result.type == pa.int64()


def test_zero_arguments_and_empty_batches(functions):
    assert functions["seven"].call(pa.RecordBatch.from_arrays([pa.nulls(3)], ["x"]).select([])).to_pylist() == [7, 7, 7]
    assert functions["add"].call(batch(int8(), int8())).to_pylist() == []


@pytest.mark.parametrize("name", ["arrow", "series"])
def test_batch_forms(functions, name):
    assert functions[name].call(batch(int8(1, 2))).to_pylist() == [2, 3]


@pytest.mark.parametrize("name", ["words", "categories"])
def test_texts_may_stay_dictionaries(functions, name):
    target = functions[name]
    calls = batch(int8(1, 0, 1, 2))
    plain = target.call(calls)
    assert (plain.type, plain.to_pylist()) == (pa.string(), ["one", "zero", "one", None])
    encoded = target.call(calls, may_encode=True)
    assert (encoded.type, encoded.to_pylist()) == (pa.dictionary(pa.int32(), pa.string()), plain.to_pylist())
    (part,) = target.answer(calls, may_encode=True)
    assert part.column(0).type == encoded.type and part.schema.field(0).name == name


def test_more_texts_than_rows_are_not_worth_a_dictionary(functions):
    assert functions["words"].call(batch(int8(1)), may_encode=True).equals(pa.array(["one"]))


def test_dictionaries_of_what_is_not_text_are_cast(functions):
    numbers = pa.array([7, 7, 8]).dictionary_encode()
    assert functions["arrow"].array_of(numbers, may_encode=True).equals(pa.array([7, 7, 8]))
    texts = pa.DictionaryArray.from_arrays(pa.array([0, 1, 1]), pa.array(["x", None]))
    assert functions["words"].array_of(texts, may_encode=True).equals(pa.array(["x", None, None]))
    with pytest.raises(CallError, match="the declared result is text"):
        functions["words"].array_of(pa.array([b"\xff"]).dictionary_encode(), may_encode=True)


def test_arguments_may_be_dictionaries(functions):
    calls = pa.RecordBatch.from_arrays([pa.array([1, 0, 1]).dictionary_encode()], ["x"])
    assert functions["words"].call(calls).to_pylist() == ["one", "zero", "one"]


def test_numpy_sees_null_as_nan(functions):
    result = functions["array"].call(batch(([1.0, None], pa.float64())))
    assert result.to_pylist()[0] == 2.0
    assert str(result.to_pylist()[1]) == "nan"


def test_exception_names_the_row_and_the_handlers_frames(functions):
    with pytest.raises(CallError) as caught:
        functions["fail"].call(batch(int8(1, 3)))
    wire = caught.value.to_wire()
    assert (wire["kind"], wire["message"], wire["row"]) == ("user_code", "ValueError: three", 1)
    assert "in fail" in wire["traceback"] and "transship_server" not in wire["traceback"]


def test_result_of_another_type_names_the_row(functions):
    with pytest.raises(CallError) as caught:
        functions["wrong"].call(batch(int8(1, 2, 3)))
    assert (caught.value.kind, caught.value.row) == ("bad_result", 2)
    assert caught.value.message == "It returned 1.5 of type float; the declared result is int8."


def test_wrong_number_of_results(functions):
    with pytest.raises(CallError, match="It returned 1 values for 2 rows"):
        functions["short"].call(batch(int8(1, 2)))


@pytest.mark.parametrize("columns", [[int8(1)], [int8(1), ([1.0], pa.float64())]])
def test_other_arguments_are_the_clients_fault(functions, columns):
    with pytest.raises(CallError) as caught:
        functions["add"].call(batch(*columns))
    assert caught.value.kind == "protocol_violation"


def test_cancelled_call_stops(functions):
    seen = []

    def is_cancelled():
        seen.append(1)
        return len(seen) == 2

    with pytest.raises(function.Cancelled):
        functions["slow"].call(batch(int8(*range(10000))), is_cancelled)
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("source", "entry", "message"),
    [
        ("def f(x): return x", {"name": "f"}, 'lacks an annotation for "x"'),
        ("def f(x: int): return x", {"name": "f"}, 'lacks an annotation for "return"'),
        ("def f(x: object) -> int: return x", {"name": "f"}, "stands for no SQL type"),
        ("def g(): pass", {"name": "f"}, 'has no function "f"'),
        ("def f(x: int) -> int: return x", {"name": "f", "batch": "numpy"}, "takes whole columns"),
        ("def f(x): return x", {"name": "f", "arguments": ["point"], "returns": "int4"}, 'unrecognized type "point"'),
    ],
)
def test_unusable_handlers_are_refused(tmp_path, source, entry, message):
    (tmp_path / "handler.py").write_text(source)
    with pytest.raises(ValueError, match=message):
        function.load({"handler": "handler.py", "functions": [entry]}, str(tmp_path))


@pytest.mark.parametrize("wanted", [None, "once"])
def test_a_batch_without_arguments_has_no_more_rows_than_a_batch_can_have(functions, wanted):
    rows = pa.RecordBatch.from_arrays([pa.nulls(1 << 31)], ["x"]).select([])
    with pytest.raises(CallError) as caught:
        list(functions["seven"].with_row_errors(wanted).answer(rows))
    assert caught.value.kind == "protocol_violation"


@pytest.mark.parametrize("rows", [1 << 31, 1 << 64, -1, "3", True, None, 1.5])
def test_the_number_of_rows_is_one(http_address, rows):
    connection = http.client.HTTPConnection(*http_address)
    connection.request("POST", "/v1/functions/seven", json.dumps({"rows": rows, "columns": []}), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())["error"]["kind"]) == (400, "protocol_violation")
