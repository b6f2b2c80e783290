"""Numbers in JSON, of this protocol's form and of other engines': what is posted is what the handler gets."""

import decimal
import http.client
import json
import random
import threading

import pytest

from transship_server import exact_json, function, json_values, rest, types

HANDLER = """
def n(x): return x
def j(x): return x
def i(x): return x
def f(x): return x
def ns(x): return x
"""
MANIFEST = {
    "handler": "handler.py",
    "functions": [
        {"name": name, "arguments": [f"x {kind}"], "returns": kind}
        for name, kind in [("n", "numeric"), ("j", "json"), ("i", "int8"), ("f", "float8"), ("ns", "numeric[]")]
    ],
}


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exact")
    (folder / "handler.py").write_text(HANDLER)
    server = rest.TcpServer(("127.0.0.1", 0), function.load(MANIFEST, str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address
    server.shutdown()


def post(address, path, body, headers={}):
    connection = http.client.HTTPConnection(*address, timeout=10)
    connection.request("POST", path, body, headers)
    response = connection.getresponse()
    return response.status, response.read().decode()


# How each engine writes a value, and the member of its answer that has the results.
ENVELOPES = [
    ({"sf-external-function-name": "F"}, '{"data": [[0, %s]]}', lambda answer: [answer["data"][0][1]]),
    ({"s2-ef-name": "F"}, '{"data": [[0, %s]]}', lambda answer: [answer["data"][0][1]]),
    ({}, '{"external_function": "F", "arguments": [[%s]]}', lambda answer: answer["results"]),
    ({}, '{"calls": [[%s]]}', lambda answer: answer["replies"]),
    ({}, '{"inputs": {"x": [%s]}}', lambda answer: answer["predictions"]),
    ({}, '{"dataframe_records": [{"x": %s}]}', lambda answer: answer["predictions"]),
    ({}, "[[%s]]", lambda answer: answer),
    ({}, '{"data": [[%s]]}', lambda answer: answer),
    (None, '{"batch": 0, "rows": 1, "columns": [[%s]]}', lambda answer: answer["columns"][0]),
]


def results(address, envelope, name, token):
    headers, body, read = envelope
    path = f"/v1/functions/{name}" if headers is None else f"/{name}"
    headers = {key: value.replace("F", name) for key, value in (headers or {}).items()}
    status, text = post(address, path, body.replace('"F"', f'"{name}"').replace("%s", token), headers)
    answer = json.loads(text, parse_float=str)
    # Redshift's failures have status 200.
    return (400, text) if status != 200 or (isinstance(answer, dict) and "error_msg" in answer) else (200, read(answer))


@pytest.mark.parametrize("envelope", ENVELOPES)
def test_decimals_keep_their_digits(address, envelope):
    chosen = random.Random(17)
    tokens = ["12345678901234567890.12", "99999999999999.9999", "0.10", "-170141183460469231731687303715884105728"]
    tokens += [f"{chosen.randint(-(10**30), 10**30)}.{chosen.randint(0, 10**15):015}" for _ in range(10)]
    for token in tokens:
        assert results(address, envelope, "n", token) == (200, [token])
        assert results(address, envelope, "n", f'"{token}"') == (200, [token])
    assert results(address, envelope, "ns", "[12345678901234567890.12, null]") == (200, [["12345678901234567890.12", None]])
    assert results(address, envelope, "n", "1.5e3") == (200, ["1500"])
    assert results(address, envelope, "n", '"NaN"') == (200, ["NaN"])


@pytest.mark.parametrize("envelope", ENVELOPES)
def test_integers_are_exact(address, envelope):
    for token in ("9007199254740993", "9007199254740993.0", '"9007199254740993"', "900719925474099300e-2"):
        status, [value] = results(address, envelope, "i", token)
        assert (status, int(value)) == (200, 9007199254740993)
    assert results(address, envelope, "i", "7.0") == (200, [7])


@pytest.mark.parametrize("envelope", ENVELOPES)
@pytest.mark.parametrize(
    ("name", "token"),
    [
        ("n", "1e999999999"), ("n", "1e-999999999"), ("n", '"1e999999999"'), ("n", "true"), ("n", "1e99999999999999999999"),
        ("i", "1e999999999"), ("i", "9223372036854775808"), ("i", "9223372036854775808.0"), ("i", "1.5"),
        ("i", "9007199254740992.5"), ("f", "1e999999999"), ("f", '"1e400"'), ("f", "-1e400"), ("ns", "[1e999999999]"),
    ],
)  # fmt: skip
def test_numbers_without_a_value_are_refused(address, envelope, name, token):
    assert results(address, envelope, name, token)[0] == 400


@pytest.mark.parametrize("headers", [{"sf-external-function-name": "j"}, None])
def test_json_values_travel_as_they_are(address, headers):
    """Snowflake's VARIANT and BigQuery's JSON, whose numbers and strings are values."""
    for token in ('{"a": [1, null, true, {"b": "x"}]}', '"text"', "[]", "17", "-1.5"):
        body = '{"data": [[0, %s]]}' if headers else '{"calls": [[%s]]}'
        status, text = post(address, "/j", body % token, headers or {})
        answer = json.loads(text)
        value = answer["data"][0][1] if headers else answer["replies"][0]
        assert (status, value) == (200, json.loads(token))


def test_json_numbers_reach_the_handler_as_their_text():
    entry = types.by_name("json")
    value = exact_json.loads('{"a": 12345678901234567890.12, "b": [1e400]}')
    assert exact_json.dumps(value) == '{"a": 12345678901234567890.12, "b": [1e400]}'
    assert json_values.decode(entry, [exact_json.dumps(value)]).to_pylist() == [exact_json.dumps(value)]
    for text in ("[" * 100_000, "NaN", "[Infinity]"):
        with pytest.raises(ValueError):
            exact_json.dumps(exact_json.loads(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1.50", "1.50"), ("1E-8", "0.00000001"), ("1.5E+3", "1500"), ("0e999999", "0"), ("-1.2345e2", "-123.45"),
        ("1e131071", "1e131071"), ("1e-16383", "1e-16383"),
    ],
)  # fmt: skip
def test_exponents_become_digits(text, expected):
    assert exact_json.decimal_text(text) == expected
    assert decimal.Decimal(expected) == decimal.Decimal(text)


@pytest.mark.parametrize("text", ["1e131072", "1e-16384", "1e999999999999999999", "e5", "1e"])
def test_decimals_without_room_are_refused(text):
    with pytest.raises(ValueError):
        exact_json.decimal_text(text)


def test_floats_that_overflow_are_refused():
    for kind, value in [("float4", 1e300), ("float4", -1e39), ("float8", float("inf")), ("float8", "-1e400")]:
        with pytest.raises(ValueError):
            json_values.decode(types.by_name(kind), [0.5, value])
    largest = [3.4028234663852886e38, -3.4028234663852886e38, None, 0.0]
    assert json_values.decode(types.by_name("float4"), largest).to_pylist() == largest
    assert json_values.decode(types.by_name("float8"), ["Infinity", "NaN"]).to_pylist()[0] == float("inf")
