"""Sends columns in memory (docs/protocol.md §7) that no client of ours would send: hostile_columns.py SOCKET FOLDER

The server must answer each with an error of kind protocol_violation, or rightly, and must go on. It also judges what the client of
`transship conformance` cannot see: aliases and dictionaries are only used where they are allowed, and lead to the right values.
"""

import contextlib
import http.client
import json
import os
import pathlib
import secrets
import socket
import struct
import sys
import time

COLUMNS = "application/vnd.transship.columns"
ADD = "add"
# Two columns of int8 with two rows each, and room.
NUMBERS = struct.pack("<4q", 1, 2, 10, 20)
PLACES = [0, 0, 0, 16, 0, 0, 16, 16]


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout=30):
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def frame(header, data=b""):
    text = json.dumps(header).encode()
    head = struct.pack("<I", len(text)) + text
    return head + bytes(-len(head) % 8) + data


def parse(body):
    length = struct.unpack_from("<I", body)[0]
    start = (4 + length + 7) // 8 * 8
    return json.loads(body[4 : 4 + length]), body[start:]


class Peer:
    """A client of a server's socket, and of its folder of segments."""

    def __init__(self, image, path, folder):
        self.image, self.path, self.folder = image, path, pathlib.Path(folder)

    def segment(self, data):
        name = secrets.token_hex(16)
        path = self.folder / name
        path.write_bytes(data)
        path.chmod(0o666)
        return name

    def post(self, function, body, content_type=COLUMNS):
        connection = UnixConnection(self.path)
        connection.request("POST", f"/v1/functions/{function}", body, {"Content-Type": content_type})
        response = connection.getresponse()
        return response.status, response.read()

    def call(self, function, header, data=b""):
        """The status, and the reply's header and data, or the error."""
        status, body = self.post(function, frame(header, data))
        if status != 200:
            return status, json.loads(body)["error"], b""
        reply, data = parse(body)
        if "segment" in reply:
            data = (self.folder / reply["segment"]).read_bytes()
        return status, reply, data

    def fail(self, case, found):
        sys.exit(f"{self.image}: {case}: {found}")

    def refuses(self, case, header, data=b"", function=ADD):
        status, answer, _ = self.call(function, header, data)
        if (status, answer.get("kind")) != (400, "protocol_violation"):
            self.fail(case, f"the status is {status}, the answer {answer}")

    def adds(self, case, header, expected, data=b""):
        status, reply, found = self.call(ADD, header, data)
        if status != 200:
            self.fail(case, f"the status is {status}, the answer {reply}")
        offset, length = reply["buffers"][2:4]
        if struct.unpack_from(f"<{len(expected)}q", found, offset) != tuple(expected) or length < 8 * len(expected):
            self.fail(case, f"the reply is {reply}, {found!r}")


def judge_segments(peer):
    def header(**more):
        return {"batch": 0, "rows": 2, "buffers": PLACES, **more}

    whole = peer.segment(NUMBERS)
    reply = peer.segment(b"")
    peer.adds("columns in a segment", header(segment=whole, reply_segment=reply), [11, 22])
    peer.adds("a reply without a segment", header(segment=whole), [11, 22])
    peer.adds("a segment that is longer", header(segment=peer.segment(NUMBERS + bytes(5000))), [11, 22])
    overlapping = header(segment=whole, buffers=[0, 0, 0, 16, 0, 0, 8, 16])
    peer.adds("buffers that overlap", overlapping, [1 + 2, 2 + 10])
    for case, more in [
        ("a segment that is too short", {"segment": peer.segment(NUMBERS[:24])}),
        ("an empty segment", {"segment": peer.segment(b"")}),
        ("a segment that is not there", {"segment": secrets.token_hex(16)}),
        ("a segment above the folder", {"segment": "../" + whole}),
        ("a segment of a longer name", {"segment": whole + "0"}),
        ("a segment whose name has a zero byte", {"segment": whole[:31] + "\0"}),
        ("a segment that is a number", {"segment": 7}),
        ("an offset behind the end", {"buffers": [0, 0, 1 << 20, 16, 0, 0, 16, 16]}),
        ("an offset that no file has", {"buffers": [0, 0, (1 << 63) - 8, 16, 0, 0, 16, 16]}),
        ("an offset of 80 bits", {"buffers": [0, 0, 1 << 80, 16, 0, 0, 16, 16]}),
        ("a negative offset", {"buffers": [0, 0, -8, 16, 0, 0, 16, 16]}),
        ("a negative length", {"buffers": [0, 0, 0, -16, 0, 0, 16, 16]}),
        ("a length that no file has", {"buffers": [0, 0, 0, 1 << 40, 0, 0, 16, 16]}),
        ("an offset that is not aligned", {"buffers": [0, 0, 4, 16, 0, 0, 16, 16]}),
        ("an offset that is a fraction", {"buffers": [0, 0, 0.5, 16, 0, 0, 16, 16]}),
        ("an odd number of places", {"buffers": PLACES[:-1]}),
        ("places that are no list", {"buffers": {"a": 1}}),
        ("more rows than numbers", {"rows": 3}),
        ("a negative number of rows", {"rows": -1}),
        ("rows that are a fraction", {"rows": 1.5}),
        ("rows of 80 bits", {"rows": 1 << 80}),
        ("a buffer that is too short", {"buffers": [0, 0, 0, 16, 0, 0, 16, 8]}),
        ("a reply segment that is not there", {"reply_segment": secrets.token_hex(16)}),
        ("a reply segment above the folder", {"reply_segment": "../" + reply}),
    ]:
        peer.refuses(case, header(**{"segment": whole, **more}))
    nines = peer.segment(bytes(9 * 8))
    peer.refuses("a bitmap that is too short", header(segment=nines, rows=9, buffers=[0, 1, 0, 72, 0, 0, 0, 72]))
    link = secrets.token_hex(16)
    (peer.folder / link).symlink_to(peer.folder / whole)
    peer.refuses("a segment that is a link", header(segment=link))
    peer.refuses("a reply segment that is a link", header(segment=whole, reply_segment=link))
    # A batch without arguments takes no bytes, however many rows it has.
    peer.refuses("10^12 rows without arguments", {"batch": 0, "rows": 10**12, "buffers": []}, function="constant")
    many = json.dumps({"batch": 0, "rows": 10**12, "columns": []})
    status, body = peer.post("constant", many, "application/json")
    if status != 400 or json.loads(body)["error"]["kind"] != "protocol_violation":
        peer.fail("10^12 rows without arguments, as JSON", f"the status is {status}, the answer {body[:200]!r}")
    # Texts: three rows, of which the offsets lie in front of the bytes.
    for case, offsets, data in [
        ("a negative offset of a text", (-4, 0, 1, 2), b"abcd"),
        ("offsets that descend", (0, 3, 1, 4), b"abcd"),
        ("an offset behind the texts", (0, 1, 2, 2**31 - 1), b"abcd"),
        ("half a character", (0, 1, 2, 4), "é€".encode()[:4]),
        ("a text that begins within a character", (0, 1, 3, 4), "éaé".encode()[:4]),
    ]:
        text = struct.pack("<4i", *offsets) + data
        more = {"batch": 0, "rows": 3, "buffers": [0, 0, 0, 16, 16, len(data)]}
        peer.refuses(case, {**more, "segment": peer.segment(text)}, function="echo_text")
    peer.adds("columns in a segment, after all that", header(segment=whole, reply_segment=reply), [11, 22])


def judge_references(peer):
    """A reply may refer to buffers of the calls, and encode texts, only if the call says so."""
    days = struct.pack("<3i", 10, 20, 30)
    # The last row is NULL.
    data = bytes([0b011]) + bytes(7) + days
    for allowed in (False, True):
        header = {"batch": 0, "rows": 3, "buffers": [0, 1, 8, 12], "may_alias": allowed, "may_encode": allowed}
        status, reply, found = peer.call("echo_date", header, data)
        if status != 200:
            peer.fail("dates", f"the status is {status}, the answer {reply}")
        aliases = reply.get("aliases", [])
        if aliases and not allowed:
            peer.fail("dates", f"its reply has aliases: {reply}")
        if any(not 0 <= number < 2 for number in aliases) or len(set(aliases)) < len(aliases):
            peer.fail("dates", f"its aliases are {aliases}")
        of = lambda number: data if number in aliases else found
        (valid_at, valid_length), (days_at, days_length) = zip(reply["buffers"][::2], reply["buffers"][1::2])
        if of(0)[valid_at : valid_at + 1][0] & 0b111 != 0b011 or valid_length < 1 or days_length < 8:
            peer.fail("dates", f"its reply is {reply}")
        if struct.unpack_from("<2i", of(1), days_at) != (10, 20):
            peer.fail("dates", f"its reply is {reply}, {found!r}")
    texts = struct.pack("<4i", 0, 1, 2, 3) + b"xyx"
    for allowed in (False, True):
        header = {"batch": 0, "rows": 3, "buffers": [0, 0, 0, 16, 16, 3], "may_alias": allowed, "may_encode": allowed}
        status, reply, found = peer.call("label", header, texts)
        if status == 404:
            return
        if status != 200:
            peer.fail("labels", f"the status is {status}, the answer {reply}")
        dictionaries = reply.get("dictionaries", [])
        if dictionaries and not allowed:
            peer.fail("labels", f"its reply has dictionaries: {reply}")
        if texts_of(reply, found, texts) != [b"x", b"y", b"x"]:
            peer.fail("labels", f"its reply is {reply}, {found!r}")


def texts_of(reply, found, called):
    """The texts of a reply's only column, three rows without NULL."""
    places = list(zip(reply["buffers"][::2], reply["buffers"][1::2]))
    aliases = reply.get("aliases", [])
    buffer = lambda number: (called if number in aliases else found)[places[number][0] :][: places[number][1]]
    dictionaries = reply.get("dictionaries", [])
    first = 2 if dictionaries else 1
    count = dictionaries[1] if dictionaries else 3
    offsets, bytes_ = struct.unpack(f"<{count + 1}i", buffer(first)), buffer(first + 1)
    texts = [bytes_[start:end] for start, end in zip(offsets, offsets[1:])]
    return [texts[index] for index in struct.unpack("<3i", buffer(1))] if dictionaries else texts


def judge_hang_up(peer):
    """A client that closes its connection while its columns lie in a segment is noticed: the rows that are left are not run."""

    def waited():
        status, body = peer.post("rows_waited", json.dumps({"batch": 0, "rows": 1, "columns": []}), "application/json")
        return int(json.loads(body)["columns"][0][0]) if status == 200 else None

    rows = 20_000
    before = waited()
    if before is None:
        return
    segment = peer.segment(struct.pack("<d", 0.005) * rows)
    body = frame({"batch": 0, "rows": rows, "buffers": [0, 0, 0, 8 * rows], "segment": segment, "reply_segment": peer.segment(b"")})
    head = f"POST /v1/functions/wait HTTP/1.1\r\nHost: localhost\r\nContent-Type: {COLUMNS}\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(peer.path)
        # Two requests: the second lies unread while the first is answered.
        connection.sendall((head.encode() + body) * 2)
        deadline = time.monotonic() + 30
        while waited() == before and time.monotonic() < deadline:
            time.sleep(0.05)
    for _ in range(60):
        counted = waited()
        time.sleep(0.5)
        if waited() == counted > before:
            return
    peer.fail("a client that has gone", "it still runs rows of the batch")


def judge(image, path, folder):
    """Judges a server by its socket and its folder of segments, in which files may be created."""
    peer = Peer(image, path, folder)
    with contextlib.closing(UnixConnection(path)) as connection:
        connection.request("GET", "/v1")
        transports = json.loads(connection.getresponse().read()).get("transports", [])
    if "shm" not in transports:
        return
    judge_segments(peer)
    judge_references(peer)
    judge_hang_up(peer)


if __name__ == "__main__":
    os.umask(0)
    judge(sys.argv[1], sys.argv[1], sys.argv[2])
