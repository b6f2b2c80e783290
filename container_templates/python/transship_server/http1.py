"""The little of HTTP/1.1 (RFC 9112) that a server of functions needs: requests whose length is said, one after the other.

The standard library's server reads headers as mail, which takes longer than a small batch and brings along mail and TLS,
megabytes of memory in every container. It also keeps a thread for each connection. Here a connection that waits for its
client, for the next request, for the rest of one, or for room for an answer, is an object and no more.
"""

import functools
import http
import re
import select
import socket

_MAX_LINE_BYTES = 65536
_MAX_HEADERS = 100
_SHORT_HEAD_BYTES = 8192
_BUFFER_BYTES = 65536
_BODY_BUFFER_BYTES = 1 << 18
_MAX_PIECES = 1024
_HEAD = re.compile(
    r"([A-Z]+) ([^ \x00-\x20\x7f]+) HTTP/1\.([01])\r?\n((?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n]*\r?\n)*)\r?\n"
)
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]*)?\r?\n")
_FIELD = re.compile(r"([^:]+):([^\r\n]*)\r?\n")


class _Refused(Exception):
    def __init__(self, status):
        super().__init__(status)
        self.status = status


@functools.lru_cache
def _head_of(status, content_type):
    return f"HTTP/1.1 {int(status)} {http.HTTPStatus(status).phrase}\r\nContent-Type: {content_type}\r\n".encode("latin-1")


class Handler:
    """Answers the requests of one connection by its methods do_GET, do_POST and do_DELETE, until either side closes it. They
    find the request in method, path and headers, whose names are in lower case, and what was posted in body: None if it
    cannot be read, and body_error says why. Not for several threads at a time."""

    most_body_bytes = 1 << 30

    def __init__(self, connection, server):
        self.connection, self.server = connection, server
        connection.setblocking(False)
        if connection.family != socket.AF_UNIX:
            # Replies are written at once, so waiting for more to send would only add delay.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        self.close_connection = False
        # What has come, and how much of it was read.
        self._data, self._position = b"", 0
        self._unsent = []
        # The head of the last request, if the next one may be the same, and the length of its body.
        self._known_head, self._known_length = None, 0
        self._steps = self._answer_all()

    def advance(self):
        """Does what can be done without waiting for the client: select.EPOLLIN or EPOLLOUT says what is to be waited for
        before it is called again, 0 that all is done. OSError if the client has gone."""
        return next(self._steps, 0)

    @property
    def has_unsent(self):
        """Whether a part of an answer waits for its client."""
        return bool(self._unsent)

    def close(self):
        """Closes the connection."""
        self.connection.close()

    def _answer_all(self):
        while not self.close_connection:
            try:
                if not (yield from self._read_head()):
                    return
                answer = getattr(self, f"do_{self.method}", None)
                if answer is None:
                    raise _Refused(http.HTTPStatus.NOT_IMPLEMENTED)
                if self.method == "POST":
                    yield from self._read_body()
            except _Refused as refused:
                self.close_connection = True
                self.send(refused.status, "text/plain", b"")
            else:
                answer()
            # The next request has time until then.
            while self._unsent:
                yield select.EPOLLOUT
                self._write_unsent()
            if self._position == len(self._data) and not self.close_connection:
                # The client has yet to read the answer.
                self._data, self._position, self.body = b"", 0, None
                yield select.EPOLLIN

    def _read_head(self):
        if self._position == len(self._data):
            self._data, self._position = (yield from self._receive()), 0
        # All of it has come, mostly.
        end = self._data.find(b"\r\n\r\n", self._position) + 4
        head = self._data[self._position : end]
        if head == self._known_head:
            self._position = end
            return True
        match = len(head) <= _SHORT_HEAD_BYTES and _HEAD.fullmatch(head.decode("latin-1"))
        if match and head.count(b"\n") <= _MAX_HEADERS + 2:
            self._position = end
            self._known_head = head
        else:
            self._known_head = None
            match = yield from self._read_long_head()
            if not match:
                return False
        self._note_head(match)
        return True

    def _read_long_head(self):
        """The head, line by line; None if the client has nothing more to ask."""
        line = yield from self._read_line()
        # An empty line may precede a request (RFC 9112, 2.2).
        if line == b"\r\n":
            line = yield from self._read_line()
        if not line:
            return None
        lines = [line]
        while line not in (b"\r\n", b"\n"):
            line = yield from self._read_line()
            if not line:
                raise ConnectionError
            lines.append(line)
            if len(lines) > _MAX_HEADERS + 2:
                raise _Refused(http.HTTPStatus.BAD_REQUEST)
        match = _HEAD.fullmatch(b"".join(lines).decode("latin-1"))
        if not match:
            raise _Refused(http.HTTPStatus.BAD_REQUEST)
        return match

    def _note_head(self, match):
        self.method, self.path, minor, fields = match.groups()
        headers = self.headers = {}
        for name, value in _FIELD.findall(fields):
            name, value = name.lower(), value.strip()
            # A list of values may stand in several fields.
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        if "transfer-encoding" in headers:
            if headers["transfer-encoding"].lower() != "chunked" or self.method != "POST":
                raise _Refused(http.HTTPStatus.NOT_IMPLEMENTED)
            if minor == "0" or "content-length" in headers:
                # Two lengths, of which somebody before this server may have believed the other (RFC 9112, 6.1).
                raise _Refused(http.HTTPStatus.BAD_REQUEST)
        wish = headers.get("connection", "").lower()
        self.close_connection = wish == "close" or (minor == "0" and wish != "keep-alive")
        if self.method != "POST" and headers.get("content-length", "0") != "0":
            # Nobody reads that body, which must not pass for the next request.
            self.close_connection = True
        if headers.get("expect", "").lower() == "100-continue":
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")
        length = headers.get("content-length", "") if self.method == "POST" else ""
        is_plain = re.fullmatch("[0-9]{1,5}", length) and "expect" not in headers and not self.close_connection
        self._known_length = int(length) if is_plain else 0
        if not is_plain:
            self._known_head = None

    def _receive(self, most=_BUFFER_BYTES):
        """What the client sends next; nothing once it has closed its side."""
        while True:
            try:
                return self.connection.recv(most)
            except BlockingIOError:
                yield select.EPOLLIN

    def _read_line(self):
        while (end := self._data.find(b"\n", self._position) + 1) == 0:
            if len(self._data) - self._position > _MAX_LINE_BYTES:
                raise _Refused(http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            more = yield from self._receive()
            if not more and self._position == len(self._data):
                return b""
            if not more:
                # The client has gone in the middle of it.
                raise ConnectionError
            self._data, self._position = self._data[self._position :] + more, 0
        line, self._position = self._data[self._position : end], end
        if len(line) > _MAX_LINE_BYTES:
            raise _Refused(http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        return line

    def _read_bytes(self, size):
        piece = self._data[self._position : self._position + size]
        self._position += len(piece)
        pieces, missing = [piece], size - len(piece)
        while missing:
            more = yield from self._receive(min(missing, _BODY_BUFFER_BYTES))
            if not more:
                raise ConnectionError
            pieces.append(more)
            missing -= len(more)
            if len(pieces) == _MAX_PIECES:
                # Small pieces take more memory than what is in them.
                pieces = [b"".join(pieces)]
        return b"".join(pieces)

    def _read_body(self):
        end = self._position + self._known_length
        if self._known_length and end <= len(self._data):
            self.body, self._position = self._data[self._position : end], end
            return
        self.body, self.body_error = None, None
        if "transfer-encoding" in self.headers:
            try:
                self.body = yield from self._read_chunks()
            except ValueError as cause:
                self.close_connection = True
                self.body_error = f"the request cannot be read: {cause}"
            return
        text = self.headers.get("content-length", "")
        if re.fullmatch("[0-9]{1,20}", text) and int(text) <= self.most_body_bytes:
            self.body = yield from self._read_bytes(int(text))
            return
        self.close_connection = True
        self.body_error = f"a request needs a Content-Length of at most {self.most_body_bytes >> 30} GiB"

    def _read_chunks(self):
        """The body of a request in chunks (RFC 9112, 7.1). Raises ValueError."""
        chunks, size = [], 0
        while True:
            match = _CHUNK.match((yield from self._read_line()))
            if not match:
                raise ValueError("a chunk has no length")
            length = int(match.group(1), 16)
            if length == 0:
                break
            size += length
            if size > self.most_body_bytes:
                raise ValueError(f"a body has at most {self.most_body_bytes} bytes")
            chunks.append((yield from self._read_bytes(length)))
            if (yield from self._read_line()) not in (b"\r\n", b"\n"):
                raise ValueError("a chunk is longer than its length")
        # What may follow are fields, which say nothing of the body.
        for _ in range(_MAX_HEADERS):
            line = yield from self._read_line()
            if not line:
                raise ConnectionError
            if line in (b"\r\n", b"\n"):
                return b"".join(chunks)
        raise ValueError("too many fields follow the body")

    def send(self, status, content_type, body, fields=""):
        """Sends an answer. fields are further lines of its head, each with its end."""
        closing = "Connection: close\r\n" if self.close_connection else ""
        head = _head_of(status, content_type) + f"{fields}{closing}Content-Length: {len(body)}\r\n\r\n".encode("latin-1")
        # The head and a short body travel together.
        if len(body) < 65536:
            self._write(head + body)
        else:
            self._write(head)
            self._write(body)

    def _write(self, data):
        self._unsent.append(memoryview(data))
        # Nothing overtakes what waits already.
        if len(self._unsent) == 1:
            self._write_unsent()

    def _write_unsent(self):
        while self._unsent:
            try:
                sent = self.connection.send(self._unsent[0])
            except BlockingIOError:
                return
            if sent == len(self._unsent[0]):
                del self._unsent[0]
            else:
                self._unsent[0] = self._unsent[0][sent:]
