"""Columns of numbers are read past json, and only where that gives the same."""

import json
import math
import random

import pytest
from transship_server import json_columns, rest, types
from transship_server.errors import CallError


READER = json_columns.Reader()


class TwoColumns:
    """What the reader needs to know of a function."""

    def __init__(self, *names):
        self.name = "f"
        self.call_columns = [(name, types.by_name(name)) for name in names]


def body_of(columns, rows=None, spaces=False):
    request = {"batch": 7, "rows": len(columns[0]) if rows is None else rows, "columns": columns}
    return json.dumps(request, separators=None if spaces else (",", ":")).encode()


def slowly(function, body):
    return rest._read_batch(function, rest._read_request(function, body))


def test_numbers_are_the_same():
    random.seed(1)
    floats = [random.uniform(-1, 1) * 10 ** random.randint(-300, 300) for _ in range(3000)]
    floats[5:9] = [-0.0, 5e-324, 1.7976931348623157e308, None]
    integers = [random.randint(-(2**31), 2**31 - 1) for _ in range(3000)]
    integers[0] = None
    for names, columns in ((("float8", "int4"), [floats, integers]), (("float8", "float4"), [[0, 1, 2] * 1000, [0.5, None, 3e38] * 1000])):
        function = TwoColumns(*names)
        body = body_of(columns)
        request, batch = READER.read(function, body)
        assert request == {"batch": 7, "rows": 3000}
        assert batch.equals(slowly(function, body))
    assert math.copysign(1, READER.read(TwoColumns("float8"), body_of([[-0.0] * 2000]))[1].column(0)[0].as_py()) == -1


MANY = 2000


@pytest.mark.parametrize(
    ("names", "body"),
    [
        (["int8"], body_of([["9007199254740993"] + [1] * MANY])),
        (["int2"], body_of([[40000] * MANY])),
        (["text"], body_of([["1"] * MANY])),
        (["float8[]"], body_of([[[1.0]] * MANY])),
        (["float8"], body_of([[1.0] * MANY, [1.0] * MANY])),
        (["float8", "float8"], body_of([[1.0] * MANY])),
        (["float8"], body_of([[1.0] * MANY], rows=MANY + 1)),
        (["float8"], body_of([[1.0] * MANY])[:-1]),
        (["float8"], body_of([[1.0] * MANY])[:-3]),
        (["float8"], body_of([[1.0] * MANY]).replace(b"1.0", b"1e", 1)),
        (["float8"], body_of([[1.0] * MANY]).replace(b"1.0", b"nan", 1)),
        (["float8"], body_of([[1.0] * MANY]).replace(b"1.0", b"", 1)),
        (["float8"], body_of([[[1.0, 1.0], []] + [1.0] * MANY])),
        (["float8"], body_of([[1.0]])),
    ],
)
def test_what_is_not_sure_is_left_to_json(names, body):
    assert READER.read(TwoColumns(*names), body) is None


@pytest.mark.parametrize(
    ("names", "body"),
    [
        (["float8"], body_of([["Infinity", "-Infinity", None] + [1.0] * MANY])),
        (["int4"], body_of([[1.0, None] * MANY])),
        (["float8", "int8"], body_of([[1, -2, 2.5] * MANY, [2**63 - 1, -(2**63), "7"] * MANY], spaces=True)),
    ],
)
def test_what_is_less_plain_is_the_same(names, body):
    assert READER.read(TwoColumns(*names), body)[1].equals(slowly(TwoColumns(*names), body))


def test_the_rest_of_a_request_is_kept():
    body = b'{"exchange":"x","columns":[[' + b",".join([b"1"] * MANY) + b'],[2' + b",null" * (MANY - 1) + b']],"step":"accumulate","rows":%d}' % MANY
    request, batch = READER.read(TwoColumns("int4", "int8"), body)
    assert request == {"exchange": "x", "step": "accumulate", "rows": MANY}
    assert batch.column(1).to_pylist() == [2] + [None] * (MANY - 1)


def test_numbers_that_float4_cannot_hold_are_left_to_json_which_refuses_them():
    function, body = TwoColumns("float4"), body_of([[1.0, 1e300] * MANY])
    assert READER.read(function, body) is None
    with pytest.raises(CallError, match="out of range"):
        slowly(function, body)
