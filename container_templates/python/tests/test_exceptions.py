"""Whatever a handler raises is its error, with its row, and ends neither the server nor a thread of it."""

import json
import os
import subprocess
import sys
import threading
import time

import pyarrow as pa
import pyarrow.flight
import pytest
from pyarrow.flight import FlightDescriptor

from transship_server import flight, function, rest
from transship_server.errors import CallError

HANDLER = """
import sys

class Own(BaseException):
    def __str__(self):
        raise SystemExit(9)

def throw(x):
    if x == 1:
        sys.exit(3)
    if x == 2:
        raise KeyboardInterrupt
    if x == 3:
        raise GeneratorExit
    if x == 4:
        raise Own
    return x

def row(x: int) -> int:
    return throw(x)

def column(x):
    for value in x.to_pylist():
        throw(value)
    return x

def each(x):
    yield x
    yield throw(x)

def columns(x):
    yield [0], [0]
    throw(x[0].as_py())

def stream(rows):
    for (x,) in rows:
        yield throw(x)

class Last:
    def step(self, x):
        self.x = throw(x)

    def finish(self):
        return throw(-self.x)
"""

KINDS = {"each": "table", "columns": "table", "stream": "map", "Last": "aggregate"}
MANIFEST = {
    "handler": "handler.py",
    "functions": [
        {"name": name, "arguments": ["int8"], "returns": "int8", "kind": KINDS.get(name, "scalar")}
        | ({"batch": "arrow"} if name.startswith("column") else {})
        for name in ("row", "column", "each", "columns", "stream", "Last")
    ],
}
RAISED = [(1, "SystemExit: 3"), (2, "KeyboardInterrupt"), (3, "GeneratorExit"), (4, "Own")]


@pytest.fixture(scope="module")
def functions(tmp_path_factory):
    folder = tmp_path_factory.mktemp("function")
    (folder / "handler.py").write_text(HANDLER)
    return function.load(json.loads(json.dumps(MANIFEST)), str(folder))


def batch(*values):
    return pa.RecordBatch.from_arrays([pa.array(values, pa.int64())], ["x"])


@pytest.mark.parametrize(("x", "message"), RAISED)
def test_every_kind_of_function(functions, x, message):
    def failure(name, answer):
        with pytest.raises(CallError) as caught:
            answer(functions[name])
        assert (caught.value.kind, caught.value.message) == ("user_code", message)
        return caught.value

    assert failure("row", lambda f: list(f.answer(batch(0, x)))).row == 1
    assert failure("column", lambda f: list(f.answer(batch(0, x)))).row is None
    assert failure("each", lambda f: list(f.answer(batch(0, 0, x)))).row == 2
    assert failure("columns", lambda f: list(f.answer(batch(x)))).row is None
    failure("stream", lambda f: list(f.run(iter([batch(0, x)]))))
    rows = lambda *values: pa.RecordBatch.from_arrays(  # noqa: E731
        [pa.array([0] * len(values), pa.int64()), pa.array(values, pa.int64()), pa.nulls(len(values), pa.binary())],
        ["group", "x", "state"],
    )
    assert failure("Last", lambda f: f.groups().answer(rows(0, x), "accumulate")).row == 1
    groups = functions["Last"].groups()
    groups.answer(rows(-x), "accumulate")
    with pytest.raises(CallError, match=message):
        groups.answer(rows(None), "finish")


def test_a_client_that_wants_no_more_is_no_exception(functions):
    for parts in (functions["each"].answer(batch(*[0] * 5000)), functions["stream"].run(iter([batch(*[0] * 5000)]))):
        next(parts)
        # GeneratorExit, which nobody may make an error of.
        parts.close()


def test_both_forms_answer_and_go_on(functions, tmp_path):
    http = rest.TcpServer(("127.0.0.1", 0), functions)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    location = f"grpc+unix://{tmp_path}/flight.sock"
    server = flight.Server(location, functions)
    try:
        from test_server import STATUSES, exchange, request

        with pyarrow.flight.connect(location) as client:
            for x, message in RAISED:
                body = json.dumps({"rows": 2, "columns": [[0, x]]})
                status, answer = request(http.server_address, "POST", "/v1/functions/row", body)
                assert (status, answer["error"]["kind"], answer["error"]["row"]) == (500, "user_code", 1)
                assert answer["error"]["message"] == message
                [(_, error)] = exchange(client, "row", [[0, x]])
                assert (error["kind"], error["message"], error["row"]) == ("user_code", message, 1)
                writer, reader = client.do_exchange(FlightDescriptor.for_path("stream"))
                with pytest.raises(STATUSES), writer:
                    writer.begin(pa.schema([pa.field("x", pa.int64())]))
                    writer.write_with_metadata(batch(x), b'{"batch": 0}')
                    writer.done_writing()
                    assert json.loads(reader.read_chunk().app_metadata.to_pybytes())["error"]["message"] == message
            assert exchange(client, "row", [[5]]) == [(0, [5])]
    finally:
        http.shutdown()
        server.shutdown()


SERVER = """
import sys
sys.path.insert(0, sys.argv[1])
from transship_server import __main__
__main__.main("serve")
"""


@pytest.mark.parametrize("number", ["TERM", "INT"])
def test_a_real_signal_ends_the_server(tmp_path, number):
    (tmp_path / "function").mkdir()
    (tmp_path / "function/handler.py").write_text(HANDLER)
    (tmp_path / "manifest.json").write_text(json.dumps(MANIFEST))
    environment = {**os.environ, "TRANSSHIP_ROOT": str(tmp_path), "TRANSSHIP_SOCKET_DIR": str(tmp_path)}
    template = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    process = subprocess.Popen([sys.executable, "-c", SERVER, template], env=environment, stderr=subprocess.PIPE, text=True)
    try:
        assert "ready" in process.stderr.readline()
        subprocess.run(["kill", f"-{number}", str(process.pid)], check=True)
        start = time.monotonic()
        assert process.wait(20) == 0
        assert time.monotonic() - start < 8
    finally:
        process.kill()
        process.stderr.close()
