"""The forms of docs/protocol.md §6 and §7, over HTTP/1.1 on a TCP or a Unix socket."""

import base64
import gzip
import hashlib
import json
import os
import select
import socket
import threading
import time
import traceback
import urllib.parse
import zlib

import pyarrow as pa

from . import columns, dialects, exact_json, http1, json_columns, types
from .aggregate_function import AggregateFunction
from .errors import CallError
from .flight import greeting
from .function import Cancelled
from .turns import Turns

_PREFIX = "/v1/functions/"
_MAX_BODY_BYTES = 1 << 30
# How long an exchange of an aggregate function is kept that nobody asks for.
_EXCHANGE_IDLE_S = 600
# How long calls may still run when the server is asked to end.
_STOP_PATIENCE_S = 10
_STOP_STEP_S = 0.005
# Shorter answers are not worth the time.
_LEAST_GZIP_BYTES = 1024
_BACKLOG = 128
# Threads that wait for a connection.
_SPARE_THREADS = 4
_ACCEPT_PAUSE_S = 0.1
_STATUS = {"function_not_found": 404, "protocol_violation": 400}


class _Handler(http1.Handler):
    def setup(self):
        self.segments = columns.Segments(self.server.segment_directory)
        self.json_reader = json_columns.Reader()

    def finish(self):
        self.segments.close()

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
        with self.server.running:
            try:
                body = self._read_body()
            except CallError as error:
                return self._fail(error)
            with self.server.turns.turn():
                return self._answer_call(body)

    def _answer_call(self, body):
        try:
            if not self.path.startswith(_PREFIX) and (answered := self._answer_dialect(body)):
                status, answer = answered
                return self._send(status, "application/json", exact_json.dumps(answer).encode())
            function = self._find()
            if self.headers.get("content-type") == columns.CONTENT_TYPE:
                request = columns.Request(body, self.segments)
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
            reply, micros = self._call(function, body, batch)
            encoded = zip(function.reply_columns, reply.columns)
            encoded = [types.encode_json(entry, column) for (_, entry), column in encoded]
        except CallError as error:
            return self._fail(error)
        except Cancelled:
            self.close_connection = True
            return None
        answer = {"batch": body.get("batch", 0), "rows": reply.num_rows, "micros": micros, "columns": encoded}
        return self._send(200, "application/json", json_columns.write(answer))

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

    def _read_body(self):
        if "transfer-encoding" in self.headers:
            try:
                return self._decode_body(self.read_chunks(_MAX_BODY_BYTES))
            except ValueError as cause:
                self.close_connection = True
                raise CallError("protocol_violation", f"the request cannot be read: {cause}") from None
        try:
            length = int(self.headers["content-length"])
        except (KeyError, ValueError):
            length = -1
        if not 0 <= length <= _MAX_BODY_BYTES:
            self.close_connection = True
            raise CallError("protocol_violation", "a request needs a Content-Length of at most 1 GiB")
        # None if it takes too long to come.
        body = self.stream.read(length) or b""
        if len(body) < length:
            raise ConnectionError
        return self._decode_body(body)

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
                body = reader.decompress(body, _MAX_BODY_BYTES)
            except zlib.error as cause:
                raise CallError("protocol_violation", f"the request cannot be read: {cause}") from None
            if not reader.eof:
                raise CallError("protocol_violation", "the request is not whole, or unpacks to more than 1 GiB")
        elif encoding != "identity":
            raise CallError("protocol_violation", f"the request's content encoding {encoding} is unknown")
        return body

    def _fail(self, error):
        self._answer(_STATUS.get(error.kind, 500), {"error": error.to_wire()})

    def _answer(self, status, body):
        self._send(status, "application/json", json.dumps(body, allow_nan=False).encode())

    def _send(self, status, content_type, payload):
        if len(payload) > _LEAST_GZIP_BYTES and "gzip" in self.headers.get("accept-encoding", ""):
            return self.send(status, content_type, gzip.compress(payload, 1), "Content-Encoding: gzip\r\n")
        return self.send(status, content_type, payload)


class _Running:
    """Counts the calls that are being answered."""

    def __init__(self):
        self._lock = threading.Lock()
        self._count = 0

    def __enter__(self):
        with self._lock:
            self._count += 1

    def __exit__(self, *_):
        with self._lock:
            self._count -= 1

    def wait_for_none(self, seconds):
        """Waits until no call is being answered, at most so long."""
        deadline = time.monotonic() + seconds
        while self._count and time.monotonic() < deadline:
            time.sleep(_STOP_STEP_S)


class _Exchanges:
    """The exchanges of aggregate functions: the groups of each, by the name that its client gave it."""

    def __init__(self):
        self._lock = threading.Lock()
        self._groups = {}

    def answer(self, function, request, number, batch, is_cancelled):
        """The reply to one batch. Raises CallError."""
        name = request.get("exchange")
        with self._lock:
            now = time.monotonic()
            self._groups = {key: entry for key, entry in self._groups.items() if now - entry[2] < _EXCHANGE_IDLE_S}
            if number == 0 and isinstance(name, str):
                self._groups[name] = (function, function.groups(), now)
            found, groups, _ = self._groups.get(name, (None, None, None)) if isinstance(name, str) else (None, None, None)
            if found is not function:
                raise CallError("protocol_violation", f"there is no exchange {name!r} of {function.name}")
            self._groups[name] = (function, groups, now)
        return groups.answer(batch, request.get("step"), is_cancelled)

    def end(self, name):
        """Forgets an exchange."""
        with self._lock:
            self._groups.pop(name, None)


def _digests(body):
    """What Content-MD5 may say of a body (RFC 1864); some write it in hexadecimal."""
    digest = hashlib.md5(body, usedforsecurity=False)
    return base64.b64encode(digest.digest()).decode(), digest.hexdigest()


def _read_request(function, body):
    is_exact = any(types.needs_exact_numbers(entry) for _, entry in function.call_columns)
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
        if len(columns) != len(function.call_columns) or any(len(column) != rows for column in columns):
            raise ValueError("columns and rows do not match the function's arguments")
    except (ValueError, KeyError, TypeError, AttributeError) as cause:
        raise CallError("protocol_violation", f"the request cannot be read: {cause}") from None
    arrays = []
    for position, ((_, entry), values) in enumerate(zip(function.call_columns, columns)):
        try:
            arrays.append(types.decode_json(entry, values))
        except (ValueError, TypeError, OverflowError, pa.ArrowException) as cause:
            raise CallError("protocol_violation", f"column {position + 1} is not of type {entry.name}: {cause}") from None
    if arrays:
        return pa.RecordBatch.from_arrays(arrays, schema=types.schema_of(function.call_columns))
    # pyarrow makes a batch of rows without columns only by dropping columns.
    return pa.RecordBatch.from_arrays([pa.nulls(rows)], ["x"]).select([])


def _joined(batches, schema):
    """Batches as one."""
    joined = pa.Table.from_batches(batches, schema).combine_chunks().to_batches()
    return joined[0] if joined else pa.RecordBatch.from_pylist([], schema=schema)


class _Server:
    """Threads that wait for connections, one thread per connection. A few always wait, so that a connection meets a thread
    that is there. What is running when the server is shut down is finished."""

    def __init__(self, listener, functions):
        self.functions, self.exchanges, self.running, self.turns = functions, _Exchanges(), _Running(), Turns()
        self.segment_directory = os.environ.get("TRANSSHIP_SEGMENT_DIR")
        self._listener = listener
        self._lock = threading.Lock()
        self._waiting = 0
        self._stopped = threading.Event()

    def serve_forever(self):
        """Answers until shutdown() is called."""
        for _ in range(_SPARE_THREADS):
            self._start_thread()
        self._stopped.wait()

    def shutdown(self):
        """Takes no more connections, and waits for the calls that are running."""
        self._stopped.set()
        # This wakes the threads that wait.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.running.wait_for_none(_STOP_PATIENCE_S)

    def _start_thread(self):
        with self._lock:
            self._waiting += 1
        try:
            threading.Thread(target=self._serve, daemon=True).start()
        except RuntimeError:
            # There are as many as there may be; connections wait for one of them.
            with self._lock:
                self._waiting -= 1

    def _serve(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if self._stopped.is_set():
                    return
                # No descriptor is left, or the client has gone.
                time.sleep(_ACCEPT_PAUSE_S)
                continue
            with self._lock:
                self._waiting -= 1
                is_last = self._waiting == 0
            if is_last:
                self._start_thread()
            with connection:
                try:
                    _Handler(connection, self)
                except OSError:
                    # The client has gone.
                    pass
                except Exception:
                    traceback.print_exc()
            with self._lock:
                if self._waiting >= _SPARE_THREADS:
                    return
                self._waiting += 1


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
