"""Shared tables (docs/protocol.md §4.13, §10): every handler reads those of its own call."""

import concurrent.futures
import http.client
import json
import os
import pathlib
import secrets
import socket
import subprocess
import sys
import threading
import time

import pyarrow as pa
import pyarrow.flight
import pytest
import transship
from pyarrow.flight import FlightDescriptor
from segments import BATCH_ROWS, Offer, index_of, numbers, segment_of
from test_columns import body_of, lay_out
from transship_server import columns, errors, flight, function, offers, rest, types

ROOT = pathlib.Path(__file__).parent.parent
HANDLER = '''
import asyncio
import threading
import time

import transship

def name_of(key: int) -> str:
    row = transship.table("numbers").get(key)
    return row and row["name"]

async def name_later(key: int) -> str:
    await asyncio.sleep(0.01)
    return await asyncio.create_task(asyncio.to_thread(name_of, key)) if key % 2 else name_of(key)

WAITING = {}

async def _name_when_told(told, answer):
    await told.wait()
    try:
        answer.set_result(await asyncio.to_thread(name_of, 1))
    except Exception as error:
        answer.set_result(f"{type(error).__name__}: {error}")

async def leave_task(key: int) -> str:
    """What it starts goes on after the call."""
    told, answer = asyncio.Event(), asyncio.get_running_loop().create_future()
    WAITING[key] = told, answer, asyncio.create_task(_name_when_told(told, answer))
    return name_of(key)

async def tell_task(key: int) -> str:
    told, answer, task = WAITING.pop(key)
    told.set()
    return await answer

async def names_later(keys):
    await asyncio.sleep(0.01)
    return names(keys)

def name_twice(key: int) -> str:
    first = name_of(key)
    time.sleep(0.05)
    assert name_of(key) == first
    return first

def names(keys):
    return transship.table("numbers").lookup(keys)["name"]

def names_of_series(keys):
    return transship.table("numbers").lookup(keys)["name"].to_pandas()

def each_name(key):
    yield name_of(key)
    yield name_of(key + 1)

def matching(keys):
    positions, rows = transship.table("numbers").matches(keys)
    for position in positions.to_pylist():
        yield [position], rows["name"].slice(position, 1)

def mapped(rows):
    for (key,) in rows:
        yield name_of(key)

class Joined:
    def __init__(self):
        self.names = [name_of(1)]

    def step(self, key):
        self.names.append(name_of(key))

    def merge(self, other):
        self.names += [name_of(1), *other.names]

    def finish(self):
        return " ".join([*self.names, name_of(1)])

def lists(key):
    return (name_of(key) for _ in range(2))

def names_in_list(keys):
    return (name_of(key) for key in keys.to_pylist())

class Columns:
    def step(self, keys):
        names(keys)

    def merge(self, other):
        pass

    def finish(self):
        return None

def from_thread(name: str) -> str:
    found = []

    def read(table=None):
        try:
            found.append((table or transship.table(name)).get(1)["name"])
        except LookupError as error:
            found.append(str(error))

    for arguments in ([], [transship.table(name)]):
        thread = threading.Thread(target=read, args=arguments)
        thread.start()
        thread.join()
    return " | ".join(found)
'''
MANIFEST = {
    "handler": "handler.py",
    "functions": [
        {"name": "name_of"},
        {"name": "name_later", "concurrency": 3},
        {"name": "leave_task"},
        {"name": "tell_task"},
        {"name": "lists", "arguments": ["int8"], "returns": "text[]"},
        {"name": "names_in_list", "arguments": ["int8"], "returns": "text", "batch": "arrow"},
        {"name": "Columns", "arguments": ["int8"], "returns": "text", "kind": "aggregate", "batch": "arrow"},
        {"name": "names_later", "arguments": ["int8"], "returns": "text", "batch": "arrow"},
        {"name": "name_twice"},
        {"name": "names", "arguments": ["int8"], "returns": "text", "batch": "arrow"},
        {"name": "names_of_array", "arguments": ["int8"], "returns": "text", "batch": "numpy"},
        {"name": "names_of_series", "arguments": ["int8"], "returns": "text", "batch": "pandas"},
        {"name": "each_name", "arguments": ["int8"], "returns": "text", "kind": "table"},
        {"name": "matching", "arguments": ["int8"], "returns": "text", "kind": "table", "batch": "arrow"},
        {"name": "mapped", "arguments": ["int8"], "returns": "text", "kind": "map"},
        {"name": "Joined", "arguments": ["int8"], "returns": "text", "kind": "aggregate"},
        {"name": "from_thread"},
    ],
}
SCALAR = ["name_of", "name_later", "names_later", "name_twice", "names", "names_of_array", "names_of_series"]
INT8 = types.by_name("int8")


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("readers")
    (folder / "handler.py").write_text(HANDLER + "\nnames_of_array = names\n")
    return function.load(json.loads(json.dumps(MANIFEST)), str(folder))


@pytest.fixture(scope="module")
def address(readers, segment_dir):
    server = rest.TcpServer(("127.0.0.1", 0), readers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address
    server.shutdown()


@pytest.fixture(scope="module")
def location(readers, tmp_path_factory):
    at = f"grpc+unix://{tmp_path_factory.mktemp('sockets')}/flight.sock"
    server = flight.Server(at, readers)
    yield at
    server.shutdown()


def post(address, path, body, content_type, offer_name):
    connection = http.client.HTTPConnection(*address, timeout=20)
    headers = {"Content-Type": content_type} | ({offers.FIELD: offer_name} if offer_name else {})
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return body if answer.status == 200 else json.loads(body)["error"]


def ask_json(address, name, keys, offer_name, **members):
    """The columns of the reply, or the error."""
    request = {"batch": 0, "rows": len(keys), "columns": [keys]} | members
    answer = post(address, f"/v1/functions/{name}", json.dumps(request), "application/json", offer_name)
    return answer if isinstance(answer, dict) else json.loads(answer)["columns"]


def ask_columns(address, name, keys, offer_name, segment_dir=None):
    places, data = lay_out([(INT8, pa.array(keys, pa.int64()))])
    header = {"batch": 0, "rows": len(keys), "buffers": places}
    if segment_dir is not None:
        header["segment"] = secrets.token_hex(16)
        (segment_dir / header["segment"]).write_bytes(data)
        data = b""
    answer = post(address, f"/v1/functions/{name}", body_of(header, data), columns.CONTENT_TYPE, offer_name)
    if isinstance(answer, dict):
        return answer
    return [columns.Request(answer, None).batch([("", types.by_name("text"))]).column(0).to_pylist()]


def ask_flight(location, name, batches, offer_name, schema=None):
    """What comes back, in one list; the error as an exception."""
    options = pyarrow.flight.FlightCallOptions(headers=[(offers.FIELD.encode(), offer_name.encode())] if offer_name else [])
    found = []
    with pyarrow.flight.connect(location) as client:
        writer, reader = client.do_exchange(FlightDescriptor.for_path(name), options)
        with writer:
            schema = schema or pa.schema([("", pa.int64())])
            writer.begin(schema)
            for number, (batch, metadata) in enumerate(batches):
                writer.write_with_metadata(batch.cast(schema), json.dumps({"batch": number} | metadata).encode())
            writer.done_writing()
            for chunk in reader:
                found += chunk.data.to_pylist() if chunk.data is not None else []
    return found


def batch_of(*keys):
    return pa.RecordBatch.from_arrays([pa.array(keys, pa.int64())], [""])


@pytest.mark.parametrize("name", SCALAR)
def test_scalar_functions_read_tables_over_every_transport(name, offer, address, location, segment_dir):
    given = offer({"numbers": numbers("n")})
    keys, names = [3, 1, 77, 3], ["n3", "n1", None, "n3"]
    assert ask_json(address, name, keys, given) == [names]
    assert ask_columns(address, name, keys, given) == [names]
    assert ask_columns(address, name, keys, given, segment_dir) == [names]
    found = ask_flight(location, name, [(batch_of(*keys), {}), (batch_of(2), {})], given)
    assert [row[name] for row in found] == [*names, "n2"]


@pytest.mark.parametrize("wanted", ["once", "again"])
@pytest.mark.parametrize("name", ["name_of", "name_later", "names"])
def test_functions_with_errors_of_rows_read_tables(name, wanted, offer, address):
    assert ask_json(address, name, [3, 4], offer({"numbers": numbers("n")}), row_errors=wanted) == [["n3", "n4"], [None, None]]
    doubled = offer({"numbers": pa.concat_tables([numbers("n"), numbers("m", 3)])})
    results, errors = ask_json(address, name, [3, 1], doubled, row_errors=wanted)
    assert results == ["n3", None]
    assert errors[0] is None and errors[1].startswith("ValueError: ") and '"numbers"' in errors[1]


def test_table_functions_read_tables(offer, address, location):
    given = offer({"numbers": numbers("n")})
    assert ask_json(address, "each_name", [1, 5], given) == [[0, 0, 1, 1], ["n1", "n2", "n5", "n6"]]
    assert ask_json(address, "matching", [1, 5], given) == [[0, 1], ["n1", "n5"]]
    found = ask_flight(location, "each_name", [(batch_of(1, 5), {})], given)
    assert [tuple(row.values()) for row in found] == [(0, "n1"), (0, "n2"), (1, "n5"), (1, "n6")]


def test_map_functions_read_tables(offer, location):
    given = offer({"numbers": numbers("n", 2000)})
    batches = [(batch_of(*range(1500)), {}), (batch_of(7), {})]
    assert [row["mapped"] for row in ask_flight(location, "mapped", batches, given)] == [f"n{key}" for key in (*range(1500), 7)]


def test_aggregate_functions_read_tables_in_each_step(offer, address, location):
    given = offer({"numbers": numbers("n")})
    schema = pa.schema([("group", pa.int64()), ("x", pa.int64()), ("state", pa.binary())])

    def batch(group, x, state):
        return pa.RecordBatch.from_pylist([{"group": group, "x": x, "state": state}], schema)

    steps = [(batch(0, 4, None), {"step": "accumulate"}), (batch(0, None, None), {"step": "state"})]
    state = ask_flight(location, "Joined", steps, given, schema)[-1]["state"]
    steps = [(batch(7, None, state), {"step": "merge"}), (batch(7, None, None), {"step": "finish"})]
    assert ask_flight(location, "Joined", steps, given, schema)[-1]["Joined"] == "n1 n1 n1 n4 n1"

    exchange = {"exchange": secrets.token_hex(16)}
    for step, expected in [({"step": "accumulate", "batch": 0}, []), ({"step": "finish", "batch": 1}, ["n1 n4 n1"])]:
        request = {"rows": 1, "columns": [[0], [4], [None]]} | exchange | step
        answer = post(address, "/v1/functions/Joined", json.dumps(request), "application/json", given)
        assert [text for text in json.loads(answer)["columns"][0] if text] == expected


@pytest.mark.parametrize("name", ["name_twice", "name_later"])
def test_calls_at_the_same_time_see_their_own_tables(name, offer, address, location):
    """Without an offer they see none, also if a call before them on the same thread had one."""
    prefixes = ["a", "b", "c", None]
    given = {prefix: offer({"numbers": numbers(prefix)}) if prefix else None for prefix in prefixes}

    def ask(number):
        prefix = prefixes[number % 4]
        for round_number in range(3):
            key = (number + round_number) % 10
            if prefix is None:
                assert 'the call has no shared table "numbers"' in ask_json(address, name, [key], None)["message"]
            elif number % 8 < 4:
                assert ask_json(address, name, [key, 2], given[prefix]) == [[f"{prefix}{key}", f"{prefix}2"]]
            else:
                (row,) = ask_flight(location, name, [(batch_of(key), {})], given[prefix])
                assert row[name] == f"{prefix}{key}"

    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        list(threads.map(ask, range(16)))


def test_threads_of_a_handler_read_tables_that_they_are_given(offer, address):
    (answer,) = ask_json(address, "from_thread", ["numbers"], offer({"numbers": numbers("n")}))
    assert answer == ['the call has no shared table "numbers": name it in the key tables of the function\'s body | n1']


def test_a_table_that_a_call_does_not_have_is_an_exception_of_the_handler(offer, address, location):
    given = offer({"others": numbers("n")})
    for asked, fact in [
        (ask_json(address, "name_of", [1], None), "name it in the key tables of the function's body"),
        (ask_columns(address, "name_of", [1], None), "name it in the key tables of the function's body"),
        (ask_json(address, "name_of", [1], given), 'no shared table "numbers"'),
    ]:
        assert (asked["kind"], asked["row"]) == ("user_code", 0)
        assert asked["message"].startswith("LookupError: ") and fact in asked["message"]
        assert 'in name_of\n    row = transship.table("numbers")' in asked["traceback"]
    with pytest.raises(pyarrow.flight.FlightError, match="name it in the key tables"):
        ask_flight(location, "name_of", [(batch_of(1), {})], None)


NO_OFFER = "the server does not have the offer of tables that the call names"


def test_an_unknown_offer_is_no_exception_of_the_handler(tables_path, offer, readers, address, location, monkeypatch):
    """It is told before the handler is called."""
    offer({"numbers": numbers("n")})
    unknown = "0" * 32
    called = {name for name, entry in readers.items() if name not in ("from_thread", "leave_task", "tell_task")}
    assert {entry.kind for entry in map(readers.get, called)} == {"scalar", "table", "map", "aggregate"}
    for name in called:
        monkeypatch.setattr(readers[name], "target", lambda *_: pytest.exit("it was called"))
        readers[name].__dict__.pop("row_target", None)
    schema = pa.schema([("group", pa.int64()), ("x", pa.int64()), ("state", pa.binary())])
    group = pa.RecordBatch.from_pylist([{"group": 0, "x": 1, "state": None}], schema)
    try:
        for name in sorted(called):
            kind, told = readers[name].kind, []
            if kind == "aggregate":
                request = {"rows": 1, "columns": [[0], [1], [None]], "exchange": secrets.token_hex(16), "step": "accumulate", "batch": 0}
                told.append(json.loads(post_raw(address, name, request, unknown))["error"])
                batches = [(group, {"step": "accumulate"})]
            else:
                batches = [(batch_of(1, 2), {})]
                if kind != "map":
                    told += [ask_json(address, name, [1, 2], unknown), ask_columns(address, name, [1, 2], "größer")]
                if kind == "scalar":
                    told += [ask_json(address, name, [1, 2], unknown, row_errors=wanted) for wanted in ("once", "again")]
            for error in told:
                assert error == {"kind": "protocol_violation", "message": NO_OFFER}, name
            with pytest.raises(pa.ArrowInvalid, match=NO_OFFER):
                ask_flight(location, name, batches, unknown, schema if kind == "aggregate" else None)
    finally:
        for name in called:
            readers[name].__dict__.pop("row_target", None)


def post_raw(address, name, request, offer_name):
    answer = post(address, f"/v1/functions/{name}", json.dumps(request), "application/json", offer_name)
    return answer if isinstance(answer, bytes) else json.dumps({"error": answer})


def test_an_offer_is_unknown_while_the_library_is_not_loaded(monkeypatch):
    monkeypatch.setattr(offers._offers, "_library", None)
    for failure, fact in [(None, NO_OFFER), (OSError("too old"), f"{NO_OFFER}: too old")]:
        monkeypatch.setattr(offers._offers, "_failure", failure)
        with offers.named("0" * 32), pytest.raises(errors.CallError) as caught:
            offers.check()
        assert (caught.value.kind, caught.value.message) == ("protocol_violation", fact)
    offers.check()


def test_what_a_call_leaves_running_has_its_tables_no_more(offer, address, monkeypatch):
    """Neither does it see them in a later call, nor does it keep them."""
    given, other = offer({"numbers": numbers("a")}), offer({"numbers": numbers("b")})
    library, closed = offers._offers._library, []
    close = library.close
    monkeypatch.setattr(library, "close", lambda handle: close(handle) or closed.append(handle))
    ended = 'LookupError: the call has no shared table "numbers": it has ended'
    for key in range(3):
        assert ask_json(address, "leave_task", [key], given) == [[f"a{key}"]]
    table = offers._offers._recent[given].tables["numbers"]
    handle = table._handle
    assert ask_json(address, "tell_task", [0], other) == [[ended]]
    assert ask_json(address, "tell_task", [1], None) == [[ended]]
    # One still waits.
    del table, offers._offers._recent[given]
    assert handle in closed
    assert ask_json(address, "tell_task", [2], given) == [[ended]]


def test_a_table_without_a_call_is_told():
    with pytest.raises(LookupError, match='the call has no shared table "planes"'):
        transship.table("planes")


def end(made):
    """Ends an offer, and waits until the server has noticed."""
    made.connection.close()
    deadline = time.monotonic() + 20
    while (handle := offers._offers._library.open_offer(made.name)) is not None:
        offers._offers._library.close_offer(handle)
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_offer_that_ends_stays_for_the_calls_that_have_it(tables_path):
    """A handler that asks for a table later gets it, and no exception that it may catch."""
    made = Offer(tables_path, {"it": numbers("n"), "other": numbers("m")}, ["key"])
    with offers.named(made.name):
        assert transship.table("it").get(3) == {"key": 3, "name": "n3"}
        end(made)
        offers.check()
        assert transship.table("other").get(3) == {"key": 3, "name": "m3"}


def test_an_offer_is_not_taken_for_one_that_has_ended(tables_path, offer):
    """Its name is nobody else's, but that is for clients to keep."""
    made = Offer(tables_path, {"it": numbers("n")}, ["key"])
    with offers.named(made.name):
        assert transship.table("it").get(3)["name"] == "n3"
    end(made)
    again = Offer(tables_path, {}, [])
    again.name = made.name
    again.add("it", [2], [segment_of(numbers("m"), ["key"]), index_of(numbers("m"), ["key"])])
    with offers.named(made.name):
        assert transship.table("it").get(3)["name"] == "m3"
    end(again)


def test_tables_of_an_offer_that_has_ended_are_not_kept(tables_path, offer):
    made = Offer(tables_path, {"it": numbers("n")}, ["key"])
    with offers.named(made.name):
        transship.table("it")
    assert made.name in offers._offers._recent and offers.are_kept()
    end(made)
    with offers.named(offer({"it": numbers("m")})):
        assert made.name not in offers._offers._recent
        transship.table("it")


def test_an_offer_ends_with_its_connection(tables_path):
    made = Offer(tables_path, {"it": numbers("n")}, ["key"])
    with offers.named(made.name):
        table = transship.table("it")
    end(made)
    with offers.named(made.name), pytest.raises(errors.CallError, match=NO_OFFER) as caught:
        offers.check()
    assert caught.value.kind == "protocol_violation"
    # What a handler has opened goes on.
    assert (table.get(3), table.lookup([4])["name"].to_pylist()) == ({"key": 3, "name": "n3"}, ["n4"])
    assert table.to_arrow().equals(numbers("n"))


def test_opened_tables_are_kept_for_calls_of_their_offer(offer, monkeypatch):
    given = offer({"it": numbers("n"), "other": numbers("m")})
    with offers.named(given):
        first = transship.table("it")
        assert transship.table("it") is first and transship.table("other") is not first
    with offers.named(given):
        assert transship.table("it") is first
    others = [offer({"it": numbers("o")}) for _ in range(offers._MOST_OFFERS)]
    for name in others[:-1]:
        with offers.named(name):
            pass
    assert given in offers._offers._recent
    with offers.named(given):
        pass
    with offers.named(others[-1]):
        pass
    # The first of the others was used the longest ago.
    assert given in offers._offers._recent and others[0] not in offers._offers._recent
    offers.forget_unused()
    assert given in offers._offers._recent
    monkeypatch.setattr(offers, "UNUSED_S", -1)
    with offers.named(given):
        offers.forget_unused()
        assert offers._offers._recent == {} and transship.table("it") is first
    with offers.named(given):
        assert transship.table("it") is not first


def test_tables_are_closed_once_nobody_has_them(offer, monkeypatch):
    given = offer({"it": numbers("n" * 1000, 10_000)})
    library, closed = offers._offers._library, []
    close = library.close
    monkeypatch.setattr(library, "close", lambda handle: close(handle) or closed.append(handle))
    with offers.named(given):
        table = transship.table("it")
        names, handle = table.to_arrow()["name"].chunk(0), table._handle
    del offers._offers._recent[given]
    assert table.get(1)["key"] == 1 and closed == []
    del table
    assert closed == [handle]
    # What was taken from it holds the memory itself.
    assert names[9_999].as_py() == "n" * 1000 + "9999"


def test_an_image_without_a_library_that_loads_says_so(tmp_path):
    """Its C library may be too old."""
    (command,) = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if line.startswith("RUN") and "CDLL" in line]
    command = command.removeprefix("RUN ").replace("/opt/venv/bin/python", sys.executable).replace("/opt/transship", str(tmp_path))
    library = tmp_path / "lib" / "libtransship_core.so"
    for content, is_kept in [(os.path.realpath(offers._LIBRARY), True), (b"no library", False), (None, False)]:
        library.parent.mkdir(exist_ok=True)
        library.unlink(missing_ok=True)
        if is_kept:
            library.symlink_to(content)
        elif content:
            library.write_bytes(content)
        subprocess.run(["sh", "-c", command], check=True, capture_output=True)
        assert library.exists() == library.parent.exists() == is_kept


def test_malformed_offers_are_refused(tables_path):
    for contents in ([b"no segment"], [segment_of(numbers("n"), ["key"])[:-1]], []):
        refused = Offer(tables_path, {}, [])
        assert refused.add("it", [1], contents)["error"]["kind"] == "protocol_violation"
        refused.connection.close()


def test_without_a_library_no_tables_are_taken(monkeypatch, tmp_path):
    monkeypatch.setattr(offers, "_LIBRARY", str(tmp_path / "none.so"))
    taken = offers._Offers()
    taken.listen(str(tmp_path / "tables.sock"))
    assert not taken.is_listening and not os.path.exists(tmp_path / "tables.sock")
    monkeypatch.setattr(offers, "_offers", taken)
    assert flight.greeting({})["tables"] is False
    with offers.named("0" * 32), pytest.raises(errors.CallError, match=NO_OFFER):
        offers.check()


def test_a_library_that_cannot_be_loaded_is_told(monkeypatch, tmp_path, capfd):
    """As on a system whose C library is older than it needs."""
    (tmp_path / "broken.so").write_text("no library")
    monkeypatch.setattr(offers, "_LIBRARY", str(tmp_path / "broken.so"))
    taken = offers._Offers()
    taken.listen(str(tmp_path / "tables.sock"))
    assert taken.is_listening
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(20)
        client.connect(str(tmp_path / "tables.sock"))
        with pytest.raises(ConnectionError):
            if client.recv(1) == b"":
                raise ConnectionError
    assert not taken.is_listening
    assert "cannot take shared tables" in capfd.readouterr().err
    monkeypatch.setattr(offers, "_offers", taken)
    with offers.named("0" * 32), pytest.raises(errors.CallError, match=f"{NO_OFFER}: .*broken.so"):
        offers.check()


def test_a_server_takes_tables_once_a_client_offers_some(tmp_path):
    """A project's own module of the name stays the project's."""
    (tmp_path / "function").mkdir()
    (tmp_path / "function/handler.py").write_text((ROOT / "conformance/handler.py").read_text())
    functions = [{"name": "table_lookup", "arguments": ["int8"], "returns": "text", "batch": "arrow"}]
    (tmp_path / "manifest.json").write_text(json.dumps({"handler": "handler.py", "functions": functions}))
    (tmp_path / "tables.sock").write_text("of a server before")

    def is_loaded(process):
        return "libtransship_core" in pathlib.Path(f"/proc/{process.pid}/maps").read_text()

    with serving(tmp_path) as process:
        assert ask_unix(tmp_path, "GET", "/v1")["tables"] is True
        assert (tmp_path / "tables.sock").stat().st_mode & 0o777 == 0o777
        assert not is_loaded(process)
        made = Offer(str(tmp_path / "tables.sock"), {"numbers": numbers("n", BATCH_ROWS + 1)}, ["key"])
        assert made.answer == {} and is_loaded(process)
        request = {"batch": 0, "rows": 3, "columns": [[BATCH_ROWS, None, 3]]}
        answer = ask_unix(tmp_path, "POST", "/v1/functions/table_lookup", request, made.name)
        assert answer["columns"] == [[f"n{BATCH_ROWS}", None, "n3"]]
        made.connection.close()
        process.terminate()
        assert process.wait(20) == 0

    own = "class table:\n    def __init__(self, name): pass\n    def lookup(self, keys): return {'name': ['own'] * len(keys)}\n"
    (tmp_path / "function/transship.py").write_text(own)
    with serving(tmp_path):
        assert ask_unix(tmp_path, "POST", "/v1/functions/table_lookup", request)["columns"] == [["own"] * 3]


class serving:
    def __init__(self, root):
        environment = {**os.environ, "TRANSSHIP_ROOT": str(root), "TRANSSHIP_SOCKET_DIR": str(root), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "transship_server", "serve"]
        self.process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)

    def __enter__(self):
        assert "ready" in self.process.stderr.readline()
        return self.process

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()


def ask_unix(folder, method, path, request=None, offer_name=None):
    connection = http.client.HTTPConnection("x", timeout=20)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(folder / "http.sock"))
    connection.request(method, path, json.dumps(request) if request else None, {offers.FIELD: offer_name} if offer_name else {})
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return answer
