"""Columns as JSON values, as docs/types.md writes them, and back."""

import base64
import datetime
import math
import re
import string
import sys
import uuid

import pyarrow as pa

from . import exact_json, types

_EPOCH = datetime.datetime(1970, 1, 1)
_UTC_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_MICROSECOND = datetime.timedelta(microseconds=1)
_MAX_SAFE_INTEGER = 1 << 53
_NON_FINITE = ("NaN", "Infinity", "-Infinity")


def encode(entry, array):
    """One column as docs/types.md's JSON values, ready for json.dumps."""
    if isinstance(entry, types.ArrayType):
        values, offsets = encode(entry.element, array.values), array.offsets.to_pylist()
        valid = array.is_valid().to_pylist()
        return [values[start:end] if ok else None for ok, start, end in zip(valid, offsets, offsets[1:])]
    if isinstance(entry, types.CompositeType):
        names = [name for name, _ in entry.attributes]
        columns = [encode(part, array.field(i)) for i, (_, part) in enumerate(entry.attributes)]
        valid = array.is_valid().to_pylist()
        return [dict(zip(names, row)) if ok else None for ok, row in zip(valid, zip(*columns))]
    if entry.name == "time":
        return [v if v is None else _time_text(v) for v in array.cast(pa.int64()).to_pylist()]
    if entry.name == "interval":
        return [v if v is None else _interval_json(v) for v in array.to_pylist()]
    if entry.name in ("bool", "int2", "int4"):
        return array.to_pylist()
    if entry.name == "int8":
        return [v if v is None else _int_json(v) for v in array.to_pylist()]
    if entry.name in ("float4", "float8"):
        values = array.to_pylist()
        # A sum of finite values that overflows costs only the second look.
        if math.isfinite(sum(filter(None, values))):
            return values
        return [v if v is None or math.isfinite(v) else _non_finite(v) for v in values]
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


def decode(entry, values):
    """JSON values as an Arrow array; ValueError, TypeError or OverflowError if one does not fit."""
    if isinstance(entry, types.ArrayType):
        offsets = [0]
        for value in values:
            offsets.append(offsets[-1] + (0 if value is None else len(_check_json(value, list))))
        elements = decode(entry.element, [item for value in values if value is not None for item in value])
        mask = pa.array([value is None for value in values], pa.bool_())
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), elements, type=entry.arrow, mask=mask)
    if isinstance(entry, types.CompositeType):
        rows = [{} if value is None else _check_json(value, dict) for value in values]
        columns = [decode(part, [row.get(name) for row in rows]) for name, part in entry.attributes]
        mask = pa.array([value is None for value in values], pa.bool_())
        return pa.StructArray.from_arrays(columns, fields=list(entry.arrow), mask=mask)
    if entry.plain and entry.plain.issuperset(map(type, values)) and not _overflows(entry, values):
        return pa.array(values, entry.arrow)
    if entry.name in ("int2", "int4", "int8"):
        values = [v if v is None else _read_int(v) for v in values]
    elif entry.name in ("float4", "float8"):
        most = types.MAX_FLOAT4 if entry.name == "float4" else sys.float_info.max
        values = [v if v is None else _read_float(v, most) for v in values]
    elif entry.name == "bytea":
        values = [v if v is None else _read_bytes(v) for v in values]
    elif entry.name == "uuid":
        values = [v if v is None else uuid.UUID(v).bytes for v in values]
    elif entry.name == "date":
        return pa.array([v if v is None else _read_date(v) for v in values], pa.int32()).cast(entry.arrow)
    elif entry.name in ("timestamp", "timestamptz"):
        aware = entry.name == "timestamptz"
        ints = [v if v is None else _read_timestamp(v, aware) for v in values]
        return pa.array(ints, pa.int64()).cast(entry.arrow)
    elif entry.name == "time":
        return pa.array([v if v is None else _read_time(v) for v in values], pa.int64()).cast(entry.arrow)
    elif entry.name == "interval":
        values = [v if v is None else _read_interval(_check_json(v, dict)) for v in values]
    elif entry.name == "numeric":
        values = [v if v is None else _read_numeric(v) for v in values]
    return pa.array(values, entry.arrow)


def needs_exact_numbers(entry):
    """Whether a number of this type may be more than a float can hold."""
    if isinstance(entry, types.ArrayType):
        return needs_exact_numbers(entry.element)
    if isinstance(entry, types.CompositeType):
        return any(needs_exact_numbers(part) for _, part in entry.attributes)
    return entry.name in ("int2", "int4", "int8", "numeric", "json", "interval")


def _overflows(entry, values):
    """Whether a float may be out of the range of its type."""
    if entry.name not in ("float4", "float8"):
        return False
    numbers = list(filter(None, values))
    # NaN compares with nothing; it costs a second look only.
    return bool(numbers) and not (max(numbers) < types.MAX_FLOAT4 and min(numbers) > -types.MAX_FLOAT4)


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


def _time_text(micros):
    seconds, fraction = divmod(micros, 1_000_000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction:06}"


def _int_json(value):
    return value if abs(value) <= _MAX_SAFE_INTEGER else str(value)


def _interval_json(value):
    micros, rest = divmod(abs(value.nanoseconds), 1000)
    sign = 1 if value.nanoseconds >= 0 else -1
    result = {"months": value.months, "days": value.days, "microseconds": _int_json(sign * micros)}
    return result | {"nanoseconds": sign * rest} if rest else result


def _check_json(value, kind):
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is not of the JSON type {kind.__name__}")
    return value


def _read_bytes(text):
    # Readers accept white space; anything else that is not base64 would be left out.
    return base64.b64decode(_check_json(text, str).encode("ascii").translate(None, string.whitespace.encode()), validate=True)


def _read_time(text):
    if re.fullmatch(r"24:00:00(\.0*)?", text):
        return 86_400_000_000
    moment = datetime.time.fromisoformat(types.whole_micros(text))
    return (moment.hour * 3600 + moment.minute * 60 + moment.second) * 1_000_000 + moment.microsecond


def _read_interval(value):
    nanoseconds = _read_int(value.get("microseconds", 0)) * 1000 + _read_int(value.get("nanoseconds", 0))
    return pa.MonthDayNano([_read_int(value.get("months", 0)), _read_int(value.get("days", 0)), nanoseconds])


def _read_numeric(value):
    if isinstance(value, exact_json.Number):
        return exact_json.decimal_text(value.text)
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError(f"{value!r} is not a number")
    text = str(value)
    return text if text in _NON_FINITE else exact_json.decimal_text(text)


def _read_int(value):
    if isinstance(value, exact_json.Number):
        return exact_json.integer(value.text)
    # A float beyond that may have been another integer.
    if isinstance(value, float) and not (value.is_integer() and abs(value) <= _MAX_SAFE_INTEGER):
        raise ValueError(f"{value!r} is not an integer")
    if isinstance(value, bool):
        raise TypeError(f"{value!r} is not an integer")
    return int(value)


def _read_float(value, most):
    if isinstance(value, bool):
        raise TypeError(f"{value!r} is not a number")
    number = float(value)
    said = value.text if isinstance(value, exact_json.Number) else value
    if said not in _NON_FINITE and not (abs(number) <= most or math.isnan(number)):
        raise ValueError(f"{said!r} is out of range")
    return number


def _read_date(text):
    if text in ("infinity", "-infinity"):
        return 2**31 - 1 if text == "infinity" else -(2**31)
    return (datetime.date.fromisoformat(text) - _EPOCH.date()).days


def _read_timestamp(text, aware):
    if text in ("infinity", "-infinity"):
        return 2**63 - 1 if text == "infinity" else -(2**63)
    moment = datetime.datetime.fromisoformat(types.whole_micros(text))
    return (moment - (_UTC_EPOCH if aware else _EPOCH)) // _MICROSECOND
