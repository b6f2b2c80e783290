"""Columns as they lie in memory (docs/protocol.md §7): Arrow's buffers one after the other, described by a JSON header.

Arguments are read where they lie: the arrays that a handler gets look into the client's segment, without a copy. A
handler may keep them; then the reply says so, and the client leaves that segment alone.
"""

import collections
import errno
import itertools
import json
import os
import re
import resource
import sys
import threading

import pyarrow as pa

from . import constants, parquet_files, types
from .errors import CallError

CONTENT_TYPE = "application/vnd.transship.columns"
_ALIGNMENT = 64
# Every buffer begins at a multiple of this, which is all that 64-bit values need.
_READ_ALIGNMENT = 8
_EMPTY = pa.py_buffer(b"")


class _Recent:
    """What all connections have used of late, by name. What was used the longest ago is released first."""

    def __init__(self, most, release):
        self._most, self._release = most, release
        self._kept = collections.OrderedDict()
        self._lock = threading.Lock()

    def take(self, name):
        """What has the name, now the caller's; None if it is not there."""
        with self._lock:
            return self._kept.pop(name, None)

    def keep(self, name, thing):
        """Keeps it until it is taken, or released."""
        with self._lock:
            # Another connection may have named it too.
            surplus = self._kept.pop(name, None)
            self._kept[name] = thing
            if surplus is None and len(self._kept) > self._most:
                surplus = self._kept.popitem(last=False)[1]
        if surplus is not None:
            self._release(surplus)

    def drop(self, names):
        """Releases what has these names, as far as it is there."""
        for thing in map(self.take, names):
            if thing is not None:
                self._release(thing)

    def clear(self):
        """Releases everything, and says whether there was anything."""
        names = list(self._kept)
        self.drop(names)
        return bool(names)


# The share of the descriptors that this process may have that segments for replies get.
_DESCRIPTORS_SHARE = 4
_MOST_DESCRIPTORS = 1024
_MOST_MAPPINGS = 1024
_mappings = _Recent(_MOST_MAPPINGS, lambda mapping: None)
_descriptors = _Recent(
    min(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _DESCRIPTORS_SHARE, _MOST_DESCRIPTORS), os.close
)


class Segments:
    """The segments that one connection names. Those that were used last stay open. Not for several threads."""

    # A client has two per batch in flight, and makes new ones for those that a handler keeps.
    _MOST = 128

    def __init__(self, directory):
        self._directory = directory
        self._names = {}
        # The constants of the last request that brought some, by their columns' positions, and what the client calls them.
        self.constants, self.constants_id = {}, None

    def _open(self, name, flags):
        if self._directory is None or not isinstance(name, str) or not re.fullmatch("[0-9a-f]{32}", name):
            raise CallError("protocol_violation", f"there is no segment {name!r}")
        while True:
            try:
                return os.open(f"{self._directory}/{name}", flags | os.O_CLOEXEC | os.O_NOFOLLOW)
            except OSError as error:
                is_short = error.errno in (errno.EMFILE, errno.ENFILE)
                if is_short and _descriptors.clear():
                    continue
                fact = f"segment {name} cannot be opened: {error.strerror}"
            raise CallError("busy" if is_short else "protocol_violation", fact)

    def _keep(self, recent, name, thing):
        recent.keep(name, thing)
        self._names.pop(name, None)
        self._names[name] = True
        if len(self._names) > self._MOST:
            self._drop([next(iter(self._names))])

    def _drop(self, names):
        for name in names:
            del self._names[name]
        _mappings.drop(names)
        _descriptors.drop(names)

    def read(self, name, size):
        """The first bytes of a segment, at least size of them, where they lie."""
        mapping = _mappings.take(name) if name in self._names else None
        if mapping is None or len(mapping) < size:
            descriptor = self._open(name, os.O_RDONLY)
            try:
                mapping = _map(name, descriptor, size)
            finally:
                os.close(descriptor)
        self._keep(_mappings, name, mapping)
        # Of its own, so that those who look at it can be counted.
        return memoryview(mapping)

    def write(self, name, pieces):
        """Writes (offset, buffer) pairs."""
        descriptor = _descriptors.take(name) if name in self._names else None
        if descriptor is None:
            descriptor = self._open(name, os.O_RDWR)
        try:
            for offset, piece in pieces:
                rest = memoryview(piece).cast("B")
                while rest:
                    written = os.pwrite(descriptor, rest, offset)
                    rest, offset = rest[written:], offset + written
        finally:
            self._keep(_descriptors, name, descriptor)

    def close(self):
        """Closes them; what a handler still looks at stays mapped."""
        self.constants, self.constants_id = {}, None
        self._drop(list(self._names))


def _map(name, descriptor, size):
    length = os.fstat(descriptor).st_size
    if length < size:
        raise CallError("protocol_violation", f"segment {name} has {length} bytes, not {size}")
    if length == 0:
        return b""
    # A mapping of Python's would keep a descriptor for as long as it is looked at; Arrow's needs none. By its number, since
    # the name may be another file's by now.
    with pa.memory_map(f"/proc/self/fd/{descriptor}") as file:
        return memoryview(file.read_buffer(length))


class Request:
    """A batch of calls in this form."""

    def __init__(self, body, segments):
        self._segments = segments
        self._data = None
        try:
            length = int.from_bytes(body[:4], "little")
            self.header = json.loads(str(body[4 : 4 + length], "utf-8"))
            self._is_parquet = self.header.get("form") == "parquet"
            buffers = self._places = self.header["buffers"]
            if not {int}.issuperset(map(type, buffers)) or min(buffers, default=0) < 0 or len(buffers) % 2:
                raise ValueError("buffers are pairs of integers")
        except (ValueError, KeyError, TypeError, AttributeError) as cause:
            raise CallError("protocol_violation", f"the request cannot be read: {cause!r}") from None
        name = self.header.get("segment")
        if name is None:
            start = (4 + length + _READ_ALIGNMENT - 1) // _READ_ALIGNMENT * _READ_ALIGNMENT
            # A copy of its own, which begins where 64-bit values may.
            self._data = memoryview(pa.py_buffer(body[start:]))
        else:
            self._data = segments.read(name, max(map(sum, zip(buffers[::2], buffers[1::2])), default=0))

    @property
    def may_encode(self):
        """Whether columns of the reply may be dictionaries."""
        return self.header.get("may_encode") is True and not self._is_parquet

    def batch(self, columns):
        """The batch of calls, whose columns are (name, Type) pairs. Raises CallError."""
        rows = self.header.get("rows")
        if type(rows) is not int or not 0 <= rows < 1 << 31:
            raise CallError("protocol_violation", "the request has no number of rows")
        reader = _Reader(pa.py_buffer(self._data), self._places)
        try:
            if self._is_parquet:
                return parquet_files.read(reader.buffer(1), rows, columns)
            arrays = self._read_arrays(reader, rows, columns)
            if reader.position != len(self._places):
                raise ValueError("it has more buffers than columns")
        except (ValueError, OverflowError, pa.ArrowException) as cause:
            raise CallError("protocol_violation", f"the request cannot be read: {cause}") from None
        if self.header.get("constants"):
            return pa.RecordBatch.from_arrays(arrays, [name for name, _ in columns])
        if arrays:
            return pa.RecordBatch.from_arrays(arrays, schema=types.schema_of(columns))
        # pyarrow makes a batch of rows without columns only by dropping columns.
        return pa.RecordBatch.from_arrays([pa.nulls(rows)], ["x"]).select([])

    def _read_arrays(self, reader, rows, columns):
        positions = constants.positions_in(self.header, len(columns))
        if not positions:
            return [reader.array(entry, rows) for _, entry in columns]
        name = self.header.get("constants_id")
        known = self._segments.constants if self.header.get("same_constants") is True else None
        # What a proxy has put on this connection may refer to what went over another one.
        if known is not None and (known.keys() != set(positions) or name is None or name != self._segments.constants_id):
            raise ValueError("it refers to constants that were not sent")
        arrays, found = [], {}
        for position, (_, entry) in enumerate(columns):
            if position not in positions:
                arrays.append(reader.array(entry, rows))
                continue
            value = constants.kept(reader.array(entry, 1)) if known is None else known[position]
            if value.type != entry.arrow:
                raise ValueError("it refers to constants of another function")
            found[position] = value
            arrays.append(constants.repeated(value, rows))
        self._segments.constants, self._segments.constants_id = found, name
        return arrays

    def write(self, batch, columns):
        """Writes the reply's data; its columns are (name, Type) pairs."""
        places, aliases, pieces, size = [], [], [], 0
        encoded = [(i, array) for i, array in enumerate(batch.columns) if isinstance(array, pa.DictionaryArray)]
        own = _OwnBuffers(self._data, self._places) if self.header.get("may_alias") is True else None
        for buffer in self._reply_buffers(batch, columns):
            if buffer is None or buffer.size == 0:
                places += (0, 0)
                continue
            offset = own.find(buffer) if own else None
            if offset is not None:
                aliases.append(len(places) // 2)
                places += (offset, buffer.size)
                continue
            size = (size + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
            places += (size, buffer.size)
            pieces.append((size, buffer))
            size += buffer.size
        self._reply = {"batch": self.header.get("batch", 0), "rows": batch.num_rows, "buffers": places}
        if aliases:
            self._reply["aliases"] = aliases
        if encoded:
            self._reply["dictionaries"] = [number for i, array in encoded for number in (i, len(array.dictionary))]
        self._inline = b""
        name = self.header.get("reply_segment")
        try:
            if name is not None:
                self._segments.write(name, pieces)
                self._reply["segment"] = name
                return
        except OSError:
            # There is no memory left for segments: the data goes with the reply.
            pass
        self._inline = _joined(pieces)

    def _reply_buffers(self, batch, columns):
        if self._is_parquet:
            return [parquet_files.write(batch)]
        return (buffer for (_, entry), array in zip(columns, batch.columns) for buffer in _buffers(entry, array))

    def body(self, micros):
        """The body of the reply that was written. No array of the batch is left by now but those that a handler keeps."""
        header = self._reply | {"micros": micros}
        # One reference is this object's, one is the argument's.
        if self.header.get("segment") is not None and sys.getrefcount(self._data) > 2:
            header["retained"] = True
        text = json.dumps(header).encode()
        head = len(text).to_bytes(4, "little") + text
        return b"".join([head, bytes(-len(head) % _READ_ALIGNMENT), self._inline]) if self._inline else head


class _OwnBuffers:
    """The buffers of a call, to tell those of a reply that lie in them."""

    def __init__(self, data, places):
        self._start, self._size = pa.py_buffer(data).address, len(data)
        self._places = places

    def find(self, buffer):
        """Where in the call's data a buffer lies; None if the client could not read it there."""
        offset = buffer.address - self._start
        if not 0 <= offset < self._size or offset % _READ_ALIGNMENT:
            return None
        end, places = offset + buffer.size, self._places
        is_inside = any(start <= offset and end <= start + length for start, length in zip(places[::2], places[1::2]))
        return offset if is_inside else None


def _joined(pieces):
    parts, end = [], 0
    for offset, piece in pieces:
        parts += (bytes(offset - end), piece)
        end = offset + piece.size
    return b"".join(parts)


class _Reader:
    """Reads arrays out of bytes that nobody has checked."""

    def __init__(self, data, places):
        self._data = data
        self._places = places
        self.position = 0

    def buffer(self, least):
        """The next buffer, of at least so many bytes; None if it may be empty and is."""
        places, position = self._places, self.position
        if position == len(places):
            raise ValueError("it has fewer buffers than columns")
        offset, length = places[position], places[position + 1]
        self.position = position + 2
        if length == 0 == least:
            return None
        if offset % _READ_ALIGNMENT or offset + length > self._data.size:
            raise ValueError(f"no buffer of {length} bytes can be at {offset}")
        if length < least:
            raise ValueError(f"a buffer has {length} bytes, not {least}")
        return self._data.slice(offset, length)

    def array(self, entry, rows):
        validity = self.buffer(0)
        if validity is not None and validity.size < (rows + 7) // 8:
            raise ValueError(f"a validity buffer has {validity.size} bytes for {rows} rows")
        kind = entry.arrow
        if entry.bits is not None:
            values = self.buffer((rows * entry.bits + 7) // 8)
            return pa.Array.from_buffers(kind, rows, [validity, values or _EMPTY])
        if isinstance(entry, types.CompositeType):
            parts = [self.array(part, rows) for _, part in entry.attributes]
            return pa.StructArray.from_buffers(kind, rows, [validity], children=parts)
        if isinstance(entry, types.ArrayType):
            offsets = self._offsets(rows)
            elements = self.array(entry.element, _last_offset(offsets, rows))
            array = pa.ListArray.from_buffers(kind, rows, [validity, offsets], children=[elements])
        else:
            offsets = self._offsets(rows)
            values = self.buffer(_last_offset(offsets, rows))
            array = pa.Array.from_buffers(kind, rows, [validity, offsets, values or _EMPTY])
        # Offsets that descend, and text that is not UTF-8.
        array.validate(full=True)
        return array

    def _offsets(self, rows):
        return self.buffer(4 * (rows + 1) if rows else 0) or pa.py_buffer(bytes(4))


def _last_offset(offsets, rows):
    end = int.from_bytes(offsets[4 * rows : 4 * rows + 4].to_pybytes(), "little", signed=True)
    if end < 0:
        raise ValueError("an offset is negative")
    return end


def _buffers(entry, array):
    """The buffers of an array, those of its children behind them."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if isinstance(array, pa.DictionaryArray):
        yield from _buffers(types.TYPES["int4"], array.indices)
        # Its texts are all there, so nothing says which are not.
        yield from itertools.islice(_buffers(types.TYPES["text"], array.dictionary), 1, None)
        return
    if array.offset and entry.bits and entry.bits % 8 == 0 and not array.null_count:
        yield None
        yield array.buffers()[1].slice(array.offset * entry.bits // 8, len(array) * entry.bits // 8)
        return
    if array.offset:
        # A new array begins where its buffers do.
        array = types.own(array)
    rows = len(array)
    buffers = array.buffers()
    yield buffers[0] if array.null_count else None
    if isinstance(entry, types.CompositeType):
        for position, (_, part) in enumerate(entry.attributes):
            yield from _buffers(part, array.field(position))
    elif isinstance(entry, types.ArrayType):
        yield buffers[1][: 4 * (rows + 1)] if rows else None
        end = _last_offset(buffers[1], rows) if rows else 0
        yield from _buffers(entry.element, array.values[:end])
    elif entry.bits is None:
        yield buffers[1][: 4 * (rows + 1)] if rows else None
        yield buffers[2][: _last_offset(buffers[1], rows)] if rows and buffers[2] else None
    else:
        yield buffers[1][: (rows * entry.bits + 7) // 8]
