"""Handlers of `async def`: several calls of a batch are under way at a time, and nothing else is different."""

import asyncio
import contextlib
import json
import random
import socket
import threading
import time

import pyarrow as pa
import pytest

from transship_server import function, rest, types, waiting
from transship_server.errors import CallError
from transship_server.function import Cancelled, Function

INT8 = types.by_name("int8")


def batch_of(*values):
    return pa.RecordBatch.from_arrays([pa.array(values, pa.int64())], ["x"])


def make(handler, concurrency=1, form="row"):
    return Function("f", handler, form, [("x", INT8)], INT8, concurrency)


def call(handler, values, concurrency=1, form="row", **options):
    return make(handler, concurrency, form).call(batch_of(*values), **options).to_pylist()


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Counting:
    """Says how many calls were under way at most, and which rows were begun and ended."""

    def __init__(self, wait=lambda x: 0.01):
        self.now = self.most = 0
        self.begun, self.ended, self._wait = [], [], wait

    async def __call__(self, x):
        self.now += 1
        self.most = max(self.most, self.now)
        self.begun.append(x)
        try:
            await asyncio.sleep(self._wait(x))
            if x is not None and x < 0:
                raise ValueError(f"{x} is negative")
            self.ended.append(x)
            return x
        finally:
            self.now -= 1


@pytest.mark.parametrize("concurrency", [1, 3, 50])
def test_results_keep_the_order_of_the_rows(concurrency):
    # Later rows end first.
    handler = Counting(lambda x: 0.02 / (1 + x % 10))
    values = list(range(40))
    assert call(handler, values, concurrency) == values
    assert handler.most == min(concurrency, 40)
    assert (handler.ended == values) == (concurrency == 1)


@pytest.mark.parametrize("start", ["fail", "die"])
def test_a_loop_whose_thread_does_not_start_is_not_kept(monkeypatch, start):
    def start_none(*_):
        if start == "fail":
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(waiting, "_loop", waiting._Loop())
    monkeypatch.setattr(waiting, "_START_PATIENCE_S", 0.1)
    with monkeypatch.context() as without:
        without.setattr(waiting._thread, "start_new_thread", start_none)
        with pytest.raises(CallError, match="no thread"):
            call(Counting(), [1])
    monkeypatch.setattr(waiting, "_START_PATIENCE_S", 60)
    assert call(Counting(), [1, 2]) == [1, 2]


def test_without_concurrency_one_call_follows_the_other():
    handler = Counting()
    assert call(handler, [3, None, 1]) == [3, None, 1]
    assert (handler.most, handler.ended) == (1, [3, None, 1])


def test_there_may_be_no_rows_and_no_arguments():
    assert call(Counting(), [], 8) == []

    async def seven():
        return 7

    seven_times = Function("f", seven, "row", [], INT8, 2)
    assert seven_times.call(pa.RecordBatch.from_arrays([pa.nulls(3)], ["x"]).select([])).to_pylist() == [7, 7, 7]


def test_a_handler_that_does_not_wait_is_as_any_other():
    async def double(x):
        return 2 * x

    assert call(double, range(10_000), 10) == [2 * x for x in range(10_000)]


@pytest.mark.parametrize("concurrency", [1, 2, 5, 100])
def test_the_first_row_that_fails_is_told(concurrency):
    # The error of row 7 comes long before that of row 5.
    handler = Counting(lambda x: 0.001 if x == -7 else 0.05)
    values = [0, 1, 2, 3, 4, -5, 6, -7, *range(8, 300)]
    with pytest.raises(CallError) as caught:
        call(handler, values, concurrency)
    assert (caught.value.kind, caught.value.message, caught.value.row) == ("user_code", "ValueError: -5 is negative", 5)
    assert "in __call__" in caught.value.trace and "transship_server" not in caught.value.trace
    # Nothing of the rows after it was begun once it was known, and what had begun was cancelled.
    assert len(handler.begun) <= 5 + 2 * concurrency
    wait_until(lambda: handler.now == 0)


@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), StopAsyncIteration()])
def test_whatever_a_handler_raises_is_its_error(raised):
    async def handler(x):
        await asyncio.sleep(0)
        if x == 1:
            raise raised
        return x

    with pytest.raises(CallError) as caught:
        call(handler, [0, 1, 2], 2)
    assert (caught.value.kind, caught.value.row) == ("user_code", 1)
    assert type(raised).__name__ in caught.value.message
    assert call(handler, [0, 2], 2) == [0, 2]


def test_a_task_of_the_handler_ends_no_server(capfd):
    async def leave():
        raise SystemExit(5)

    async def handler(x):
        asyncio.create_task(leave())
        await asyncio.sleep(0.01)
        return x

    assert call(handler, [1, 2], 2) == [1, 2]
    assert call(handler, [3]) == [3]
    assert "SystemExit: 5" in capfd.readouterr().err


def test_a_cancelled_query_cancels_its_calls():
    begun, cancelled = [], []

    async def handler(x):
        begun.append(x)
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            cancelled.append(x)
            raise

    with pytest.raises(Cancelled):
        call(handler, range(100), 4, is_cancelled=lambda: len(begun) == 4)
    wait_until(lambda: len(cancelled) == 4)
    assert sorted(cancelled) == begun == [0, 1, 2, 3]


def test_a_handler_that_does_not_heed_its_end_is_not_waited_for():
    begun, ended, may_end = [], [], threading.Event()

    async def handler(x):
        begun.append(x)
        while not may_end.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                pass
        ended.append(x)

    with pytest.raises(Cancelled):
        call(handler, range(100), 2, is_cancelled=lambda: len(begun) == 2)
    assert ended == []
    may_end.set()
    wait_until(lambda: len(ended) == 2)
    # A third one would begin at once.
    time.sleep(0.2)
    assert begun == [0, 1]


def test_whoever_was_first_is_not_waited_for_either():
    """Row 1 fails while the task that was started first is at row 2, and does not heed that it is cancelled."""
    may_end = threading.Event()

    async def handler(x):
        if x == 1:
            await asyncio.sleep(0.1)
            raise ValueError("one")
        while x == 2 and not may_end.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
        return x

    deadline = time.monotonic() + 20
    try:
        with pytest.raises(CallError, match="one") as caught:
            call(handler, [0, 1, 2], 2, is_cancelled=lambda: time.monotonic() > deadline)
        assert caught.value.row == 1
    finally:
        may_end.set()


@pytest.mark.parametrize("wanted", ["once", "again"])
@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_batch_goes_on_after_rows_that_fail(wanted, concurrency):
    handler = Counting()
    forgiving = make(handler, concurrency).with_row_errors(wanted)
    (reply,) = forgiving.answer(batch_of(1, -2, None, -4, 5))
    assert reply.column(0).to_pylist() == [1, None, None, None, 5]
    said = [None, "ValueError: -2 is negative", None, "ValueError: -4 is negative", None]
    assert reply.column(1).to_pylist() == said
    assert sorted(handler.begun, key=str) == sorted([1, -2, None, -4, 5], key=str)
    assert handler.most == concurrency


def test_a_result_of_another_type_names_its_row():
    async def handler(x):
        return "two" if x == 2 else x

    with pytest.raises(CallError) as caught:
        call(handler, [1, 2, 3], 3)
    assert (caught.value.kind, caught.value.row) == ("bad_result", 1)


def test_handlers_of_columns_are_awaited_once():
    async def handler(column):
        await asyncio.sleep(0.01)
        values = column.to_pylist()
        if 13 in values:
            raise ValueError("13")
        return [x + 1 for x in values]

    assert call(handler, [1, 2], form="arrow") == [2, 3]
    with pytest.raises(CallError, match="ValueError: 13"):
        call(handler, [1, 13], form="arrow")
    (reply,) = make(handler, form="arrow").with_row_errors("again").answer(batch_of(1, 13, 2))
    assert (reply.column(0).to_pylist(), reply.column(1).to_pylist()) == ([2, None, 3], [None, "ValueError: 13", None])
    start = time.monotonic()
    with pytest.raises(Cancelled):
        call(for_ever, [1], form="arrow", is_cancelled=lambda: time.monotonic() - start > 0.05)


async def for_ever(column):
    await asyncio.sleep(60)


@pytest.mark.parametrize("seed", range(20))
def test_any_batch_is_as_if_its_rows_were_called_in_turn(seed):
    chosen = random.Random(seed)
    rows, concurrency = range(chosen.randint(0, 200)), chosen.choice([1, 2, 7, 100])
    waits = [chosen.choice([None, 0, chosen.random() * 0.004]) for _ in rows]
    bad = {row for row in rows if chosen.random() < 0.01}

    async def handler(x):
        if waits[x] is not None:
            await asyncio.sleep(waits[x])
        if x in bad:
            raise ValueError(x)
        return x + 1

    if bad:
        with pytest.raises(CallError) as caught:
            call(handler, rows, concurrency)
        assert caught.value.row == min(bad)
    else:
        assert call(handler, rows, concurrency) == [x + 1 for x in rows]
    (reply,) = make(handler, concurrency).with_row_errors("once").answer(batch_of(*rows))
    assert reply.column(0).to_pylist() == [None if x in bad else x + 1 for x in rows]
    assert reply.column(1).to_pylist() == [f"ValueError: {x}" if x in bad else None for x in rows]


def load(folder, source, **entry):
    (folder / "handler.py").write_text(source)
    manifest = {"handler": "handler.py", "functions": [{"name": "f", **entry}]}
    return function.load(manifest, str(folder))


TYPES = {"arguments": ["x int8"], "returns": "int8"}


@pytest.mark.parametrize(
    "source, entry, fact",
    [
        ("def f(x: int) -> int: return x", {"concurrency": 2}, 'must be "async def"'),
        ("async def f(x): return x", TYPES | {"concurrency": 2, "batch": "arrow"}, "no concurrency"),
        ("async def f(x): return [x]", TYPES | {"kind": "table"}, 'cannot be "async def"'),
        ("async def f(x): yield x", TYPES | {"kind": "table"}, 'cannot be "async def"'),
        ("async def f(rows): yield 1", TYPES | {"kind": "map"}, 'cannot be "async def"'),
        ("class f:\n  async def step(self, x): pass\n  def finish(self): return 1", TYPES | {"kind": "aggregate"}, 'cannot be "async def"'),
    ],
)
def test_what_cannot_wait_is_refused(tmp_path, source, entry, fact):
    with pytest.raises(ValueError, match=fact):
        load(tmp_path, source, **entry)


def test_annotations_say_the_types_as_for_others(tmp_path):
    loaded = load(tmp_path, "async def f(x: int, y: str | None) -> float: return 1.0", concurrency=8)["f"]
    assert ([entry.name for _, entry in loaded.arguments], loaded.result.name) == (["int8", "text"], "float8")
    assert (loaded.is_waiting, loaded.concurrency) == (True, 8)


def test_a_client_that_hangs_up_cancels_over_http(tmp_path):
    source = """
import asyncio, pathlib

begun = []

async def f(x: int) -> int:
    begun.append(x)
    try:
        await asyncio.sleep(600 if x < 0 else 0.001)
        return x
    except asyncio.CancelledError:
        with open(pathlib.Path(__file__).parent / "cancelled", "a") as file:
            file.write(f"{x} ")
        raise
"""
    functions = load(tmp_path, source, concurrency=3)
    begun = functions["f"].target.__globals__["begun"]
    server = rest.TcpServer(("127.0.0.1", 0), functions)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def post(values):
        body = json.dumps({"rows": len(values), "columns": [values]}).encode()
        client = socket.create_connection(server.server_address)
        head = f"POST /v1/functions/f HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        return client

    def answer_of(client):
        answer = b""
        while part := client.recv(65536):
            answer += part
        return json.loads(answer.split(b"\r\n\r\n", 1)[1])

    waiting = post([-1, -2, -3, -4])
    wait_until(lambda: len(begun) == 3)
    # Others are served meanwhile, on the same loop.
    assert answer_of(post([1, 2, 3, 4]))["columns"] == [[1, 2, 3, 4]]
    waiting.close()
    cancelled = tmp_path / "cancelled"
    wait_until(lambda: cancelled.exists() and len(cancelled.read_text().split()) >= 3)
    assert sorted(cancelled.read_text().split()) == ["-1", "-2", "-3"]
    server.shutdown()
