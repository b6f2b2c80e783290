"""The two forms of docs/protocol.md, as a client sees them."""

import gzip
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time

import pyarrow as pa
import pyarrow.flight
import pytest
from conftest import HANDLER, MANIFEST
from pyarrow.flight import FlightDescriptor

from transship_server import flight

INT8 = pa.schema([pa.field("", pa.int64())])


@pytest.fixture
def client(flight_location):
    with pyarrow.flight.connect(flight_location) as connected:
        yield connected


# What Arrow makes of the status that an error is beside its metadata.
STATUSES = (pyarrow.flight.FlightError, pa.ArrowException, KeyError)


def exchange(client, name, batches, schema=INT8):
    """Sends each batch once the one before it is answered, closes, and gives what came back: columns or error objects."""
    writer, reader = client.do_exchange(FlightDescriptor.for_path(name))
    answers = []

    def read():
        chunk = reader.read_chunk()
        metadata = json.loads(chunk.app_metadata.to_pybytes())
        answers.append((metadata["batch"], metadata.get("error") or chunk.data.column(0).to_pylist()))
        return "error" not in metadata

    try:
        with writer:
            writer.begin(schema)
            for number, values in enumerate(batches):
                batch = pa.RecordBatch.from_arrays([pa.array(values, pa.int64())], schema=schema)
                writer.write_with_metadata(batch, json.dumps({"batch": number}).encode())
                if not read():
                    break
            else:
                writer.done_writing()
            while True:
                read()
    except StopIteration:
        return answers
    except STATUSES as status:
        assert answers[-1][1]["message"] in str(status)
        return answers


def test_an_error_is_told_to_clients_that_read_late(client):
    """A write that fails makes Arrow's client drop what it has not read, but not the status."""
    for _ in range(100):
        writer, reader = client.do_exchange(FlightDescriptor.for_path("fail"))
        with pytest.raises(STATUSES, match="ValueError: three"), writer:
            writer.begin(INT8)
            for number, values in enumerate([[1], [3], [4], [5], [6]]):
                batch = pa.RecordBatch.from_arrays([pa.array(values, pa.int64())], schema=INT8)
                writer.write_with_metadata(batch, json.dumps({"batch": number}).encode())
                time.sleep(0.0005)
            writer.done_writing()
            list(reader)


def test_handshake(client):
    [result] = client.do_action("transship.hello")
    greeting = json.loads(result.body.to_pybytes())
    assert greeting["protocol"] == 1 and greeting["functions"] == [entry["name"] for entry in MANIFEST["functions"]]
    assert [result.body.to_pybytes() for result in client.do_action("protocol_version")] == [b"\x02"]


def test_discovery(client):
    info = client.get_flight_info(FlightDescriptor.for_path("add"))
    assert info.total_records == 2
    assert [(field.name, field.type) for field in info.schema] == [("a", pa.int64()), ("b", pa.int64()), ("add", pa.int64())]
    assert client.get_flight_info(FlightDescriptor.for_path("running")).schema.metadata[b"transship.kind"] == b"map"
    assert len(list(client.list_flights())) == len(MANIFEST["functions"])
    with pytest.raises(KeyError):
        client.get_flight_info(FlightDescriptor.for_path("nothing"))


def test_exchange_repeats_numbers_in_order(client):
    assert exchange(client, "arrow", [[1], [2, 3], []]) == [(0, [2]), (1, [3, 4]), (2, [])]


def test_error_ends_the_exchange(client):
    [first, (number, error)] = exchange(client, "fail", [[1], [3], [4]])
    assert first == (0, [1])
    assert (number, error["kind"], error["row"]) == (1, "user_code", 0)


def test_unknown_function_and_other_types(client):
    [(_, error)] = exchange(client, "nothing", [[1]])
    assert error["kind"] == "function_not_found"
    [(_, error)] = exchange(client, "add", [[1]])
    assert error["kind"] == "protocol_violation"


def broken(offsets, data):
    buffers = [None, pa.array(offsets, pa.int32()).buffers()[1], pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.utf8(), len(offsets) - 1, buffers)


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("repeat", [broken([0, 1], b"\xff"), pa.array([1], pa.int32())]),
        ("repeat", [broken([0, 5, 2], b"abcde"), pa.array([1, 1], pa.int32())]),
        ("running", [pa.DictionaryArray.from_arrays(pa.array([7], pa.int8()), pa.array([1]), safe=False)]),
        ("same", [pa.DictionaryArray.from_arrays(pa.array([-3], pa.int8()), pa.array([1]), safe=False)]),
    ],
)
def test_arrays_that_lead_elsewhere_are_the_clients_fault(client, name, columns):
    batch = pa.RecordBatch.from_arrays(columns, [str(position) for position in range(len(columns))])
    writer, reader = client.do_exchange(FlightDescriptor.for_path(name))
    with pytest.raises(STATUSES, match="the batch cannot be read"), writer:
        writer.begin(batch.schema)
        writer.write_with_metadata(batch, b'{"batch": 5}')
        writer.done_writing()
        answer = json.loads(reader.read_chunk().app_metadata.to_pybytes())
        assert (answer["batch"], answer["error"]["kind"]) == (5, "protocol_violation")
        reader.read_chunk()


def test_arrow_udf_client_needs_no_metadata(client):
    writer, reader = client.do_exchange(FlightDescriptor.for_path("arrow"))
    with writer:
        writer.begin(INT8)
        writer.write_batch(pa.RecordBatch.from_arrays([pa.array([1, 2])], schema=INT8))
        assert reader.read_chunk().data.column(0).to_pylist() == [2, 3]


def request(address, method, path, body=None):
    connection = http.client.HTTPConnection(*address)
    connection.request(method, path, body)
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def test_json_discovery(http_address):
    status, greeting = request(http_address, "GET", "/v1")
    assert (status, greeting["protocol"]) == (200, 1)
    status, info = request(http_address, "GET", "/v1/functions/text_of")
    assert info == {"name": "text_of", "kind": "scalar", "arguments": [{"name": "x", "type": "float8"}], "returns": "text"}
    assert request(http_address, "GET", "/v1/functions/nothing")[0] == 404


def test_json_call(http_address):
    body = json.dumps({"batch": 4, "rows": 2, "columns": [[1, "2"], [9007199254740993, None]]})
    status, answer = request(http_address, "POST", "/v1/functions/add", body)
    assert status == 200 and answer.pop("micros") >= 0
    assert answer == {"batch": 4, "rows": 2, "columns": [["9007199254740994", None]]}


def test_many_connections_are_served_at_once(http_address):
    connections = [http.client.HTTPConnection(*http_address) for _ in range(40)]
    for number, connection in enumerate(connections):
        body = json.dumps({"batch": number, "rows": 1, "columns": [[number], [1]]})
        connection.request("POST", "/v1/functions/add", body)
    # The last first: no connection waits for another to end.
    answers = [json.loads(connection.getresponse().read()) for connection in reversed(connections)]
    assert [answer["columns"] for answer in answers] == [[[number + 1]] for number in reversed(range(40))]
    for connection in connections:
        connection.close()


def test_long_answers_are_compressed_for_those_who_can_read_them(http_address):
    body = json.dumps({"rows": 5000, "columns": [[1] * 5000, [2] * 5000]})
    connection = http.client.HTTPConnection(*http_address)
    connection.request("POST", "/v1/functions/add", body, {"Accept-Encoding": "gzip"})
    response = connection.getresponse()
    packed = response.read()
    assert response.headers["Content-Encoding"] == "gzip" and len(packed) < 2000
    assert json.loads(gzip.decompress(packed))["columns"] == [[3] * 5000]
    assert request(http_address, "POST", "/v1/functions/add", body)[1]["columns"] == [[3] * 5000]


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        ("", 400, "protocol_violation"),
        ("[]", 400, "protocol_violation"),
        ('{"rows": 1, "columns": [[1]]}', 400, "protocol_violation"),
        ('{"rows": 2, "columns": [[1], [2]]}', 400, "protocol_violation"),
        ('{"rows": 1, "columns": [["x"], [2]]}', 400, "protocol_violation"),
    ],
)
def test_broken_json_calls(http_address, body, status, kind):
    found, answer = request(http_address, "POST", "/v1/functions/add", body)
    assert (found, answer["error"]["kind"]) == (status, kind)


def test_json_exception(http_address):
    status, answer = request(http_address, "POST", "/v1/functions/fail", '{"rows": 2, "columns": [[1, 3]]}')
    assert (status, answer["error"]["row"], answer["error"]["message"]) == (500, 1, "ValueError: three")


WRITER = """
import concurrent.futures, os, time

POOL = concurrent.futures.ThreadPoolExecutor(1)

def write(x: int) -> int:
    open(os.environ["TRANSSHIP_ROOT"] + "/written", "w").close()
    POOL.submit(lambda: time.sleep(1) or open(os.environ["TRANSSHIP_ROOT"] + "/later", "w").close())
    return x
"""


def test_process_answers_and_ends(tmp_path):
    """The server as a container runs it: both sockets, then an orderly end on SIGTERM."""
    (tmp_path / "function").mkdir()
    (tmp_path / "function/handler.py").write_text(HANDLER + WRITER)
    manifest = MANIFEST | {"functions": [*MANIFEST["functions"], {"name": "write"}]}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    environment = {**os.environ, "TRANSSHIP_ROOT": str(tmp_path), "TRANSSHIP_SOCKET_DIR": str(tmp_path)}
    environment["PYTHONPATH"] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    command = [sys.executable, "-m", "transship_server"]
    described = subprocess.run([*command, "describe"], env=environment, capture_output=True, check=True, text=True)
    assert json.loads(described.stdout)["functions"][0]["arguments"] == ["a int8", "b int8"]
    process = subprocess.Popen([*command, "serve"], env=environment, stderr=subprocess.PIPE, text=True, umask=0o027)
    try:
        assert f"ready, {len(manifest['functions'])} functions" in process.stderr.readline()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(tmp_path / "http.sock"))
            connection.sendall(b"GET /v1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert connection.recv(15) == b"HTTP/1.1 200 OK"
        with pyarrow.flight.connect(f"grpc+unix://{tmp_path}/flight.sock") as client:
            assert exchange(client, "arrow", [[1]]) == [(0, [2])]
            assert exchange(client, "write", [[1]]) == [(0, [1])]
        # Any user may connect, but what the handler writes is as private as the server was told.
        modes = {name: (tmp_path / name).stat().st_mode & 0o777 for name in ("http.sock", "flight.sock", "written")}
        assert modes == {"http.sock": 0o777, "flight.sock": 0o777, "written": 0o640}
        start = time.monotonic()
        # Any of its threads may get the signal.
        threads = {int(name) for name in os.listdir(f"/proc/{process.pid}/task")}
        os.kill(max(threads - {process.pid}), signal.SIGTERM)
        assert process.wait(timeout=10) == 0
        assert time.monotonic() - start < 5
        # What the handler began beside its answer was done.
        assert (tmp_path / "later").exists()
    finally:
        process.kill()
        process.stderr.close()


ROWS = [[1, 2], [1, None], [2**60, 1]]
SUMS = [3, None, 2**60 + 1]


@pytest.mark.parametrize(
    ("path", "headers", "body", "expected"),
    [
        ("/", {"sf-external-function-name": "add"}, {"data": [[i, *row] for i, row in enumerate(ROWS)]}, {"data": [[i, x] for i, x in enumerate(SUMS)]}),
        ("/invoke", {"s2-ef-name": "add"}, {"data": [[7, 1, 2], [9, 3, 4]]}, {"data": [[7, 3], [9, 7]]}),
        (
            "/2015-03-31/functions/function/invocations",
            {},
            {"external_function": "public.add", "num_records": 3, "arguments": ROWS},
            {"success": True, "num_records": 3, "results": SUMS},
        ),
        ("/add", {}, {"requestId": "1", "calls": [[1, 2], ["9007199254740993", 1]]}, {"replies": [3, "9007199254740994"]}),
        ("/add/invocations/add", {}, {"dataframe_split": {"columns": ["b", "x", "a"], "data": [[1, None, 2]]}}, {"predictions": [3]}),
        ("/add", {}, {"dataframe_records": [{"a": 1, "b": 2}]}, {"predictions": [3]}),
        ("/add", {}, {"inputs": {"a": [1, 2], "b": [3, 4]}}, {"predictions": [4, 6]}),
        ("/add", {}, {"instances": [[1, 2]]}, {"predictions": [3]}),
        ("/api/add?code=1", {}, ROWS, SUMS),
        ("/add", {}, {"data": ROWS}, SUMS),
    ],
)
def test_other_engines_envelopes(http_address, path, headers, body, expected):
    assert foreign(http_address, path, headers, body) == (200, expected)


@pytest.mark.parametrize(
    ("path", "body", "status", "expected"),
    [
        ("/", {"external_function": "absent", "arguments": [[1]]}, 200, {"success": False, "num_records": 0, "error_msg": 'there is no function "absent"'}),
        ("/fail", {"calls": [[3]]}, 400, {"errorMessage": "ValueError: three"}),
        ("/add", {"calls": [[1]]}, 400, {"errorMessage": "the request cannot be read: add takes 2 arguments"}),
    ],
)
def test_failures_in_other_engines_words(http_address, path, body, status, expected):
    assert foreign(http_address, path, {}, body) == (status, expected)


def foreign(address, path, headers, body):
    connection = http.client.HTTPConnection(*address, timeout=10)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **headers})
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def test_exchanges_of_aggregate_functions_end(http_address):
    def step(number, step="accumulate", values=(5,)):
        body = {"batch": number, "rows": 1, "columns": [[0], list(values), [None]], "exchange": "x", "step": step}
        return request(http_address, "POST", "/v1/functions/Sum", json.dumps(body))

    assert step(0)[0] == 200
    assert step(1, "finish", (None,))[1]["columns"] == [[5], [None]]
    assert request(http_address, "DELETE", "/v1/exchanges/x")[0] == 200
    assert step(2)[1]["error"]["kind"] == "protocol_violation"


def test_errors_are_statuses_for_other_engines(client):
    def call(name, values):
        writer, reader = client.do_exchange(FlightDescriptor.for_path(name))
        with writer:
            writer.begin(INT8)
            writer.write_batch(pa.RecordBatch.from_arrays([pa.array(values, pa.int64())], schema=INT8))
            writer.done_writing()
            return reader.read_all()

    with pytest.raises(pyarrow.flight.FlightError, match=r"ValueError: three \(row 2 of the batch\)"):
        call("fail", [1, 3])
    with pytest.raises(KeyError, match="no function"):
        call("nothing", [1])
    with pytest.raises(pa.ArrowInvalid, match="takes 2 columns"):
        call("add", [1])
