"""The type table's Python column: SQL type name <-> Arrow type <-> value of Python.

The table is docs/types.md. A row handler gets and returns the plain values below; a batch handler gets Arrow arrays.
Arrays, ranges and composite types are built of the table's types, and so are their values.
"""

import datetime
import decimal
import functools
import ipaddress
import json
import math
import re
import typing
import uuid

import pyarrow as pa
import pyarrow.compute as pc

from . import exact_json

_EXTENSION_KEY = b"ARROW:extension:name"
_MICROSECOND = datetime.timedelta(microseconds=1)
# What rounds to float4's largest value, at most: half a step further is infinite.
MAX_FLOAT4 = math.nextafter((2 - 2**-24) * 2.0**127, 0)


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
        # Bits of a value where all have as many; None otherwise.
        self.bits = None if arrow.num_fields or arrow in (pa.utf8(), pa.binary()) else arrow.bit_width
        # Values of exactly these classes need no from_python.
        self.plain = frozenset([*plain, type(None)])

    def field(self, name):
        """A nullable Arrow field of this type."""
        metadata = {_EXTENSION_KEY: self.extension.encode()} if self.extension else None
        return pa.field(name, self.arrow, nullable=True, metadata=metadata)


class Range(typing.NamedTuple):
    """A value of a range type. A bound that is None is infinite; an empty range has no bounds."""

    lower: typing.Any
    upper: typing.Any
    lower_inc: bool = True
    upper_inc: bool = False
    empty: bool = False


class ArrayType(Type):
    """An array: a list of values."""

    def __init__(self, element):
        self.element = element
        super().__init__(
            f"{element.name}[]",
            pa.list_(element.field("item")),
            to_python=element.to_python and self._to_python,
            from_python=self._from_python,
        )

    def _to_python(self, values):
        return [None if value is None else self.element.to_python(value) for value in values]

    def _from_python(self, values):
        # Text and bytes are sequences too, but nobody means an array by them.
        if isinstance(values, (str, bytes, dict)) or not hasattr(values, "__iter__"):
            raise TypeError(f"{values!r} of type {type(values).__name__}")
        return [None if value is None else self.element.from_python(value) for value in values]


class CompositeType(Type):
    """A composite type: a dict of values."""

    def __init__(self, attributes, name=None, extension=None):
        self.attributes = attributes  # [(name, Type)]
        super().__init__(
            name or "(" + ", ".join(f"{_quote(name)} {entry.name}" for name, entry in attributes) + ")",
            pa.struct([entry.field(name) for name, entry in attributes]),
            extension=extension,
            to_python=self._to_python if any(entry.to_python for _, entry in attributes) else None,
            from_python=self._from_python,
        )

    def _to_python(self, values):
        return {
            name: values[name] if values[name] is None or entry.to_python is None else entry.to_python(values[name])
            for name, entry in self.attributes
        }

    def _from_python(self, value):
        if isinstance(value, dict):
            strangers = value.keys() - {name for name, _ in self.attributes}
            if strangers:
                raise TypeError(f"a dict with {min(strangers, key=repr)!r}, which is no attribute")
            for name, _ in self.attributes:
                if name not in value:
                    raise TypeError(f"a dict without {name!r}")
            parts = [value[name] for name, _ in self.attributes]
        elif isinstance(value, (tuple, list)):
            if len(value) != len(self.attributes):
                raise TypeError(f"{len(value)} values for {len(self.attributes)} attributes")
            parts = value
        else:
            raise TypeError(f"{value!r} of type {type(value).__name__}")
        return {
            name: None if part is None else entry.from_python(part)
            for (name, entry), part in zip(self.attributes, parts)
        }


class RangeType(CompositeType):
    """A range: a Range."""

    def __init__(self, element):
        flag = TYPES["bool"]
        attributes = [("lower", element), ("upper", element), ("lower_inc", flag), ("upper_inc", flag), ("empty", flag)]
        super().__init__(attributes, f"range({element.name})", "transship.range")
        to_dict = self.to_python
        self.to_python = lambda value: Range(**(to_dict(value) if to_dict else value))


def _quote(name):
    if name and all(character.isalnum() or character == "_" for character in name):
        return name
    return '"' + name.replace('"', '""') + '"'


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


def _to_float4(value):
    number = _to_float(value)
    # Arrow would make it infinite.
    if math.isfinite(number) and abs(number) > MAX_FLOAT4:
        raise OverflowError(f"{value!r}, which is out of range")
    return number


def _to_int(value):
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{value!r} of type {type(value).__name__}")
    return value.__index__()


def _from_uuid(value):
    return (value if isinstance(value, uuid.UUID) else uuid.UUID(value)).bytes


def _to_numeric(value):
    if isinstance(value, bool) or not isinstance(value, (decimal.Decimal, int)):
        raise TypeError(f"{value!r} of type {type(value).__name__}")
    return exact_json.plain_digits(str(value))


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
    return _in_micros(value)


def _check_timestamptz(value):
    if not isinstance(value, datetime.datetime) or value.tzinfo is None:
        raise TypeError(f"{value!r}, which is not a datetime with a time zone")
    return _in_micros(value)


def _in_micros(value):
    # Those of pandas have nanoseconds, which Arrow would cut. NaT's are not a number.
    if getattr(value, "nanosecond", 0) > 0:
        raise ValueError(f"{value!r}, which has digits below a microsecond")
    return value


def whole_micros(text):
    """The text of a time, of which Python cuts what is below a microsecond; ValueError if it has that."""
    if re.search(r"[.,]\d{6}\d*[1-9]", text):
        raise ValueError(f"{text!r} has digits below a microsecond")
    return text


def _from_timetz(text):
    # PostgreSQL leaves out the minutes of an offset, which Python wants.
    return datetime.time.fromisoformat(whole_micros(text if re.search(r"[+-]\d\d:", text) else text + ":00"))


def _to_timetz(value):
    if not isinstance(value, datetime.time) or value.tzinfo is None or value.utcoffset() is None:
        raise TypeError(f"{value!r}, which is not a time with a time zone")
    return value.isoformat()


def _check_time(value):
    if not isinstance(value, datetime.time) or value.tzinfo is not None:
        raise TypeError(f"{value!r}, which is not a time without time zone")
    return value


def _to_address(value):
    kinds = (ipaddress.IPv4Address, ipaddress.IPv6Address, ipaddress.IPv4Network, ipaddress.IPv6Network)
    return str(_exactly(kinds)(value))


def _check_datetime2(value):
    text = _exactly(str)(value)
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,7})?", text):
        raise TypeError(f"{value!r}, which is not a datetime2")
    datetime.datetime.fromisoformat(text[:19])
    return text


def _to_interval(value):
    if isinstance(value, datetime.timedelta):
        micros = value // _MICROSECOND - value.days * 86_400_000_000
        return pa.MonthDayNano([0, value.days, micros * 1000])
    return _exactly(pa.MonthDayNano)(value)


TYPES = {
    entry.name: entry
    for entry in [
        Type("bool", pa.bool_(), bool, from_python=_exactly(bool), plain=[bool]),
        Type("int2", pa.int16(), from_python=_to_int, plain=[int]),
        Type("int4", pa.int32(), from_python=_to_int, plain=[int]),
        Type("int8", pa.int64(), int, from_python=_to_int, plain=[int]),
        Type("float4", pa.float32(), from_python=_to_float4, plain=[float]),
        Type("float8", pa.float64(), float, from_python=_to_float, plain=[float]),
        Type("text", pa.utf8(), str, from_python=_exactly(str), plain=[str]),
        Type("bytea", pa.binary(), bytes, from_python=_exactly((bytes, bytearray, memoryview), bytes)),
        Type("date", pa.date32(), datetime.date, from_python=_check_date),
        Type("timestamp", pa.timestamp("us"), datetime.datetime, from_python=_check_timestamp),
        Type("timestamptz", pa.timestamp("us", "UTC"), from_python=_check_timestamptz),
        Type("numeric", pa.utf8(), decimal.Decimal, "arrowudf.decimal", decimal.Decimal, _to_numeric),
        Type("uuid", pa.binary(16), uuid.UUID, "arrow.uuid", lambda raw: uuid.UUID(bytes=raw), _from_uuid),
        Type("json", pa.utf8(), dict, "arrowudf.json", json.loads, _to_json),
        Type("time", pa.time64("us"), datetime.time, from_python=_check_time),
        Type("timetz", pa.utf8(), None, "transship.timetz", _from_timetz, _to_timetz),
        Type("interval", pa.month_day_nano_interval(), datetime.timedelta, from_python=_to_interval),
        Type("inet", pa.utf8(), None, "transship.inet", ipaddress.ip_interface, _to_address),
        Type("cidr", pa.utf8(), None, "transship.cidr", ipaddress.ip_network, _to_address),
        Type("macaddr", pa.utf8(), None, "transship.macaddr", from_python=_exactly(str)),
        Type("datetime2", pa.utf8(), None, "transship.datetime2", from_python=_check_datetime2),
    ]
}

_ALIASES = {
    "boolean": "bool", "smallint": "int2", "integer": "int4", "int": "int4", "bigint": "int8", "real": "float4",
    "double precision": "float8", "varchar": "text", "character varying": "text", "char": "text", "character": "text",
    "bpchar": "text", "string": "text", "blob": "bytea", "binary": "bytea", "varbinary": "bytea",
    "timestamp without time zone": "timestamp", "timestamp with time zone": "timestamptz", "decimal": "numeric",
    "jsonb": "json", "time without time zone": "time", "time with time zone": "timetz",
}  # fmt: skip

_BY_ANNOTATION = {entry.annotation: entry for entry in TYPES.values() if entry.annotation} | {list: TYPES["json"]}
_BY_ARROW = {(entry.arrow, entry.extension): entry for entry in TYPES.values()}


_RANGES = {
    "int4range": "int4", "int8range": "int8", "numrange": "numeric", "daterange": "date", "tsrange": "timestamp",
    "tstzrange": "timestamptz",
}  # fmt: skip

_MAX_DEPTH = 16


def by_name(name):
    """The type of a text as signatures write it: a SQL name or alias in any case, T[], range(T), (name T, ...).

    Raises ValueError if there is none.
    """
    entry, rest = _read_type(name, 0)
    if rest.strip():
        raise ValueError(f'unrecognized type "{name}"')
    return entry


def _read_type(text, depth):
    text = text.lstrip()
    if depth > _MAX_DEPTH:
        raise ValueError("a type is nested too deeply")
    if text.startswith("("):
        attributes, rest = [], "," + text[1:]
        while rest.startswith(","):
            attribute = re.match(r'\s*(?:"((?:[^"]|"")*)"|(\w+))', rest[1:])
            if not attribute:
                raise ValueError(f'expected a name in type "{text}"')
            quoted, plain = attribute.groups()
            entry, rest = _read_type(rest[1 + attribute.end() :], depth + 1)
            attributes.append((plain or quoted.replace('""', '"'), entry))
        if not rest.startswith(")"):
            raise ValueError(f'expected ")" in type "{text}"')
        entry, rest = CompositeType(attributes), rest[1:]
    elif text[:6].lower() == "range(":
        element, rest = _read_type(text[6:], depth + 1)
        if not rest.startswith(")"):
            raise ValueError(f'expected ")" in type "{text}"')
        entry, rest = RangeType(element), rest[1:]
    else:
        word = re.match(r"[A-Za-z0-9_ ]*", text)
        wanted, rest = word.group().strip().lower(), text[word.end() :]
        if wanted in _RANGES:
            entry = RangeType(TYPES[_RANGES[wanted]])
        else:
            entry = TYPES.get(_ALIASES.get(wanted, wanted))
            if entry is None:
                raise ValueError(f'unrecognized type "{wanted or text}"')
    while brackets := re.match(r"\s*\[\s*\]", rest):
        entry, rest = ArrayType(entry), rest[brackets.end() :]
    return entry, rest.lstrip()


def by_annotation(annotation):
    """The type that a handler's annotation means; ValueError if there is none."""
    try:
        return _BY_ANNOTATION[annotation]
    except (KeyError, TypeError):
        raise ValueError(f'annotation "{annotation}" stands for no SQL type') from None


def by_field(field):
    """The type of an Arrow field, which docs/types.md lists; ValueError if it does not."""
    kind, extension = field.type, (field.metadata or {}).get(_EXTENSION_KEY, b"").decode(errors="replace") or None
    if isinstance(kind, pa.BaseExtensionType):
        kind, extension = kind.storage_type, kind.extension_name
    if pa.types.is_list(kind):
        return ArrayType(by_field(kind.value_field))
    if pa.types.is_struct(kind) and extension == "transship.range":
        return RangeType(by_field(kind.field("lower")))
    if pa.types.is_struct(kind):
        return CompositeType([(part.name, by_field(part)) for part in kind])
    if (kind, extension) not in _BY_ARROW:
        raise ValueError(f'column "{field.name}" is of unrecognized type {kind}')
    return _BY_ARROW[kind, extension]


def schema_of(columns):
    """The Arrow schema of (name, Type) pairs."""
    return _schema_of(tuple(columns))


@functools.lru_cache(maxsize=1024)
def _schema_of(columns):
    return pa.schema([entry.field(name) for name, entry in columns])


def storage(kind):
    """An Arrow type without the extension types in it, which pyarrow makes of some extension names."""
    if isinstance(kind, pa.BaseExtensionType):
        return storage(kind.storage_type)
    if pa.types.is_list(kind):
        return pa.list_(pa.field("item", storage(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, storage(field.type)) for field in kind])
    return kind


def adapt(entry, array):
    """An array that holds a type's values in another layout (large or small offsets, views, dictionaries, parts without
    names) as one of the type's own. ValueError or ArrowInvalid if it holds something else."""
    if array.type == entry.arrow:
        return array
    if isinstance(array, pa.ExtensionArray):
        return adapt(entry, array.storage)
    if isinstance(array, pa.DictionaryArray):
        return adapt(entry, array.dictionary.take(array.indices))
    if isinstance(entry, ArrayType) and _is_any_list(array.type):
        # Offsets of a slice do not start at zero; flatten() leaves out what lies below NULL.
        lengths = array.value_lengths().fill_null(0)
        if isinstance(array, pa.FixedSizeListArray):
            lengths = pc.if_else(array.is_valid(), lengths, pa.scalar(0, lengths.type))
        offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths.cast(pa.int64()))])
        elements = adapt(entry.element, array.flatten())
        return pa.ListArray.from_arrays(offsets.cast(pa.int32()), elements, entry.arrow, mask=array.is_null())
    if isinstance(entry, CompositeType) and pa.types.is_struct(array.type):
        if array.type.num_fields != len(entry.attributes):
            raise ValueError(f"it has {array.type.num_fields} attributes, not {len(entry.attributes)}")
        # Parts stand for attributes by their order: some clients send no names. flatten() brings NULLs along.
        parts = [adapt(part, values) for (_, part), values in zip(entry.attributes, array.flatten())]
        return pa.StructArray.from_arrays(parts, fields=list(entry.arrow), mask=array.is_null())
    found, wanted = array.type, entry.arrow
    is_text = wanted == pa.string() and found in (pa.large_string(), pa.string_view())
    is_bytes = wanted == pa.binary() and found in (pa.large_binary(), pa.binary_view())
    # Databend's VARIANT, and RisingWave's decimals before version 2, are bytes.
    is_text_in_bytes = entry.name in ("json", "numeric") and found in (pa.binary(), pa.large_binary(), pa.binary_view())
    if is_text_in_bytes:
        return array.cast(pa.large_binary()).cast(pa.large_string()).cast(wanted)
    if is_text or is_bytes or (entry.name == "timestamptz" and found == pa.timestamp("us")):
        return array.cast(wanted)
    raise ValueError(f"it is {wanted}, not {found}")


# What columns hold. Arrow would cast many of these to one another.
_FAMILIES = {
    "truth": (pa.types.is_boolean,),
    "number": (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal),
    "text": (
        pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_binary, pa.types.is_large_binary,
        pa.types.is_binary_view, pa.types.is_fixed_size_binary,
    ),
    "moment": (pa.types.is_date, pa.types.is_timestamp),
    "time": (pa.types.is_time,),
}  # fmt: skip


def _is_bytes(kind):
    kinds = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
    return any(is_kind(kind) for is_kind in kinds)


def _family(kind):
    return next((family for family, tests in _FAMILIES.items() if any(test(kind) for test in tests)), "other")


def cast(entry, array):
    """A batch handler's column as one of the type's own. TypeError, ValueError or ArrowException if that would make other
    values of its values than rows allow."""
    if array.type == entry.arrow:
        return array
    _check_cast(entry, array)
    return array.cast(entry.arrow)


def _check_cast(entry, array):
    if isinstance(array, pa.ExtensionArray):
        return _check_cast(entry, array.storage)
    if isinstance(array, pa.DictionaryArray):
        return _check_cast(entry, array.dictionary.take(array.indices.unique()))
    found = array.type
    if found == entry.arrow or pa.types.is_null(found):
        return None
    if isinstance(entry, ArrayType) and _is_any_list(found):
        return _check_cast(entry.element, array.flatten())
    if isinstance(entry, CompositeType) and pa.types.is_struct(found):
        # Unlike field(), flatten() brings NULLs along.
        parts = dict(zip((field.name for field in found), array.flatten()))
        for name, part in entry.attributes:
            if name in parts:
                _check_cast(part, parts[name])
        return None
    family = _family(found)
    is_exact = pa.types.is_integer(found) or pa.types.is_decimal(found)
    # Digits are a decimal's text, and numbers and truth values JSON's own.
    is_written = entry.name == "numeric" and is_exact or entry.name == "json" and family in ("number", "truth")
    is_aware = pa.types.is_timestamp(found) and found.tz is not None
    # Arrow would take any 16 bytes of text for a UUID.
    if entry.name == "uuid" and family == "text" and not _is_bytes(found):
        raise TypeError(f"a column of {found}")
    if family != _family(entry.arrow) and not is_written or is_aware and entry.name in ("date", "timestamp"):
        raise TypeError(f"a column of {found}")
    if entry.name == "date" and family == "moment" and not array.cast(entry.arrow).cast(found).equals(array):
        raise ValueError(f"a column of {found} with times of day")
    if entry.name == "float4" and not pa.types.is_integer(found):
        numbers = array.cast(pa.float64())
        beyond = numbers.filter(pc.and_(pc.is_finite(numbers), pc.greater(pc.abs(numbers), MAX_FLOAT4)))
        if len(beyond):
            raise OverflowError(f"{beyond[0]}, which is out of range")
    return None


def validate(batch):
    """Raises ArrowInvalid if offsets or indexes of a batch lead elsewhere, or text is not UTF-8: Arrow's readers check none of them."""
    batch.validate()
    for column in batch.columns:
        _validate(column)


def _validate(array):
    if isinstance(array, pa.DictionaryArray):
        array.indices.validate(full=True)
        places = pc.min_max(array.indices).as_py()
        if places["min"] is not None and not 0 <= places["min"] <= places["max"] < len(array.dictionary):
            raise pa.ArrowInvalid("an index is not one of its dictionary's")
        return _validate(array.dictionary)
    # Arrow has no time 24:00, which databases have.
    kind = _without_times(array.type)
    return (array if kind == array.type else array.view(kind)).validate(full=True)


def _without_times(kind):
    """An Arrow type with integers in place of times."""
    if pa.types.is_time32(kind):
        return pa.int32()
    if pa.types.is_time64(kind):
        return pa.int64()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        make = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return make(kind.value_field.with_type(_without_times(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_times(field.type)) for field in kind])
    return kind


def layout_of(schema):
    """What a client's schema says of the layout that it wants: a subset of {"large text", "view", "large list"}."""
    layout, kinds = set(), list(schema.types)
    while kinds:
        kind = kinds.pop()
        if kind in (pa.large_string(), pa.large_binary()):
            layout.add("large text")
        elif kind in (pa.string_view(), pa.binary_view()):
            layout.add("view")
        elif pa.types.is_large_list(kind):
            layout.add("large list")
        if isinstance(kind, pa.DictionaryType):
            kinds.append(kind.value_type)
        kinds.extend(kind.field(position).type for position in range(kind.num_fields))
    return frozenset(layout)


def laid_out(kind, layout):
    """An Arrow type in a client's layout."""
    if isinstance(kind, pa.BaseExtensionType):
        return laid_out(kind.storage_type, layout)
    if pa.types.is_list(kind):
        element = _laid_out_field(kind.value_field, layout)
        return pa.large_list(element) if "large list" in layout else pa.list_(element)
    if pa.types.is_struct(kind):
        return pa.struct([_laid_out_field(field, layout) for field in kind])
    if "view" in layout:
        return {pa.string(): pa.string_view(), pa.binary(): pa.binary_view()}.get(kind, kind)
    if "large text" in layout:
        return {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(kind, kind)
    return kind


def _laid_out_field(field, layout):
    return field.with_type(laid_out(field.type, layout))


@functools.lru_cache(maxsize=1024)
def laid_out_schema(schema, layout):
    """A schema in a client's layout."""
    return pa.schema([_laid_out_field(field, layout) for field in schema], schema.metadata)


def lay_out(batch, layout):
    """A batch in a client's layout."""
    if not layout:
        return batch
    schema = laid_out_schema(batch.schema, layout)
    columns = [column.cast(field.type) for column, field in zip(batch.columns, schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema) if columns else batch


def _is_any_list(kind):
    kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(is_kind(kind) for is_kind in kinds) or pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind)


def own(array):
    """The array in memory of its own, without an offset. Arrow looks into NumPy's memory, to which a handler may write once it is
    called again."""
    if isinstance(array, pa.DictionaryArray):
        return pa.DictionaryArray.from_arrays(own(array.indices), own(array.dictionary))
    return pa.concat_arrays([array, array[:0]])


def with_plain_digits(entry, array):
    """The array with its decimals as docs/types.md says: digits, without an exponent. ValueError if one has too many."""
    if isinstance(entry, ArrayType):
        elements = with_plain_digits(entry.element, array.values)
        if elements is array.values or elements.equals(array.values):
            return array
        offsets = array.offsets
        return pa.ListArray.from_arrays(offsets, elements, entry.arrow, mask=array.is_null() if array.null_count else None)
    if isinstance(entry, CompositeType):
        parts = [with_plain_digits(part, array.field(i)) for i, (_, part) in enumerate(entry.attributes)]
        if all(part is array.field(i) or part.equals(array.field(i)) for i, part in enumerate(parts)):
            return array
        return pa.StructArray.from_arrays(parts, fields=list(entry.arrow), mask=array.is_null())
    if entry.name != "numeric":
        return array
    texts = array.storage if isinstance(array, pa.ExtensionArray) else array
    if not pc.any(pc.match_substring_regex(texts, "[eE]")).as_py():
        return array
    return pa.array([v if v is None else exact_json.plain_digits(v) for v in texts.to_pylist()], entry.arrow)


def dictionary_of(entry, array):
    """An array of dictionary type as one of int32 and text, if it holds results of a type that travels as text and its
    dictionary is worth sending; None otherwise."""
    if not isinstance(array, pa.DictionaryArray) or storage(entry.arrow) != pa.string():
        return None
    texts = array.dictionary
    if not (pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)):
        return None
    if texts.null_count or len(texts) > len(array):
        return None
    return pa.DictionaryArray.from_arrays(array.indices.cast(pa.int32()), texts.cast(pa.string()))


def check_for_python(entry, array):
    """Raises ValueError if a value would become another one in Python, which pyarrow does not notice."""
    if isinstance(entry, ArrayType):
        check_for_python(entry.element, array.flatten())
    elif isinstance(entry, CompositeType):
        for position, (_, part) in enumerate(entry.attributes):
            check_for_python(part, array.field(position))
    elif entry.name == "time" and any(v is not None and v >= 86_400_000_000 for v in array.cast(pa.int64()).to_pylist()):
        raise ValueError("hour must be in 0..23")
