"""A server written from docs/protocol.md alone, each clause of which it can be told to break.

It has the functions of docs/conformance.md that take part in a clause. A fault is a name; FAULTS in faults.py lists them.
"""

import base64
import contextlib
import decimal
import http.server
import json
import math
import select
import struct
import sys
import threading
import time
import traceback
import urllib.parse

import pyarrow as pa
import pyarrow.flight as flight

COLUMNS = "application/vnd.transship.columns"
# What a field's metadata says of types beyond Arrow's.
EXTENSIONS = {"numeric": {"ARROW:extension:name": "arrowudf.decimal"}}


def decimals(text, list_of):
    """(a numeric, b numeric[]), whose decimals are such texts in such lists."""
    part = lambda name: pa.field(name, text, metadata=EXTENSIONS["numeric"])
    return pa.struct([part("a"), pa.field("b", list_of(part("item")))])


ARROW = {
    "int4": pa.int32(),
    "int8": pa.int64(),
    "float8": pa.float64(),
    "text": pa.string(),
    "numeric": pa.string(),
    "bytea": pa.binary(),
    "int4[]": pa.list_(pa.field("item", pa.int32())),
    "(a int4, b text)": pa.struct([("a", pa.int32()), ("b", pa.string())]),
    "(a numeric, b numeric[])": decimals(pa.string(), pa.list_),
}
FIXED = {"int4": ("i", 4), "int8": ("q", 8), "float8": ("d", 8)}
ATTRIBUTES = {
    "(a int4, b text)": {"a": "int4", "b": "text"},
    "(a numeric, b numeric[])": {"a": "numeric", "b": "numeric[]"},
}
ECHOES = {name: name.removeprefix("echo_") for name in ("echo_int4", "echo_float8", "echo_text", "echo_numeric", "echo_bytea")}
ECHOES |= {"echo_array": "int4[]", "echo_composite": "(a int4, b text)", "echo_decimals": "(a numeric, b numeric[])"}
# name: kind, arguments, result
FUNCTIONS = {name: ("scalar", [ty], ty) for name, ty in ECHOES.items()} | {
    "constant": ("scalar", [], "int4"),
    "add": ("scalar", ["int8", "int8"], "int8"),
    "fail_at": ("scalar", ["int8"], "int8"),
    "label": ("scalar", ["text"], "text"),
    "write_line": ("scalar", ["text"], "text"),
    "wait": ("scalar", ["float8"], "float8"),
    "rows_waited": ("scalar", [], "int8"),
    "repeat": ("table", ["int4"], "int4"),
    "running_sum": ("map", ["int8"], "int8"),
    "total": ("aggregate", ["int8"], "int8"),
}
STATUS = {"function_not_found": 404, "protocol_violation": 400}


class Failure(Exception):
    """An error of §5. check names what was checked, if that can be left out as a fault."""

    def __init__(self, kind, message, row=None, trace=None, check=None):
        super().__init__(message)
        self.kind, self.check = kind, check
        self.wire = {"kind": kind, "message": message}
        if row is not None:
            self.wire["row"] = row
        if trace is not None:
            self.wire["traceback"] = trace


class Cancelled(Exception):
    """The client has gone."""


def violation(message, check):
    return Failure("protocol_violation", message, check=check)


# Layouts that a client may have (§4.1), and the one that stands for them.
LAYOUTS = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.large_list(pa.field("item", pa.int32())): pa.list_(pa.field("item", pa.int32())),
    decimals(pa.large_string(), pa.large_list): decimals(pa.string(), pa.list_),
    decimals(pa.string_view(), pa.list_): decimals(pa.string(), pa.list_),
}


def field(name, ty, arrow=None):
    return pa.field(name, arrow or ARROW[ty], metadata=EXTENSIONS.get(ty))


def call_types(name):
    kind, arguments, _ = FUNCTIONS[name]
    return ["int8", *arguments, "bytea"] if kind == "aggregate" else arguments


def reply_types(name):
    kind, _, result = FUNCTIONS[name]
    return {"table": ["int4", result], "aggregate": [result, "bytea"]}.get(kind, [result])


class Functions:
    """The handlers, and what they remember."""

    def __init__(self, fault):
        self.fault = fault
        self.waited = 0
        self.is_dead = False
        self.shared_groups = {}
        # What each thread has written for the batch that it answers (§4.11), and what all have.
        self.lines, self.all_lines = threading.local(), []

    def take_lines(self):
        """The lines of the batch that this thread has answered."""
        lines, self.lines.written = getattr(self.lines, "written", []), []
        if self.has("lines lost"):
            return []
        return list(self.all_lines) if self.has("lines of others") else lines

    def has(self, fault):
        return self.fault == fault

    def greeting(self, transports):
        protocol = 2 if self.has("newer protocol") else 1
        server = "" if self.has("no name") else "faults/1"
        names = [name for name in FUNCTIONS if FUNCTIONS[name][0] != "map" or "flight" in transports]
        greeting = {"protocol": protocol, "server": server, "functions": names, "transports": transports}
        return greeting | {"constants": True, "lines": True}

    def scalar(self, name, columns, rows, is_cancelled):
        """One result per row."""
        if self.is_dead:
            raise Failure("user_code", "the server is dead")
        results = []
        for row in range(rows):
            if is_cancelled() and not self.has("no stop"):
                raise Cancelled
            try:
                results.append(self.value(name, [column[row] for column in columns]))
            except ValueError as error:
                trace = None if self.has("no traceback") else traceback.format_exc()
                kind = "bad_result" if self.has("wrong kind") else "user_code"
                message = "an error" if self.has("no text") else f"ValueError: {error}"
                raise Failure(kind, message, None if self.has("no row") else row, trace) from None
        if is_cancelled() and self.has("dies of cancelling"):
            self.is_dead = True
        if self.has("rows reversed") and name == "add":
            results.reverse()
        if self.has("one result for no arguments") and name == "constant":
            results = results[:1]
        return results

    def value(self, name, arguments):
        if name == "constant":
            return 7
        if name == "rows_waited":
            return self.waited
        first = arguments[0]
        if name == "write_line":
            self.lines.written = [*getattr(self.lines, "written", []), first]
            self.all_lines.append(first)
        if name == "wait":
            self.waited += 1
            time.sleep(first)
        if name == "add":
            return None if None in arguments else sum(arguments)
        if name == "fail_at" and first == 13 and not self.has("no exception"):
            raise ValueError("13 is bad")
        if self.has("NULL lost") and name == "echo_int4" and first is None:
            return 0
        if self.has("NULL elements lost") and name == "echo_array" and first:
            return [element or 0 for element in first]
        if self.has("attributes lost") and name == "echo_composite" and first:
            return first | {"b": None}
        if self.has("long values cut") and name in ("echo_text", "echo_bytea") and first:
            return first[:65535]
        if self.has("decimals with exponents") and name == "echo_numeric" and first:
            return str(decimal.Decimal(first))
        if self.has("not a number lost") and name == "echo_float8" and first != first:
            return None
        return first

    def table(self, columns, rows):
        """Row numbers and results."""
        pairs = [(row, value + 1) for row in range(rows) for value in range(columns[0][row] or 0)]
        if self.has("results of row 0"):
            pairs = [(0, value) for _, value in pairs]
        return [row for row, _ in pairs], [value for _, value in pairs]

    def aggregate(self, groups, step, columns, rows):
        """The columns of the reply to one step (§4.7)."""
        if self.has("groups outlive exchanges"):
            groups = self.shared_groups
        numbers, values, states = columns
        results = []
        for row in range(rows):
            number = numbers[row]
            if step == "forget":
                if not self.has("forget ignored"):
                    groups.pop(number, None)
                continue
            groups.setdefault(number, 0)
            if step == "accumulate":
                groups[number] += values[row] or 0
            elif step == "merge":
                groups[number] = int(states[row]) + (0 if self.has("merge replaces") else groups[number])
            elif step == "finish":
                results.append((groups[number], None))
                if self.has("finish resets"):
                    groups[number] = 0
            elif step == "state":
                results.append((None, str(groups[number]).encode()))
            else:
                raise violation(f"there is no step {step}", "unknown step")
        return [result for result, _ in results], [state for _, state in results]


class LinesWanted(flight.ServerMiddlewareFactory):
    """Marks calls that ask for lines (§4.11)."""

    def start_call(self, info, headers):
        return flight.ServerMiddleware() if "yes" in headers.get("transship-lines", []) else None


class FlightServer(flight.FlightServerBase):
    """§2 to §5."""

    def __init__(self, fault):
        super().__init__("grpc://127.0.0.1:0", middleware={"lines": LinesWanted()})
        self.functions = Functions(fault)
        self.open = threading.Lock()

    def do_action(self, context, action):
        has = self.functions.has
        if action.type == "transship.hello":
            yield json.dumps(self.functions.greeting(["flight"])).encode()
        elif action.type == "protocol_version" and not has("no protocol_version"):
            yield b"\x01" if has("old protocol_version") else b"\x02"
        else:
            raise NotImplementedError(action.type)

    def get_flight_info(self, context, descriptor):
        has, name = self.functions.has, descriptor.path[0].decode()
        if has("a function undescribed") and name == "add":
            raise flight.FlightServerError("it is secret")
        if name not in FUNCTIONS:
            if has("the unknown described"):
                return self.describe("echo_int4")
            raise KeyError(name)
        return self.describe(name)

    def list_flights(self, context, criteria):
        if not self.functions.has("nothing listed"):
            for name in list(FUNCTIONS)[1 if self.functions.has("one function unlisted") else 0 :]:
                yield self.describe(name)

    def describe(self, name):
        has, (kind, arguments, result) = self.functions.has, FUNCTIONS[name]
        fields = [field(f"arg{number}", ty) for number, ty in enumerate(arguments)]
        if kind == "table" and not has("no row"):
            fields.append(pa.field("row", pa.int32()))
        fields.append(field("result", result))
        metadata = {"transship.kind": kind} if kind in ("map", "aggregate") and not has(f"no kind of a {kind} function") else None
        descriptor = flight.FlightDescriptor.for_path(name)
        endpoints = [flight.FlightEndpoint(b"x", ["grpc://127.0.0.1:1"])] if has("endpoints described") else []
        count = -1 if has("arguments uncounted") else len(arguments)
        return flight.FlightInfo(pa.schema(fields, metadata=metadata), descriptor, endpoints, count, 0)

    def do_exchange(self, context, descriptor, reader, writer):
        has = self.functions.has
        if not has("one exchange at a time"):
            return self.exchange(context, descriptor, reader, writer)
        if not self.open.acquire(blocking=False):
            raise flight.FlightServerError("busy")
        try:
            time.sleep(1)
            return self.exchange(context, descriptor, reader, writer)
        finally:
            self.open.release()

    def exchange(self, context, descriptor, reader, writer):
        has, name = self.functions.has, descriptor.path[0].decode()
        if has("the unknown called"):
            name = name if name in FUNCTIONS else "echo_int4"
        kind, _, result = FUNCTIONS.get(name, ("scalar", [], "int4"))
        names = {"table": ["row", "result"], "aggregate": ["result", "state"]}.get(kind, ["result"])
        # There is no right type for what is unknown.
        types = [ARROW[ty] for ty in reply_types(name)] if name in FUNCTIONS else [pa.null()]
        if has("another type given") and name == "add":
            types = [pa.int32()]
        laid_out = {}
        for ty in reader.schema.types:
            is_taken = not has("views refused" if "view" in str(ty) else "large offsets refused")
            if ty in LAYOUTS and is_taken and not has("another layout given"):
                laid_out[LAYOUTS[ty]] = ty
        types = [laid_out.get(ty, ty) for ty in types]
        kinds = reply_types(name) if name in FUNCTIONS else [None]
        writer.begin(pa.schema([field(*words) for words in zip(names, kinds, types)]))
        groups, sum_so_far, expected = {}, 0, 0
        count = 0
        with contextlib.suppress(StopIteration, Cancelled):
            while True:
                try:
                    chunk = reader.read_chunk()
                except StopIteration:
                    if name not in FUNCTIONS and count == 0 and not has("the unknown without batches"):
                        raise KeyError(name) from None
                    raise
                count += 1
                metadata = json.loads(chunk.app_metadata.to_pybytes()) if chunk.app_metadata else {"batch": expected}
                number, expected = metadata["batch"], metadata["batch"] + 1
                columns = [column.to_pylist() for column in (chunk.data.columns if chunk.data.num_columns else [])]
                rows = chunk.data.num_rows
                try:
                    if name not in FUNCTIONS:
                        raise Failure("function_not_found", f"there is no {name}")
                    found = [column.type for column in chunk.data.columns]
                    takes = lambda ty: not has("views refused" if "view" in str(ty) else "large offsets refused")
                    for position, ty in enumerate(found):
                        if isinstance(ty, pa.DictionaryType) and ty.index_type == pa.int8():
                            # A constant (§4.10).
                            found[position] = ty.value_type
                            if has("constants in the first row"):
                                columns[position][1:] = [None] * (rows - 1)
                    found = [LAYOUTS.get(ty, ty) if takes(ty) else ty for ty in found]
                    if found != [ARROW[ty] for ty in call_types(name)] and not has("other types taken"):
                        raise violation("the arguments have other types", "types")
                    if kind == "map":
                        if has("sums start again"):
                            sum_so_far = 0
                        sums = [sum_so_far := sum_so_far + (value or 0) for value in columns[0]]
                        writer.write_batch(pa.RecordBatch.from_arrays([pa.array(sums, pa.int64())], ["result"]))
                        continue
                    replies = list(self.replies(name, kind, metadata, columns, rows, groups, context))
                except Failure as failure:
                    wire = json.dumps({"batch": number + (1 if has("another batch blamed") else 0), "error": failure.wire})
                    writer.write_metadata(wire.encode())
                    if has("going on after an error"):
                        continue
                    return
                for position, values in enumerate(replies):
                    arrays = [pa.array(column, ty) for column, ty in zip(values, types)]
                    reply = pa.RecordBatch.from_arrays(arrays, names)
                    meta = {"batch": number + (1 if has("other numbers") else 0), "micros": 1}
                    if position + 1 < len(replies) and not has("parts unmarked"):
                        meta["more"] = True
                    if (lines := self.functions.take_lines()) and context.get_middleware("lines"):
                        meta["lines"] = lines
                    writer.write_with_metadata(reply, json.dumps(meta).encode())

    def replies(self, name, kind, metadata, columns, rows, groups, context):
        if kind == "scalar":
            results = self.functions.scalar(name, columns, rows, context.is_cancelled)
            if self.functions.has("other types taken") and name == "echo_int4":
                results = [result if isinstance(result, int) else None for result in results]
            yield [results]
        elif kind == "table":
            numbers, values = self.functions.table(columns, rows)
            yield numbers[:2], values[:2]
            yield numbers[2:], values[2:]
        else:
            yield self.functions.aggregate(groups, metadata.get("step"), columns, rows)


class Token(decimal.Decimal):
    """A number with a point or an exponent, with all digits that it has in JSON."""


def read_json(ty, value, has):
    """A value as the table of types writes it."""
    try:
        if value is None or (ty == "int4" and has("other types taken")):
            return None
        if ty in ("int4", "int8"):
            if isinstance(value, str) and has("numbers as strings refused"):
                raise ValueError("a string is no number")
            if isinstance(value, Token) and has("integers rounded"):
                value = Token(float(value))
            if isinstance(value, (float, Token)) and (has("integral floats refused") or value != int(value)):
                raise ValueError("a float is no integer")
            return int(value)
        if ty == "float8":
            if isinstance(value, Token) and math.isinf(float(value)) and not has("infinity for large numbers"):
                raise ValueError("no double can hold it")
            return float(value)
        if ty == "bytea":
            text = value if has("white space in base64 refused") else "".join(value.split())
            return base64.b64decode(text, validate=True)
        if ty == "numeric" and isinstance(value, (int, float, Token)):
            if isinstance(value, Token):
                return str(value) if has("exponents kept") else f"{value:f}"
            if len(str(value)) > 309 and has("large decimals refused"):
                raise ValueError("no double can hold it")
            return str(value)
        if ty.endswith("[]"):
            return [read_json(ty.removesuffix("[]"), element, has) for element in value]
        if ty in ATTRIBUTES:
            return {name: read_json(part, value[name], has) for name, part in ATTRIBUTES[ty].items()}
        if not isinstance(value, str):
            raise ValueError("it is no text")
        return value
    except (ValueError, TypeError, KeyError) as cause:
        raise violation(f"{value!r} is no {ty}: {cause}", "values") from None


def write_json(ty, value):
    if value is None:
        return None
    if ty == "int8" and abs(value) > 2**53:
        return str(value)
    if ty == "float8" and (value != value or value in (float("inf"), float("-inf"))):
        return "NaN" if value != value else ("Infinity" if value > 0 else "-Infinity")
    return base64.b64encode(value).decode() if ty == "bytea" else value


class Buffers:
    """The buffers of a call (§7.1), one after the other."""

    def __init__(self, places, data):
        if not isinstance(places, list) or len(places) % 2 or any(not isinstance(place, int) or place < 0 for place in places):
            raise violation("buffers are not pairs of numbers", "header")
        self.data = data
        self.pairs = list(zip(places[::2], places[1::2]))

    def take(self):
        if not self.pairs:
            raise violation("a column has no buffer", "too few buffers")
        offset, length = self.pairs.pop(0)
        if offset + length >= 1 << 63:
            raise violation("a buffer ends nowhere", "uncountable buffers")
        if offset + length > len(self.data):
            raise violation("a buffer lies outside of the data", "buffers outside")
        if offset % 8:
            raise violation("a buffer begins between", "alignment")
        return self.data[offset : offset + length]


def read_column(ty, rows, buffers):
    validity = buffers.take()
    if validity and len(validity) * 8 < rows:
        raise violation("the validity is short", "short buffers")
    is_valid = lambda row: not validity or validity[row // 8] >> row % 8 & 1
    if ty in FIXED:
        code, size = FIXED[ty]
        values = buffers.take()
        if len(values) < rows * size:
            raise violation("there are too few values", "many rows" if rows > 1 << 32 else "short buffers")
        return [value if is_valid(row) else None for row, value in enumerate(struct.unpack_from(f"<{rows}{code}", values))]
    if ty in ATTRIBUTES:
        parts = {name: read_column(part, rows, buffers) for name, part in ATTRIBUTES[ty].items()}
        return [{name: part[row] for name, part in parts.items()} if is_valid(row) else None for row in range(rows)]
    offsets = buffers.take()
    if rows == 0 and not offsets:
        ends = (0,)
    elif len(offsets) < 4 * (rows + 1):
        raise violation("there are too few offsets", "short buffers")
    else:
        ends = struct.unpack_from(f"<{rows + 1}i", offsets)
    if ends[0] < 0 or any(end < start for start, end in zip(ends, ends[1:])):
        raise violation("offsets descend", "descending offsets")
    if ty.endswith("[]"):
        values = read_column(ty.removesuffix("[]"), ends[-1], buffers)
    else:
        values = buffers.take()
        if ends[-1] > len(values):
            raise violation("offsets point outside", "offsets outside")
    parts = [values[start:end] if is_valid(row) else None for row, (start, end) in enumerate(zip(ends, ends[1:]))]
    try:
        return [None if part is None else bytes(part).decode() for part in parts] if ty in ("text", "numeric") else parts
    except UnicodeDecodeError:
        raise violation("text is not UTF-8", "other text") from None


def write_column(ty, values):
    """The buffers of a column."""
    validity = b""
    if None in values:
        bits = bytearray((len(values) + 7) // 8)
        for row, value in enumerate(values):
            bits[row // 8] |= (value is not None) << row % 8
        validity = bytes(bits)
    if ty in FIXED:
        return [validity, struct.pack(f"<{len(values)}{FIXED[ty][0]}", *[0 if value is None else value for value in values])]
    if ty in ATTRIBUTES:
        parts = [(part, [None if value is None else value[name] for value in values]) for name, part in ATTRIBUTES[ty].items()]
        return [validity, *(buffer for part, column in parts for buffer in write_column(part, column))]
    parts = [value if value is not None else () for value in values]
    if ty in ("text", "numeric"):
        parts = [value.encode() if value else b"" for value in parts]
    ends = [0]
    for part in parts:
        ends.append(ends[-1] + len(part))
    offsets = struct.pack(f"<{len(ends)}i", *ends)
    if ty.endswith("[]"):
        return [validity, offsets, *write_column(ty.removesuffix("[]"), [element for part in parts for element in part])]
    return [validity, offsets, b"".join(bytes(part) for part in parts)]


def framed(header, buffers, aliases=None):
    """A body of §7. aliases are the places of buffers that lie in the call's data, by their numbers."""
    places, data, aliases = [], bytearray(), aliases or {}
    for number, buffer in enumerate(buffers):
        if number in aliases:
            places += aliases[number]
            continue
        data.extend(bytes(-len(data) % 64))
        places += [len(data), len(buffer)]
        data += buffer
    header = header | {"buffers": places} | ({"aliases": list(aliases)} if aliases else {})
    text = json.dumps(header).encode()
    return struct.pack("<I", len(text)) + text + bytes(-(4 + len(text)) % 8) + bytes(data)


def unframed(body):
    length = int.from_bytes(body[:4], "little")
    if len(body) < 4 + length:
        raise violation("the header is cut off", "header cut off")
    try:
        header = json.loads(body[4 : 4 + length])
    except ValueError:
        header = None
    if not isinstance(header, dict):
        raise violation("the header is no object", "header no object")
    if "segment" in header:
        outside = "outside" if "/" in header["segment"] else "missing"
        raise violation("there are no segments", f"segment {outside}")
    return header, body[4 + length + -(4 + length) % 8 :]


class HttpServer(http.server.ThreadingHTTPServer):
    """§6 and §7."""

    daemon_threads = True

    def __init__(self, fault, transports):
        super().__init__(("127.0.0.1", 0), Handler)
        self.transports = transports
        self.functions = Functions(fault)
        self.exchanges = {}
        self.open = threading.Lock()

    def handle_error(self, request, client_address):
        # Clients that lose interest are a part of the suite.
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body travel together, at once.
    wbufsize = 1 << 16
    disable_nagle_algorithm = True

    def setup(self):
        super().setup()
        # Those of the last request that brought some, by position.
        self.constants, self.constants_id = {}, None

    def log_message(self, *words):
        pass

    def answer(self, status, body, content_type="application/json"):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        if (lines := self.server.functions.take_lines()) and self.headers["transship-lines"] == "yes":
            self.send_header("transship-lines", base64.b64encode(json.dumps(lines).encode()).decode())
        self.end_headers()
        self.wfile.write(body)

    def fail(self, failure):
        self.answer(STATUS.get(failure.kind, 500), {"error": failure.wire})

    def name(self):
        prefix, path = "/v1/functions/", urllib.parse.unquote(self.path)
        name = path[len(prefix) :]
        if not path.startswith(prefix) or FUNCTIONS.get(name, ("map",))[0] == "map":
            raise Failure("function_not_found", f"there is nothing at {path}")
        return name

    def do_GET(self):
        has = self.server.functions.has
        if self.path == "/v1":
            return self.answer(200, self.server.functions.greeting(self.server.transports))
        try:
            name = self.name()
            if has("a function undescribed") and name == "add":
                raise Failure("function_not_found", "it is secret")
        except Failure as failure:
            if not has("the unknown described"):
                return self.fail(failure)
            name = "echo_int4"
        kind, arguments, result = FUNCTIONS[name]
        description = {"name": name, "arguments": [{"name": "", "type": ty} for ty in arguments], "returns": result}
        return self.answer(200, description if has(f"no kind of a {kind} function") else description | {"kind": kind})

    def do_DELETE(self):
        if not self.server.functions.has("DELETE ignored"):
            self.server.exchanges.pop(self.path.removeprefix("/v1/exchanges/"), None)
        self.answer(200, {})

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        has = self.server.functions.has
        busy = has("one exchange at a time") and self.path.endswith("/add")
        if busy and not self.server.open.acquire(blocking=False):
            return self.fail(Failure("user_code", "busy"))
        try:
            if busy:
                time.sleep(0.02)
            self.call(body)
        except Failure as failure:
            if failure.check is not None and has(f"unchecked: {failure.check}"):
                return self.answer(200, {"batch": 0, "rows": 0, "columns": [[]]})
            self.fail(failure)
        except Cancelled:
            self.close_connection = True
        finally:
            if busy:
                self.server.open.release()

    def is_cancelled(self):
        poll = select.poll()
        poll.register(self.connection, select.POLLRDHUP)
        return bool(poll.poll(0))

    def call(self, body):
        functions = self.server.functions
        try:
            name = self.name()
        except Failure:
            if not functions.has("the unknown called"):
                raise
            name = "echo_int4"
        kind, types = FUNCTIONS[name][0], call_types(name)
        is_framed = self.headers["Content-Type"] == COLUMNS
        if is_framed:
            header, data = unframed(body)
            buffers = Buffers(header.get("buffers"), data)
            columns = self.read_columns(types, header, buffers)
            if buffers.pairs:
                raise violation("there are further buffers", "too many buffers")
        else:
            header, columns = self.read_call(types, body)
        rows = header["rows"]
        if kind == "scalar":
            reply = [functions.scalar(name, columns, rows, self.is_cancelled)]
        elif kind == "table":
            reply = functions.table(columns, rows)
        else:
            reply = functions.aggregate(self.groups(name, header), header.get("step"), columns, rows)
        batch = header.get("batch", 0) + (1 if functions.has("other numbers") else 0)
        answer = {"batch": batch, "rows": len(reply[0]), "micros": 1}
        types = reply_types(name)
        if is_framed:
            buffers = [buffer for ty, column in zip(types, reply) for buffer in write_column(ty, column)]
            if name == "label" and (header.get("may_encode") or functions.has("texts encoded unasked")):
                buffers, count = self.encode(reply[0])
                answer["dictionaries"] = [0, count]
            aliases = {}
            if name == "echo_int4" and rows and (header.get("may_alias") or functions.has("aliases unasked")):
                offset, length = header["buffers"][2:4]
                aliases[1] = [offset + (8 if functions.has("aliases astray") else 0), length]
            return self.answer(200, framed(answer, buffers, aliases), COLUMNS)
        columns = [[write_json(ty, value) for value in column] for ty, column in zip(types, reply)]
        return self.answer(200, answer | {"columns": columns})

    def encode(self, texts):
        """The buffers of texts as a dictionary (§7.9), and its number of values."""
        values = list(dict.fromkeys(text for text in texts if text is not None))
        first = 1 if self.server.functions.has("indexes from 1") else 0
        validity, indexes = write_column("int4", [None if text is None else values.index(text) + first for text in texts])
        return [validity, indexes, *write_column("text", values)[1:]], len(values)

    def read_columns(self, types, header, buffers):
        """Those of a call, constants (§7.11) included."""
        has, rows = self.server.functions.has, header["rows"]
        constants = header.get("constants", [])
        if not set(constants) <= set(range(len(types))):
            raise violation("there are no such columns", "constants outside")
        is_same = header.get("same_constants", False) and not has("constants not kept")
        if is_same and self.constants.keys() != set(constants):
            raise violation("there are no such constants", "constants missing")
        if is_same and header.get("constants_id") != self.constants_id:
            raise violation("these constants are others", "constants by name")
        if constants and not is_same:
            self.constants, self.constants_id = {}, header.get("constants_id")
        columns = []
        for position, ty in enumerate(types):
            if position not in constants:
                columns.append(read_column(ty, rows, buffers))
                continue
            if not is_same:
                sent = not header.get("same_constants")
                self.constants[position] = read_column(ty, 1, buffers)[0] if sent else None
            value = self.constants[position]
            columns.append([value] + [None] * (rows - 1) if has("constants in the first row") else [value] * rows)
        return columns

    def read_call(self, types, body):
        has = self.server.functions.has
        try:
            call = json.loads(body, parse_float=float if has("decimals rounded") else Token)
        except ValueError:
            raise violation("it is no JSON", "JSON") from None
        if not isinstance(call, dict) or "rows" not in call or not isinstance(call.get("columns"), list):
            raise violation("it is no call", "call")
        if len(call["columns"]) != len(types):
            raise violation("it has other columns", "columns")
        rows, constants = call["rows"], call.get("constants", [])
        if any(len(column) != (1 if i in constants else rows) for i, column in enumerate(call["columns"])):
            raise violation("its columns have other lengths", "lengths")
        for position in constants:
            (value,) = call["columns"][position]
            first = has("constants in the first row")
            call["columns"][position] = [value] + [None] * (rows - 1) if first else [value] * rows
        return call, [[read_json(ty, value, has) for value in column] for ty, column in zip(types, call["columns"])]

    def groups(self, name, header):
        exchange = header.get("exchange")
        if header.get("batch") == 0:
            self.server.exchanges[exchange] = {}
        elif exchange not in self.server.exchanges:
            raise violation(f"there is no exchange {exchange}", "exchange")
        return self.server.exchanges[exchange]
