"""The library of the server core, as far as this server uses it: it takes offers of shared tables, and finds the rows of keys.

Its contract is container_templates/core/include/transship_core.h. Keys and rows go through Arrow's C data interface.
"""

import ctypes

import pyarrow as pa

# Room for a struct ArrowArray and a struct ArrowSchema behind it.
_ARRAY_BYTES, _SCHEMA_BYTES = 80, 72
_Memory = ctypes.c_char * (_ARRAY_BYTES + _SCHEMA_BYTES)
_TEXT, _POINTER = ctypes.c_char_p, ctypes.c_void_p


class Library:
    """The loaded library. OSError or AttributeError if the file is none that has tables."""

    def __init__(self, path):
        library = ctypes.CDLL(path)
        self._message = _function(library.transship_message, _TEXT)
        self._serve = _function(library.transship_tables_serve, ctypes.c_int32, ctypes.c_int)
        self._open_offer = _function(library.transship_offer_open, ctypes.c_int32, _TEXT, _POINTER)
        self._open = _function(library.transship_offer_table, ctypes.c_int32, _POINTER, _TEXT, _POINTER)
        self._schema = _function(library.transship_table_schema, ctypes.c_int32, _POINTER, _POINTER)
        self._batches = _function(library.transship_table_batches, ctypes.c_size_t, _POINTER)
        self._batch = _function(library.transship_table_batch, ctypes.c_int32, _POINTER, ctypes.c_size_t, _POINTER)
        self._lookup = _function(library.transship_table_lookup, ctypes.c_int32, *[_POINTER] * 5)
        # Whether the client of an opened offer still has it (0 or 1), and the end of what was opened.
        self.is_there = _function(library.transship_offer_is_there, ctypes.c_int32, _POINTER)
        self.close_offer = _function(library.transship_offer_close, None, _POINTER)
        # The number of rows of an opened table, and its end.
        self.rows = _function(library.transship_table_rows, ctypes.c_int64, _POINTER)
        self.close = _function(library.transship_table_close, None, _POINTER)

    def serve(self, listener):
        """Takes offers at the descriptor of a socket that listens, until the process ends."""
        self._check(self._serve(listener))

    def open_offer(self, name):
        """Opens an offer, which close_offer() ends; None if there is none."""
        offer = _POINTER()
        return None if self._open_offer(name.encode(), ctypes.byref(offer)) < 0 else offer.value

    def open(self, offer, name):
        """Opens a table of an opened offer, which close() ends. Raises LookupError if there is none."""
        table = _POINTER()
        if self._open(offer, name.encode(), ctypes.byref(table)) < 0:
            raise LookupError(self._last_message())
        return table.value

    def schema(self, table):
        """The schema of an opened table."""
        memory = _Memory()
        place = ctypes.addressof(memory)
        self._check(self._schema(table, place))
        return pa.Schema._import_from_c(place)

    def batches(self, table, schema):
        """The rows of an opened table, where they lie, as record batches of its schema."""
        batches = []
        for number in range(self._batches(table)):
            memory = _Memory()
            place = ctypes.addressof(memory)
            self._check(self._batch(table, number, place))
            batches.append(pa.RecordBatch._import_from_c(place, schema))
        return batches

    def lookup(self, table, keys, kind):
        """A row for each key, an array of structs, as one of structs of the type kind: NULL where there is none."""
        return self._find(table, keys, kind, None)

    def matches(self, table, keys, kind):
        """All rows of all keys, and before them the number of each one's key."""
        memory = _Memory()
        positions = ctypes.addressof(memory)
        rows = self._find(table, keys, kind, positions)
        return pa.Array._import_from_c(positions, pa.int32()), rows

    def _find(self, table, keys, kind, positions):
        given, taken = _Memory(), _Memory()
        array, rows = ctypes.addressof(given), ctypes.addressof(taken)
        schema = array + _ARRAY_BYTES
        keys._export_to_c(array, schema)
        # The library releases the keys, whatever becomes of them.
        self._check(self._lookup(table, array, schema, positions, rows))
        return pa.Array._import_from_c(rows, kind)

    def _check(self, status):
        if status < 0:
            raise ValueError(self._last_message())

    def _last_message(self):
        return self._message().decode(errors="replace")


def _function(function, result, *parameters):
    function.restype, function.argtypes = result, parameters
    return function
