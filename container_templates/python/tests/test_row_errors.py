"""A batch goes on after a row on which the handler raises (docs/protocol.md §4.9)."""

import http.client
import json

import pyarrow as pa
import pyarrow.flight
import pytest
from pyarrow.flight import FlightDescriptor

from test_columns import body_of, lay_out
from transship_server import columns, types
from transship_server.errors import CallError
from transship_server.function import Cancelled, Function

INT8 = types.by_name("int8")


def batch_of(*values):
    return pa.RecordBatch.from_arrays([pa.array(values, pa.int64())], ["x"])


def answer_of(handler, form, wanted, batch, **options):
    function = Function("f", handler, form, [("x", INT8)], INT8).with_row_errors(wanted)
    (reply,) = function.answer(batch, **options)
    assert reply.schema.names == ["f", "error"]
    return reply.column(0).to_pylist(), reply.column(1).to_pylist()


def raising(seen):
    def handler(x):
        seen.append(x)
        if x == 7:
            raise SystemExit(7)
        if x is None or x % 2 == 0:
            raise ValueError(f"{x} is even")
        return x

    return handler


def raising_columns(seen):
    def handler(x):
        values = x.to_pylist()
        seen.extend(values)
        if even := [value for value in values if value % 2 == 0]:
            raise ValueError(f"{even[0]} is even")
        return x

    return handler


@pytest.mark.parametrize("wanted", ["once", "again"])
def test_row_handlers_are_called_once_for_each_row(wanted):
    seen = []
    results, errors = answer_of(raising(seen), "row", wanted, batch_of(2, 1, None, 7, 3, 4))
    assert results == [None, 1, None, None, 3, None]
    assert errors == ["ValueError: 2 is even", None, "ValueError: None is even", "SystemExit: 7", None, "ValueError: 4 is even"]
    assert seen == [2, 1, None, 7, 3, 4]


@pytest.mark.parametrize("values", [[1], [2], [1, 3, 5], [2, 4, 6], [2, 1, 3, 5], [1, 3, 5, 6], list(range(100))])
@pytest.mark.parametrize("wanted", ["once", "again"])
def test_handlers_of_columns_are_exact_for_each_row(wanted, values):
    seen = []
    results, errors = answer_of(raising_columns(seen), "arrow", wanted, batch_of(*values))
    assert results == [value if value % 2 else None for value in values]
    assert errors == [None if value % 2 else f"ValueError: {value} is even" for value in values]
    if wanted == "once":
        assert seen == values
    elif all(value % 2 for value in values):
        assert seen == values


@pytest.mark.parametrize("form", ["row", "arrow"])
def test_errors_of_many_rows_are_cut_short(form):
    def handler(x):
        raise ValueError("\u00e9" * 5000)

    errors = answer_of(handler, form, "again", batch_of(*range(400)))[1]
    assert [len(error) for error in errors] == [4096] * 256 + [256] * 144


@pytest.mark.parametrize("form", ["row", "arrow"])
def test_what_is_not_the_handlers_exception_fails_the_batch(form):
    for wanted in ("once", "again"):
        with pytest.raises(CallError) as caught:
            answer_of(lambda x: "a" if form == "row" else ["a"] * len(x), form, wanted, batch_of(1, 2))
        assert caught.value.kind == "bad_result"
        with pytest.raises(CallError) as caught:
            answer_of(lambda x: x, form, wanted, pa.RecordBatch.from_arrays([pa.array(["a"])], ["x"]))
        assert caught.value.kind == "protocol_violation"
    with pytest.raises(Cancelled):
        answer_of(raising_columns([]), "arrow", "again", batch_of(2, 4), is_cancelled=lambda: True)


def test_only_scalar_functions_have_errors_of_rows(functions):
    for name, wanted in [("repeat", "once"), ("running", "again"), ("Sum", "once"), ("fail", "twice"), ("fail", True), ("fail", [])]:
        with pytest.raises(CallError) as caught:
            functions[name].with_row_errors(wanted)
        assert caught.value.kind == "protocol_violation"


def test_texts_are_text():
    def handler(x):
        raise ValueError("a\ud800" + "x" * 100_000)

    ((error,),) = answer_of(handler, "row", "once", batch_of(1))[1:]
    assert error.startswith("ValueError: a?xxx") and len(error) == 4096


def test_over_http(http_address):
    connection = http.client.HTTPConnection(*http_address)
    connection.request("GET", "/v1")
    assert json.loads(connection.getresponse().read())["row_errors"] is True

    def post(body, kind):
        connection.request("POST", "/v1/functions/fail", body, {"Content-Type": kind})
        answer = connection.getresponse()
        return answer.status, answer.read()

    request = {"rows": 3, "columns": [[2, 3, 4]]}
    status, body = post(json.dumps(request | {"row_errors": "once"}), "application/json")
    reply = json.loads(body)
    assert (status, reply["rows"], reply["columns"]) == (200, 3, [[2, None, 4], [None, "ValueError: three", None]])
    assert post(json.dumps(request), "application/json")[0] == 500
    assert post(json.dumps(request | {"row_errors": "twice"}), "application/json")[0] == 400
    places, data = lay_out([(INT8, pa.array([2, 3, 4], pa.int64()))])
    header = {"rows": 3, "buffers": places, "row_errors": "again", "may_alias": True, "may_encode": True}
    status, body = post(body_of(header, data), columns.CONTENT_TYPE)
    length = int.from_bytes(body[:4], "little")
    header, data = json.loads(body[4 : 4 + length]), body[(4 + length + 7) // 8 * 8 :]
    # Validity and values of the results; validity, offsets and bytes of the errors.
    assert status == 200 and header["rows"] == 3 and len(header["buffers"]) == 10
    start, size = header["buffers"][8:]
    assert data[start : start + size] == b"ValueError: three"


def test_over_flight(flight_location):
    client = pyarrow.flight.connect(flight_location)
    assert json.loads(next(iter(client.do_action("transship.hello"))).body.to_pybytes())["row_errors"] is True
    schema = pa.schema([("x", pa.int64())], {"transship.row_errors": "once"})
    writer, reader = client.do_exchange(FlightDescriptor.for_path("fail"))
    with writer:
        writer.begin(schema)
        for number in range(2):
            batch = pa.RecordBatch.from_arrays([pa.array([2, 3, 4])], schema=schema)
            writer.write_with_metadata(batch, json.dumps({"batch": number}).encode())
            chunk = reader.read_chunk()
            assert json.loads(chunk.app_metadata.to_pybytes())["batch"] == number
            assert [column.to_pylist() for column in chunk.data.columns] == [[2, None, 4], [None, "ValueError: three", None]]
        writer.done_writing()
