import json
import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

import transship  # noqa: E402
from segments import Offer  # noqa: E402
from transship_server import flight, function, offers, rest  # noqa: E402

HANDLER = '''
import time
import numpy
import pyarrow.compute

def add(a: int, b: int | None) -> int:
    return None if b is None else a + b

def seven() -> int:
    return 7

def fail(x: int) -> int:
    if x == 3:
        raise ValueError("three")
    return x

def wrong(x: int) -> int:
    return 1.5 if x == 3 else x

def slow(x: int) -> int:
    time.sleep(0.001)
    return x

def arrow(x):
    return pyarrow.compute.add(x, 1)

def array(x):
    return x + 1

def series(x):
    assert type(x).__name__ == "Series"
    return x + 1

def short(x):
    return x[1:]

def repeat(text, n):
    if n < 0:
        raise ValueError("negative")
    return [text] * n

def pairs(x):
    yield [0, 1, 1], {"a": [1, 2, 3], "b": ["x", "y", "z"]}
    yield [2], pyarrow.RecordBatch.from_pylist([{"a": 4, "b": None}])

def backwards(x):
    return [1, 0], [5, 6]

def running(rows):
    total = 0
    for (x,) in rows:
        total += x
        yield total

def longest(frames):
    yield [max(len(frame) for frame in frames)]

class Sum:
    def __init__(self):
        self.total = 0

    def step(self, x):
        if x == 13:
            raise ValueError("thirteen")
        self.total += x

    def merge(self, other):
        self.total += other.total

    def finish(self):
        return self.total

KEPT = []

def keep(x):
    KEPT.append(x)
    return x + 1

def same(x):
    return x

def words(x):
    places = pyarrow.array([None if i > 1 else i for i in x.to_pylist()], pyarrow.int8())
    return pyarrow.DictionaryArray.from_arrays(places, pyarrow.array(["zero", "one"]))

def categories(x):
    return x.map({0: "zero", 1: "one"}).astype("category")

def packed(n, j, t, c):
    return {"n": n, "j": j, "t": t, "c": c}

def text_of(x):
    return [str(value) for value in x.to_pylist()]

def same_packed(p):
    return p

def again(text):
    return [text]
'''

MANIFEST = {
    "handler": "handler.py",
    "functions": [
        {"name": "add"},
        {"name": "seven"},
        {"name": "fail"},
        {"name": "wrong"},
        {"name": "slow"},
        {"name": "arrow", "arguments": ["x int8"], "returns": "int8", "batch": "arrow"},
        {"name": "array", "arguments": ["float8"], "returns": "float8", "batch": "numpy"},
        {"name": "words", "arguments": ["x int8"], "returns": "text", "batch": "arrow"},
        {"name": "categories", "arguments": ["x int8"], "returns": "text", "batch": "pandas"},
        {"name": "series", "arguments": ["x int8"], "returns": "int8", "batch": "pandas"},
        {"name": "short", "arguments": ["x int8"], "returns": "int8", "batch": "arrow"},
        {"name": "repeat", "arguments": ["text", "int4"], "returns": "text", "kind": "table"},
        {"name": "pairs", "arguments": ["int8"], "returns": "(a int8, b text)", "kind": "table", "batch": "arrow"},
        {"name": "backwards", "arguments": ["int8"], "returns": "int8", "kind": "table", "batch": "arrow"},
        {"name": "running", "arguments": ["int8"], "returns": "int8", "kind": "map"},
        {"name": "longest", "arguments": ["int8"], "returns": "int8", "kind": "map", "batch": "pandas"},
        {"name": "Sum", "arguments": ["int8"], "returns": "int8", "kind": "aggregate"},
        {"name": "keep", "arguments": ["float8"], "returns": "float8", "batch": "numpy"},
        {"name": "same", "arguments": ["int8"], "returns": "int8", "batch": "arrow"},
        {
            "name": "packed",
            "arguments": ["n numeric", "j json", "t text[]", "c time"],
            "returns": "(n numeric, j json, t text[], c time)",
        },
        {"name": "text_of", "arguments": ["x double precision"], "returns": "text", "batch": "arrow"},
        {
            "name": "same_packed",
            "arguments": ["p (n numeric, j json, t text[], c time)"],
            "returns": "(n numeric, j json, t text[], c time)",
        },
        {"name": "again", "arguments": ["text"], "returns": "text", "kind": "table"},
    ],
}


@pytest.fixture(scope="session")
def functions(tmp_path_factory):
    folder = tmp_path_factory.mktemp("function")
    (folder / "handler.py").write_text(HANDLER)
    return function.load(json.loads(json.dumps(MANIFEST)), str(folder))


@pytest.fixture(scope="session")
def flight_location(functions, tmp_path_factory):
    location = f"grpc+unix://{tmp_path_factory.mktemp('sockets')}/flight.sock"
    server = flight.Server(location, functions)
    yield location
    server.shutdown()


@pytest.fixture(scope="session")
def segment_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("segments")
    os.environ["TRANSSHIP_SEGMENT_DIR"] = str(directory)
    return directory


@pytest.fixture(scope="session")
def http_address(functions, segment_dir):
    import threading

    server = rest.TcpServer(("127.0.0.1", 0), functions)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address
    server.shutdown()


@pytest.fixture(scope="session")
def tables_path(tmp_path_factory):
    assert os.path.exists(offers._LIBRARY), "make build makes it"
    path = f"{tmp_path_factory.mktemp('tables')}/tables.sock"
    offers.listen(path)
    return path


@pytest.fixture
def offer(tables_path):
    """Makes offers, which end with the test."""
    made = []

    def make(tables, key=("key",)):
        made.append(Offer(tables_path, tables, list(key)))
        assert made[-1].answer == {}
        return made[-1].name

    yield make
    for one in made:
        one.connection.close()


@pytest.fixture
def opened(offer):
    """Opens a table as a call does."""

    def open_table(table, key=("key",)):
        with offers.named(offer({"it": table}, key)):
            return transship.table("it")

    return open_table
