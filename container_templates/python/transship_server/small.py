"""Small batches of plain values for row handlers, read and written without Arrow.

Making Arrow's arrays of a few values, and Python's values of these, takes longer than the values are worth. What is not plain,
or does not fit, is left to columns.py, which knows everything and words the errors.
"""

import json
import struct

_MOST_ROWS = 256
_READ_ALIGNMENT = 8
# Letters of the struct module, and bytes, of the types whose values are the same in Python.
_FORMATS = {"int2": ("h", 2), "int4": ("i", 4), "int8": ("q", 8), "float4": ("f", 4), "float8": ("d", 8)}
# The classes of their results; a float4 is rounded by Arrow.
_RESULTS = {"int2": int, "int4": int, "int8": int, "float8": float, "text": str, "bool": bool}
_PLAIN_MEMBERS = frozenset(["batch", "rows", "buffers", "may_alias", "may_encode"])


class Call:
    """A batch that was read: rows are tuples of the handler's values."""

    __slots__ = ("number", "count", "rows")

    def __init__(self, number, count, rows):
        self.number, self.count, self.rows = number, count, rows


class Codec:
    """Reads calls of a function, and writes its replies (docs/protocol.md §7)."""

    def __init__(self, arguments, result):
        self._arguments, self._result = arguments, result
        # A client sends the same header again and again.
        self._header = None

    @staticmethod
    def of(function):
        """The function's codec; None if it has none."""
        names, result = [entry.name for _, entry in function.arguments], function.result.name
        is_plain = all(name in _FORMATS or name in ("text", "bool") for name in names) and result in _RESULTS
        return Codec(names, result) if is_plain and names and (function.kind, function.form) == ("scalar", "row") else None

    def read(self, body):
        """The calls in the body of a request; None if they are not plain."""
        length = int.from_bytes(body[:4], "little")
        start = (4 + length + _READ_ALIGNMENT - 1) // _READ_ALIGNMENT * _READ_ALIGNMENT
        text = body[4 : 4 + length]
        # Looked at once: threads share it.
        header = self._header
        if header is None or header[0] != text:
            try:
                header = (text, *_read_header(text, self._arguments))
            except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, StopIteration):
                return None
            self._header = header
        _, number, count, places = header
        data = body[start:]
        columns = []
        for position, name in enumerate(self._arguments):
            column = _read_column(name, count, data, places[position])
            if column is None:
                return None
            columns.append(column)
        return Call(number, count, zip(*columns))

    def write(self, call, values, micros):
        """The body of the reply; None if the values do not fit as they are."""
        buffers = _write_column(self._result, values)
        if buffers is None:
            return None
        places, pieces, size = [], [], 0
        for buffer in buffers:
            places += (size, len(buffer)) if buffer else (0, 0)
            padding = -len(buffer) % _READ_ALIGNMENT
            pieces += (buffer, bytes(padding))
            size += len(buffer) + padding
        text = b'{"batch":%d,"rows":%d,"buffers":%s,"micros":%d}' % (call.number, call.count, repr(places).encode(), micros)
        head = len(text).to_bytes(4, "little") + text
        return b"".join([head, bytes(-len(head) % _READ_ALIGNMENT), *pieces])


def _read_header(text, arguments):
    """The number of the batch, its rows, and the places of each column's buffers. Raises ValueError and its like."""
    header = json.loads(text)
    number, count, flat = header.get("batch", 0), header["rows"], header["buffers"]
    if not _PLAIN_MEMBERS.issuperset(header) or not {int}.issuperset(map(type, [number, count, *flat])):
        raise ValueError
    if not 0 <= count <= _MOST_ROWS or min(flat, default=0) < 0 or number < 0:
        raise ValueError
    pairs = iter(zip(flat[::2], flat[1::2], strict=True))
    places = [[next(pairs) for _ in range(3 if name == "text" else 2)] for name in arguments]
    if next(pairs, None) is not None:
        raise ValueError
    return number, count, places


def _read_column(name, count, data, places):
    """The values; None if Arrow has to look."""
    for offset, length in places:
        if offset % _READ_ALIGNMENT or offset + length > len(data):
            return None
    (validity, validity_bytes), (offset, length) = places[:2]
    if validity_bytes and validity_bytes < (count + 7) // 8:
        return None
    if name == "bool":
        if length < (count + 7) // 8:
            return None
        bits = int.from_bytes(data[offset : offset + (count + 7) // 8], "little")
        values = [bits >> row & 1 == 1 for row in range(count)]
    elif name == "text":
        values = _read_texts(count, data, (offset, length), places[2])
        if values is None:
            return None
    else:
        letter, width = _FORMATS[name]
        if length < count * width:
            return None
        values = struct.unpack_from(f"<{count}{letter}", data, offset)
    if validity_bytes:
        bits = int.from_bytes(data[validity : validity + (count + 7) // 8], "little")
        values = [value if bits >> row & 1 else None for row, value in enumerate(values)]
    return values


def _read_texts(count, data, offsets, texts):
    if offsets[1] < 4 * (count + 1):
        return None
    ends = struct.unpack_from(f"<{count + 1}i", data, offsets[0])
    if ends[0] < 0 or ends[-1] > texts[1] or any(end < start for start, end in zip(ends, ends[1:])):
        return None
    start = texts[0]
    try:
        return [str(data[start + ends[row] : start + ends[row + 1]], "utf-8") for row in range(count)]
    except UnicodeDecodeError:
        return None


def _write_column(name, values):
    """The buffers of a column; None if Arrow has to look."""
    kinds, wanted = set(map(type, values)), _RESULTS[name]
    validity = b""
    if type(None) in kinds:
        kinds.discard(type(None))
        validity = _bits(value is not None for value in values)
        missing = wanted()
        values = [missing if value is None else value for value in values]
    if not kinds <= {wanted}:
        return None
    try:
        if name == "bool":
            return validity, _bits(values)
        if name != "text":
            return validity, struct.pack(f"<{len(values)}{_FORMATS[name][0]}", *values)
        texts = [value.encode() for value in values]
    except (struct.error, UnicodeEncodeError):
        return None
    ends, end = [0], 0
    for text in texts:
        end += len(text)
        ends.append(end)
    return (validity, struct.pack(f"<{len(ends)}i", *ends), b"".join(texts)) if end < 1 << 31 else None


def _bits(flags):
    packed = count = 0
    for flag in flags:
        packed |= flag << count
        count += 1
    return packed.to_bytes((count + 7) // 8, "little")
