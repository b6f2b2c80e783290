"""Segments of shared tables, and offers of them, as an engine makes them (docs/protocol.md §10)."""

import itertools
import json
import os
import secrets
import socket
import struct

import pyarrow as pa

BATCH_ROWS = 65_536
_ALIGNMENT = 64
_WORD = (1 << 64) - 1
_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743248e"
)


class Offer:
    """Tables that a server knows by name, until the connection is closed. Each is a pyarrow.Table, or the segments of one."""

    def __init__(self, path, tables, key):
        self.name, self.connection = secrets.token_hex(16), socket.socket(socket.AF_UNIX)
        self.connection.settimeout(20)
        self.connection.connect(path)
        for name, table in tables.items():
            segments = table if isinstance(table, list) else [table]
            files = [[segment_of(segment, key), *([index_of(segment, key)] if key else [])] for segment in segments]
            self.answer = self.add(name, [len(pair) for pair in files], [content for pair in files for content in pair])

    def add(self, table, files, contents):
        """Sends a line with its files, and gives the answer."""
        line = json.dumps({"offer": self.name, "table": table, "files": files}).encode() + b"\n"
        descriptors = [file_of(content) for content in contents]
        socket.send_fds(self.connection, [line], descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        return json.loads(self.connection.makefile().readline())


def file_of(content):
    """A descriptor of a file in memory, which can only be read."""
    made = os.memfd_create("segment")
    os.write(made, content)
    descriptor = os.open(f"/proc/self/fd/{made}", os.O_RDONLY | os.O_CLOEXEC)
    os.close(made)
    return descriptor


def segment_of(table, key):
    """A segment, whose key has the columns of these names."""
    positions = ",".join(str(table.schema.names.index(name)) for name in key)
    schema = table.schema.with_metadata({"transship:key": positions})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_table(table.combine_chunks().cast(schema), max_chunksize=BATCH_ROWS)
    return _aligned(sink.getvalue().to_pybytes())


def _aligned(file):
    """An Arrow file whose batches and buffers begin at multiples of 64: pyarrow's are at multiples of 8. What says where they are is
    written over."""
    footer_bytes = int.from_bytes(file[-10:-6], "little")
    footer = bytearray(file[-10 - footer_bytes : -10])
    moved = bytearray(file[:8].ljust(_ALIGNMENT, b"\0"))
    for place in _vector(footer, _root(footer), 3, 24):
        offset, head_bytes, body_bytes = struct.unpack_from("<qi4xq", footer, place)
        head = bytearray(file[offset + 8 : offset + head_bytes])
        old_body, body = file[offset + head_bytes :][:body_bytes], bytearray()
        batch = _child(head, _root(head), 2)
        for buffer in _vector(head, batch, 2, 16):
            start, length = struct.unpack_from("<qq", head, buffer)
            struct.pack_into("<q", head, buffer, len(body))
            body += old_body[start : start + length]
            body += bytes(-len(body) % _ALIGNMENT)
        struct.pack_into("<q", head, _field(head, _root(head), 3), len(body))
        head += bytes(-(len(head) + 8) % _ALIGNMENT)
        struct.pack_into("<qi4xq", footer, place, len(moved), 8 + len(head), len(body))
        moved += struct.pack("<ii", -1, len(head)) + head + body
    return bytes(moved + footer + struct.pack("<i", len(footer)) + b"ARROW1")


# Just enough of FlatBuffers.
def _root(data):
    return struct.unpack_from("<I", data, 0)[0]


def _field(data, table, number):
    """Where a table's field is; None if it has not got it."""
    fields = table - struct.unpack_from("<i", data, table)[0]
    place = 4 + 2 * number
    offset = struct.unpack_from("<H", data, fields + place)[0] if place < struct.unpack_from("<H", data, fields)[0] else 0
    return table + offset if offset else None


def _child(data, table, number):
    field = _field(data, table, number)
    return field + struct.unpack_from("<I", data, field)[0]


def _vector(data, table, number, item_bytes):
    """Where each of a vector's structs is."""
    if _field(data, table, number) is None:
        return range(0)
    start = _child(data, table, number)
    count = struct.unpack_from("<I", data, start)[0]
    return range(start + 4, start + 4 + count * item_bytes, item_bytes)


def index_of(table, key, seed=0x0123_4567_89AB_CDEF):
    """The index of a segment."""
    rows_of = {}
    for row, values in enumerate(zip(*[_bytes_of(table.column(name)) for name in key])):
        if None not in values:
            rows_of.setdefault(values, []).append(row)
    distinct, entries = len(rows_of), sum(map(len, rows_of.values()))
    slots = [0] * (1 << (2 * distinct).bit_length())
    for number, values in enumerate(rows_of):
        hashes = [hash_of(value, seed) for value in values]
        hashed = hashes[0] if len(hashes) == 1 else hash_of(struct.pack(f"<{len(hashes)}Q", *hashes), seed)
        place = hashed % len(slots)
        while slots[place]:
            place = (place + 1) % len(slots)
        slots[place] = hashed >> 32 << 32 | number + 1
    data = struct.pack("<8sII6Q", b"TSHPIDX1", 2, 0, table.num_rows, distinct, len(slots), entries, seed, 0)
    data += struct.pack(f"<{len(slots)}Q", *slots)
    if entries != distinct:
        ends = itertools.accumulate(map(len, rows_of.values()), initial=0)
        data += struct.pack(f"<{distinct + 1}I", *ends)
    if distinct != table.num_rows:
        data += struct.pack(f"<{entries}I", *itertools.chain.from_iterable(rows_of.values()))
    return data


def _bytes_of(column):
    """The bytes of each value of a column of integers or texts; None for NULL."""
    width = 0 if column.type == pa.string() else column.type.bit_width // 8
    for value in column.to_pylist():
        if value is None:
            yield None
        else:
            yield value.to_bytes(width, "little", signed=True) if width else value.encode()


def hash_of(data, seed):
    """XXH3-64 of 4 to 16 bytes."""
    if len(data) <= 8:
        assert len(data) >= 4
        seed ^= int.from_bytes((seed & 0xFFFF_FFFF).to_bytes(4, "little"), "big") << 32
        mixed = int.from_bytes(data[-4:], "little") + (int.from_bytes(data[:4], "little") << 32)
        mixed ^= (_secret(8) ^ _secret(16)) - seed & _WORD
        mixed ^= _rotated(mixed, 49) ^ _rotated(mixed, 24)
        mixed = mixed * 0x9FB2_1C65_1E98_DF25 & _WORD
        mixed ^= (mixed >> 35) + len(data)
        mixed = mixed * 0x9FB2_1C65_1E98_DF25 & _WORD
        return mixed ^ mixed >> 28
    assert len(data) <= 16
    low = int.from_bytes(data[:8], "little") ^ (_secret(24) ^ _secret(32)) + seed & _WORD
    high = int.from_bytes(data[-8:], "little") ^ (_secret(40) ^ _secret(48)) - seed & _WORD
    product = low * high
    mixed = len(data) + int.from_bytes(low.to_bytes(8, "little"), "big") + high + (product ^ product >> 64 & _WORD) & _WORD
    mixed = (mixed ^ mixed >> 37) * 0x1656_6791_9E37_79F9 & _WORD
    return mixed ^ mixed >> 32


def _secret(place):
    return int.from_bytes(_SECRET[place : place + 8], "little")


def _rotated(word, bits):
    return (word << bits | word >> 64 - bits) & _WORD


def numbers(prefix, count=10):
    names = pa.array([f"{prefix}{key}" for key in range(count)], pa.string())
    return pa.table({"key": pa.array(range(count), pa.int64()), "name": names})
