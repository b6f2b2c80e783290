"""The little of HTTP/1.1 (RFC 9112) that a server of functions needs: requests whose length is said, one after the other.

The standard library's server reads headers as mail, which takes longer than a small batch and brings along mail and TLS,
megabytes of memory in every container.
"""

import http
import re
import socket

_MAX_LINE_BYTES = 65536
_MAX_HEADERS = 100
_BUFFER_BYTES = 65536
# A connection on which nothing comes for so long is closed.
_IDLE_S = 600
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_REQUEST = re.compile(r"([A-Z]+) ([^ \x00-\x20\x7f]+) HTTP/1\.([01])")


class Headers:
    """Header fields by name, in any case."""

    def __init__(self):
        self._values = {}

    def add(self, name, value):
        name = name.lower()
        # A list of values may stand in several fields.
        self._values[name] = f"{self._values[name]}, {value}" if name in self._values else value

    def get(self, name, default=None):
        return self._values.get(name.lower(), default)

    def __contains__(self, name):
        return name.lower() in self._values

    def __getitem__(self, name):
        return self.get(name)


class _Refused(Exception):
    def __init__(self, status):
        super().__init__(status)
        self.status = status


class Handler:
    """Answers the requests of one connection by its methods do_GET, do_POST and do_DELETE, until either side closes it."""

    def __init__(self, connection, server):
        self.connection, self.server = connection, server
        connection.settimeout(_IDLE_S)
        if connection.family != socket.AF_UNIX:
            # Replies are written at once, so waiting for more to send would only add delay.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        self.close_connection = False
        self.setup()
        try:
            with connection.makefile("rb", buffering=_BUFFER_BYTES) as self.stream:
                while not self.close_connection and self._answer_next():
                    pass
        finally:
            self.finish()

    def setup(self):
        """Is called first."""

    def finish(self):
        """Is called last."""

    def _answer_next(self):
        try:
            if not self._read_head():
                return False
            answer = getattr(self, f"do_{self.method}", None)
            if answer is None:
                raise _Refused(http.HTTPStatus.NOT_IMPLEMENTED)
        except _Refused as refused:
            self.close_connection = True
            self.send(refused.status, "text/plain", b"")
            return False
        answer()
        return True

    def _read_head(self):
        line = self._read_line()
        # An empty line may precede a request (RFC 9112, 2.2).
        if line == b"\r\n":
            line = self._read_line()
        if not line:
            return False
        match = _REQUEST.fullmatch(line.decode("latin-1").rstrip("\r\n"))
        if not match:
            raise _Refused(http.HTTPStatus.BAD_REQUEST)
        self.method, self.path, minor = match.groups()
        self.headers = Headers()
        count = 0
        while (line := self._read_line()) not in (b"\r\n", b"\n"):
            if not line:
                raise ConnectionError
            name, colon, value = line.partition(b":")
            count += 1
            if not colon or not _TOKEN.fullmatch(name) or count > _MAX_HEADERS:
                raise _Refused(http.HTTPStatus.BAD_REQUEST)
            self.headers.add(name.decode(), value.strip().decode("latin-1"))
        if self.headers["Transfer-Encoding"] is not None:
            raise _Refused(http.HTTPStatus.LENGTH_REQUIRED)
        wish = (self.headers["Connection"] or "").lower()
        self.close_connection = wish == "close" or (minor == "0" and wish != "keep-alive")
        if self.method != "POST" and self.headers.get("Content-Length", "0") != "0":
            # Nobody reads that body, which must not pass for the next request.
            self.close_connection = True
        if (self.headers["Expect"] or "").lower() == "100-continue":
            self.connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        return True

    def _read_line(self):
        line = self.stream.readline(_MAX_LINE_BYTES + 1)
        if len(line) > _MAX_LINE_BYTES:
            raise _Refused(http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        if line and not line.endswith(b"\n"):
            # The client has gone in the middle of it.
            raise ConnectionError
        return line

    def send(self, status, content_type, body, fields=""):
        """Sends an answer. fields are further lines of its head, each with its end."""
        closing = "Connection: close\r\n" if self.close_connection else ""
        head = (
            f"HTTP/1.1 {int(status)} {http.HTTPStatus(status).phrase}\r\nContent-Type: {content_type}\r\n"
            f"{fields}{closing}Content-Length: {len(body)}\r\n\r\n"
        ).encode("latin-1")
        # The head and a short body travel together.
        if len(body) < 65536:
            self.connection.sendall(head + body)
        else:
            self.connection.sendall(head)
            self.connection.sendall(body)
