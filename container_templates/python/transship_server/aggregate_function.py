"""Aggregate functions: one result per group of rows.

The handler's class has one instance per group, made without arguments: step(*arguments) adds a row (a batch handler's
step gets columns with the group's rows), finish() gives the result, as often as it is asked, and merge(other), which is
optional, adds another instance's rows. Instances travel between containers as pickles.
"""

import pickle

import pyarrow as pa

from . import types
from .errors import CallError, from_exception
from .function import Cancelled, Function, Pace, as_it_is


class AggregateFunction(Function):
    """An aggregate function of the handler."""

    kind = "aggregate"

    @property
    def schema(self):
        """Fields of the arguments, then the result; the metadata says that it is an aggregate function."""
        return super().schema.with_metadata({"transship.kind": "aggregate"})

    @property
    def call_columns(self):
        """The group, the arguments and a state."""
        return [("group", types.TYPES["int8"]), *self.arguments, ("state", types.TYPES["bytea"])]

    @property
    def reply_columns(self):
        """The result and a state."""
        return [(self.name, self.result), ("state", types.TYPES["bytea"])]

    def answer(self, batch, is_cancelled=lambda: False):
        """Single batches have no answer: groups belong to an exchange."""
        raise CallError("protocol_violation", f"{self.name} is an aggregate function")

    def groups(self):
        """The groups of a new exchange."""
        return Groups(self)


class Groups:
    """The groups of one exchange: instances of the handler's class by number."""

    def __init__(self, function):
        self._function = function
        self._instances = {}

    def answer(self, batch, step, is_cancelled=lambda: False):
        """The reply to one batch (docs/protocol.md §4)."""
        function = self._function
        if batch.num_columns != len(function.arguments) + 2 or batch.schema.field(0).type != pa.int64():
            raise CallError("protocol_violation", f"a batch for aggregate function {function.name} has other columns")
        numbers = batch.column(0).to_pylist()
        states = batch.column(batch.num_columns - 1)
        arguments = pa.RecordBatch.from_arrays(batch.columns[1:-1], names=batch.schema.names[1:-1])
        arguments = function.check_arguments(arguments)
        results, pickles = [], []
        if step == "accumulate" and function.form == "row":
            rows = function.rows(arguments) if function.arguments else [()] * len(numbers)
            self._each(zip(numbers, rows), lambda number, row: self._instance(number).step(*row), is_cancelled)
        elif step == "accumulate":
            self._accumulate_columns(numbers, arguments)
        elif step == "merge":
            self._each(zip(numbers, states.to_pylist()), self._merge, is_cancelled)
        elif step == "finish":
            self._each(enumerate(numbers), lambda _, number: results.append(as_it_is(self._instance(number).finish())), is_cancelled)
        elif step == "state":
            self._each(enumerate(numbers), lambda _, number: pickles.append(pickle.dumps(self._instance(number))), is_cancelled)
        elif step == "forget":
            for number in numbers:
                self._instances.pop(number, None)
        else:
            raise CallError("protocol_violation", f"there is no step {step!r}")
        rows = max(len(results), len(pickles))
        columns = [
            function.column_of(results) if results else pa.nulls(rows, function.result.arrow),
            pa.array(pickles or [None] * rows, pa.binary()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=function.reply_schema)

    def _instance(self, number):
        instance = self._instances.get(number)
        if instance is None:
            instance = self._instances[number] = self._function.target()
        return instance

    def _merge(self, number, state):
        instance, other = self._instance(number), pickle.loads(state)
        if not hasattr(instance, "merge"):
            raise CallError("bad_result", f"Class {self._function.name} has no method merge, which parallel queries need.")
        instance.merge(other)

    def _accumulate_columns(self, numbers, arguments):
        order = {}
        for position, number in enumerate(numbers):
            order.setdefault(number, []).append(position)
        for number, positions in order.items():
            part = arguments if len(order) == 1 else arguments.take(pa.array(positions, pa.int64()))
            try:
                self._instance(number).step(*self._function.batch_values(part))
            except BaseException as exception:
                raise from_exception(exception) from None

    def _each(self, pairs, work, is_cancelled):
        row = -1
        pace = Pace(is_cancelled)
        try:
            for row, pair in enumerate(pairs):
                work(*pair)
                if row + 1 >= pace.due:
                    pace.check(row + 1)
        except (Cancelled, CallError):
            raise
        except BaseException as exception:
            raise from_exception(exception, max(row, 0)) from None
