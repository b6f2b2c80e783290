"""A user's function: its signature, and how a batch of Arrow columns becomes a column of results.

Row i of the result answers row i of the batch, always: rows are called in order and nothing is reordered. The kinds of
functions that answer otherwise build on this one: table_function.py, map_function.py, aggregate_function.py.
"""

import collections.abc
import copy
import datetime
import decimal
import functools
import importlib.util
import inspect
import itertools
import sys
import time
import typing
import uuid

import pyarrow as pa
import pyarrow.compute as pc

from . import constants, inferred, small, types, waiting
from .errors import Cancelled, CallError, from_exception

# Most rows that pass between two looks at whether the client has gone, and the time after which the next row waits for one.
_MOST_ROWS_BETWEEN_CHECKS = 256
# Rows of a batch. Those of a function without arguments take no bytes, so a few bytes may ask for any number.
_MOST_ROWS = (1 << 31) - 1
_SLOW_S = 0.01
# Classes of values that nobody changes, and types whose results have no others.
_FIXED = frozenset([
    type(None), bool, int, float, str, bytes, decimal.Decimal, uuid.UUID,
    datetime.date, datetime.datetime, datetime.time, datetime.timedelta,
])
_FIXED_TYPES = frozenset(["bool", "int2", "int4", "int8", "float4", "float8", "text"])
# Classes whose values take a few bytes.
_SMALL = frozenset([type(None), bool, int, float])
# Bytes of results that go out together where a reply has several parts.
PART_BYTES = 1 << 20


def as_it_is(value):
    """A result as it is now: a handler may go on changing a list, a dict or an array that it returned."""
    kind = type(value)
    if kind in _FIXED:
        return value
    if kind is list:
        return value.copy() if _FIXED.issuperset(map(type, value)) else [as_it_is(element) for element in value]
    if isinstance(value, (str, bytes, int, float)):
        return value
    if isinstance(value, tuple) and _FIXED.issuperset(map(type, value)):
        return value
    if kind is dict:
        return {key: as_it_is(element) for key, element in value.items()}
    if kind is bytearray or kind is memoryview:
        return bytes(value)
    if kind is tuple:
        return tuple(map(as_it_is, value))
    if isinstance(value, (collections.abc.Iterator, collections.abc.MappingView)):
        # What it gives later, it may not give any more, or it gives something else.
        return [as_it_is(element) for element in value]
    try:
        return copy.deepcopy(value)
    except Exception:
        return value


def size_of(value):
    """The bytes of a result, more or less; 0 if they are few."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, (list, tuple)):
        few = 8 * len(value)
        return few if _SMALL.issuperset(map(type, value)) else few + sum(map(size_of, value))
    if isinstance(value, dict):
        return sum(map(size_of, value.values()))
    size = getattr(value, "nbytes", 0)
    return size if isinstance(size, int) else 0


class Function:
    """A scalar function of the handler. answer(batch) is what the transports use."""

    kind = "scalar"

    def __init__(self, name, target, form, arguments, result, concurrency=1):
        self.name = name
        self.target = target
        self.form = form
        self.arguments = arguments  # [(name, types.Type)]
        self.result = result  # types.Type
        # Whether calls are awaited, and how many of a batch are under way at a time.
        self.is_waiting, self.concurrency = waiting.is_waiting(target), concurrency

    @functools.cached_property
    def schema(self):
        """Fields of the arguments, then those of the result (docs/protocol.md §3)."""
        return pa.schema([*self.argument_schema, self.result.field(self.name)])

    @functools.cached_property
    def argument_schema(self):
        """Fields of the arguments."""
        return types.schema_of(self.arguments)

    @functools.cached_property
    def call_columns(self):
        """(name, Type) of each column of a batch of calls (docs/protocol.md §4)."""
        return self.arguments

    def with_row_errors(self, wanted):
        """The function as a client wants it that says what becomes of errors of single rows (docs/protocol.md §4.9)."""
        if wanted is None:
            return self
        if self.kind != "scalar" or wanted not in ("once", "again"):
            raise CallError("protocol_violation", f"{self.name} has no errors of rows {wanted!r}")
        return self._with_row_errors[wanted]

    @functools.cached_property
    def _with_row_errors(self):
        # It builds on Function, so it is known only once that is.
        from . import row_errors

        return {wanted: row_errors.Forgiving(self, may_repeat=wanted == "again") for wanted in ("once", "again")}

    @functools.cached_property
    def small_codec(self):
        """What reads and writes its small batches; None if they are not plain."""
        return small.Codec.of(self)

    @functools.cached_property
    def has_fixed_results(self):
        """Whether no handler can change a result that it has returned."""
        return self.result.name in _FIXED_TYPES

    @functools.cached_property
    def has_small_results(self):
        """Whether a result takes a few bytes at most."""
        return self.has_fixed_results and self.result.name != "text"

    @functools.cached_property
    def row_target(self):
        """The handler's function for rows. Its results stay as they were when it returned them."""
        target = self.target
        if self.has_fixed_results:
            return target
        if self.is_waiting:

            async def call(*row):
                return as_it_is(await target(*row))
        else:

            def call(*row):
                return as_it_is(target(*row))

        return call

    @functools.cached_property
    def reply_columns(self):
        """(name, Type) of each column of a reply."""
        return [(self.name, self.result)]

    @functools.cached_property
    def reply_schema(self):
        """Fields of a reply."""
        return types.schema_of(self.reply_columns)

    def answer(self, batch, is_cancelled=lambda: False, may_encode=False):
        """The reply to a batch, in parts, as dictionaries where the client and the handler want it. Raises CallError, or
        Cancelled."""
        answer = self.call(batch, is_cancelled, may_encode)
        schema = self.reply_schema
        if isinstance(answer, pa.DictionaryArray):
            schema = pa.schema([schema.field(0).with_type(answer.type)])
        yield pa.RecordBatch.from_arrays([answer], schema=schema)

    def call(self, batch, is_cancelled=lambda: False, may_encode=False):
        """One Arrow array with a result per row of batch. Raises CallError, or Cancelled."""
        batch = self.check_arguments(batch, keeps_constants=True)
        if self.form == "row":
            return self.column_of(self.call_rows(self.rows(batch), is_cancelled))
        answers = []
        for _, piece in constants.pieces(batch, self.arguments):
            is_whole = piece.num_rows == batch.num_rows
            answer = self._call_columns(piece, is_cancelled, may_encode and is_whole)
            answers.append(answer if is_whole else types.own(answer))
        return answers[0] if len(answers) == 1 else pa.concat_arrays(answers)

    def _call_columns(self, batch, is_cancelled, may_encode=False):
        try:
            # Without arguments a batch function could not know how many results to give.
            arguments = self.batch_values(batch) or [batch.num_rows]
            if self.is_waiting:
                answer = waiting.call(self.target, arguments, is_cancelled)
            else:
                answer = self.target(*arguments)
        except Cancelled:
            raise
        except BaseException as exception:
            raise from_exception(exception) from None
        answer = self.array_of(answer, may_encode)
        if len(answer) != batch.num_rows:
            raise CallError("bad_result", f"It returned {len(answer)} values for {batch.num_rows} rows.")
        return answer

    def check_arguments(self, batch, keeps_constants=False):
        """The batch, whose columns are the declared arguments', or constants if these are kept; otherwise raises CallError."""
        if batch.num_columns != len(self.arguments):
            raise CallError(
                "protocol_violation", f"{self.name} takes {len(self.arguments)} columns, not {batch.num_columns}"
            )
        if batch.num_rows > _MOST_ROWS:
            raise CallError("protocol_violation", f"a batch cannot have {batch.num_rows} rows")
        if batch.schema.equals(self.argument_schema):
            return batch
        columns = batch.columns
        has_constants = False
        for position, (_, entry) in enumerate(self.arguments):
            try:
                if keeps_constants and (constant := constants.adapted(entry, columns[position])) is not None:
                    columns[position] = constant
                    has_constants = True
                    continue
                columns[position] = types.adapt(entry, columns[position])
            except (ValueError, pa.ArrowException) as cause:
                fact = f"column {position + 1} of {self.name} does not fit {entry.arrow}: {cause}"
                raise CallError("protocol_violation", fact) from None
        if has_constants:
            return pa.RecordBatch.from_arrays(columns, self.argument_schema.names)
        return pa.RecordBatch.from_arrays(columns, schema=self.argument_schema) if columns else batch

    def rows(self, batch):
        """The batch's rows as tuples of the handler's values."""
        columns = [_python_values(entry, batch.column(i)) for i, (_, entry) in enumerate(self.arguments)]
        return zip(*columns) if columns else itertools.repeat((), batch.num_rows)

    def batch_values(self, batch):
        """The batch's columns in the form that the handler wants."""
        if self.form == "numpy":
            return [_numpy_values(entry, column) for (_, entry), column in zip(self.arguments, batch.columns)]
        if self.form == "pandas":
            return [column.to_pandas() for column in batch.columns]
        return batch.columns

    def call_rows(self, rows, is_cancelled):
        """The handler's values for rows, which are tuples. Raises CallError, or Cancelled."""
        if self.is_waiting:
            return waiting.call_rows(self.row_target, rows, self.concurrency, is_cancelled)
        target = self.row_target
        results = []
        append = results.append
        pace = Pace(is_cancelled)
        due = pace.due
        try:
            for row in rows:
                append(target(*row))
                if len(results) >= due:
                    due = pace.check(len(results))
        except (Cancelled, CallError):
            raise
        except BaseException as exception:
            raise from_exception(exception, len(results)) from None
        return results

    def column_of(self, values, rows=None):
        """The handler's values as an Arrow array; rows says which row of the batch each is of, if not its own."""
        convert = self.result.from_python
        try:
            if not self.result.plain.issuperset(map(type, values)):
                values = [None if value is None else convert(value) for value in values]
            column = pa.array(values, self.result.arrow)
            # Arrow makes finite values infinite that are too large; convert() refuses them.
            if self.result.name == "float4" and pc.any(pc.is_inf(column)).as_py():
                values = [None if value is None else convert(value) for value in values]
            return column
        except CallError:
            raise
        except BaseException:
            pass  # Now find the row that does not fit.
        for position, value in enumerate(values):
            try:
                pa.array([None if value is None else convert(value)], self.result.arrow)
            except BaseException as exception:
                raise self._bad_value(exception, rows[position] if rows else position) from None
        raise CallError("bad_result", f"The results of {self.name} do not fit type {self.result.name}.")

    def _bad_value(self, exception, row=None):
        if isinstance(exception, CallError):
            return exception
        return CallError("bad_result", f"It returned {exception}; the declared result is {self.result.name}.", row)

    def array_of(self, answer, may_encode=False):
        """A column of results as an Arrow array; of a composite type also a table, a data frame or a dict of columns."""
        try:
            if isinstance(self.result, types.CompositeType):
                answer = _struct_of(answer, self.result)
            if isinstance(answer, pa.ChunkedArray):
                answer = answer.combine_chunks()
            if not isinstance(answer, pa.Array):
                answer = inferred.array_of(answer, self.form == "pandas")
            if may_encode and (encoded := types.dictionary_of(self.result, answer)) is not None:
                return encoded
            answer = types.with_plain_digits(self.result, types.cast(self.result, answer))
        except BaseException as exception:
            raise self._bad_value(exception) from None
        return answer


def _struct_of(answer, entry):
    if hasattr(answer, "to_records") and hasattr(answer, "columns"):
        answer = {name: answer[name] for name in answer.columns}
    if isinstance(answer, (pa.RecordBatch, pa.Table)):
        answer = {name: answer.column(name) for name in answer.schema.names}
    if isinstance(answer, (list, tuple)):
        for row, value in enumerate(answer):
            if isinstance(value, dict) and (missing := [name for name, _ in entry.attributes if name not in value]):
                raise TypeError(f"a dict without {missing[0]!r} for row {row + 1} of the batch")
    names = [field.name for field in getattr(answer, "type", ())] if isinstance(answer, (pa.StructArray, pa.ChunkedArray)) else None
    if names is not None and (missing := [name for name, _ in entry.attributes if name not in names]):
        raise TypeError(f"a struct without {missing[0]!r}")
    if not isinstance(answer, dict):
        return answer
    missing = [name for name, _ in entry.attributes if name not in answer]
    if missing:
        raise TypeError(f"columns without {missing[0]!r}")
    columns = []
    for name, part in entry.attributes:
        column = answer[name]
        column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        column = column if isinstance(column, pa.Array) else inferred.array_of(column, from_pandas=True)
        columns.append(types.cast(part, column))
    return pa.StructArray.from_arrays(columns, fields=list(entry.arrow))


class Pace:
    """After which rows to look whether the client has gone: after each if they take long, else after several."""

    def __init__(self, is_cancelled):
        self.due = 1
        self._is_cancelled = is_cancelled
        self._step = 1
        self._time = time.monotonic()

    def check(self, count):
        """Looks, once so many rows are done, and says after how many it is to be called again. Raises Cancelled."""
        now = time.monotonic()
        is_slow, self._time = now - self._time > _SLOW_S, now
        self._step = 1 if is_slow else min(2 * self._step, _MOST_ROWS_BETWEEN_CHECKS)
        # The first few rows of a fast function are not worth a system call.
        if (is_slow or self._step == _MOST_ROWS_BETWEEN_CHECKS) and self._is_cancelled():
            raise Cancelled
        self.due = count + self._step
        return self.due


def _python_values(entry, column):
    """The handler's value of each row."""
    constant = constants.value_of(entry, column)
    if constant is not None:
        (value,) = _python_values(entry, constant)
        if not isinstance(value, (list, dict)):
            return itertools.repeat(value, len(column))
        # What a handler does to the value of one row is not seen in the next.
        return (_python_values(entry, constant)[0] for _ in range(len(column)))
    try:
        types.check_for_python(entry, column)
        values = column.to_pylist()
        if entry.to_python is not None:
            values = [None if value is None else entry.to_python(value) for value in values]
        return values
    except (ValueError, OverflowError) as exception:
        for row in range(len(column)):
            try:
                types.check_for_python(entry, column.slice(row, 1))
                value = column[row].as_py()
                if value is not None and entry.to_python is not None:
                    entry.to_python(value)
            except (ValueError, OverflowError):
                raise CallError(
                    "out_of_range",
                    f"Python cannot hold the {entry.name} argument of row {row + 1} of the batch.",
                    row,
                ) from None
        raise CallError("out_of_range", f"Python cannot hold a {entry.name} argument: {exception}.") from None


def _numpy_values(entry, column):
    """A NumPy array, without a copy where there are no NULLs; NULL is NaN in floats and None elsewhere."""
    if column.null_count and entry.name not in ("float4", "float8"):
        import numpy

        return numpy.array(column.to_pylist(), dtype=object)
    return column.to_numpy(zero_copy_only=False)


def load(manifest, directory):
    """The manifest's functions by name, out of the handler file in directory. Raises ValueError."""
    path = f"{directory}/{manifest['handler']}"
    sys.path.insert(0, directory)
    spec = importlib.util.spec_from_file_location("handler", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["handler"] = module
    spec.loader.exec_module(module)
    functions = {}
    for entry in manifest["functions"]:
        name = entry["name"]
        target = getattr(module, name, None)
        if not callable(target):
            raise ValueError(f'{manifest["handler"]} has no function "{name}"')
        functions[name] = _describe(name, target, entry)
    return functions


def _describe(name, target, entry):
    # These build on Function, so they are known only once it is.
    from . import aggregate_function, map_function, table_function

    kinds = {
        "scalar": Function,
        "table": table_function.TableFunction,
        "map": map_function.MapFunction,
        "aggregate": aggregate_function.AggregateFunction,
    }
    kind, form = entry.get("kind", "scalar"), entry.get("batch", "row")
    arguments, returns = entry.get("arguments"), entry.get("returns")
    if kind not in kinds:
        raise ValueError(f'function "{name}" is of unrecognized kind "{kind}"')
    concurrency = _concurrency_of(name, target, entry)
    if arguments is not None and returns is not None:
        parsed = [_parse_argument(text, position) for position, text in enumerate(arguments)]
        return kinds[kind](name, target, form, parsed, types.by_name(returns), concurrency)
    if kind != "scalar":
        raise ValueError(f'function "{name}" is a {kind} function, so the manifest must give its arguments and result')
    if form != "row":
        raise ValueError(f'function "{name}" takes whole columns, so the manifest must give its arguments and result')
    signature = inspect.signature(target)
    hints = typing.get_type_hints(target)
    for parameter in [*signature.parameters, "return"]:
        if parameter not in hints:
            raise ValueError(f'function "{name}" lacks an annotation for "{parameter}"')
    parsed = [(parameter, types.by_annotation(_optional(hints[parameter]))) for parameter in signature.parameters]
    return Function(name, target, form, parsed, types.by_annotation(_optional(hints["return"])), concurrency)


def _concurrency_of(name, target, entry):
    """How many calls of a batch are under way at a time; ValueError if the handler cannot have so many."""
    kind, form, concurrency = entry.get("kind", "scalar"), entry.get("batch", "row"), entry.get("concurrency", 1)
    is_waiting = waiting.is_waiting(target)
    if kind != "scalar" and (is_waiting or inspect.isasyncgenfunction(target)):
        raise ValueError(f'function "{name}" is a {kind} function, so it cannot be "async def"')
    if concurrency > 1 and not is_waiting:
        raise ValueError(f'function "{name}" has concurrency = {concurrency}, so it must be "async def"')
    if concurrency > 1 and form != "row":
        raise ValueError(f'function "{name}" takes whole columns, so a batch has one call, and no concurrency')
    return concurrency


def _parse_argument(text, position):
    try:
        return f"arg{position + 1}", types.by_name(text)
    except ValueError:
        name, _, type_name = text.strip().partition(" ")
        return name, types.by_name(type_name or text)


def _optional(annotation):
    """T for T | None, which says nothing that SQL does not know."""
    members = [member for member in typing.get_args(annotation) if member is not type(None)]
    return members[0] if len(members) == 1 and type(None) in typing.get_args(annotation) else annotation
