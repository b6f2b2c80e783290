"""A Flight server that breaks docs/protocol.md in one way per function: misbehaving.py SOCKET [TLS_PORT FOLDER]

Each function takes an int8 and promises an int8, but long_array, which promises a boolean[]. One behaves: token_length says how
long the caller's token is.
SOCKET.silent takes connections and says nothing. With FOLDER (server.pem, server.key, ca.pem) it listens on TLS_PORT as
well, over TLS, and asks clients for a certificate.
"""

import json
import pathlib
import socket
import sys
import threading

import pyarrow as pa
import pyarrow.flight as flight

_IN = pa.schema([pa.field("x", pa.int64())])
_OUT = pa.schema([pa.field("y", pa.int64())])
_ARRAYS = pa.schema([pa.field("y", pa.list_(pa.field("item", pa.bool_())))])


def too_many_rows(batch, number, writer):
    writer.begin(_OUT)
    column = pa.array([1] * (batch.num_rows + 1), pa.int64())
    writer.write_with_metadata(pa.record_batch([column], schema=_OUT), json.dumps({"batch": number}).encode())


def other_type(batch, number, writer):
    schema = pa.schema([pa.field("y", pa.utf8())])
    writer.begin(schema)
    column = pa.array(["1"] * batch.num_rows)
    writer.write_with_metadata(pa.record_batch([column], schema=schema), json.dumps({"batch": number}).encode())


def two_columns(batch, number, writer):
    schema = pa.schema([pa.field("y", pa.int64()), pa.field("z", pa.int64())])
    writer.begin(schema)
    column = batch.column(0)
    writer.write_with_metadata(pa.record_batch([column, column], schema=schema), json.dumps({"batch": number}).encode())


def other_batch(batch, number, writer):
    writer.begin(_OUT)
    writer.write_with_metadata(pa.record_batch(batch.columns, schema=_OUT), json.dumps({"batch": number + 1}).encode())


def no_answer(batch, number, writer):
    writer.begin(_OUT)


def bad_metadata(batch, number, writer):
    writer.begin(_OUT)
    writer.write_with_metadata(pa.record_batch(batch.columns, schema=_OUT), b"{")


def long_errors(batch, number, writer):
    schema = pa.schema([*_OUT, pa.field("error", pa.utf8())])
    writer.begin(schema)
    columns = [pa.nulls(batch.num_rows, pa.int64()), pa.array(["\0" * 20000] * batch.num_rows)]
    writer.write_with_metadata(pa.record_batch(columns, schema=schema), json.dumps({"batch": number}).encode())


def value_and_error(batch, number, writer):
    schema = pa.schema([*_OUT, pa.field("error", pa.utf8())])
    writer.begin(schema)
    columns = [batch.column(0), pa.array(["no"] * batch.num_rows)]
    writer.write_with_metadata(pa.record_batch(columns, schema=schema), json.dumps({"batch": number}).encode())


def long_array(batch, number, writer):
    """One element more than PostgreSQL can hold in an array, in 16 MB."""
    writer.begin(_ARRAYS)
    count = 2**30 // 8
    elements = pa.Array.from_buffers(pa.bool_(), count, [None, pa.py_buffer(bytes(count // 8))])
    offsets = pa.array([0] * batch.num_rows + [count], pa.int32())
    column = pa.ListArray.from_arrays(offsets, elements).cast(_ARRAYS.field(0).type)
    writer.write_with_metadata(pa.record_batch([column], schema=_ARRAYS), json.dumps({"batch": number}).encode())


def answer_token_length(reader, writer, token):
    """All batches of an exchange, whose one token came with its first."""
    writer.begin(_OUT)
    for chunk in reader:
        column = pa.array([len(token)] * chunk.data.num_rows, pa.int64())
        writer.write_with_metadata(pa.record_batch([column], schema=_OUT), chunk.app_metadata.to_pybytes())


FUNCTIONS = {
    function.__name__: function
    for function in (
        too_many_rows,
        other_type,
        two_columns,
        other_batch,
        no_answer,
        bad_metadata,
        long_errors,
        value_and_error,
        long_array,
    )
}


class Token(flight.ServerMiddleware):
    def __init__(self, token):
        self.token = token


class Tokens(flight.ServerMiddlewareFactory):
    def start_call(self, info, headers):
        scheme, _, token = (headers.get("authorization") or [""])[0].partition(" ")
        return Token(token if scheme == "Bearer" else "")


class Server(flight.FlightServerBase):
    def do_action(self, context, action):
        if action.type != "transship.hello":
            raise NotImplementedError
        names = ["token_length", *FUNCTIONS]
        yield json.dumps({"protocol": 1, "server": "misbehaving", "functions": names, "row_errors": True}).encode()

    def get_flight_info(self, context, descriptor):
        results = _ARRAYS if descriptor.path[0] == b"long_array" else _OUT
        return flight.FlightInfo(pa.schema([*_IN, *results]), descriptor, [], len(_IN), 0)

    def do_exchange(self, context, descriptor, reader, writer):
        name = descriptor.path[0].decode()
        if name == "token_length":
            return answer_token_length(reader, writer, context.get_middleware("token").token)
        chunk = reader.read_chunk()
        FUNCTIONS[name](chunk.data, json.loads(chunk.app_metadata.to_pybytes())["batch"], writer)


if __name__ == "__main__":
    silent = socket.socket(socket.AF_UNIX)
    silent.bind(f"{sys.argv[1]}.silent")
    silent.listen()
    if sys.argv[2:]:
        port, folder = sys.argv[2], pathlib.Path(sys.argv[3])
        secure = Server(
            f"grpc+tls://127.0.0.1:{port}",
            middleware={"token": Tokens()},
            tls_certificates=[((folder / "server.pem").read_bytes(), (folder / "server.key").read_bytes())],
            verify_client=True,
            root_certificates=(folder / "ca.pem").read_bytes(),
        )
        threading.Thread(target=secure.serve, daemon=True).start()
    Server(f"grpc+unix://{sys.argv[1]}", middleware={"token": Tokens()}).serve()
