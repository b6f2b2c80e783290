"""What engines send that is particular to one of them: hexadecimal bytes, compressed and chunked bodies, names in upper case,
Arrow columns in another layout than this protocol's."""

import base64
import gzip
import hashlib
import http.client
import json
import threading
import zlib

import pyarrow as pa
import pyarrow.flight
import pytest
from pyarrow.flight import FlightDescriptor

from transship_server import flight, function, rest

HANDLER = """
def same(x): return x
def flip(x): return not x
def upper(x): return x.upper()
def word(n): return "w" * n
"""
KINDS = {
    "t": "text", "b": "bytea", "n": "numeric", "j": "json", "ts": "text[]", "bs": "bytea[]", "i": "int8",
    "c": "(a text, b int8)", "cs": "(a text[], b (c bytea))[]", "z": "timestamptz",
}  # fmt: skip


@pytest.fixture(scope="module")
def functions(tmp_path_factory):
    folder = tmp_path_factory.mktemp("engines")
    (folder / "handler.py").write_text(HANDLER + "".join(f"same_{name} = same\n" for name in KINDS))
    entries = [{"name": f"same_{name}", "arguments": [f"x {kind}"], "returns": kind} for name, kind in KINDS.items()]
    entries += [{"name": "flip", "arguments": ["x bool"], "returns": "bool"}]
    entries += [{"name": "upper", "arguments": ["x text"], "returns": "text"}]
    entries += [{"name": "word", "arguments": ["n int8"], "returns": "text"}]
    return function.load({"handler": "handler.py", "functions": entries}, str(folder))


@pytest.fixture(scope="module")
def address(functions):
    server = rest.TcpServer(("127.0.0.1", 0), functions)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address
    server.shutdown()


@pytest.fixture(scope="module")
def client(functions):
    server = flight.Server("grpc://127.0.0.1:0", functions)
    with pyarrow.flight.connect(f"grpc://127.0.0.1:{server.port}") as connected:
        yield connected
    server.shutdown()


def post(address, path, body, headers={}, **options):
    connection = http.client.HTTPConnection(*address, timeout=10)
    connection.request("POST", path, body if isinstance(body, bytes) else json.dumps(body), headers, **options)
    response = connection.getresponse()
    answer = response.status, json.loads(response.read())
    connection.close()
    return answer


def snowflake(name):
    return {"sf-external-function-name": name, "sf-external-function-format": "json"}


def test_snowflakes_binary_is_hexadecimal(address):
    rows = [[0, "00FF01AA"], [1, None], [2, ""], [3, "00ff01aa"]]
    expected = [[0, "00FF01AA"], [1, None], [2, ""], [3, "00FF01AA"]]
    assert post(address, "/", {"data": rows}, snowflake("same_b")) == (200, {"data": expected})
    assert post(address, "/", {"data": [[0, ["00FF", None]]]}, snowflake("same_bs")) == (200, {"data": [[0, ["00FF", None]]]})
    for wrong in ("AFDTRUHT", "0", 7):
        assert post(address, "/", {"data": [[0, wrong]]}, snowflake("same_b"))[0] == 400
    # Of the others it is base64.
    assert post(address, "/", {"data": [[0, "AP8="]]}, {"s2-ef-name": "same_b"}) == (200, {"data": [[0, "AP8="]]})
    assert post(address, "/same_b", {"calls": [["AP8="]]}) == (200, {"replies": ["AP8="]})


def test_singlestores_booleans_are_numbers(address):
    assert post(address, "/", {"data": [[0, 1], [1, 0], [2, None], [3, True]]}, {"s2-ef-name": "flip"})[1] == {
        "data": [[0, False], [1, True], [2, True], [3, False]]
    }
    assert post(address, "/", {"data": [[0, 2]]}, {"s2-ef-name": "flip"})[0] == 400


def test_functions_are_found_as_engines_write_their_names(address):
    for name in ("UPPER", "Upper", '"DB"."PUBLIC"."UPPER"', "db.public.upper"):
        assert post(address, "/", {"data": [[0, "x"]]}, snowflake(name)) == (200, {"data": [[0, "X"]]})
    assert post(address, "/", {"external_function": "PUBLIC.UPPER", "arguments": [["x"]]})[1]["results"] == ["X"]
    assert post(address, "/", {"data": [[0, "x"]]}, snowflake("LOWER"))[0] == 404
    # The header may be lost on the way; then the rows are known by their numbers.
    assert post(address, "/upper", {"data": [[0, "x"], [1, "y"]]}) == (200, {"data": [[0, "X"], [1, "Y"]]})
    assert post(address, "/upper", {"data": [["x"], ["y"]]}) == (200, ["X", "Y"])
    # Only the end of the path counts.
    assert post(address, "/api/v2/upper", {"data": [["x"]]}) == (200, ["X"])


def test_exceptions_are_told_as_each_engine_reads_them(address, client):
    text = "AttributeError: 'NoneType' object has no attribute 'upper'"
    for headers, body in [(snowflake("upper"), {"data": [[0, None]]}), ({}, {"calls": [[None]]}), ({}, {"inputs": {"x": [None]}})]:
        status, answer = post(address, "/upper", body, headers)
        assert status >= 400 and text in answer.values(), answer
    # Redshift takes a failure with status 200.
    status, answer = post(address, "/", {"external_function": "upper", "arguments": [[None]]})
    assert (status, answer["success"], answer["error_msg"]) == (200, False, text)
    with pytest.raises(pa.ArrowException, match=r"(?s)AttributeError.*in upper"):
        exchange(client, "upper", pa.array([None], pa.string()))


def test_bodies_may_be_compressed_and_chunked(address):
    body = json.dumps({"data": [[0, "x" * 100]]}).encode()
    expected = 200, {"data": [[0, "X" * 100]]}
    for packed, name in [(gzip.compress(body), "gzip"), (zlib.compress(body), "deflate"), (body, "identity")]:
        headers = {**snowflake("UPPER"), "Content-Encoding": name}
        assert post(address, "/", packed, headers) == expected
        pieces = (packed[at : at + 20] for at in range(0, len(packed), 20))
        connection = http.client.HTTPConnection(*address, timeout=10)
        for _ in range(2):
            # The connection is of use for the next request.
            connection.request("POST", "/", pieces, {**headers, "Transfer-Encoding": "chunked"}, encode_chunked=True)
            response = connection.getresponse()
            assert (response.status, json.loads(response.read())) == expected
            pieces = [packed]
        connection.close()
    for packed, name in [(b"no gzip", "gzip"), (gzip.compress(body)[:-9], "gzip"), (body, "br")]:
        assert post(address, "/", packed, {**snowflake("UPPER"), "Content-Encoding": name})[0] == 400


@pytest.mark.parametrize("chunks", [b"5\r\nabc\r\n0\r\n\r\n", b"x\r\n", b"-1\r\n\r\n", b"2\r\nabc\r\n0\r\n\r\n", b"7fffffff\r\n"])
def test_broken_chunks_are_refused(address, chunks):
    import socket

    with socket.create_connection(address, timeout=10) as connection:
        connection.sendall(b"POST /upper HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)
        connection.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    # What ends in the middle of a chunk gets no answer.
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1") == 1


def test_a_body_with_another_digest_is_refused(address):
    body = json.dumps({"data": [[0, "x"]]}).encode()
    digest = hashlib.md5(body)
    for good in (base64.b64encode(digest.digest()).decode(), digest.hexdigest()):
        assert post(address, "/", body, {**snowflake("UPPER"), "Content-MD5": good}) == (200, {"data": [[0, "X"]]})
    other = base64.b64encode(hashlib.md5(b"other").digest()).decode()
    assert post(address, "/", body, {**snowflake("UPPER"), "Content-MD5": other})[0] == 400


def exchange(client, name, array, metadata=None):
    schema = pa.schema([pa.field("x", array.type, metadata=metadata)])
    writer, reader = client.do_exchange(FlightDescriptor.for_path(name))
    with writer:
        writer.begin(schema)
        writer.write_batch(pa.RecordBatch.from_arrays([array], schema=schema))
        writer.done_writing()
        return reader.read_all().combine_chunks().column(0).combine_chunks()


LARGE_ROW = pa.struct([("1", pa.large_list(pa.large_string())), ("2", pa.struct([("", pa.large_binary())]))])
SMALL_ROW = pa.struct([("", pa.list_(pa.string())), ("", pa.struct([("", pa.binary())]))])
ROWS = [[{"1": ["x", None], "2": {"": b"\x00"}}, None], None, []]


@pytest.mark.parametrize(
    ("name", "kind", "values"),
    [
        ("same_t", pa.string(), ["a", None]),
        ("same_t", pa.large_string(), ["a", None]),
        ("same_t", pa.string_view(), ["a", None, "longer than twelve bytes"]),
        ("same_b", pa.large_binary(), [b"\xff", None]),
        ("same_b", pa.binary_view(), [b"\xff", None]),
        ("same_n", pa.large_string(), ["1.50", None]),
        ("same_ts", pa.list_(pa.large_string()), [["a", None], None, []]),
        ("same_ts", pa.large_list(pa.large_string()), [["a", None], None, []]),
        ("same_ts", pa.large_list(pa.string()), [["a", None], None, []]),
        ("same_ts", pa.list_(pa.string_view()), [["a", None], None, []]),
        ("same_c", pa.struct([("a", pa.large_string()), ("b", pa.int64())]), [{"a": "x", "b": 1}, None]),
        ("same_cs", pa.large_list(LARGE_ROW), ROWS),
    ],
)
def test_answers_have_the_clients_layout(client, name, kind, values):
    """The Databend engine sends large offsets and no header; other clients send views, or small offsets."""
    column = pa.array(values, kind)
    for array in (column, pa.concat_arrays([column, column]).slice(1, len(column))):
        answer = exchange(client, name, array)
        assert answer.type == kind or pa.types.is_nested(kind)
        assert _types(answer.type) == _types(kind)
        assert _values(answer.to_pylist()) == _values(array.to_pylist())


def _types(kind):
    """A type without names of its parts."""
    if kind.num_fields:
        return type(kind).__name__, [_types(kind.field(i).type) for i in range(kind.num_fields)]
    return kind


def _values(value):
    """A value without names of its parts."""
    if isinstance(value, dict):
        return [_values(part) for part in value.values()]
    return [_values(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("name", "array", "expected"),
    [
        ("same_t", pa.array(["a", None, "a"]).dictionary_encode(), ["a", None, "a"]),
        ("same_ts", pa.ListArray.from_arrays([0, 2, 3], pa.array(["a", None, "a"]).dictionary_encode()), [["a", None], ["a"]]),
        ("same_c", pa.StructArray.from_arrays([pa.array(["x"]).dictionary_encode(), pa.array([1])], ["a", "b"]), [{"a": "x", "b": 1}]),
        ("same_ts", pa.array([["a"], None], pa.list_(pa.string(), 1)), [["a"], None]),
        ("same_ts", pa.array([["a"], None, []], pa.list_view(pa.string())), [["a"], None, []]),
        ("same_c", pa.array([{"": "x"}, None], pa.struct([("", pa.string())])), None),
        ("same_c", pa.array([("x", 1)], pa.struct([("p", pa.string()), ("q", pa.int64())])), [{"a": "x", "b": 1}]),
        ("same_t", pa.array([1]), None),
        ("same_t", pa.array([b"\xff"]), None),
        ("same_i", pa.array([1.5]), None),
    ],
)
def test_layouts_that_hold_the_same_are_taken(client, name, array, expected):
    if expected is None:
        with pytest.raises(pa.ArrowInvalid, match="does not fit|attributes"):
            exchange(client, name, array)
    else:
        assert exchange(client, name, array).to_pylist() == expected


def test_texts_have_small_offsets_where_no_argument_says_otherwise(client):
    answer = exchange(client, "word", pa.array([3, 0]))
    assert answer.type == pa.string() and answer.to_pylist() == ["www", ""]


def test_nameless_parts_stand_for_attributes_by_their_order(client):
    answer = exchange(client, "same_cs", pa.array([[(["x"], (b"\x01",))]], pa.list_(SMALL_ROW)))
    assert answer.to_pylist() == [[{"a": ["x"], "b": {"c": b"\x01"}}]]


def test_variants_are_answered_as_variants(client):
    array = pa.array([b'{"a": 1}', None], pa.large_binary())
    answer = exchange(client, "same_j", array, {b"Extension": b"Variant"})
    assert answer.type == pa.large_binary()
    assert [value and json.loads(value) for value in answer.to_pylist()] == [{"a": 1}, None]


def test_an_exchange_of_an_unknown_function_fails_without_batches(client):
    def call(name):
        writer, reader = client.do_exchange(FlightDescriptor.for_path(name))
        with writer:
            writer.begin(pa.schema([pa.field("x", pa.string())]))
            writer.done_writing()
            return reader.read_all()

    assert call("upper").num_rows == 0
    with pytest.raises(KeyError, match="no function"):
        call("nothing")
