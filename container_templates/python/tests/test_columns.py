"""Columns as they lie in memory (docs/protocol.md §7), as a client writes and reads them."""

import errno
import http.client
import json
import os
import pathlib
import secrets
import socket
import subprocess
import sys

import numpy
import pyarrow as pa
import pytest
from transship_server import columns, parquet_files, types
from transship_server.errors import CallError

ROWS = {
    "bool": [True, None, False] * 5,
    "int2": [1, None, -(2**15)],
    "int8": [2**63 - 1, None, -1],
    "float4": [0.5, None, float("inf")],
    "float8": [-0.0, 1e300, None],
    "text": ["", None, "größer", "x" * 1000],
    "bytea": [b"", b"\0\xff", None],
    "uuid": [bytes(range(16)), None],
    "interval": [pa.MonthDayNano([1, -2, 3]), None],
    "timestamptz": [0, None, 2**62],
    "time": [86_399_999_999, None],
    "numeric": ["1.50", None, "NaN"],
    "int4[]": [[1, None], [], None, [2]],
    "text[]": [["a", "bc"], None, [None]],
    "(a int4, b text[])": [{"a": 1, "b": ["x", None]}, None, {"a": None, "b": None}],
    "range(int8)": [{"lower": 1, "upper": None, "lower_inc": True, "upper_inc": False, "empty": False}, None],
}


def body_of(header, pieces=b""):
    text = json.dumps(header).encode()
    head = len(text).to_bytes(4, "little") + text
    return head + bytes(-len(head) % 8) + pieces


def lay_out(pairs):
    """(places, bytes) of arrays with their types, by the writer of replies."""
    request = columns.Request(body_of({"rows": 0, "buffers": []}), None)
    batch = pa.RecordBatch.from_arrays([array for _, array in pairs], [str(i) for i in range(len(pairs))])
    request.write(batch, [("", entry) for entry, _ in pairs])
    return request._reply["buffers"], request._inline


def read_back(entry, array):
    places, data = lay_out([(entry, array)])
    request = columns.Request(body_of({"rows": len(array), "buffers": places}, data), None)
    return request.batch([("x", entry)]).column(0)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("shape", ["whole", "sliced", "empty", "no nulls"])
def test_values_come_back(name, shape):
    entry = types.by_name(name)
    array = pa.array(ROWS[name], entry.arrow)
    if shape == "sliced":
        array = pa.concat_arrays([array, array, array])[1 : 2 * len(array)]
    elif shape == "empty":
        array = array[:0]
    elif shape == "no nulls":
        array = array.drop_null()
    found = read_back(entry, array)
    found.validate(full=True)
    assert found.cast(entry.arrow) == array


@pytest.mark.parametrize("name", [name for name in ROWS if name != "interval" and not name.endswith((")", "]"))])
def test_values_come_back_in_parquet_files(name):
    entry = types.by_name(name)
    array = pa.array(ROWS[name], entry.arrow)
    request = columns.Request(body_of({"rows": 0, "buffers": [], "form": "parquet"}), None)
    request.write(pa.RecordBatch.from_arrays([array], ["x"]), [("", entry)])
    header = {"rows": len(array), "buffers": request._reply["buffers"], "form": "parquet"}
    found = columns.Request(body_of(header, request._inline), None).batch([("x", entry)]).column(0)
    assert found.cast(entry.arrow) == array
    for rows, data in [(len(array) + 1, request._inline), (len(array), request._inline[:-9] + b"012345678")]:
        with pytest.raises(CallError, match="the request cannot be read"):
            columns.Request(body_of(header | {"rows": rows}, data), None).batch([("x", entry)])


def test_text_in_parquet_files_is_checked():
    entry = types.by_name("text")
    text = pa.Array.from_buffers(pa.utf8(), 1, [None, pa.array([0, 1], pa.int32()).buffers()[1], pa.py_buffer(b"\xff")])
    file = parquet_files.write(pa.RecordBatch.from_arrays([text], ["x"])).to_pybytes()
    request = columns.Request(body_of({"rows": 1, "buffers": [0, len(file)], "form": "parquet"}, file), None)
    with pytest.raises(CallError, match="the request cannot be read") as caught:
        request.batch([("x", entry)])
    assert caught.value.kind == "protocol_violation"


@pytest.mark.parametrize("name", ROWS)
def test_results_that_are_arguments_are_references(name):
    entry = types.by_name(name)
    array = pa.array(ROWS[name], entry.arrow)
    places, data = lay_out([(entry, array)])
    header = {"rows": len(array), "buffers": places, "may_alias": True}
    request = columns.Request(body_of(header, data), None)
    request.write(request.batch([("x", entry)]), [("x", entry)])
    assert request._inline == b""
    assert request._reply["buffers"] == places
    assert request._reply["aliases"] == [number for number in range(len(places) // 2) if places[2 * number + 1]]
    # What a handler makes of them is not there.
    request.write(pa.RecordBatch.from_arrays([pa.array(ROWS[name], entry.arrow)], ["x"]), [("x", entry)])
    assert request._inline == data and "aliases" not in request._reply
    # Nor may a client that does not know of it be answered so.
    request = columns.Request(body_of(header | {"may_alias": None}, data), None)
    request.write(request.batch([("x", entry)]), [("x", entry)])
    assert request._inline == data and "aliases" not in request._reply


def test_slices_of_arguments_are_references_where_a_client_can_read_them():
    entry = types.by_name("int4")
    places, data = lay_out([(entry, pa.array(range(10), entry.arrow))] * 2)
    request = columns.Request(body_of({"rows": 10, "buffers": places, "may_alias": True}, data), None)
    array = request.batch([("x", entry), ("y", entry)]).column(1)
    for start, aliases in [(4, [1]), (3, None)]:
        request.write(pa.RecordBatch.from_arrays([array[start:]], ["x"]), [("x", entry)])
        assert request._reply.get("aliases") == aliases
        if aliases:
            assert request._reply["buffers"] == [0, 0, places[6] + 16, 24]
        else:
            assert pa.py_buffer(request._inline).to_pybytes() == pa.array(range(3, 10), pa.int32()).buffers()[1][:28]


def test_dictionaries_are_sent_as_such():
    entry = types.by_name("text")
    array = pa.array(["b", "a", None, "b"]).dictionary_encode()
    request = columns.Request(body_of({"rows": 0, "buffers": [], "may_encode": True}), None)
    assert request.may_encode
    for array, places, texts in [(array, [0, 1, None, 0], ["b", "a"]), (array[1:2], [1], ["b", "a"]), (array[:0], [], ["b", "a"])]:
        request.write(pa.RecordBatch.from_arrays([array], ["x"]), [("x", entry)])
        assert request._reply["dictionaries"] == [0, 2]
        # Read as two columns: places, and texts without validity.
        buffers = request._reply["buffers"]
        found = columns._Reader(pa.py_buffer(request._inline), buffers).array(types.by_name("int4"), len(array))
        assert found.to_pylist() == places
        assert columns._Reader(pa.py_buffer(request._inline), [0, 0] + buffers[4:]).array(entry, 2).to_pylist() == texts
        assert len(buffers) == 8


def test_dictionaries_of_arguments_are_references():
    entry = types.by_name("text")
    places, data = lay_out([(entry, pa.array(["a", "bb", "c"]))])
    request = columns.Request(body_of({"rows": 3, "buffers": places, "may_alias": True}, data), None)
    texts = request.batch([("x", entry)]).column(0)
    chosen = pa.DictionaryArray.from_arrays(pa.array([2, 2, 0], pa.int32()), texts)
    request.write(pa.RecordBatch.from_arrays([chosen], ["x"]), [("x", entry)])
    assert request._reply["buffers"][4:] == places[2:]
    assert (request._reply["aliases"], request._reply["dictionaries"]) == ([2, 3], [0, 3])


def test_parts_of_nested_arrays_may_be_slices():
    entry = types.by_name("(a int4, b text[])")
    parts = [pa.array(range(10), pa.int32())[3:5], pa.array([["x"], ["y"], None, ["z", "w"]], pa.list_(pa.utf8()))[2:]]
    array = pa.StructArray.from_arrays(parts, fields=list(entry.arrow))
    assert read_back(entry, array).to_pylist() == [{"a": 3, "b": None}, {"a": 4, "b": ["z", "w"]}]


@pytest.mark.parametrize(
    ("name", "rows", "buffers", "data"),
    [
        ("float8", 2, [0, 0, 0, 16], bytes(8)),  # outside
        ("float8", 2, [0, 0, 4, 8], bytes(64)),  # not aligned
        ("float8", 2, [0, 0, 0, 8], bytes(64)),  # too short
        ("float8", 2, [0, 0], bytes(64)),  # too few
        ("float8", 2, [0, 0, 0, 16, 0, 0], bytes(64)),  # too many
        ("float8", 2, [0, 0, 0], bytes(64)),
        ("float8", 2, [0, 0, -8, 16], bytes(64)),
        ("float8", 2, [0, 0, 0, "16"], bytes(64)),
        ("float8", 2**62, [0, 0, 0, 16], bytes(64)),
        ("float8", -1, [0, 0, 0, 16], bytes(64)),
        ("float8", 100, [0, 8, 0, 800], bytes(800)),  # short validity
        ("text", 1, [0, 0, 0, 8, 8, 1], b"\0\0\0\0\1\0\0\0\xff"),  # not UTF-8
        ("text", 2, [0, 0, 0, 12, 16, 4], b"\0\0\0\0\4\0\0\0\2\0\0\0\0\0\0\0abcd"),  # descends
        ("text", 1, [0, 0, 0, 8, 8, 1], b"\0\0\0\0\xff\xff\xff\xffx"),  # negative
        ("int4[]", 1, [0, 0, 0, 8, 0, 0, 8, 4], b"\0\0\0\0\x09\0\0\0\1\0\0\0"),  # too few elements
    ],
)
def test_broken_buffers_are_refused(name, rows, buffers, data):
    with pytest.raises(columns.CallError) as caught:
        columns.Request(body_of({"rows": rows, "buffers": buffers}, data), None).batch([("x", types.by_name(name))])
    assert caught.value.kind == "protocol_violation"


@pytest.mark.parametrize("body", [b"", b"\1", b"\xff\xff\xff\xff{}", body_of([]), body_of({"rows": 1}), body_of({"rows": 1, "buffers": 3})])
def test_broken_headers_are_refused(body):
    with pytest.raises(columns.CallError):
        columns.Request(body, None)


class Client:
    """One connection with its two segments."""

    def __init__(self, address, directory):
        self.connection = http.client.HTTPConnection(*address, timeout=10)
        self.directory = directory
        self.names = [secrets.token_hex(16) for _ in range(2)]
        for name in self.names:
            (directory / name).touch()

    def call(self, function, arrays, **more):
        places, data = lay_out([(types.by_name("float8" if pa.types.is_float64(array.type) else "int8"), array) for array in arrays])
        (self.directory / self.names[0]).write_bytes(data) if data else None
        header = {"batch": 3, "rows": len(arrays[0]), "segment": self.names[0], "reply_segment": self.names[1], "buffers": places} | more
        self.connection.request("POST", f"/v1/functions/{function}", body_of(header), {"Content-Type": columns.CONTENT_TYPE})
        response = self.connection.getresponse()
        body = response.read()
        if response.status != 200:
            return response.status, json.loads(body)["error"]
        end = 4 + int.from_bytes(body[:4], "little")
        self.inline = body[end + -end % 8 :]
        return 200, json.loads(body[4:end])

    def reply(self, header, kind):
        _, _, offset, length = header["buffers"]
        return numpy.frombuffer((self.directory / self.names[1]).read_bytes()[offset : offset + length], kind).tolist()


@pytest.fixture
def client(http_address, segment_dir):
    return Client(http_address, segment_dir)


def test_calls_through_segments(client):
    for count in (3, 5000, 2):
        status, header = client.call("array", [pa.array(range(count), pa.float64())])
        assert (status, header["batch"], header["rows"], header["segment"]) == (200, 3, count, client.names[1])
        assert "retained" not in header
        assert client.reply(header, "f8") == [x + 1 for x in range(count)]


def test_data_goes_with_the_reply_where_there_is_no_memory(client, monkeypatch):
    def write(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(columns.Segments, "write", write)
    status, header = client.call("array", [pa.array([1.0, 2.0])])
    assert status == 200 and "segment" not in header and header["buffers"][3] == 16
    assert numpy.frombuffer(client.inline, "f8").tolist() == [2.0, 3.0]


def test_arguments_that_a_handler_keeps_are_left_alone(client):
    status, header = client.call("keep", [pa.array([1.0, 2.0])])
    assert status == 200 and header["retained"] is True
    # A result that is the argument itself is no reason to keep it.
    status, header = client.call("same", [pa.array([1, 2])])
    assert status == 200 and "retained" not in header
    assert client.reply(header, "i8") == [1, 2]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"segment": "0" * 32}, "cannot be opened"),
        ({"segment": "../http.sock"}, "there is no segment"),
        ({"segment": 5}, "there is no segment"),
        ({"reply_segment": "f" * 32}, "cannot be opened"),
        ({"buffers": [0, 0, 0, 1 << 40]}, "not 1099511627776"),
    ],
)
def test_broken_segments_are_refused(client, more, message):
    status, error = client.call("array", [pa.array([1.0, 2.0])], **more)
    assert (status, error["kind"]) == (400, "protocol_violation") and message in error["message"]
    assert client.call("array", [pa.array([1.0])])[0] == 200


def test_greeting_names_the_forms(client):
    client.connection.request("GET", "/v1")
    assert json.loads(client.connection.getresponse().read())["transports"] == ["flight", "json", "socket", "shm", "parquet"]


def test_what_was_used_the_longest_ago_is_released():
    released = []
    recent = columns._Recent(2, released.append)
    for name in "abc":
        recent.keep(name, name.upper())
    assert released == ["A"] and recent.take("a") is None
    recent.keep("b", recent.take("b"))
    recent.keep("d", "D")
    assert released == ["A", "C"]
    # The same name twice, and none that is there.
    recent.keep("d", "other")
    recent.drop(["b", "x"])
    assert released == ["A", "C", "D", "B"]
    assert recent.clear() and not recent.clear()
    assert released[-1] == "other"


SERVER = """
import sys
sys.path.insert(0, sys.argv[1])
from transship_server import __main__
__main__.main("serve")
"""


def test_new_segments_for_each_batch_need_no_more_descriptors(tmp_path):
    """A hundred descriptors for all connections, each of which names more segments than that."""
    entry = {"name": "array", "arguments": ["float8"], "returns": "float8", "batch": "numpy"}
    handler = "KEPT = []\n\ndef array(x):\n    KEPT.append(x)\n    return x + 1\n"
    (tmp_path / "function").mkdir()
    (tmp_path / "function/handler.py").write_text(handler)
    (tmp_path / "manifest.json").write_text(json.dumps({"handler": "handler.py", "functions": [entry]}))
    segments = tmp_path / "segments"
    segments.mkdir()
    environment = {**os.environ, "TRANSSHIP_ROOT": str(tmp_path), "TRANSSHIP_SEGMENT_DIR": str(segments)}
    environment |= {"TRANSSHIP_SOCKET_DIR": str(tmp_path)}
    template = str(pathlib.Path(__file__).parent.parent)
    # The soft limit is what the server raises, up to the hard one.
    command = ["prlimit", "--nofile=60:100", sys.executable, "-c", SERVER, template]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        assert "ready" in process.stderr.readline()
        assert "100" in subprocess.check_output(["prlimit", "--noheadings", "--output=SOFT", "--nofile", f"--pid={process.pid}"], text=True)
        clients = []
        for _ in range(8):
            client = Client(("localhost", 0), segments)
            client.connection.sock = socket.socket(socket.AF_UNIX)
            client.connection.sock.connect(str(tmp_path / "http.sock"))
            clients.append(client)
        for number in range(60):
            for client in clients:
                # The handler keeps all that it gets.
                client.names = [secrets.token_hex(16) for _ in range(2)]
                for name in client.names:
                    (segments / name).touch()
                status, header = client.call("array", [pa.array([float(number)])])
                assert (status, header.get("segment")) == (200, client.names[1]), header
                assert client.reply(header, "f8") == [number + 1]
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
