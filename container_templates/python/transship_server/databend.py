"""Databend's form of Flight: its types, and replies without row numbers.

Databend declares functions itself and compares its types with those of GetFlightInfo to the letter. Some of its clients send
headers of their own, which get these types; the engine sends none, and gets the layout of its own batches (types.lay_out),
as any client does. Types that it lacks (numeric without a scale, uuid, time, interval, ...) travel as VARCHAR, in the JSON
form of docs/types.md, where its clients say that they are Databend's.

Source: the package databend-udf, and docs/dialects.md.
"""

import json

import pyarrow as pa
import pyarrow.flight as flight

from . import json_values, types

NAME = "databend"
_HEADER = "x-databend-"
_INPUT_COUNT = b"x-databend-udf-input-count"
_VARIANT = {b"Extension": b"Variant"}
_LEAVES = {
    "text": pa.large_utf8(), "bytea": pa.large_binary(), "json": pa.large_binary(), "timestamptz": pa.timestamp("us"),
}  # fmt: skip
_AS_THEY_ARE = ("bool", "int2", "int4", "int8", "float4", "float8", "date", "timestamp")


class Headers(flight.ServerMiddlewareFactory):
    """Marks the calls that come from Databend: get_middleware(NAME) is not None."""

    def start_call(self, info, headers):
        return flight.ServerMiddleware() if any(name.lower().startswith(_HEADER) for name in headers) else None


def is_variant(schema):
    """Whether a client's schema has fields of Databend's VARIANT."""
    return any((field.metadata or {}).get(b"Extension") == b"Variant" for field in schema)


def with_input_count(schema, count):
    """The schema with the number of its fields that are arguments, which Databend's clients look for."""
    return schema.with_metadata({**(schema.metadata or {}), _INPUT_COUNT: str(count).encode()})


def schema(function):
    """Fields of the arguments, then of the results, in Databend's types."""
    return pa.schema([*(_field(name, entry) for name, entry in function.arguments), *reply_schema(function)])


def reply_schema(function):
    """Fields of a reply: one of a scalar function; all columns of a table function."""
    return pa.schema([_field(name, entry) for name, entry in _results(function)])


def arguments(function, batch):
    """Databend's batch as the batch of calls that the function takes. ArrowInvalid or ValueError if it is none."""
    if batch.num_columns != len(function.arguments) or not function.arguments:
        return batch
    columns = [_from(entry, column) for (_, entry), column in zip(function.arguments, batch.columns)]
    return pa.RecordBatch.from_arrays(columns, schema=function.argument_schema)


def reply(function, part):
    """A part of the function's reply as Databend reads it."""
    column = part.column(part.num_columns - 1)
    if function.kind == "table" and isinstance(function.result, types.CompositeType):
        columns = [_to(entry, values) for (_, entry), values in zip(function.result.attributes, column.flatten())]
    else:
        columns = [_to(function.result, column)]
    return pa.RecordBatch.from_arrays(columns, schema=reply_schema(function))


def _results(function):
    if function.kind == "table" and isinstance(function.result, types.CompositeType):
        return function.result.attributes
    return [("output", function.result)]


def _arrow(entry):
    if isinstance(entry, types.ArrayType):
        return pa.list_(_field("item", entry.element))
    if isinstance(entry, types.CompositeType):
        return pa.struct([_field(name, part) for name, part in entry.attributes])
    return entry.arrow if entry.name in _AS_THEY_ARE else _LEAVES.get(entry.name, pa.large_utf8())


def _field(name, entry):
    return pa.field(name, _arrow(entry), metadata=_VARIANT if entry.name == "json" else None)


def _to(entry, array):
    """This protocol's values as Databend's."""
    return _convert(entry, array, _arrow, _texts_of)


def _from(entry, array):
    """Databend's values as this protocol's."""
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    return _convert(entry, array, lambda part: part.arrow, _values_of)


def _convert(entry, array, arrow_of, convert_text):
    kind = arrow_of(entry)
    if isinstance(entry, types.ArrayType):
        # Offsets of a slice do not start at zero; flatten() leaves out what lies below NULL.
        lengths = array.value_lengths().fill_null(0).to_pylist()
        elements = _convert(entry.element, array.flatten(), arrow_of, convert_text)
        return pa.ListArray.from_arrays(_offsets(lengths), elements, kind, mask=array.is_null())
    if isinstance(entry, types.CompositeType):
        pairs = zip(entry.attributes, array.flatten())
        parts = [_convert(part, values, arrow_of, convert_text) for (_, part), values in pairs]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null())
    if entry.name in _AS_THEY_ARE or entry.name in _LEAVES:
        return array.cast(kind) if arrow_of is _arrow else types.adapt(entry, array)
    return convert_text(entry, array)


def _texts_of(entry, array):
    texts = [v if v is None or isinstance(v, str) else json.dumps(v) for v in json_values.encode(entry, array)]
    return pa.array(texts, pa.large_utf8())


def _values_of(entry, array):
    values = array.to_pylist()
    if entry.name == "interval":
        values = [v if v is None else json.loads(v) for v in values]
    return json_values.decode(entry, values)


def _offsets(lengths):
    offsets = [0]
    for length in lengths:
        offsets.append(offsets[-1] + length)
    return pa.array(offsets, pa.int32())
