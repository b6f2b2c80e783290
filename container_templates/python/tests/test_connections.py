"""Many connections, few threads: who waits for a client takes none, and who waits for a thread gets one in turn, or is told."""

import _thread
import contextlib
import json
import os
import socket
import threading
import time

import pytest

from transship_server import function, rest

HANDLER = """
import threading

OPEN, LOG = threading.Event(), []

def add_one(x: int) -> int:
    return x + 1

def wait(x: int) -> int:
    LOG.append(x)
    OPEN.wait(300)
    return x

def long(x: int) -> str:
    return "x" * x
"""


@pytest.fixture
def functions(tmp_path):
    (tmp_path / "handler.py").write_text(HANDLER)
    names = [{"name": "add_one"}, {"name": "wait"}, {"name": "long"}]
    loaded = function.load({"handler": "handler.py", "functions": names}, str(tmp_path))
    yield loaded
    module_of(loaded).OPEN.set()


def module_of(functions):
    import types

    return types.SimpleNamespace(**functions["wait"].target.__globals__)


@contextlib.contextmanager
def serve(functions):
    server = rest.TcpServer(("127.0.0.1", 0), functions)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        module_of(functions).OPEN.set()
        server.shutdown()


def request(name, x):
    body = json.dumps({"batch": 0, "rows": 1, "columns": [[x]]})
    return f"POST /v1/functions/{name} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


class Connection:
    def __init__(self, server):
        self.socket = socket.create_connection(server.server_address, timeout=60)

    def ask(self, name, x, until=None):
        self.socket.sendall(request(name, x)[:until])

    def answer(self):
        data = b""
        while b"\r\n\r\n" not in data:
            data += self.socket.recv(1)
        head = data.decode().lower()
        length = int(head.split("content-length: ")[1].split("\r\n")[0])
        body = bytearray()
        while len(body) < length:
            body += self.socket.recv(length - len(body))
        answer = json.loads(body)
        return int(head.split()[1]), answer.get("error") or answer["columns"][0][0]


def threads():
    return len(os.listdir("/proc/self/task"))


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_idle_connections_take_no_thread(functions):
    with serve(functions) as server:
        before = threads()
        connections = [Connection(server) for _ in range(200)]
        for number in range(3):
            for connection in connections:
                connection.ask("add_one", number)
            assert [connection.answer() for connection in connections] == [(200, number + 1)] * 200
        assert threads() < before + 70
        time.sleep(0.1)
        connections[0].ask("add_one", 6)
        assert connections[0].answer() == (200, 7)
        wait_until(lambda: threads() <= before + rest._SPARE_THREADS)
        for connection in connections:
            connection.socket.close()
        wait_until(lambda: server._open == 0)


@pytest.mark.parametrize("until", [3, 40, -1])
def test_who_waits_for_the_rest_of_a_request_takes_no_thread(functions, monkeypatch, until):
    monkeypatch.setattr(rest, "_MOST_THREADS", 4)
    with serve(functions) as server:
        halves = [Connection(server) for _ in range(20)]
        for connection in halves:
            connection.ask("add_one", 1, until)
        whole = Connection(server)
        whole.ask("add_one", 2)
        assert whole.answer() == (200, 3)


def test_who_fetches_no_answer_holds_up_nobody(functions, monkeypatch):
    monkeypatch.setattr(rest, "_MOST_THREADS", 4)
    with serve(functions) as server:
        connections = [Connection(server) for _ in range(10)]
        for connection in connections:
            connection.ask("long", 8_000_000)
            connection.ask("add_one", 1)
        other = Connection(server)
        other.ask("add_one", 2)
        assert other.answer() == (200, 3)
        for connection in connections:
            assert connection.answer() == (200, "x" * 8_000_000)
            assert connection.answer() == (200, 2)


def test_an_answer_that_is_being_fetched_is_sent_whole_at_the_end(functions):
    with serve(functions) as server:
        connection = Connection(server)
        connection.ask("long", 8_000_000)
        wait_until(lambda: any(handler.has_unsent for handler in list(server._parked.values())))
        ending = threading.Thread(target=server.shutdown)
        ending.start()
        assert connection.answer() == (200, "x" * 8_000_000)
        ending.join(20)


def test_calls_that_wait_run_beside_each_other(functions):
    module = module_of(functions)
    with serve(functions) as server:
        connections = [Connection(server) for _ in range(40)]
        for number, connection in enumerate(connections):
            connection.ask("wait", number)
        wait_until(lambda: len(module.LOG) == 40)
        module.OPEN.set()
        assert sorted(connection.answer()[1] for connection in connections) == list(range(40))


def test_who_no_longer_leads_takes_no_request(functions, monkeypatch):
    """The lead is taken away from a thread that has just finished and is about to wait for connections, where it would take a request that
    nobody answers."""
    leading, is_late = [], threading.Event()

    class Slow(rest.TcpServer):
        def _give_lead_back(self):
            if not is_late.is_set():
                is_late.set()
                deadline = time.monotonic() + 0.5
                while self._busy_since is not None and time.monotonic() < deadline:
                    time.sleep(0.001)
            super()._give_lead_back()

        def _advance(self, handler):
            leading.append(threading.get_ident())
            super()._advance(handler)

        def _gather(self, timeout_s=None):
            if timeout_s is None and leading[:1] == [threading.get_ident()] and is_late.is_set():
                # The next thread waits, too, before this one does.
                leading[0] = None
                time.sleep(0.2)
            super()._gather(timeout_s)

    monkeypatch.setattr(rest, "TcpServer", Slow)
    with serve(functions) as server:
        client = Connection(server)
        client.socket.settimeout(20)
        client.ask("wait", 1)
        wait_until(is_late.is_set)
        module_of(functions).OPEN.set()
        assert client.answer() == (200, 1)
        # The two threads are where they wait.
        time.sleep(0.5)
        for x in range(5):
            client.ask("add_one", x)
            assert client.answer() == (200, x + 1)


def test_the_queue_is_served_in_its_order(functions, monkeypatch):
    monkeypatch.setattr(rest, "_MOST_THREADS", 1)
    monkeypatch.setattr(rest, "_SPARE_THREADS", 1)
    module = module_of(functions)
    with serve(functions) as server:
        connections = [Connection(server) for _ in range(10)]
        for number, connection in enumerate(connections):
            connection.ask("wait", number)
            time.sleep(0.1)
        assert module.LOG == [0]
        module.OPEN.set()
        assert [connection.answer() for connection in connections] == [(200, number) for number in range(10)]
        assert module.LOG == list(range(10))


def test_who_waits_too_long_in_the_queue_is_told_that_the_server_is_busy(functions, monkeypatch):
    monkeypatch.setattr(rest, "_MOST_THREADS", 2)
    monkeypatch.setattr(rest, "_QUEUE_PATIENCE_S", 2)
    module = module_of(functions)
    with serve(functions) as server:
        running = [Connection(server) for _ in range(2)]
        for connection in running:
            connection.ask("wait", 1)
        wait_until(lambda: len(module.LOG) == 2)
        late = Connection(server)
        late.socket.sendall(request("wait", 2) + request("wait", 3))
        status, error = late.answer()
        assert (status, error["kind"]) == (503, "busy")
        # Nothing behind it is run; what is closed unread is reset.
        with contextlib.suppress(ConnectionResetError):
            assert late.socket.recv(1) == b""
        assert module.LOG == [1, 1]
        module.OPEN.set()
        assert [connection.answer() for connection in running] == [(200, 1)] * 2
        again = Connection(server)
        again.ask("wait", 4)
        assert again.answer() == (200, 4)


def test_too_many_connections_are_told_so(functions, monkeypatch):
    monkeypatch.setattr(rest, "_MOST_CONNECTIONS", 8)
    with serve(functions) as server:
        connections = [Connection(server) for _ in range(8)]
        for connection in connections:
            connection.ask("add_one", 1)
            assert connection.answer() == (200, 2)
        extra = Connection(server)
        extra.ask("add_one", 1)
        status, error = extra.answer()
        assert (status, error["kind"]) == (503, "busy")
        connections.pop().socket.close()
        wait_until(lambda: server._open < 8)
        extra = Connection(server)
        extra.ask("add_one", 1)
        assert extra.answer() == (200, 2)


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()])
def test_no_further_thread_can_be_started(functions, monkeypatch, error):
    module, started, start = module_of(functions), [], _thread.start_new_thread

    def start_some(*arguments):
        if len(started) == 4:
            raise error
        started.append(arguments)
        return start(*arguments)

    monkeypatch.setattr(rest._thread, "start_new_thread", start_some)
    monkeypatch.setattr(rest, "_QUEUE_PATIENCE_S", 2)
    # The test's own server thread is started by another module, which has the function already.
    with serve(functions) as server:
        connections = [Connection(server) for _ in range(5)]
        for number, connection in enumerate(connections):
            connection.ask("wait", number)
            time.sleep(0.05)
        assert connections[4].answer()[0] == 503
        module.OPEN.set()
        assert [connection.answer() for connection in connections[:4]] == [(200, number) for number in range(4)]


def test_a_thread_that_dies_at_once_holds_up_nobody(functions, monkeypatch):
    started, start = [], _thread.start_new_thread

    def start_dead(work, arguments):
        started.append(work)
        # As a thread that has no memory for its first call.
        return start(work if len(started) > 6 else (lambda *_: None), arguments)

    monkeypatch.setattr(rest._thread, "start_new_thread", start_dead)
    with serve(functions) as server:
        connection = Connection(server)
        connection.ask("add_one", 1)
        assert connection.answer() == (200, 2)
    assert len(started) > 6


def test_what_fails_while_threads_are_looked_after_leaves_somebody_who_does(functions, monkeypatch):
    failures, look_after = [MemoryError(), RuntimeError("dictionary changed size during iteration")], rest._Server._look_after

    def look(self):
        if failures:
            raise failures.pop()
        look_after(self)

    monkeypatch.setattr(rest._Server, "_look_after", look)
    with serve(functions) as server:
        slow, other = Connection(server), Connection(server)
        slow.ask("wait", 1)
        wait_until(lambda: module_of(functions).LOG)
        other.socket.settimeout(20)
        other.ask("add_one", 1)
        assert other.answer() == (200, 2)
    assert not failures


def test_an_exception_of_the_server_itself_closes_the_connection(functions, monkeypatch):
    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(rest, "_read_batch", fail)
    with serve(functions) as server:
        for _ in range(10):
            connection = Connection(server)
            connection.ask("add_one", 1)
            assert connection.socket.recv(1) == b""
        monkeypatch.undo()
        connection = Connection(server)
        connection.ask("add_one", 1)
        assert connection.answer() == (200, 2)


def test_connections_that_cannot_be_accepted_are_tried_again(functions):
    class Listener:
        """The server's, but that the first attempts find no descriptor left."""

        def __init__(self, listener):
            self.listener, self.failures = listener, 3

        def __getattr__(self, name):
            return getattr(self.listener, name)

        def accept(self):
            if self.failures:
                self.failures -= 1
                raise OSError(24, "Too many open files")
            return self.listener.accept()

    with serve(functions) as server:
        server._listener = Listener(server._listener)
        connection = Connection(server)
        connection.ask("add_one", 1)
        assert connection.answer() == (200, 2)
        assert server._listener.failures == 0
