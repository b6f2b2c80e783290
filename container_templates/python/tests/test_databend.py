"""Databend's clients (docs/dialects.md), of this server and of the server core, which most other templates are on."""

import json
import os
import pathlib
import socket
import subprocess
import time

import pyarrow as pa
import pyarrow.flight
import pytest
from databend_udf.client import UDFClient
from pyarrow.flight import FlightDescriptor
from transship_server import flight, offers

CORE = pathlib.Path(__file__).parents[2] / "core"
HEADERS = {"x-databend-tenant": "t"}
PACKED = "(n numeric, j json, t text[], c time)"

# What tests/databend.c answers, as conftest's handlers do.
CORE_MANIFEST = {
    "name": "databend",
    "template": "cpp",
    "functions": [
        {"name": "add", "arguments": ["a int8", "b int8"], "returns": "int8"},
        {"name": "seven", "arguments": [], "returns": "int8"},
        {"name": "fail", "arguments": ["x int8"], "returns": "int8"},
        {"name": "pairs", "arguments": ["int8"], "returns": "(a int8, b text)", "kind": "table"},
        {"name": "same_packed", "arguments": [f"p {PACKED}"], "returns": PACKED},
        {"name": "again", "arguments": ["text"], "returns": "text", "kind": "table"},
    ],
}


@pytest.fixture(scope="module")
def core_port(tmp_path_factory):
    """A program in C on the server core, whose columns are plain."""
    folder, library = tmp_path_factory.mktemp("core"), os.path.dirname(offers._LIBRARY)
    assert os.path.exists(offers._LIBRARY), "make build makes it"
    (folder / "manifest.json").write_text(json.dumps(CORE_MANIFEST))
    compile = ["cc", "-std=c17", f"-I{CORE}/include", f"-L{library}", "-o", f"{folder}/program"]
    subprocess.run([*compile, CORE / "tests/databend.c", "-ltransship_core"], check=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {"LD_LIBRARY_PATH": library, "TRANSSHIP_FLIGHT_PORT": str(port)}
    with open(folder / "log", "w+") as log:
        with subprocess.Popen([folder / "program", folder, "plain"], env=environment, stderr=log) as server:
            end = time.monotonic() + 60
            while "transship: ready" not in (folder / "log").read_text():
                assert server.poll() is None and time.monotonic() < end, (folder / "log").read_text()
                time.sleep(0.01)
            yield port
            server.terminate()
    assert server.returncode == 0


@pytest.fixture(scope="module")
def python_port(functions):
    server = flight.Server("grpc://127.0.0.1:0", functions)
    yield server.port
    server.shutdown()


@pytest.fixture(params=["python", "core"])
def port(request):
    return request.getfixturevalue(f"{request.param}_port")


def call(port, name, *columns):
    """Databend's own calls, told by their headers: the types of all fields, and the rows of the reply."""
    headers = [(key.encode(), value.encode()) for key, value in HEADERS.items()]
    options = pyarrow.flight.FlightCallOptions(headers=headers)
    with pyarrow.flight.connect(f"grpc://127.0.0.1:{port}") as client:
        info = client.get_flight_info(FlightDescriptor.for_path(name), options)
        count = int(info.schema.metadata[b"x-databend-udf-input-count"])
        assert count == info.total_records == len(columns)
        schema = pa.schema(list(info.schema)[:count])
        writer, reader = client.do_exchange(FlightDescriptor.for_path(name), options)
        with writer:
            writer.begin(schema)
            arrays = [pa.array(values, field.type) for values, field in zip(columns, schema)]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
            writer.done_writing()
            answer = reader.read_all()
    assert answer.schema.equals(pa.schema(list(info.schema)[count:]), check_metadata=True)
    return [str(kind) for kind in info.schema.types], answer.to_pylist()


def test_types_are_databends_and_tables_have_no_row_numbers(port):
    assert call(port, "add", [1, 2], [3, None]) == (["int64"] * 3, [{"output": 4}, {"output": None}])
    assert call(port, "again", ["a", None, "b"])[0] == ["large_string", "large_string"]
    assert call(port, "again", ["a", "b"])[1] == [{"output": "a"}, {"output": "b"}]
    # All columns of a composite result.
    types_of, rows = call(port, "pairs", [1, 2, 4])
    assert types_of == ["int64", "int64", "large_string"] and rows[-1] == {"a": 4, "b": None}


def test_types_that_databend_lacks_are_texts(port):
    packed = {"n": "1.50", "j": b'{"a": [1, 2]}', "t": ["x", None], "c": "00:00:01.5"}
    empty = {"n": None, "j": None, "t": [], "c": None}
    types_of, rows = call(port, "same_packed", [packed, empty, None])
    parts = "n: large_string, j: large_binary, t: list<item: large_string>, c: large_string"
    assert types_of == [f"struct<{parts}>"] * 2
    assert rows == [{"output": packed | {"c": "00:00:01.500000"}}, {"output": empty}, {"output": None}]
    for wrong in ({"c": "25:00:00"}, {"j": b"\xff"}, {"n": "1e999999"}):
        with pytest.raises(pa.ArrowInvalid, match="of same_packed cannot be read"):
            call(port, "same_packed", [empty | wrong])


def test_the_published_client(port):
    """The client of the package databend-udf, which sends no headers of its own accord."""
    client = UDFClient("127.0.0.1", port)
    assert client.call_function("add", [1, 2], [3, None]) == [4, None]
    assert client.call_function_batch("add", a=[1, 2], b=[3, None], headers=HEADERS) == [4, None]
    assert client.call_function("seven") == [7]
    with pytest.raises(pyarrow.flight.FlightError, match="ValueError: three"):
        client.call_function("fail", 3)


def test_arguments_of_types_that_databend_lacks(python_port):
    types_of, rows = call(
        python_port, "packed", ["1.50", None], [b'{"a": [1, 2]}', b"null"], [["x", None], []], ["00:00:01.5", None]
    )
    assert types_of[:4] == ["large_string", "large_binary", "list<item: large_string>", "large_string"]
    packed = {"n": "1.50", "j": b'{"a": [1, 2]}', "t": ["x", None], "c": "00:00:01.500000"}
    assert rows == [{"output": packed}, {"output": {"n": None, "j": None, "t": [], "c": None}}]
    assert call(python_port, "text_of", [0.5, 2.0])[1] == [{"output": "0.5"}, {"output": "2.0"}]
