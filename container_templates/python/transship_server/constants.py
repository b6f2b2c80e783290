"""Constants: columns that have the same value in every row, of which a client sends one (docs/protocol.md §4.10, §6, §7.11).

In a batch such a column is a dictionary of one value, which costs a byte per row.
"""

import pyarrow as pa

from . import types

# Bytes of repeated constants that a batch function is given at a time.
_MOST_REPEATED_BYTES = 64 << 20
# Larger ones are looked at where they lie.
_MOST_COPIED_BYTES = 64 << 10


def repeated(value, rows):
    """A column with the value of an array of one row in each of its rows."""
    places = pa.Array.from_buffers(pa.int8(), rows, [None, pa.py_buffer(bytes(rows))])
    return pa.DictionaryArray.from_arrays(places, value)


def adapted(entry, column):
    """The constant column of a type that a client's column is; None if it is no constant. Raises ValueError."""
    kind = column.type
    if not isinstance(kind, pa.DictionaryType) or kind.index_type != pa.int8() or len(column.dictionary) != 1:
        return None
    if column.indices.null_count:
        return None
    return repeated(types.adapt(entry, column.dictionary), len(column))


def positions_in(request, columns):
    """The positions that a request says are constants' in so many columns. Raises ValueError."""
    positions = request.get("constants") or []
    if not isinstance(positions, list) or not all(type(it) is int and 0 <= it < columns for it in positions):
        raise ValueError("constants are numbers of columns")
    if len(set(positions)) < len(positions):
        raise ValueError("a constant is there twice")
    return positions


def value_of(entry, column):
    """The value of a constant column of a type, as an array of one row; None if it is another column."""
    if column.type != pa.dictionary(pa.int8(), entry.arrow) or len(column.dictionary) != 1 or column.indices.null_count:
        return None
    return column.dictionary


def kept(value):
    """The value as it may be kept for later batches: what is small has memory of its own."""
    return types.own(value) if value.nbytes <= _MOST_COPIED_BYTES else value


def pieces(batch, columns):
    """(first row, whole columns) of a batch, in pieces that have room for its constants; columns are (name, Type) pairs."""
    values = [value_of(entry, column) for (_, entry), column in zip(columns, batch.columns)]
    width = sum(value.nbytes for value in values if value is not None)
    rows = batch.num_rows
    step = max(_MOST_REPEATED_BYTES // width, 1) if width else max(rows, 1)
    for first in range(0, max(rows, 1), step):
        piece = batch.slice(first, step) if rows > step else batch
        whole = [
            column if value is None else value.take(column.indices) for value, column in zip(values, piece.columns)
        ]
        yield first, piece if width == 0 else pa.RecordBatch.from_arrays(whole, batch.schema.names)
