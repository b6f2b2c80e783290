"""The Flight form of docs/protocol.md: handshake, discovery and exchange.

RisingWave's and Databend's clients call the same functions (docs/dialects.md). They send no metadata with their batches, and
know errors only as statuses.
"""

import contextlib
import json
import os
import threading
import time

import pyarrow as pa
import pyarrow.flight as flight

from . import __version__, databend, lines, offers, types
from .aggregate_function import AggregateFunction
from .errors import CallError
from .function import Cancelled
from .map_function import MapFunction

# A batch may hold a value as large as PostgreSQL's largest.
_MAX_MESSAGE_BYTES = 1 << 30

# Bytes of an error that a status has beside its metadata: a status is a header, and they are bounded.
_MOST_IN_STATUS = 1000


class Server(flight.FlightServerBase):
    """Answers Flight on one location for the given functions."""

    def __init__(self, location, functions):
        middleware = {databend.NAME: databend.Headers(), lines.FIELD: _LinesWanted(), offers.FIELD: _OfferNamed()}
        super().__init__(location, middleware=middleware)
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
        function = self._find(descriptor)
        if context.get_middleware(databend.NAME):
            return self._info(descriptor, function, databend.schema(function))
        return self._info(descriptor, function, function.schema)

    def list_flights(self, context, criteria):
        for name, function in self._functions.items():
            yield self._info(flight.FlightDescriptor.for_path(name), function, function.schema)

    def do_exchange(self, context, descriptor, reader, writer):
        offer = getattr(context.get_middleware(offers.FIELD), "name", None)
        with offers.named(offer), lines.collecting(context.get_middleware(lines.FIELD) is not None) as found:
            self._exchange(context, descriptor, reader, writer, found)

    def _exchange(self, context, descriptor, reader, writer, found):
        function = self._functions.get(_name_of(descriptor))
        # An unknown function is answered like a failing one, once its first batch is read: a status would look like an
        # exception of the handler's.
        arguments_schema = reader.schema
        is_databend = context.get_middleware(databend.NAME) is not None or databend.is_variant(arguments_schema)
        is_databend = function is not None and is_databend
        layout = types.layout_of(arguments_schema)
        if function is not None and (wanted := (arguments_schema.metadata or {}).get(b"transship.row_errors")):
            function = function.with_row_errors(wanted.decode(errors="replace"))
        reply_schema = function.reply_schema if function else pa.schema([pa.field("unknown", pa.null())])
        reply_schema = databend.reply_schema(function) if is_databend else reply_schema
        writer.begin(types.laid_out_schema(reply_schema, layout))
        calls = _Calls(reader, context.is_cancelled)
        try:
            if isinstance(function, MapFunction):
                offers.check()

                def give(part):
                    writer.write_with_metadata(types.lay_out(part, layout), b"{}")

                # Closed before the exchange ends: nothing may be written to a stream that is gone.
                with contextlib.closing(function.run((batch for batch, _ in calls), context.is_cancelled, give)) as parts:
                    for part in parts:
                        give(part)
                # What the handler did not want is read, so that the client sees its batches taken.
                calls.end()
                for _ in reader:
                    pass
                return
            groups = function.groups() if isinstance(function, AggregateFunction) else None
            for batch, metadata in calls:
                if context.is_cancelled():
                    return
                if function is None:
                    raise CallError("function_not_found", f'there is no function "{_name_of(descriptor)}"')
                if calls.count == 1:
                    offers.check()
                start = time.perf_counter_ns()
                if is_databend:
                    batch = _databend_arguments(function, batch)
                if groups is not None:
                    parts = iter([groups.answer(batch, metadata.get("step"), context.is_cancelled)])
                else:
                    parts = function.answer(batch, context.is_cancelled)
                part = next(parts, None)
                if part is None:
                    part = pa.RecordBatch.from_pylist([], schema=function.reply_schema)
                while part is not None:
                    following = next(parts, None)
                    metadata = {"batch": calls.number, "micros": (time.perf_counter_ns() - start) // 1000}
                    if following is not None:
                        metadata["more"] = True
                    if is_databend:
                        part = databend.reply(function, part)
                    metadata |= _written(found)
                    writer.write_with_metadata(types.lay_out(part, layout), json.dumps(metadata).encode())
                    start = time.perf_counter_ns()
                    part = following
            if function is None and calls.count == 0:
                raise self._unknown(descriptor)
        except Cancelled:
            return
        except CallError as error:
            # A thread of a map function's handler may wait for a client that waits for this.
            if not calls.are_foreign or isinstance(function, MapFunction):
                metadata = {"batch": calls.number, "error": error.to_wire()} | _written(found)
                writer.write_metadata(json.dumps(metadata).encode())
                error = CallError(error.kind, error.message.encode(errors="replace")[:_MOST_IN_STATUS].decode(errors="ignore"))
            # Arrow's C++ clients drop replies that they have not read yet once they cannot send, but not the status.
            raise _status_of(error) from None
        finally:
            calls.end()

    def _find(self, descriptor):
        function = self._functions.get(_name_of(descriptor))
        if function is None:
            raise self._unknown(descriptor)
        return function

    def _unknown(self, descriptor):
        # Arrow maps KeyError to NOT_FOUND.
        return KeyError(f'there is no function "{_name_of(descriptor)}"')

    def _info(self, descriptor, function, schema):
        count = len(function.arguments)
        return flight.FlightInfo(databend.with_input_count(schema, count), descriptor, [], count, 0)


class _LinesWanted(flight.ServerMiddlewareFactory):
    """Marks the calls whose clients ask for lines that the handler writes."""

    def start_call(self, info, headers):
        wanted = any(name.lower() == lines.FIELD and lines.WANTED in values for name, values in headers.items())
        return flight.ServerMiddleware() if wanted else None


class _OfferNamed(flight.ServerMiddlewareFactory):
    """Notes the name of the offer of the calls that have one."""

    def start_call(self, info, headers):
        names = [value for name, values in headers.items() if name.lower() == offers.FIELD for value in values]
        return _Offer(names[0]) if names else None


class _Offer(flight.ServerMiddleware):
    def __init__(self, name):
        self.name = name


def _written(found):
    texts = found.take() if found is not None else []
    return {"lines": texts} if texts else {}


class _Calls:
    """The batches of an exchange with their metadata; number is the last one's. Foreign ones have no metadata.

    A handler may take them on a thread of its own, which gets no more once the exchange has ended.
    """

    def __init__(self, reader, is_cancelled):
        self._reader, self._is_cancelled = reader, is_cancelled
        self._reading = threading.Lock()
        self._next = 0
        self._is_ended = False
        self.number = 0
        self.count = 0
        self.are_foreign = False

    def __iter__(self):
        return self

    def __next__(self):
        with self._reading:
            if self._is_ended:
                raise StopIteration
            try:
                chunk = self._reader.read_chunk()
            except StopIteration:
                # Arrow ends a stream in the same way if its client has gone, or has cancelled it.
                if self._is_cancelled():
                    raise Cancelled from None
                raise
            self.count += 1
            self.are_foreign = not chunk.app_metadata
            metadata = {} if self.are_foreign else json.loads(chunk.app_metadata.to_pybytes())
            self.number = metadata.get("batch", self._next)
            self._next = self.number + 1
            try:
                types.validate(chunk.data)
            except pa.ArrowInvalid as cause:
                raise CallError("protocol_violation", f"the batch cannot be read: {cause}") from None
            return chunk.data, metadata

    def end(self):
        """Keeps the handler's threads from reading a stream that is gone; one that waits for the client is waited for."""
        self._is_ended = True
        with self._reading:
            pass


def _databend_arguments(function, batch):
    try:
        return databend.arguments(function, batch)
    except (ValueError, TypeError, OverflowError, pa.ArrowException) as cause:
        raise CallError("protocol_violation", f"the arguments of {function.name} cannot be read: {cause}") from None


def _status_of(error):
    """The error as arrow-udf's servers give it."""
    place = "" if error.row is None else f" (row {error.row + 1} of the batch)"
    message = f"{error.message}{place}" + (f"\n{error.trace}" if error.trace else "")
    kinds = {"function_not_found": KeyError, "protocol_violation": ValueError}
    return kinds.get(error.kind, flight.FlightServerError)(message)


def _name_of(descriptor):
    return descriptor.path[0].decode(errors="replace") if descriptor.path else ""


def greeting(functions):
    """docs/protocol.md §2."""
    transports = ["flight", "json", "socket"] + (["shm", "parquet"] if os.environ.get("TRANSSHIP_SEGMENT_DIR") else [])
    server = f"transship-python/{__version__}"
    answer = {"protocol": 1, "server": server, "functions": list(functions), "transports": transports}
    answer |= {"constants": True, "keep_alive": True, "row_errors": True, "lines": True}
    return answer | {"tables": offers.are_taken()}
