"""Columns in JSON (docs/protocol.md §6), as fast as Python's libraries can read and write them.

A request of many numbers is mostly digits. simdjson reads them, and gives an array of numbers as it lies in memory, without a
Python object for each. Anything else that a request may hold is left to json. orjson writes the replies.
"""

import pyarrow as pa

from . import constants, json_values, types

# The types that can be read so, and what simdjson calls the numbers that they are made of.
_NUMBERS = {"int2": "i", "int4": "i", "int8": "i", "float4": "d", "float8": "d"}
_READ = {"i": pa.int64(), "d": pa.float64()}
# Below this json is as fast.
_LEAST_BYTES = 4096


class Reader:
    """Reads the requests of one connection, in memory that is used again for the next. Not for several threads."""

    def __init__(self):
        self._parser = None

    def read(self, function, body):
        """The request without its columns, and the batch; None if that is not sure."""
        kinds = [entry for _, entry in function.call_columns]
        if len(body) < _LEAST_BYTES or any(entry.name not in _NUMBERS for entry in kinds):
            return None
        # Megabytes that only this form needs.
        import simdjson

        # What is read looks into the parser's memory; it is let go below, but for the case that something fails.
        parser, self._parser = self._parser or simdjson.Parser(), None
        try:
            document = parser.parse(body)
            request = {name: document[name] for name in document.keys() if name != "columns"}
            columns, rows = document["columns"], request["rows"]
            if len(columns) != len(kinds) or any(isinstance(value, simdjson.Object) for value in request.values()):
                return None
            if "constants" in request:
                request["constants"] = request["constants"].as_list()
            if any(isinstance(value, simdjson.Array) for value in request.values()):
                return None
            if _nests(body, len(kinds) + ("constants" in request)):
                return None
            constant = constants.positions_in(request, len(columns))
            arrays = [_array(entry, column) for entry, column in zip(kinds, columns)]
            if any(len(array) != (1 if position in constant else rows) for position, array in enumerate(arrays)):
                return None
            for position in constant:
                arrays[position] = constants.repeated(arrays[position], rows)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, pa.ArrowException):
            return None
        del document, columns
        self._parser = parser
        if constant:
            return request, pa.RecordBatch.from_arrays(arrays, [name for name, _ in function.call_columns])
        return request, pa.RecordBatch.from_arrays(arrays, schema=types.schema_of(function.call_columns))


def write(reply):
    """A reply whose columns json_values.encode has made."""
    import orjson

    return orjson.dumps(reply)


def _nests(body, arrays):
    """Whether there are more arrays than so many and one around them: arrays in arrays would be read as one."""
    position = -1
    # bytes.count is slower than this.
    for _ in range(arrays + 2):
        position = body.find(b"[", position + 1)
        if position < 0:
            return False
    return True


def _array(entry, column):
    kind = _NUMBERS[entry.name]
    try:
        numbers = pa.py_buffer(column.as_buffer(of_type=kind))
    except TypeError:
        # Something in it is no number, perhaps null.
        return json_values.decode(entry, column.as_list())
    return types.cast(entry, pa.Array.from_buffers(_READ[kind], numbers.size // 8, [None, numbers]))
