"""Columns of Python's values whose type Arrow infers, as handlers of whole columns return them.

Arrow makes values of the kind of the first one. Of most mixtures it refuses some values, but of moments it makes others: it cuts the time
off, or the zone, or takes a moment without a zone for one in the zone of another. Here these are errors, as they are in handlers of rows.
"""

import datetime

import pyarrow as pa


def array_of(values, from_pandas=False):
    """A list, NumPy array or pandas series as an Arrow array. TypeError, ValueError or ArrowException if values differ in kind."""
    if not hasattr(values, "__len__"):
        # An iterator gives its values once.
        values = list(values)
    array = pa.array(values, from_pandas=from_pandas)
    if getattr(values, "dtype", object) == object and _has_moments(array.type):
        _check(values, {}, ())
    return array


def _has_moments(kind):
    tests = (pa.types.is_date, pa.types.is_timestamp, pa.types.is_time)
    return any(test(kind) for test in tests) or any(_has_moments(kind.field(i).type) for i in range(kind.num_fields))


def _check(values, kinds, path):
    """Raises if a value is of another kind than one before it at the same place within lists and dicts; kinds are by these places."""
    for value in values:
        if isinstance(value, dict):
            for name, part in value.items():
                _check([part], kinds, (*path, name))
        elif isinstance(value, (datetime.date, datetime.time)):
            # Pandas' NaT is a datetime, and not equal to itself.
            if value == value:
                _check_one(value, kinds, path)
        elif hasattr(value, "__iter__") and not isinstance(value, (str, bytes)) and getattr(value, "ndim", 1) > 0:
            _check(value, kinds, (*path, None))


def _check_one(value, kinds, path):
    zone = getattr(value, "tzinfo", None)
    if isinstance(value, datetime.time):
        if zone is not None:
            raise TypeError(f"{value!r}, which is not a time without time zone")
        return
    if getattr(value, "nanosecond", 0) > 0:
        raise ValueError(f"{value!r}, which has digits below a microsecond")
    kind = "dates"
    if isinstance(value, datetime.datetime):
        kind = "datetimes without time zone" if zone is None else "datetimes with a time zone"
    if (others := kinds.setdefault(path, kind)) != kind:
        raise TypeError(f"{value!r} among {others}")
