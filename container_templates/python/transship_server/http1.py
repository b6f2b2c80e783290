"""The little of HTTP/1.1 (RFC 9112) that a server of functions needs: requests whose length is said, one after the other.

The standard library's server reads headers as mail, which takes longer than a small batch and brings along mail and TLS,
megabytes of memory in every container.
"""

import http
import io
import re
import socket
import struct

_MAX_LINE_BYTES = 65536
_MAX_HEADERS = 100
_BUFFER_BYTES = 65536
# A connection on which nothing comes, or can be sent, for so long is closed: a struct timeval.
_IDLE = struct.pack("ll", 600, 0)
_HEAD = re.compile(
    r"([A-Z]+) ([^ \x00-\x20\x7f]+) HTTP/1\.([01])\r?\n((?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n]*\r?\n)*)\r?\n"
)
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]*)?\r?\n")
_FIELD = re.compile(r"([^:]+):([^\r\n]*)\r?\n")


class _Refused(Exception):
    def __init__(self, status):
        super().__init__(status)
        self.status = status


class Handler:
    """Answers the requests of one connection by its methods do_GET, do_POST and do_DELETE, until either side closes it. They
    find the request in method, path and headers, whose names are in lower case, and its body in stream."""

    def __init__(self, connection, server):
        self.connection, self.server = connection, server
        # The kernel's own timeouts, with which a read is one system call, without Python around it.
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            connection.setsockopt(socket.SOL_SOCKET, option, _IDLE)
        if connection.family != socket.AF_UNIX:
            # Replies are written at once, so waiting for more to send would only add delay.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        self.close_connection = False
        self.setup()
        try:
            with io.BufferedReader(io.FileIO(connection.fileno(), closefd=False), _BUFFER_BYTES) as self.stream:
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
        lines = [line]
        while line not in (b"\r\n", b"\n"):
            line = self._read_line()
            if not line:
                raise ConnectionError
            lines.append(line)
            if len(lines) > _MAX_HEADERS + 2:
                raise _Refused(http.HTTPStatus.BAD_REQUEST)
        match = _HEAD.fullmatch(b"".join(lines).decode("latin-1"))
        if not match:
            raise _Refused(http.HTTPStatus.BAD_REQUEST)
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

    def read_chunks(self, most):
        """The body of a request in chunks (RFC 9112, 7.1), of at most so many bytes. Raises ValueError."""
        chunks, size = [], 0
        while True:
            line = self._read_line()
            match = _CHUNK.match(line)
            if not match:
                raise ValueError("a chunk has no length")
            length = int(match.group(1), 16)
            if length == 0:
                break
            size += length
            if size > most:
                raise ValueError(f"a body has at most {most} bytes")
            chunk = self.stream.read(length) or b""
            if len(chunk) < length:
                raise ConnectionError
            chunks.append(chunk)
            if self._read_line() not in (b"\r\n", b"\n"):
                raise ValueError("a chunk is longer than its length")
        # What may follow are fields, which say nothing of the body.
        for _ in range(_MAX_HEADERS):
            line = self._read_line()
            if not line:
                raise ConnectionError
            if line in (b"\r\n", b"\n"):
                return b"".join(chunks)
        raise ValueError("too many fields follow the body")

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
