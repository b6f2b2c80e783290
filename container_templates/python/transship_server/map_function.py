"""Map functions: a whole stream of rows in, a stream of results out.

A row handler gets an iterator of tuples and yields results. A batch handler gets an iterator of batches ("arrow": record
batches, "pandas": data frames, "numpy": tuples of arrays) and yields columns of results. Either keeps what it likes
between rows, and may give results before, between and after them.
"""

import threading

import pyarrow as pa

from .errors import CallError, from_exception
from .function import Cancelled, Function, as_it_is

_PART_ROWS = 1024


class MapFunction(Function):
    """A map function of the handler."""

    kind = "map"

    @property
    def schema(self):
        """Fields of the arguments, then the result; the metadata says that it is a map function."""
        return super().schema.with_metadata({"transship.kind": "map"})

    def answer(self, batch, is_cancelled=lambda: False):
        """Single batches have no answer."""
        raise CallError("protocol_violation", f"{self.name} is a map function")

    def run(self, batches, is_cancelled=lambda: False):
        """The results for a stream of batches, as record batches. Raises CallError, or Cancelled."""
        taken = self._checked(batches)
        if self.form == "row":
            given = (row for batch in taken for row in self.rows(batch))
        elif self.form == "pandas":
            given = (batch.to_pandas() for batch in taken)
        elif self.form == "numpy":
            given = (tuple(self.batch_values(batch)) for batch in taken)
        else:
            given = taken
        given = _Given(iter(given))
        columns = None
        while True:
            # Nothing is given out in here: what ends this generator is no exception of the handler's.
            try:
                if columns is None:
                    answers = iter(self.target(given) or ())
                    columns = self._row_columns(answers) if self.form == "row" else map(self.array_of, answers)
                column = next(columns, None)
                if given.cut is not None:
                    raise given.cut
                if column is not None and is_cancelled():
                    raise Cancelled
            except BaseException as exception:
                cause = given.cut or exception
                raise (cause if isinstance(cause, Cancelled) else from_exception(cause)) from None
            if column is None:
                return
            yield pa.RecordBatch.from_arrays([column], schema=self.reply_schema)

    def _checked(self, batches):
        for batch in batches:
            yield self.check_arguments(batch)

    def _row_columns(self, answers):
        values = []
        for value in answers if self.has_fixed_results else map(as_it_is, answers):
            values.append(value)
            if len(values) == _PART_ROWS:
                yield self.column_of(values)
                values = []
        if values:
            yield self.column_of(values)


class _Given:
    """What the handler is given, one after the other. What cuts it off is raised once, and remembered: a handler that catches it would take
    what it has got for all there is."""

    def __init__(self, items):
        self._items, self._lock, self.cut = items, threading.Lock(), None

    def __iter__(self):
        return self

    def __next__(self):
        # A handler may ask on several threads.
        with self._lock:
            if self.cut is not None:
                raise StopIteration
            try:
                return next(self._items)
            except StopIteration:
                raise
            except BaseException as cause:
                self.cut = cause
                raise
