"""Small plain batches: what is read and written without Arrow is what Arrow reads and writes."""

import http.client
import json
import random

import pyarrow as pa
import pytest
from test_columns import body_of, lay_out
from transship_server import columns, types
from transship_server.errors import CallError
from transship_server.function import Function

VALUES = {
    "bool": [True, False],
    "int2": [0, -(2**15), 2**15 - 1],
    "int4": [0, -(2**31), 2**31 - 1],
    "int8": [0, -(2**63), 2**63 - 1],
    "float4": [0.0, -0.5, float("inf"), float("nan")],
    "float8": [0.0, -0.0, 1e300, float("nan"), 5e-324],
    "text": ["", "a", "größer", "x" * 500, "\0", "\U0001f680"],
}


def function_of(names, result="float8", target=None):
    return Function("f", target or (lambda *_: None), "row", [(f"a{i}", types.by_name(name)) for i, name in enumerate(names)], types.by_name(result))


def batch_of(dice, names, rows):
    """The body of a call of random values."""
    arrays = []
    for name in names:
        choices = VALUES[name] + ([None] if dice.random() < 0.5 else [])
        arrays.append((types.by_name(name), pa.array([dice.choice(choices) for _ in range(rows)], types.by_name(name).arrow)))
    places, data = lay_out(arrays)
    return {"batch": dice.randrange(5), "rows": rows, "buffers": places, "may_alias": True}, data


def read_by_arrow(function, body):
    return list(function.rows(columns.Request(body, None).batch(function.call_columns)))


@pytest.mark.parametrize("seed", range(60))
def test_calls_are_read_as_arrow_reads_them(seed):
    dice = random.Random(seed)
    names = dice.choices(list(VALUES), k=dice.randint(1, 5))
    function = function_of(names)
    header, data = batch_of(dice, names, dice.choice([1, 2, 7, 8, 9, 100, 256]))
    call = function.small_codec.read(body_of(header, data))
    assert (call.number, call.count) == (header["batch"], header["rows"])
    # NaN is not equal to itself.
    assert repr(list(call.rows)) == repr(read_by_arrow(function, body_of(header, data)))


@pytest.mark.parametrize("seed", range(60))
def test_replies_are_what_arrow_would_write(seed):
    dice = random.Random(seed)
    name = dice.choice([name for name in VALUES if name != "float4"])
    function = function_of(["int4"], name)
    values = [dice.choice([*VALUES[name], None]) for _ in range(dice.choice([1, 8, 9, 200]))]
    header, data = batch_of(dice, ["int4"], len(values))
    call = function.small_codec.read(body_of(header, data))
    request = columns.Request(function.small_codec.write(call, values, 17), None)
    assert request.header | {"buffers": 0} == {"batch": header["batch"], "rows": len(values), "buffers": 0, "micros": 17}
    reply = request.batch(function.reply_columns).column(0)
    reply.validate(full=True)
    assert repr(reply.to_pylist()) == repr(function.column_of(values).to_pylist())


@pytest.mark.parametrize("seed", range(400))
def test_what_arrow_refuses_is_left_to_it(seed):
    dice = random.Random(seed)
    names = dice.choices(list(VALUES), k=dice.randint(1, 3))
    function = function_of(names)
    header, data = batch_of(dice, names, dice.choice([1, 3, 9]))
    data = bytearray(data)
    for _ in range(dice.randint(1, 3)):
        match dice.randrange(5):
            case 0 if header["buffers"]:
                place = dice.randrange(len(header["buffers"]))
                header["buffers"][place] = dice.choice([0, 1, 8, 64, 10**6, -8, 2**70, 1.5, None, "8", True])
            case 1:
                header["rows"] = dice.choice([0, 1, 2, 9, 300, -1, 1.0, None, True])
            case 2:
                header[dice.choice(["segment", "form", "constants", "same_constants", "step", "reply_segment"])] = dice.choice([None, "parquet", [0]])
            case 3 if data:
                data[dice.randrange(len(data))] = dice.randrange(256)
            case 4:
                del data[dice.randrange(len(data) + 1) :]
    body = body_of(header, bytes(data))
    call = function.small_codec.read(body)
    if call is not None:
        assert repr(list(call.rows)) == repr(read_by_arrow(function, body))


@pytest.mark.parametrize("body", [b"", b"\0\0\0\0", b"\xff\xff\xff\xff{}", body_of([]), body_of({}), body_of({"rows": 1, "buffers": 3})])
def test_what_is_no_call_is_left_to_arrow(body):
    function = function_of(["int4"])
    assert function.small_codec.read(body) is None
    with pytest.raises(CallError):
        read_by_arrow(function, body)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("int4", [2**31]), ("int4", [1.0]), ("int4", [True]), ("int8", ["1"]), ("float8", [1]), ("text", [b"x"]), ("text", ["\ud800"]),
        ("bool", [1]), ("float8", [None, "x"]),
    ],
)  # fmt: skip
def test_results_that_do_not_fit_as_they_are_are_left_to_arrow(name, values):
    function = function_of(["int4"], name)
    header, data = batch_of(random.Random(1), ["int4"], len(values))
    call = function.small_codec.read(body_of(header, data))
    assert function.small_codec.write(call, values, 0) is None


def test_a_header_that_comes_again_is_read_once_and_no_other_is_taken_for_it():
    function = function_of(["int4"])
    dice = random.Random(2)
    for rows in (3, 3, 2, 3):
        header, data = batch_of(dice, ["int4"], rows)
        body = body_of(header | {"batch": rows}, data)
        call = function.small_codec.read(body)
        assert (call.number, repr(list(call.rows))) == (rows, repr(read_by_arrow(function, body)))


@pytest.mark.parametrize("names", [["numeric"], ["int4", "text[]"], []])
def test_other_functions_have_no_codec(names):
    assert function_of(names).small_codec is None
    assert function_of(["int4"], "numeric").small_codec is None


@pytest.mark.parametrize(("name", "kind"), [("fail", "user_code"), ("wrong", "bad_result")])
def test_errors_are_those_of_larger_batches(http_address, name, kind):
    connection = http.client.HTTPConnection(*http_address, timeout=20)
    places, data = lay_out([(types.by_name("int8"), pa.array([5, 1, 3, 2], pa.int64()))])
    errors = []
    # What is unknown is not plain.
    for more in ({}, {"unknown": 1}):
        body = body_of({"batch": 0, "rows": 4, "buffers": places} | more, data)
        connection.request("POST", f"/v1/functions/{name}", body, {"Content-Type": columns.CONTENT_TYPE})
        answer = connection.getresponse()
        errors.append((answer.status, json.loads(answer.read())["error"]))
    assert errors[0] == errors[1]
    assert (errors[0][0], errors[0][1]["kind"], errors[0][1]["row"]) == (500, kind, 2)
