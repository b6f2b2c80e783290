"""Columns of numbers out of a request in JSON (docs/protocol.md §6) without a Python object for each.

A request of many numbers is mostly digits. Where each of its columns is an array of numbers and nulls, its text is split at
its commas, and Arrow casts the pieces. Anything else is left to json.
"""

import json

import pyarrow as pa
import pyarrow.compute as pc

from . import types

# The types that can be read so.
_NUMBERS = {"int2", "int4", "int8", "float4", "float8"}
# Below this json is as fast.
_LEAST_BYTES = 4096
_MARK = b'"columns":['
# What JSON's numbers and null are made of; of integers without fraction and exponent, which json makes integers of.
_FLOATS = b"-+0123456789.eE,nul"
_INTEGERS = b"-0123456789,nul"


def read(function, body):
    """The request without its columns, and the batch; None if that is not sure."""
    kinds = [entry for _, entry in function.call_columns]
    start = body.find(_MARK)
    if len(body) < _LEAST_BYTES or start < 0 or not all(entry.name in _NUMBERS for entry in kinds):
        return None
    try:
        position, arrays = start + len(_MARK), []
        for entry in kinds:
            end = body.index(b"]", position)
            text = body[position + 1 : end]
            letters = _FLOATS if entry.name.startswith("float") else _INTEGERS
            if body[position : position + 1] != b"[" or not text or text.translate(None, letters):
                return None
            arrays.append(_array(text, entry.arrow))
            position = end + 1
            if len(arrays) < len(kinds):
                if body[position : position + 1] != b",":
                    return None
                position += 1
        request = json.loads(body[:start] + b'"columns":[' + body[position:])
        rows = request["rows"]
    except (ValueError, KeyError, TypeError, pa.ArrowException):
        return None
    if request["columns"] != [] or any(len(array) != rows for array in arrays):
        return None
    return request, pa.RecordBatch.from_arrays(arrays, schema=types.schema_of(function.call_columns))


def _array(text, kind):
    offsets = (0).to_bytes(4, "little") + len(text).to_bytes(4, "little")
    whole = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(text)])
    pieces = pc.split_pattern(whole, b",").values.cast(pa.utf8())
    if b"n" in text:
        pieces = pc.if_else(pc.equal(pieces, "null"), None, pieces)
    return pieces.cast(kind)
