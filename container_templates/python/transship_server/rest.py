"""The forms of docs/protocol.md §6 and §7, over HTTP/1.1 on a TCP or a Unix socket."""

import _thread
import base64
import collections
import contextlib
import gzip
import hashlib
import json
import os
import resource
import select
import socket
import threading
import time
import traceback
import urllib.parse
import zlib

import pyarrow as pa

from . import columns, constants, dialects, exact_json, http1, json_columns, json_values, lines, offers, types
from .aggregate_function import AggregateFunction
from .errors import CallError
from .flight import greeting
from .function import Cancelled

_PREFIX = "/v1/functions/"
# How long an exchange of an aggregate function is kept that nobody asks for.
_EXCHANGE_IDLE_S = 600
# How long calls may still run when the server is asked to end.
_STOP_PATIENCE_S = 10
_STOP_STEP_S = 0.005
# Shorter answers are not worth the time.
_LEAST_GZIP_BYTES = 1024
_BACKLOG = 128
# Between two attempts to accept a connection that failed.
_ACCEPT_PAUSE_S = 0.02
# Threads that wait to lead, and all threads: each takes 8 MiB of a limit on a process's address space.
_SPARE_THREADS = 4
_MOST_THREADS = 64
# How long the thread that leads may be busy with one call, and how long a thread may take to start.
_PATIENCE_S = 0.01
_START_PATIENCE_S = 1
# How long requests wait for a thread before they are told that the server is busy.
_QUEUE_PATIENCE_S = 30
# Connections that are taken at a time.
_MOST_READY = 64
# The share of the descriptors that this process may have that connections get; those beyond it are told the same.
_CONNECTIONS_SHARE = 2
_MOST_CONNECTIONS = 4096
# Connections that are told so at a time.
_MOST_REFUSED = 64
# A connection on which nothing comes, or can be sent, for so long is closed.
_IDLE_S = 600
_SWEEP_S = 30
_STATUS = {"function_not_found": 404, "protocol_violation": 400, "busy": 503}


class _Handler(http1.Handler):
    def __init__(self, connection, server):
        super().__init__(connection, server)
        self.segments = columns.Segments(server.segment_directory)
        self.json_reader = json_columns.Reader()
        # What the handler writes meanwhile, if the client asks for that.
        self.lines = None
        # Whether calls are refused; since when it waits for its client; since when for a thread.
        self.is_refused, self.waits_since, self.queued_since = False, None, None

    def close(self):
        self.segments.close()
        super().close()

    def do_GET(self):
        if self.path == "/v1":
            return self._answer(200, greeting(self.server.functions))
        if self.path in ("/ping", "/health"):
            # What MLflow's clients look at.
            return self._answer(200, {})
        try:
            function = self._find()
        except CallError as error:
            return self._fail(error)
        arguments = [{"name": name, "type": entry.name} for name, entry in function.arguments]
        description = {"name": function.name, "kind": function.kind, "arguments": arguments}
        return self._answer(200, description | {"returns": function.result.name})

    def do_POST(self):
        try:
            if self.is_refused:
                raise CallError("busy", "the server has as many calls as it can take")
            if self.body is None:
                raise CallError("protocol_violation", self.body_error)
            body = self._decode_body(self.body)
        except CallError as error:
            return self._fail(error)
        if (offer := self.headers.get(offers.FIELD)) is None:
            return self._answer_with_lines(body)
        with offers.named(offer):
            return self._answer_with_lines(body)

    def _answer_with_lines(self, body):
        if self.headers.get(lines.FIELD) != lines.WANTED:
            return self._answer_call(body)
        with lines.collecting(True) as self.lines:
            return self._answer_call(body)

    def _answer_call(self, body):
        try:
            offers.check()
            if not self.path.startswith(_PREFIX) and (answered := self._answer_dialect(body)):
                status, answer = answered
                return self._send(status, "application/json", exact_json.dumps(answer).encode())
            function = self._find()
            if self.headers.get("content-type") == columns.CONTENT_TYPE:
                if function.small_codec is not None and (call := function.small_codec.read(body)) is not None:
                    return self._answer_small(function, call, body)
                request = columns.Request(body, self.segments)
                function = function.with_row_errors(request.header.get("row_errors"))
                batch = request.batch(function.call_columns)
                reply, micros = self._call(function, request.header, batch, request.may_encode)
                del batch
                request.write(reply, function.reply_columns)
                del reply
                return self._send(200, columns.CONTENT_TYPE, request.body(micros))
            body, batch = self.json_reader.read(function, body) or (body, None)
            if batch is None:
                body = _read_request(function, body)
                batch = _read_batch(function, body)
            function = function.with_row_errors(body.get("row_errors"))
            reply, micros = self._call(function, body, batch)
            encoded = zip(function.reply_columns, reply.columns)
            encoded = [json_values.encode(entry, column) for (_, entry), column in encoded]
        except CallError as error:
            return self._fail(error)
        except Cancelled:
            self.close_connection = True
            return None
        answer = {"batch": body.get("batch", 0), "rows": reply.num_rows, "micros": micros, "columns": encoded}
        return self._send(200, "application/json", json_columns.write(answer))

    def _answer_small(self, function, call, body):
        start = time.perf_counter_ns()
        values = function.call_rows(call.rows, self._is_cancelled)
        micros = (time.perf_counter_ns() - start) // 1000
        reply = function.small_codec.write(call, values, micros)
        if reply is None:
            request = columns.Request(body, self.segments)
            answer = pa.RecordBatch.from_arrays([function.column_of(values)], schema=function.reply_schema)
            request.write(answer, function.reply_columns)
            reply = request.body(micros)
        return self._send(200, columns.CONTENT_TYPE, reply)

    def _call(self, function, request, batch, may_encode=False):
        """The reply as one batch, and the microseconds that it took."""
        start = time.perf_counter_ns()
        if isinstance(function, AggregateFunction):
            reply = self.server.exchanges.answer(function, request, request.get("batch", 0), batch, self._is_cancelled)
        else:
            options = {"may_encode": True} if may_encode and function.kind == "scalar" else {}
            answers = list(function.answer(batch, self._is_cancelled, **options))
            reply = answers[0] if len(answers) == 1 else _joined(answers, function.reply_schema)
        return reply, (time.perf_counter_ns() - start) // 1000

    def _is_cancelled(self):
        """Whether the client has closed its connection, whatever else it has sent before."""
        poll = select.poll()
        poll.register(self.connection, select.POLLRDHUP)
        return bool(poll.poll(0))

    def _answer_dialect(self, body):
        try:
            request = exact_json.loads(body)
        except ValueError:
            return None
        return dialects.answer(self.server.functions, urllib.parse.unquote(self.path), self.headers, request)

    def do_DELETE(self):
        prefix = "/v1/exchanges/"
        if not self.path.startswith(prefix):
            return self._fail(CallError("function_not_found", f"there is nothing at {self.path}"))
        self.server.exchanges.end(urllib.parse.unquote(self.path[len(prefix) :]))
        return self._answer(200, {})

    def _find(self):
        name = urllib.parse.unquote(self.path[len(_PREFIX) :]) if self.path.startswith(_PREFIX) else self.path
        function = self.server.functions.get(name)
        if function is None:
            raise CallError("function_not_found", f'there is no function "{name}"')
        return function

    def _decode_body(self, body):
        """The body as it was before it was compressed, if its digest is right."""
        digest = self.headers.get("content-md5")
        if digest is not None and digest not in _digests(body):
            raise CallError("protocol_violation", "the request does not match its Content-MD5")
        encoding = self.headers.get("content-encoding", "identity").lower()
        if encoding in ("gzip", "x-gzip", "deflate"):
            # The zlib library tells gzip's and its own form apart.
            reader = zlib.decompressobj(wbits=47)
            try:
                body = reader.decompress(body, self.most_body_bytes)
            except zlib.error as cause:
                raise CallError("protocol_violation", f"the request cannot be read: {cause}") from None
            if not reader.eof:
                raise CallError("protocol_violation", "the request is not whole, or unpacks to more than 1 GiB")
        elif encoding != "identity":
            raise CallError("protocol_violation", f"the request's content encoding {encoding} is unknown")
        return body

    def _fail(self, error):
        # docs/protocol.md §5: nothing that was sent behind it is run either.
        self.close_connection |= error.kind == "busy"
        self._answer(_STATUS.get(error.kind, 500), {"error": error.to_wire()})

    def _answer(self, status, body):
        self._send(status, "application/json", json.dumps(body, allow_nan=False).encode())

    def _send(self, status, content_type, payload):
        field = self.lines.field() if self.lines is not None else ""
        fields = f"{lines.FIELD}: {field}\r\n" if field else ""
        # An answer that comes later, without a call, has none.
        self.lines = None
        if len(payload) > _LEAST_GZIP_BYTES and "gzip" in self.headers.get("accept-encoding", ""):
            return self.send(status, content_type, gzip.compress(payload, 1), f"{fields}Content-Encoding: gzip\r\n")
        return self.send(status, content_type, payload, fields)


class _Exchange:
    """The groups of one exchange; when it was used last, and by how many requests it is used now."""

    def __init__(self, function):
        self.function, self.groups = function, function.groups()
        # Held by the request whose step runs.
        self.lock = threading.Lock()
        self.used, self.users = 0, 0


class _Exchanges:
    """The exchanges of aggregate functions, by the names that their clients gave them."""

    def __init__(self):
        self._lock = threading.Lock()
        self._exchanges = {}

    def answer(self, function, request, number, batch, is_cancelled):
        """The reply to one batch. Raises CallError."""
        name = request.get("exchange")
        with self._lock:
            before = time.monotonic() - _EXCHANGE_IDLE_S
            self._exchanges = {key: entry for key, entry in self._exchanges.items() if entry.users or entry.used > before}
            if number == 0 and isinstance(name, str):
                self._exchanges[name] = _Exchange(function)
            found = self._exchanges.get(name) if isinstance(name, str) else None
            if found is None or found.function is not function:
                raise CallError("protocol_violation", f"there is no exchange {name!r} of {function.name}")
            found.users += 1
        try:
            with found.lock:
                return found.groups.answer(batch, request.get("step"), is_cancelled)
        finally:
            with self._lock:
                found.users -= 1
                found.used = time.monotonic()

    def end(self, name):
        """Forgets an exchange."""
        with self._lock:
            self._exchanges.pop(name, None)


def _digests(body):
    """What Content-MD5 may say of a body (RFC 1864); some write it in hexadecimal."""
    digest = hashlib.md5(body, usedforsecurity=False)
    return base64.b64encode(digest.digest()).decode(), digest.hexdigest()


def _read_request(function, body):
    is_exact = any(json_values.needs_exact_numbers(entry) for _, entry in function.call_columns)
    try:
        request = exact_json.loads(body) if is_exact else json.loads(body)
        if isinstance(request, dict):
            return request
        cause = "it is not an object"
    except (ValueError, RecursionError) as error:
        cause = error
    raise CallError("protocol_violation", f"the request cannot be read: {cause}")


def _read_batch(function, request):
    try:
        rows, columns = request["rows"], request["columns"]
        if type(rows) is not int or not 0 <= rows < 1 << 31:
            raise ValueError("it has no number of rows")
        constant = constants.positions_in(request, len(columns))
        lengths = [1 if position in constant else rows for position in range(len(columns))]
        if len(columns) != len(function.call_columns) or lengths != [len(column) for column in columns]:
            raise ValueError("columns and rows do not match the function's arguments")
    except (ValueError, KeyError, TypeError, AttributeError) as cause:
        raise CallError("protocol_violation", f"the request cannot be read: {cause}") from None
    arrays = []
    for position, ((_, entry), values) in enumerate(zip(function.call_columns, columns)):
        try:
            array = json_values.decode(entry, values)
            arrays.append(constants.repeated(array, rows) if position in constant else array)
        except (ValueError, TypeError, OverflowError, pa.ArrowException) as cause:
            raise CallError("protocol_violation", f"column {position + 1} is not of type {entry.name}: {cause}") from None
    if constant:
        return pa.RecordBatch.from_arrays(arrays, [name for name, _ in function.call_columns])
    if arrays:
        return pa.RecordBatch.from_arrays(arrays, schema=types.schema_of(function.call_columns))
    # pyarrow makes a batch of rows without columns only by dropping columns.
    return pa.RecordBatch.from_arrays([pa.nulls(rows)], ["x"]).select([])


def _joined(batches, schema):
    """Batches as one."""
    joined = pa.Table.from_batches(batches, schema).combine_chunks().to_batches()
    return joined[0] if joined else pa.RecordBatch.from_pylist([], schema=schema)


def _say_what_failed():
    """Writes the exception that is handled to the log, if there is one."""
    with contextlib.suppress(BaseException):
        traceback.print_exc()


class _Server:
    """Few threads for many connections. A connection that waits for its client takes no thread: the kernel has them all in a
    list (epoll). One thread leads: it takes those that are ready, and answers one after the other, since threads that compute
    at the same time hand the interpreter's lock to one another at each library call, which takes longer than a short call.

    Who leads is looked after. A call that takes longer than _PATIENCE_S, which may wait for something itself, goes on beside
    the others: the next thread leads. A few threads always wait for that. Where none does and a connection is ready, there
    will be more of them; where there are as many as there may be, connections queue up, and those that have waited for
    _QUEUE_PATIENCE_S are told that the server is busy. So a request never waits for an answer that somebody else does not
    fetch, nor for the end of another exchange. What is running when the server is shut down is finished."""

    def __init__(self, listener, functions):
        self.functions, self.exchanges = functions, _Exchanges()
        self.segment_directory = os.environ.get("TRANSSHIP_SEGMENT_DIR")
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most_connections = max(min(descriptors // _CONNECTIONS_SHARE, _MOST_CONNECTIONS), 1)
        self._listener = listener
        listener.setblocking(False)
        self._stopped = threading.Event()
        self._lock = threading.RLock()
        self._threads = self._waiting = self._open = 0
        # Threads that were started and do not run yet, and since when.
        self._starting = {}
        # Held for the thread that leads, and given back for it if it takes too long.
        self._lead = threading.Lock()
        # What stands for the thread that leads, and since when it has been answering; None while it waits for connections.
        self._leader = self._busy_since = None
        # Set when something was answered, so that somebody looks how long it takes.
        self._is_active = threading.Event()
        # Connections that are ready.
        self._queue = collections.deque()
        # Connections that wait for their clients, by descriptor. Each is reported once, and then armed again.
        self._parked = {}
        self._poll = select.epoll()
        self._poll.register(listener, select.EPOLLIN | select.EPOLLONESHOT)
        self._ready = select.poll()
        self._ready.register(self._poll, select.POLLIN)
        # Its end wakes the thread that leads.
        self._end, self._woken = socket.socketpair()
        self._poll.register(self._woken, select.EPOLLIN)

    def serve_forever(self):
        """Answers until shutdown() is called."""
        swept = None
        while not self._stopped.is_set():
            try:
                if swept is None:
                    swept = time.monotonic()
                    self._start_threads(_SPARE_THREADS)
                # While nothing happens, nobody is looked after, but that there is somebody.
                patience_s = offers.UNUSED_S if offers.are_kept() else _SWEEP_S
                if self._is_active.wait(patience_s if self._is_led() else _START_PATIENCE_S):
                    self._is_active.clear()
                    self._stopped.wait(_PATIENCE_S)
                self._look_after()
                offers.forget_unused()
                if time.monotonic() - swept >= _SWEEP_S:
                    swept = time.monotonic()
                    self._close_idle(swept - _IDLE_S)
            except BaseException:
                # Without this thread, a call that takes long would hold up all others, for ever. There may be memory again soon.
                _say_what_failed()
                with contextlib.suppress(BaseException):
                    self._stopped.wait(_ACCEPT_PAUSE_S)
                    self._is_active.set()

    def shutdown(self):
        """Takes no more connections, and waits for the calls that are running."""
        self._stopped.set()
        self._is_active.set()
        self._end.close()
        self._listener.close()
        deadline = time.monotonic() + _STOP_PATIENCE_S
        while self._is_running() and time.monotonic() < deadline:
            time.sleep(_STOP_STEP_S)
            # No thread is left for the rest of an answer.
            self._gather(0)
            while self._queue:
                handler = self._queue.popleft()
                if handler.has_unsent:
                    handler.close_connection = True
                    self._advance(handler)

    def _is_running(self):
        return self._threads > 0 or any(handler.has_unsent for handler in list(self._parked.values()))

    def _start_threads(self, count):
        """Whether there are more threads, or will be."""
        now = time.monotonic()
        with self._lock:
            # A thread may end before it runs, for want of memory; threading.Thread would wait for it for ever.
            self._starting = {token: since for token, since in self._starting.items() if now - since < _START_PATIENCE_S}
            count = min(count, _MOST_THREADS - self._threads - len(self._starting))
            tokens = [object() for _ in range(count)]
            self._starting.update(dict.fromkeys(tokens, now))
            may_come = len(self._starting)
        try:
            while tokens:
                _thread.start_new_thread(self._serve, (tokens[-1],))
                tokens.pop()
        except (RuntimeError, MemoryError):
            # There are as many as this process may have.
            with self._lock:
                for token in tokens:
                    self._starting.pop(token, None)
        # One that was started may run already.
        return may_come > len(tokens)

    def _serve(self, token):
        with self._lock:
            self._starting.pop(token, None)
            self._threads += 1
        try:
            while self._wait_to_lead():
                self._answer_as_leader()
        finally:
            with self._lock:
                self._threads -= 1

    def _wait_to_lead(self):
        """Whether this thread leads now; False if others are enough."""
        with self._lock:
            if self._stopped.is_set() or self._waiting >= _SPARE_THREADS:
                return False
            self._waiting += 1
        self._lead.acquire()
        with self._lock:
            self._waiting -= 1
        return True

    def _answer_as_leader(self):
        me = self._leader = object()
        try:
            while not self._stopped.is_set():
                # In one step with the look at who leads: who does not must not wait for connections, as nobody would answer what it takes.
                with self._lock:
                    if self._leader is not me:
                        break
                    handler = self._queue.popleft() if self._queue else None
                    self._busy_since = time.monotonic() if handler is not None else None
                if handler is not None:
                    self._advance(handler)
                    continue
                self._gather()
                if not self._is_active.is_set():
                    self._is_active.set()
        finally:
            with self._lock:
                if self._leader is me:
                    self._give_lead_back()

    def _give_lead_back(self):
        self._leader = self._busy_since = None
        self._lead.release()

    def _is_led(self):
        with self._lock:
            return self._leader is not None or self._waiting > 0

    def _look_after(self):
        """Lets another thread lead if the one that does has been answering for long, and sees to it that there is another."""
        if not self._is_led():
            self._start_threads(_SPARE_THREADS)
        now = time.monotonic()
        with self._lock:
            since = self._busy_since
            if since is None and not self._queue:
                return
            self._is_active.set()
            if since is None or now - since < _PATIENCE_S:
                return
            if self._waiting:
                return self._give_lead_back()
        if (self._queue or self._ready.poll(0)) and not self._start_threads(1 + self._threads // 2):
            self._queue_up(now)

    def _gather(self, timeout_s=None):
        """Puts what is ready into the queue, once there is something."""
        now, is_called = None, False
        for descriptor, _ in self._poll.poll(timeout_s, _MOST_READY):
            if descriptor == self._listener.fileno():
                is_called = True
                continue
            with self._lock:
                # Whoever closed it may have been faster.
                handler = self._parked.pop(descriptor, None)
            if handler is not None:
                now = handler.queued_since = now or time.monotonic()
                self._queue.append(handler)
        # Last, since it may fail, and the others are reported only once.
        if is_called:
            self._accept()

    def _accept(self):
        """Accepts a connection, which waits for its client like any other from then on."""
        try:
            connection, _ = self._listener.accept()
        except OSError:
            if not self._stopped.is_set():
                # No descriptor is left, or the client has gone.
                time.sleep(_ACCEPT_PAUSE_S)
            connection = None
        if not self._stopped.is_set():
            self._poll.modify(self._listener, select.EPOLLIN | select.EPOLLONESHOT)
        if connection is None:
            return
        try:
            handler = _Handler(connection, self)
            self._poll.register(connection, select.EPOLLONESHOT)
        except OSError:
            connection.close()
            return
        with self._lock:
            self._open += 1
            excess = self._open - self._most_connections
        handler.is_refused = excess > 0
        if excess > _MOST_REFUSED:
            self._close(handler)
        else:
            self._park(handler, select.EPOLLIN)

    def _advance(self, handler):
        """Does what a connection is ready for, and has it wait again."""
        try:
            events = handler.advance()
            if events:
                self._park(handler, events)
                return
        except OSError:
            # The client has gone.
            pass
        except BaseException:
            _say_what_failed()
        self._close(handler)

    def _park(self, handler, events):
        handler.waits_since = time.monotonic()
        descriptor = handler.connection.fileno()
        self._parked[descriptor] = handler
        self._poll.modify(descriptor, events | select.EPOLLONESHOT)

    def _close(self, handler):
        handler.close()
        with self._lock:
            self._open -= 1

    def _close_idle(self, before):
        """Closes the connections that have waited since then."""
        for descriptor, handler in list(self._parked.items()):
            with self._lock:
                # Somebody may have taken it in the meantime, and closed it: then the descriptor is another's.
                if handler.waits_since >= before or self._parked.get(descriptor) is not handler:
                    continue
                del self._parked[descriptor]
            self._close(handler)

    def _queue_up(self, now):
        """Queues what is ready while all threads are busy, and refuses what has waited for too long."""
        with self._lock:
            # One that waits for connections takes them itself, and would not see that there are some in the queue.
            if self._busy_since is None:
                return
            self._gather(0)
        while True:
            with self._lock:
                # The thread that leads takes the first itself once it is done.
                if not self._queue or now - self._queue[0].queued_since < _QUEUE_PATIENCE_S:
                    return
                handler = self._queue.popleft()
            handler.is_refused = True
            self._advance(handler)


class TcpServer(_Server):
    """A server at (host, port); server_address says which port that is if it is 0."""

    def __init__(self, address, functions):
        super().__init__(socket.create_server(address, backlog=_BACKLOG), functions)
        self.server_address = self._listener.getsockname()


class UnixServer(_Server):
    """A server at a path."""

    def __init__(self, path, functions):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen(_BACKLOG)
        super().__init__(listener, functions)
