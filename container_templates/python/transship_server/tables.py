"""A shared table, as a handler reads it: all of it as Arrow columns where they lie, or the rows of keys."""

import datetime
import uuid
import weakref

import pyarrow as pa

from . import inferred, types
from .function import as_it_is

_KEY_METADATA = b"transship:key"
# Rows that get() keeps of a table, and the bytes of the largest among them and its key.
_MOST_KEPT = 4096
_MOST_KEPT_BYTES = 1024
# Types whose values nobody can change, and all of which Python has.
_PLAIN_TYPES = frozenset(types.TYPES) - {"json", "time"}
_NOT_KEPT = object()
# Classes of keys under which rows are kept, by type: of each type one, whose values are equal only if they are the same key. Moments
# with a time zone may be equal and another moment, and other classes may be equal to anything.
_KEPT_CLASSES = {
    "bool": bool, "int2": int, "int4": int, "int8": int, "text": str, "bytea": bytes, "date": datetime.date,
    "timestamp": datetime.datetime, "uuid": uuid.UUID,
}  # fmt: skip


class Table:
    """A shared table, which never changes. Any thread may use it. `schema` has the columns of look-ups, `key` the names of the key's, and
    `num_rows` and len() say how many rows there are."""

    def __init__(self, library, handle):
        self._library, self._handle = library, handle
        # What was taken from a table outlives it.
        weakref.finalize(self, library.close, handle).atexit = False
        schema, self.num_rows = library.schema(handle), library.rows(handle)
        columns = [(field.name, types.by_field(_values_of(field))) for field in schema]
        self.schema = pa.schema([(name, entry.arrow) for name, entry in columns])
        encoded = [(field.name, field.type if pa.types.is_dictionary(field.type) else entry.arrow) for field, (_, entry) in zip(schema, columns)]
        self._batch_schema = pa.schema(encoded)
        positions = (schema.metadata or {}).get(_KEY_METADATA, b"").decode()
        key = [columns[int(position)] for position in positions.split(",") if position]
        self.key, self._key_types = [name for name, _ in key], [entry for _, entry in key]
        self._key_struct, self._row_struct = pa.struct([(name, entry.arrow) for name, entry in key]), pa.struct(self.schema)
        self._row_type = types.CompositeType(columns)
        self._is_plain = _PLAIN_TYPES.issuperset(entry.name for _, entry in columns)
        # What get() has found, by key, and the classes that the parts of such keys have.
        self._kept = {}
        kept_classes = [frozenset([type(None), _KEPT_CLASSES.get(entry.name, type(None))]) for entry in self._key_types]
        self._kept_class, self._kept_classes = kept_classes[0] if len(key) == 1 else None, kept_classes

    def __len__(self):
        return self.num_rows

    def __reduce__(self):
        raise TypeError("a shared table cannot be copied: open it where it is read")

    def to_arrow(self):
        """All rows, where they lie, as a pyarrow.Table. Columns that were shared with a dictionary have one in each chunk; pandas makes
        categoricals of them."""
        return pa.Table.from_batches(self._library.batches(self._handle, self._batch_schema), self._batch_schema)

    def lookup(self, keys):
        """A record batch with one row per key, in their order, in which all columns are NULL if the table has no such row.

        `keys` is an Arrow or NumPy array, a pandas series, or a list of values. For a key of several columns it is a list or a
        tuple of these, and not of rows. A dict, record batch, table, data frame or array of structs has them by name. Raises
        ValueError if a key has several rows, and ValueError or TypeError if the keys do not fit.
        """
        rows = self._library.lookup(self._handle, self._structs_of(keys), self._row_struct)
        return pa.RecordBatch.from_arrays(rows.flatten(), schema=self.schema)

    def matches(self, keys):
        """All rows of all keys: an array with the position of each one's key among the keys, and a record batch. `keys` is as for
        lookup()."""
        positions, rows = self._library.matches(self._handle, self._structs_of(keys), self._row_struct)
        return positions, pa.RecordBatch.from_arrays(rows.flatten(), schema=self.schema)

    def get(self, key):
        """The row of a key, as a dict of the values that row handlers get; None if there is none.

        `key` is a value, or a tuple of values for a key of several columns. Raises ValueError if it has several rows, and
        ValueError or TypeError if it does not fit.
        """
        kept_class = self._kept_class
        if kept_class is not None:
            may_keep = type(key) in kept_class
        else:
            may_keep = type(key) is tuple and all(type(part) in classes for part, classes in zip(key, self._kept_classes))
        row = self._kept.get(key, _NOT_KEPT) if may_keep else _NOT_KEPT
        if row is _NOT_KEPT:
            row = self._find(key, may_keep)
        if row is None:
            return None
        return row.copy() if self._is_plain else as_it_is(row)

    def _find(self, key, may_keep):
        parts = key if len(self.key) > 1 else (key,)
        if not isinstance(parts, tuple) or len(parts) != len(self.key):
            raise self._wrong_count()
        columns = [_column_of(name, entry, [part]) for name, entry, part in zip(self.key, self._key_types, parts)]
        keys = pa.StructArray.from_arrays(columns, type=self._key_struct)
        found = self._library.lookup(self._handle, keys, self._row_struct)
        if not self._is_plain:
            types.check_for_python(self._row_type, found)
        (row,) = found.to_pylist()
        if row is not None and self._row_type.to_python is not None:
            row = self._row_type.to_python(row)
        if may_keep and keys.get_total_buffer_size() + found.get_total_buffer_size() <= _MOST_KEPT_BYTES:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            self._kept[key] = row
        return row

    def _structs_of(self, keys):
        """Keys as an array of structs of the key's columns."""
        if isinstance(keys, pa.ChunkedArray):
            keys = keys.combine_chunks()
        if isinstance(keys, pa.StructArray):
            keys = pa.RecordBatch.from_struct_array(keys)
        if isinstance(keys, dict) or hasattr(keys, "columns"):
            columns = [_named(keys, name) for name in self.key]
        elif len(self.key) == 1:
            columns = [keys]
        else:
            columns = keys
            if isinstance(keys, list) and any(isinstance(part, tuple) for part in keys):
                names = ", ".join(self.key)
                raise TypeError(f"the keys are a list with tuples, not columns: give a tuple or a dict of the columns {names}")
        if len(columns) != len(self.key) or not columns:
            raise self._wrong_count()
        columns = [_column_of(*part) for part in zip(self.key, self._key_types, columns)]
        return pa.StructArray.from_arrays(columns, type=self._key_struct)

    def _wrong_count(self):
        if not self.key:
            return ValueError("the table has no key")
        return ValueError(f"the key has {len(self.key)} columns: {', '.join(self.key)}")


def _values_of(field):
    """A field of the values of a column, which may have a dictionary."""
    return field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field


def _named(keys, name):
    try:
        return keys[name]
    except KeyError:
        raise ValueError(f'the keys have no column "{name}"') from None


def _column_of(name, entry, values):
    """Values as an Arrow array of a type of docs/types.md."""
    try:
        if isinstance(values, (list, tuple)):
            if not entry.plain.issuperset(map(type, values)):
                values = [None if value is None else entry.from_python(value) for value in values]
            return pa.array(values, entry.arrow)
        if isinstance(values, (str, bytes)):
            raise TypeError(f"{values!r}, which is no column")
        if not isinstance(values, (pa.Array, pa.ChunkedArray)):
            values = inferred.array_of(values, from_pandas=True)
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        if isinstance(values, pa.DictionaryArray):
            values = values.dictionary_decode()
        return types.cast(entry, values)
    except Exception as cause:
        kind = TypeError if isinstance(cause, (TypeError, AttributeError)) else ValueError
        raise kind(f'the keys do not fit column "{name}" of type {entry.name}: {cause}') from None
