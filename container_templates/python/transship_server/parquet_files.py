"""Batches as Parquet files (docs/protocol.md §7.7): for comparison with the other forms."""

import functools

import pyarrow as pa

from . import types


@functools.cache
def _library():
    # Few servers ever need it.
    import pyarrow.parquet

    return pyarrow.parquet


def read(file, rows, columns):
    """The batch in a file, whose columns are (name, Type) pairs. Raises ValueError and ArrowException."""
    schema = types.schema_of(columns)
    table = _library().read_table(pa.BufferReader(file), use_threads=False)
    if table.num_rows != rows or table.num_columns != len(schema):
        raise ValueError(f"its file has {table.num_rows} rows of {table.num_columns} columns")
    batches = pa.Table.from_arrays(table.columns, names=schema.names).cast(schema).combine_chunks().to_batches()
    batch = batches[0] if batches else pa.RecordBatch.from_pylist([], schema=schema)
    types.validate(batch)
    return batch


def write(batch):
    """The file of a batch."""
    file = pa.BufferOutputStream()
    # The storage of extension types says all that a reader needs.
    arrays = [array.storage if isinstance(array, pa.ExtensionArray) else array for array in batch.columns]
    table = pa.Table.from_arrays(arrays, names=[f"c{position}" for position in range(len(arrays))])
    _library().write_table(table, file, compression="none", use_dictionary=False)
    return file.getvalue()
