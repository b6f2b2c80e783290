"""The Flight form of docs/protocol.md: handshake, discovery and exchange."""

import json

import pyarrow as pa
import pyarrow.flight as flight

from . import __version__
from .errors import CallError
from .function import Cancelled

# A batch may hold a value as large as PostgreSQL's largest.
_MAX_MESSAGE_BYTES = 1 << 30


class Server(flight.FlightServerBase):
    """Answers Flight on one location for the given functions."""

    def __init__(self, location, functions):
        super().__init__(location)
        self._functions = functions

    def do_action(self, context, action):
        if action.type == "transship.hello":
            yield json.dumps(greeting(self._functions)).encode()
        elif action.type == "protocol_version":
            yield b"\x02"
        else:
            raise NotImplementedError(f"unrecognized action {action.type}")

    def list_actions(self, context):
        return [("transship.hello", "Who answers."), ("protocol_version", "The arrow-udf version.")]

    def get_flight_info(self, context, descriptor):
        return self._info(descriptor, self._find(descriptor))

    def list_flights(self, context, criteria):
        for name, function in self._functions.items():
            yield self._info(flight.FlightDescriptor.for_path(name), function)

    def do_exchange(self, context, descriptor, reader, writer):
        function = self._functions.get(_name_of(descriptor))
        # An unknown function is answered like a failing one, once its first batch is read: a status would look like an
        # exception of the handler's.
        result_schema = function.result_schema if function else pa.schema([pa.field("unknown", pa.null())])
        writer.begin(result_schema)
        number = 0
        while not context.is_cancelled():
            try:
                chunk = reader.read_chunk()
            except StopIteration:
                return
            metadata = json.loads(chunk.app_metadata.to_pybytes()) if chunk.app_metadata else {}
            number = metadata.get("batch", number)
            try:
                if function is None:
                    raise CallError("function_not_found", f'there is no function "{_name_of(descriptor)}"')
                column = function.call(chunk.data, context.is_cancelled)
            except Cancelled:
                return
            except CallError as error:
                writer.write_metadata(json.dumps({"batch": number, "error": error.to_wire()}).encode())
                return
            batch = pa.RecordBatch.from_arrays([column], schema=result_schema)
            writer.write_with_metadata(batch, json.dumps({"batch": number}).encode())
            number += 1

    def _find(self, descriptor):
        function = self._functions.get(_name_of(descriptor))
        if function is None:
            # Arrow maps KeyError to NOT_FOUND.
            raise KeyError(f'there is no function "{_name_of(descriptor)}"')
        return function

    def _info(self, descriptor, function):
        return flight.FlightInfo(function.schema, descriptor, [], len(function.arguments), 0)


def _name_of(descriptor):
    return descriptor.path[0].decode(errors="replace") if descriptor.path else ""


def greeting(functions):
    """docs/protocol.md §2."""
    return {"protocol": 1, "server": f"transship-python/{__version__}", "functions": list(functions)}
