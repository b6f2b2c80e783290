"""What the server makes of HTTP/1.1, well and badly written."""

import select
import socket
import threading

import pytest
from transship_server import http1


class Echo(http1.Handler):
    """Answers with what it was asked."""

    def do_GET(self):
        self.send(200, "text/plain", f"{self.path} {self.headers.get('x-asked', '-')}".encode())

    def do_POST(self):
        self.send(200, "text/plain", self.body)


@pytest.fixture
def ask():
    """Sends bytes on one connection; all that comes back until the server closes it."""

    def send(*pieces, closes=True):
        ours, theirs = socket.socketpair()
        with ours:
            thread = threading.Thread(target=lambda: run(theirs))
            thread.start()
            for piece in pieces:
                ours.sendall(piece)
            if closes:
                ours.shutdown(socket.SHUT_WR)
            ours.settimeout(20)
            answer = b"".join(iter(lambda: ours.recv(65536), b""))
            thread.join(20)
            assert not thread.is_alive()
            return answer

    def run(connection):
        with connection:
            handler, poll = Echo(connection, None), select.poll()
            poll.register(connection, 0)
            try:
                while events := handler.advance():
                    poll.modify(connection, events)
                    poll.poll()
            except OSError:
                pass

    return send


def statuses(answer):
    return [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]


def bodies(answer):
    return [part.split(b"\r\n\r\n", 1)[1] for part in answer.split(b"HTTP/1.1 ")[1:]]


def test_requests_are_answered_in_order(ask):
    answer = ask(b"GET /a HTTP/1.1\r\nx-asked: 1\r\n\r\nPOST /b HTTP/1.1\r\nContent-Length: 3\r\n\r\nxyzGET /c HTTP/1.1\r\n\r\n")
    assert bodies(answer) == [b"/a 1", b"xyz", b"/c -"]
    assert b"Content-Length: 4\r\n" in answer and b"Connection" not in answer


def test_pieces_are_put_together(ask):
    request = b"\r\nPOST /p%20q?r=s HTTP/1.1\r\nCONTENT-LENGTH:  5 \r\nX-Long: " + b"x" * 60_000 + b"\r\n\r\nhello"
    assert bodies(ask(*[request[i : i + 7919] for i in range(0, len(request), 7919)])) == [b"hello"]


def test_a_large_body_comes_back(ask):
    body = bytes(range(256)) * 1000
    assert bodies(ask(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body), body)) == [body]


@pytest.mark.parametrize(
    ("request_head", "count"),
    [
        (b"GET /a HTTP/1.1\r\nConnection: close\r\n\r\n", 1),
        (b"GET /a HTTP/1.0\r\n\r\n", 1),
        (b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", 2),
        (b"GET /a HTTP/1.1\r\nContent-Length: 28\r\n\r\n", 1),
    ],
)
def test_connections_end_when_it_is_asked(ask, request_head, count):
    answer = ask(request_head + b"GET /b HTTP/1.1\r\nConnection: close\r\n\r\n", closes=False)
    assert statuses(answer) == [200] * count
    assert answer.count(b"Connection: close\r\n") == 1


def test_a_client_that_waits_is_told_to_go_on(ask):
    answer = ask(b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nok")
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n") and answer.endswith(b"ok")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET  / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n folded: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nname : x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 101 + b"\r\n", 400),
        (b"GET / HTTP/1.1\r\na: " + b"x" * 70_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 501),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", 400),
        (b"BREW / HTTP/1.1\r\n\r\n", 501),
        (b"__init__ / HTTP/1.1\r\n\r\n", 400),
    ],
)
def test_what_is_no_request_is_refused(ask, request_bytes, status):
    answer = ask(request_bytes + b"GET /next HTTP/1.1\r\n\r\n")
    assert statuses(answer) == [status]
    assert b"Connection: close\r\n" in answer


@pytest.mark.parametrize("request_bytes", [b"", b"GET", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\na: b\r\n"])
def test_a_client_that_goes_away_gets_nothing(ask, request_bytes):
    assert ask(request_bytes) == b""


def test_several_fields_of_one_name_are_a_list(ask):
    assert bodies(ask(b"GET / HTTP/1.1\r\nX-Asked: 1\r\nx-asked: 2\r\n\r\n")) == [b"/ 1, 2"]
