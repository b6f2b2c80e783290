"""The type table's Python column: SQL type name <-> Arrow type <-> value of Python.

The table is docs/types.md. A row handler gets and returns the plain values below; a batch handler gets Arrow arrays.
"""

import base64
import datetime
import decimal
import json
import math
import uuid

import pyarrow as pa
import pyarrow.compute as pc

_EXTENSION_KEY = b"ARROW:extension:name"
_EPOCH = datetime.datetime(1970, 1, 1)
_UTC_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_MICROSECOND = datetime.timedelta(microseconds=1)
_MAX_SAFE_INTEGER = 1 << 53


class Type:
    """One type: name, Arrow type, extension name, and the conversions that Arrow does not make by itself.

    to_python turns what Array.to_pylist() gives into the handler's value; from_python turns the handler's value into
    what pa.array() takes. None means that the value passes as it is.
    """

    def __init__(self, name, arrow, annotation=None, extension=None, to_python=None, from_python=None, plain=()):
        self.name = name
        self.arrow = arrow
        self.annotation = annotation
        self.extension = extension
        self.to_python = to_python
        self.from_python = from_python
        # Values of exactly these classes need no from_python.
        self.plain = frozenset([*plain, type(None)])

    def field(self, name):
        """A nullable Arrow field of this type."""
        metadata = {_EXTENSION_KEY: self.extension.encode()} if self.extension else None
        return pa.field(name, self.arrow, nullable=True, metadata=metadata)


def _exactly(kind, convert=None):
    """A conversion that accepts instances of kind only, so that no value is silently made into another."""

    def check(value):
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise TypeError(f"{value!r} of type {type(value).__name__}")
        return convert(value) if convert else value

    return check


def _to_float(value):
    if isinstance(value, bool):
        raise TypeError(f"{value!r} of type bool")
    # NumPy's scalars and Decimal have __float__; str has not.
    if isinstance(value, str) or not hasattr(value, "__float__"):
        raise TypeError(f"{value!r} of type {type(value).__name__}")
    return float(value)


def _to_int(value):
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{value!r} of type {type(value).__name__}")
    return value.__index__()


def _from_uuid(value):
    return (value if isinstance(value, uuid.UUID) else uuid.UUID(value)).bytes


def _to_numeric(value):
    if isinstance(value, bool) or not isinstance(value, (decimal.Decimal, int)):
        raise TypeError(f"{value!r} of type {type(value).__name__}")
    return str(value)


def _to_json(value):
    # JSON has no NaN, so PostgreSQL would not take it.
    return json.dumps(value, allow_nan=False)


def _check_date(value):
    if isinstance(value, datetime.datetime) or not isinstance(value, datetime.date):
        raise TypeError(f"{value!r} of type {type(value).__name__}")
    return value


def _check_timestamp(value):
    if not isinstance(value, datetime.datetime) or value.tzinfo is not None:
        raise TypeError(f"{value!r}, which is not a datetime without time zone")
    return value


def _check_timestamptz(value):
    if not isinstance(value, datetime.datetime) or value.tzinfo is None:
        raise TypeError(f"{value!r}, which is not a datetime with a time zone")
    return value


TYPES = {
    entry.name: entry
    for entry in [
        Type("bool", pa.bool_(), bool, from_python=_exactly(bool), plain=[bool]),
        Type("int2", pa.int16(), from_python=_to_int, plain=[int]),
        Type("int4", pa.int32(), from_python=_to_int, plain=[int]),
        Type("int8", pa.int64(), int, from_python=_to_int, plain=[int]),
        Type("float4", pa.float32(), from_python=_to_float, plain=[float]),
        Type("float8", pa.float64(), float, from_python=_to_float, plain=[float]),
        Type("text", pa.utf8(), str, from_python=_exactly(str), plain=[str]),
        Type("bytea", pa.binary(), bytes, from_python=_exactly((bytes, bytearray, memoryview), bytes)),
        Type("date", pa.date32(), datetime.date, from_python=_check_date),
        Type("timestamp", pa.timestamp("us"), datetime.datetime, from_python=_check_timestamp),
        Type("timestamptz", pa.timestamp("us", "UTC"), from_python=_check_timestamptz),
        Type("numeric", pa.utf8(), decimal.Decimal, "arrowudf.decimal", decimal.Decimal, _to_numeric),
        Type("uuid", pa.binary(16), uuid.UUID, "arrow.uuid", lambda raw: uuid.UUID(bytes=raw), _from_uuid),
        Type("json", pa.utf8(), dict, "arrowudf.json", json.loads, _to_json),
    ]
}

_ALIASES = {
    "boolean": "bool", "smallint": "int2", "integer": "int4", "int": "int4", "bigint": "int8", "real": "float4",
    "double precision": "float8", "varchar": "text", "character varying": "text", "char": "text", "character": "text",
    "bpchar": "text", "string": "text", "blob": "bytea", "binary": "bytea", "varbinary": "bytea",
    "timestamp without time zone": "timestamp", "timestamp with time zone": "timestamptz", "decimal": "numeric",
    "jsonb": "json",
}  # fmt: skip

_BY_ANNOTATION = {entry.annotation: entry for entry in TYPES.values() if entry.annotation} | {list: TYPES["json"]}


def by_name(name):
    """The type of a SQL name or alias, in any case; ValueError if there is none."""
    wanted = name.strip().lower()
    entry = TYPES.get(_ALIASES.get(wanted, wanted))
    if entry is None:
        raise ValueError(f'unrecognized type "{name}"')
    return entry


def by_annotation(annotation):
    """The type that a handler's annotation means; ValueError if there is none."""
    try:
        return _BY_ANNOTATION[annotation]
    except (KeyError, TypeError):
        raise ValueError(f'annotation "{annotation}" stands for no SQL type') from None


def encode_json(entry, array):
    """One column as docs/types.md's JSON values, ready for json.dumps."""
    if entry.name in ("bool", "int2", "int4"):
        return array.to_pylist()
    if entry.name == "int8":
        return [v if v is None or abs(v) <= _MAX_SAFE_INTEGER else str(v) for v in array.to_pylist()]
    if entry.name in ("float4", "float8"):
        if pc.all(pc.is_finite(array)).as_py():
            return array.to_pylist()
        return [v if v is None or math.isfinite(v) else _non_finite(v) for v in array.to_pylist()]
    if entry.name == "bytea":
        return [v if v is None else base64.b64encode(v).decode() for v in array.to_pylist()]
    if entry.name == "uuid":
        return [v if v is None else str(uuid.UUID(bytes=v)) for v in array.to_pylist()]
    if entry.name == "date":
        return [v if v is None else _date_text(v) for v in array.cast(pa.int32()).to_pylist()]
    if entry.name in ("timestamp", "timestamptz"):
        zone = "Z" if entry.name == "timestamptz" else ""
        return [v if v is None else _timestamp_text(v, zone) for v in array.cast(pa.int64()).to_pylist()]
    return array.to_pylist()


def decode_json(entry, values):
    """JSON values as an Arrow array; ValueError, TypeError or OverflowError if one does not fit."""
    if entry.plain and entry.plain.issuperset(map(type, values)):
        return pa.array(values, entry.arrow)
    if entry.name in ("int2", "int4", "int8"):
        values = [v if v is None else _read_int(v) for v in values]
    elif entry.name in ("float4", "float8"):
        values = [v if v is None else _read_float(v) for v in values]
    elif entry.name == "bytea":
        values = [v if v is None else base64.b64decode(v) for v in values]
    elif entry.name == "uuid":
        values = [v if v is None else uuid.UUID(v).bytes for v in values]
    elif entry.name == "date":
        return pa.array([v if v is None else _read_date(v) for v in values], pa.int32()).cast(entry.arrow)
    elif entry.name in ("timestamp", "timestamptz"):
        aware = entry.name == "timestamptz"
        ints = [v if v is None else _read_timestamp(v, aware) for v in values]
        return pa.array(ints, pa.int64()).cast(entry.arrow)
    elif entry.name == "numeric":
        values = [v if v is None else str(v) for v in values]
    return pa.array(values, entry.arrow)


def _non_finite(value):
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _date_text(days):
    if days in (2**31 - 1, -(2**31)):
        return "infinity" if days > 0 else "-infinity"
    return (_EPOCH.date() + datetime.timedelta(days=days)).isoformat()


def _timestamp_text(micros, zone):
    if micros in (2**63 - 1, -(2**63)):
        return "infinity" if micros > 0 else "-infinity"
    return (_EPOCH + micros * _MICROSECOND).isoformat(timespec="microseconds") + zone


def _read_int(value):
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(f"{value!r} is not an integer")
    if isinstance(value, bool):
        raise TypeError(f"{value!r} is not an integer")
    return int(value)


def _read_float(value):
    if isinstance(value, bool):
        raise TypeError(f"{value!r} is not a number")
    return float(value)


def _read_date(text):
    if text in ("infinity", "-infinity"):
        return 2**31 - 1 if text == "infinity" else -(2**31)
    return (datetime.date.fromisoformat(text) - _EPOCH.date()).days


def _read_timestamp(text, aware):
    if text in ("infinity", "-infinity"):
        return 2**63 - 1 if text == "infinity" else -(2**63)
    moment = datetime.datetime.fromisoformat(text)
    return (moment - (_UTC_EPOCH if aware else _EPOCH)) // _MICROSECOND
