"""Calls functions of whole batches and streams in a container: judge.py IMAGE

The rows are those that row-at-a-time calls would give, whatever form the columns come in: in a segment or behind the header, as
constants, with errors of rows, with references and dictionaries in the reply, and over Flight.
"""

import contextlib
import json
import os
import pathlib
import random
import secrets
import socket
import struct
import subprocess
import sys
import tempfile
import time

import pyarrow as pa
import pyarrow.flight as flight

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from hostile_columns import Peer

LOCKS = "--network=none --read-only --tmpfs=/tmp --cap-drop=ALL --security-opt=no-new-privileges --user=65534:65534 --pids-limit=128".split()
LIST = pa.list_(pa.field("item", pa.string()))
PAIR = pa.struct([("a", pa.int32()), ("b", pa.string())])


def int8(*values):
    return pa.array(values, pa.int64())


def text(*values):
    return pa.array(values, pa.string())


def expect(found, expected, what):
    if found != expected:
        sys.exit(f"{what}: {str(found)[:2000]}, not {str(expected)[:2000]}")


def buffers_of(column):
    """The buffers of a column that begins where its buffers do."""
    kind, rows, buffers = column.type, len(column), column.buffers()
    validity = buffers[0].to_pybytes() if column.null_count else b""
    if pa.types.is_struct(kind):
        return [validity, *(buffer for i in range(kind.num_fields) for buffer in buffers_of(column.field(i)))]
    if pa.types.is_list(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind):
        offsets = buffers[1].to_pybytes()[: 4 * (rows + 1)] if rows else b""
        end = struct.unpack_from("<i", offsets, 4 * rows)[0] if rows else 0
        if pa.types.is_list(kind):
            return [validity, offsets, *buffers_of(column.values[:end])]
        return [validity, offsets, buffers[2].to_pybytes()[:end] if end else b""]
    return [validity, buffers[1].to_pybytes() if rows else b""]


def column_of(kind, rows, take):
    """A column of buffers, one after the other."""
    validity = take()
    validity = pa.py_buffer(validity) if validity else None
    if pa.types.is_struct(kind):
        return pa.StructArray.from_buffers(kind, rows, [validity], children=[column_of(kind.field(i).type, rows, take) for i in range(kind.num_fields)])
    if pa.types.is_list(kind):
        offsets = take() or bytes(4)
        elements = column_of(kind.value_type, struct.unpack_from("<i", offsets, 4 * rows)[0], take)
        return pa.ListArray.from_buffers(kind, rows, [validity, pa.py_buffer(offsets)], children=[elements])
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return pa.Array.from_buffers(kind, rows, [validity, pa.py_buffer(take() or bytes(4)), pa.py_buffer(take())])
    return pa.Array.from_buffers(kind, rows, [validity, pa.py_buffer(take())])


class Server:
    """The container's server, and what it is asked in one way: with columns in segments or behind the header."""

    def __init__(self, peer, has_segments):
        self.peer, self.has_segments = peer, has_segments

    def ask(self, name, columns, rows, results, constants=(), **more):
        """The columns of the reply and its header; the status and the error if there is one."""
        places, data = [], b""
        for buffer in (buffer for column in columns for buffer in buffers_of(column)):
            data += bytes(-len(data) % 8)
            places += [len(data), len(buffer)] if buffer else [0, 0]
            data += buffer
        header = {"batch": 5, "rows": rows, "buffers": places, **more}
        if constants:
            header |= {"constants": list(constants), "constants_id": secrets.token_hex(4)}
        if self.has_segments:
            header |= {"segment": self.peer.segment(data), "reply_segment": self.peer.segment(b"")}
        status, reply, own = self.peer.call(name, header, b"" if self.has_segments else data)
        if status != 200:
            return status, reply
        expect(reply["batch"], 5, f"the number of {name}'s batch")
        pairs = iter(enumerate(zip(reply["buffers"][::2], reply["buffers"][1::2])))

        def take():
            number, (offset, length) = next(pairs)
            source = data if number in reply.get("aliases", []) else own
            if offset + length > len(source):
                sys.exit(f"{name}: a buffer lies outside of the data: {reply}")
            return source[offset : offset + length]

        found, sizes = [], dict(zip(reply.get("dictionaries", [])[::2], reply.get("dictionaries", [])[1::2]))
        for number, kind in enumerate(results):
            if number in sizes:
                indexes = column_of(pa.int32(), reply["rows"], take).to_pylist()
                texts = pa.Array.from_buffers(pa.string(), sizes[number], [None, pa.py_buffer(take()), pa.py_buffer(take())]).to_pylist()
                found.append([None if index is None else texts[index] for index in indexes])
            else:
                column = column_of(kind, reply["rows"], take)
                column.validate(full=True)
                found.append(column.to_pylist())
        expect(next(pairs, None), None, f"the buffers that {name}'s columns leave over")
        return found, reply

    def answers(self, expected, name, columns, rows, results, constants=(), **more):
        found, reply = self.ask(name, columns, rows, results, constants, **more)
        expect(found, expected, f"{name} of {rows} rows, {more}")
        return reply

    def refuses(self, expected, name, *words, **more):
        status, error = self.ask(name, *words, [], **more)
        expect((status, isinstance(error, dict) and error.get("kind")), expected, f"{name}, {more}")
        return error


def judge_constants(server):
    server.answers([["a1", "b2"]], "join_columns", [int8(1, 2), text("a", "b")], 2, [pa.string()])
    server.answers([["é1", "é2", "é3"]], "join_columns", [int8(1, 2, 3), text("é")], 3, [pa.string()], (1,))
    server.answers([[6, None, 8]], "add_arrow", [int8(1, None, 3), int8(5)], 3, [pa.int64()], (1,))
    server.answers([[None] * 3], "add_arrow", [int8(5), int8(None)], 3, [pa.int64()], (0, 1))
    server.answers([[]], "add_arrow", [int8(5), int8(None)], 0, [pa.int64()], (0, 1))
    for value, kind, name in [(["a", None, "é"], LIST, "echo_list"), ({"a": 1, "b": "x"}, PAIR, "echo_pair"), (None, PAIR, "echo_pair"), (True, pa.bool_(), "echo_flag")]:
        server.answers([[value] * 3], name, [pa.array([value], kind)], 3, [kind], (0,))
    # More than a container has room for, if it were repeated for all rows at once.
    large = pa.array([b"\7" * (3 << 20)], pa.binary())
    for name in ("size_columns", "size_arrow"):
        server.answers([[3 << 20] * 400], name, [int8(*range(400)), large], 400, [pa.int64()], (1,))
    numbers = pa.array([2, None, 0, 1], pa.int32())
    server.answers([[0, 0, 3], ["q", "q", "q"]], "spell", [numbers, text("q")], 4, [pa.int32(), pa.string()], (1,))
    server.answers([[0, 0, 0, 1, 1, 1], ["q"] * 3 + ["r"] * 3], "spell", [pa.array([3], pa.int32()), text("q", "r")], 2, [pa.int32(), pa.string()], (0,))


def judge_references(server):
    for rows in (0, 1, 7, 8, 9, 100):
        for asks in (False, True):
            more = {"may_alias": asks, "may_encode": asks}
            flags = random.choices([True, False, None], k=rows)
            server.answers([flags], "echo_flag", [pa.array(flags, pa.bool_())], rows, [pa.bool_()], **more)
            lists = random.choices([None, [], ["a"], ["b", None, "çé"]], k=rows)
            reply = server.answers([lists], "echo_list", [pa.array(lists, LIST)], rows, [LIST], **more)
            # The handler may have written to its arguments.
            expect("aliases" in reply, False, f"whether {lists} are referred to")
            texts = random.choices(["x", "yy", "é", None], k=rows)
            reply = server.answers([texts], "label", [text(*texts)], rows, [pa.string()], **more)
            expect("dictionaries" in reply, asks, "whether labels are encoded")
    error = server.refuses((500, "bad_result"), "mislabel", [text("q")], 1, may_encode=True)
    expect("77" in error["message"], True, "the message for an index that leads nowhere")
    found, _ = server.ask("bloat", [int8(*range(5000))], 5000, [pa.string()], may_encode=True)
    expect(set(map(len, found[0])), {1 << 20}, "texts that stay encoded")
    server.refuses((500, "bad_result"), "bloat", [int8(*range(5000))], 5000)


def judge_changes(server):
    """A handler writes to its arguments and returns them: its results are what it wrote, and other rows are what they were."""
    for rows in (0, 1, 7, 100):
        values = list(range(100, 100 + rows))
        for more in ({}, {"may_alias": True, "may_encode": True}):
            server.answers([[2 * value for value in values]], "double_in_place", [int8(*values)], rows, [pa.int64()], **more)
            server.answers([[4] * rows], "double_in_place", [int8(2)], rows, [pa.int64()], (0,), **more)
    for mode in ("once", "again"):
        for values in ([1, 2, 3], [1, 13, 3, 4, 5], [13], [13, 13, 1]):
            expected = [None if value == 13 else 2 * value for value in values]
            found, _ = server.ask("double_in_place", [int8(*values)], len(values), [pa.int64(), pa.string()], row_errors=mode, may_alias=True)
            expect(found[0], expected, f"double_in_place of {values}, {mode}")
        found, _ = server.ask("double_in_place", [int8(2)], 3, [pa.int64(), pa.string()], (0,), row_errors=mode)
        expect(found[0], [4, 4, 4], f"double_in_place of a constant, {mode}")


def judge_row_errors(server):
    for mode in ("once", "again"):
        for values in ([13, 1, 2], [1, 13, 13], [4, 5], [13], [7], [], [1, 2, 13, 4, 13, 6, 7, 8, 13]):
            rows, good = len(values), [None if value == 13 else value for value in values]
            for expected, name, columns, kind in [
                ([value and f"t{value}" for value in good], "join_columns", [int8(*values), text("t")], pa.string()),
                ([value and value + 1 for value in good], "add_arrow", [int8(*values), int8(1)], pa.int64()),
            ]:
                found, reply = server.ask(name, columns, rows, [kind, pa.string()], (1,), row_errors=mode)
                expect(found[0] if isinstance(found, list) else reply, expected, f"{name} of {values}, {mode}")
                expect([bool(error) and "13 is bad" in error for error in found[1]], [value == 13 for value in values], f"{name}'s errors of {values}")
    server.refuses((400, "protocol_violation"), "add_arrow", [int8(1), int8(1)], 1, row_errors="sometimes")
    server.refuses((400, "protocol_violation"), "spell", [pa.array([1], pa.int32()), text("q")], 1, row_errors="once")


def judge_waiting(server):
    def seconds(*values):
        return pa.array(values, pa.float64())

    waits = [0.01 * (row * 7 % 5) for row in range(20)] + [None]
    server.answers([waits], "later", [seconds(*waits)], len(waits), [pa.float64()])
    server.answers([[0.0] * 100], "later", [seconds(0.0)], 100, [pa.float64()], (0,))
    error = server.refuses((500, "user_code"), "later", [seconds(0.05, 0.012, 13, 0.0)], 4)
    expect((error["row"], "it is late" in error["message"]), (1, True), "the first error of calls under way")
    found, _ = server.ask("later", [seconds(0.05, 0.012, 13, 0.0)], 4, [pa.float64(), pa.string()], row_errors="once")
    expect(found[0], [0.05, None, None, 0.0], "results of calls under way beside errors")
    expect([bool(error) for error in found[1]], [False, True, True, False], "errors of calls under way")


def talk(path, name, schema, batches, metadata=None):
    """The results over Flight as one list, and the last message's metadata. It reads once it has sent all, so an exchange that fails may
    have no more than a status."""
    with flight.connect(f"grpc+unix://{path}", generic_options=[("grpc.default_authority", "localhost")]) as client:
        writer, reader = client.do_exchange(flight.FlightDescriptor.for_path(name))
        found, last = [], {}
        with told(last), writer:
            writer.begin(schema.with_metadata(metadata))
            for number, batch in enumerate(batches):
                writer.write_with_metadata(batch, json.dumps({"batch": number}).encode())
            writer.done_writing()
            for chunk in reader:
                if chunk.data is not None:
                    found += chunk.data.columns[0].to_pylist()
                if chunk.app_metadata is not None:
                    last.update(json.loads(chunk.app_metadata.to_pybytes()))
        return found, last


@contextlib.contextmanager
def told(last):
    """Takes the status of an exchange that failed for its error, unless that has come already."""
    try:
        yield
    except (flight.FlightError, pa.ArrowException) as status:
        kind = "protocol_violation" if isinstance(status, pa.ArrowInvalid) else "user_code"
        last.setdefault("error", {"kind": kind, "message": str(status)})


def judge_flight(path):
    rows = pa.schema([("x", pa.int64()), ("t", pa.string())])
    numbers = pa.schema([("x", pa.int64())])

    def batches(schema, *columns):
        return [pa.RecordBatch.from_arrays(list(each), schema=schema) for each in columns]

    given = batches(rows, (int8(1, 2), text("a", "b")), (int8(), text()), (int8(3, None), text("c", None)))
    expect(talk(path, "join_rows", rows, given)[0], ["1a", "2b", "3c", "nullnull"], "join_rows")
    large = pa.schema([("x", pa.int64()), ("t", pa.large_string())])
    expect(talk(path, "join_rows", large, batches(large, (int8(1), pa.array(["a"], pa.large_string()))))[0], ["1a"], "join_rows of large texts")
    given = batches(numbers, (int8(1, 2),), (int8(3),), (int8(),))
    expect(talk(path, "sums", numbers, given)[0], [3, 6, 6], "sums")
    expect(talk(path, "nothing", numbers, given), ([], {}), "nothing")
    expect(talk(path, "nothing", numbers, []), ([], {}), "nothing of nothing")
    expect(talk(path, "join_rows", rows, []), ([], {}), "join_rows of nothing")
    _, last = talk(path, "fail_at", numbers, batches(numbers, (int8(1, 2),), (int8(3, 13),), (int8(5),)))
    expect((last["error"]["kind"], "13 is bad" in last["error"]["message"]), ("user_code", True), f"fail_at: {last}")
    many = batches(numbers, *((int8(*range(100 * number, 100 * number + 100)),) for number in range(50)))
    pairs = batches(numbers, *((int8(2 * number, 2 * number + 1),) for number in range(30)))
    for name in ("triples", "pumped_triples"):
        expect(talk(path, name, numbers, pairs), ([[row, row + 1, row + 2] for row in range(0, 60, 3)], {}), name)
    for _ in range(5):
        expect(talk(path, "pumped", numbers, many), (list(range(5000)), {}), "pumped")
        expect(talk(path, "leaves", numbers, many), ([1], {}), "leaves")
    others = pa.schema([("x", pa.string())])
    _, last = talk(path, "fail_at", others, batches(others, (text("a"),)))
    expect(last["error"]["kind"], "protocol_violation", "fail_at of texts")
    constant = pa.schema([("x", pa.int64()), ("t", pa.dictionary(pa.int8(), pa.string()))])

    def encoded(values, indexes):
        return pa.DictionaryArray.from_arrays(pa.array(indexes, pa.int8()), text(*values))

    given = batches(constant, (int8(1, 2), encoded("k", [0, 0])), (int8(3), encoded("k", [0])), (int8(4), encoded("j", [0])))
    expect(talk(path, "join_columns", constant, given)[0], ["k1", "k2", "k3", "j4"], "join_columns with constants")
    for values, indexes in [("ab", [0, 1]), ("a", [0, None])]:
        _, last = talk(path, "join_columns", constant, batches(constant, (int8(1, 2), encoded(values, indexes))))
        expect(last.get("error", {}).get("kind"), "protocol_violation", f"a dictionary of {values} with {indexes}")
    expect(talk(path, "double_in_place", numbers, batches(numbers, (int8(1, 2),), (int8(3),)))[0], [2, 4, 6], "double_in_place")
    given = batches(numbers, (int8(1, 13, 3, 4),))
    expect(talk(path, "double_in_place", numbers, given, {"transship.row_errors": "again"})[0], [2, None, 6, 8], "double_in_place with errors of rows")
    pairs = pa.schema([("x", pa.int64()), ("y", pa.int64())])
    given = batches(pairs, (int8(1, 13, 3), int8(1, 1, 1)))
    expect(talk(path, "add_arrow", pairs, given, {"transship.row_errors": "again"})[0], [2, None, 4], "add_arrow with errors of rows")
    _, last = talk(path, "add_arrow", pairs, given, {"transship.row_errors": "no"})
    expect(last.get("error", {}).get("kind"), "protocol_violation", "an unrecognized mode of errors")


def judge_parts(path):
    """Large results go out in parts of about 1 MiB."""
    wide = "x" * 400_000
    calls = [
        ("spell", pa.schema([("n", pa.int32()), ("t", pa.string())]), [pa.array([7], pa.int32()), text(wide)]),
        ("join_rows", pa.schema([("x", pa.int64()), ("t", pa.string())]), [int8(*range(7)), text(*[wide] * 7)]),
    ]
    with flight.connect(f"grpc+unix://{path}", generic_options=[("grpc.default_authority", "localhost")]) as client:
        for name, schema, columns in calls:
            writer, reader = client.do_exchange(flight.FlightDescriptor.for_path(name), flight.FlightCallOptions(timeout=60))
            with writer:
                writer.begin(schema)
                writer.write_with_metadata(pa.RecordBatch.from_arrays(columns, schema=schema), b'{"batch": 0}')
                writer.done_writing()
                sizes = [chunk.data.num_rows for chunk in reader if chunk.data is not None]
            expect((sum(sizes), max(sizes) <= 3), (7, True), f"{name} in parts of {sizes}")


def judge_early_error(path):
    """The error of a map function does not wait for rows that a thread of its handler waits for."""
    numbers = pa.schema([("x", pa.int64())])
    with flight.connect(f"grpc+unix://{path}", generic_options=[("grpc.default_authority", "localhost")]) as client:
        writer, reader = client.do_exchange(flight.FlightDescriptor.for_path("fails_early"), flight.FlightCallOptions(timeout=60))
        last = {}
        with told(last):
            writer.begin(numbers)
            # On a busy machine, the error may be faster than the batch.
            writer.write_with_metadata(pa.RecordBatch.from_arrays([int8(1)], schema=numbers), b'{"batch": 0}')
            last.update(json.loads(reader.read_chunk().app_metadata.to_pybytes()))
        expect("13 is bad" in last["error"]["message"], True, f"fails_early: {last}")
        with told(last):
            writer.close()


def judge_lockstep(path):
    """Results do not wait for rows that come later, on whichever thread the handler takes these."""
    numbers = pa.schema([("x", pa.int64())])
    with flight.connect(f"grpc+unix://{path}", generic_options=[("grpc.default_authority", "localhost")]) as client:
        for name in ("fail_at", "pumped"):
            writer, reader = client.do_exchange(flight.FlightDescriptor.for_path(name), flight.FlightCallOptions(timeout=60))
            writer.begin(numbers)
            for value in range(3):
                batch = pa.RecordBatch.from_arrays([int8(value)], schema=numbers)
                writer.write_with_metadata(batch, json.dumps({"batch": value}).encode())
                expect(reader.read_chunk().data.column(0).to_pylist(), [value], f"{name} in lockstep")
            writer.done_writing()
            expect(list(reader), [], f"the end of {name}")
            writer.close()


def judge_cancelled_stream(path, peer):
    """A map function that gives results for ever ends once its client has gone."""

    def progress():
        status, body = peer.post("calls_ended", json.dumps({"batch": 0, "rows": 1, "columns": []}), "application/json")
        return status, json.loads(body)["columns"]

    numbers = pa.schema([("x", pa.int64())])
    with flight.connect(f"grpc+unix://{path}", generic_options=[("grpc.default_authority", "localhost")]) as client:
        writer, reader = client.do_exchange(flight.FlightDescriptor.for_path("endless"))
        writer.begin(numbers)
        writer.write_batch(pa.RecordBatch.from_arrays([int8(1)], schema=numbers))
        for _ in range(3):
            reader.read_chunk()
        reader.cancel()
        with contextlib.suppress(flight.FlightError, pa.ArrowException):
            writer.close()
    for _ in range(60):
        progress()
        time.sleep(0.5)
        if progress() == (200, [[0]]):
            return
    sys.exit("an endless stream goes on after its client has gone")


def judge_lost_stream(path, peer):
    """A map function that asks for rows again after an exception comes to their end once its client has gone."""

    def progress():
        status, body = peer.post("calls_ended", json.dumps({"batch": 0, "rows": 1, "columns": []}), "application/json")
        return status, json.loads(body)["columns"]

    def waits_for(value):
        for _ in range(100):
            if progress() == (200, [[value]]):
                return
            time.sleep(0.1)
        sys.exit(f"a handler that asks again does not come to {value}")

    numbers = pa.schema([("x", pa.int64())])
    with flight.connect(f"grpc+unix://{path}", generic_options=[("grpc.default_authority", "localhost")]) as client:
        writer, reader = client.do_exchange(flight.FlightDescriptor.for_path("stubborn"))
        writer.begin(numbers)
        writer.write_batch(pa.RecordBatch.from_arrays([int8(7)], schema=numbers))
        waits_for(7)
        reader.cancel()
        with contextlib.suppress(flight.FlightError, pa.ArrowException):
            writer.close()
    waits_for(1000)


def judge_connections(peer):
    """Java's server of HTTP bounds its connections; Go has a test of its own for that."""
    status, body = peer.post("connections", json.dumps({"batch": 0, "rows": 1, "columns": []}), "application/json")
    expect((status, json.loads(body).get("columns")), (200, [[""]]), f"the server's connections: {body}")


def listens(path):
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(path) == 0


def main(image):
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory(dir="/dev/shm") as segments:
        os.chmod(folder, 0o777)
        os.chmod(segments, 0o755)
        volumes = [f"--volume={folder}:/run/transship", f"--volume={segments}:/run/segments"]
        variables = ["--env=TRANSSHIP_SOCKET_DIR=/run/transship", "--env=TRANSSHIP_SEGMENT_DIR=/run/segments"]
        words = ["docker", "run", "--detach", "--memory=1g", *LOCKS, *volumes, *variables, image]
        container = subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
        try:
            deadline = time.monotonic() + 60
            while not all(listens(f"{folder}/{name}.sock") for name in ("http", "flight")):
                if time.monotonic() > deadline:
                    sys.exit(f"{image} does not listen")
                time.sleep(0.1)
            judge(image, folder, segments)
        finally:
            subprocess.run(["docker", "rm", "--force", container], check=True, capture_output=True)


def judge(image, folder, segments):
    random.seed(1)
    peer = Peer(image, f"{folder}/http.sock", segments)
    for has_segments in (False, True):
        server = Server(peer, has_segments)
        judge_constants(server)
        judge_references(server)
        judge_changes(server)
        judge_row_errors(server)
        judge_waiting(server)
    status, body = peer.post("join_rows", json.dumps({"batch": 0, "rows": 1, "columns": [[1], ["a"]]}), "application/json")
    expect((status, json.loads(body)["error"]["kind"]), (400, "protocol_violation"), "a map function as JSON")
    status, body = peer.post("double_in_place", json.dumps({"batch": 0, "rows": 2, "columns": [[1, 2]]}), "application/json")
    expect((status, json.loads(body)["columns"]), (200, [[2, 4]]), "double_in_place as JSON")
    judge_flight(f"{folder}/flight.sock")
    judge_parts(f"{folder}/flight.sock")
    judge_lockstep(f"{folder}/flight.sock")
    judge_early_error(f"{folder}/flight.sock")
    judge_cancelled_stream(f"{folder}/flight.sock", peer)
    judge_lost_stream(f"{folder}/flight.sock", peer)
    if "java" in image:
        judge_connections(peer)
    print(f"{image} answered as it should")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        judge(*sys.argv[1:])
    else:
        main(sys.argv[1])
