"""Map functions: a whole stream of rows in, a stream of results out.

A row handler gets an iterator of tuples and yields results. A batch handler gets an iterator of batches ("arrow": record
batches, "pandas": data frames, "numpy": tuples of arrays) and yields columns of results. Either keeps what it likes
between rows, and may give results before, between and after them.
"""

import _thread
import contextlib
import threading

import pyarrow as pa

from .errors import CallError, from_exception
from .function import PART_BYTES, Cancelled, Function, as_it_is, size_of

_PART_ROWS = 1024
# How long results wait for others at most, once somebody looks for them.
_LOOK_S = 0.02


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

    def run(self, batches, is_cancelled=lambda: False, give=None):
        """The results for a stream of batches, as record batches. Raises CallError, or Cancelled.

        Results of rows do not wait for rows that may never come: `give` is called with those that are there, on any thread, but never
        while the caller has a record batch of this generator's. The caller closes the generator, after which nothing is given."""
        pending = _Pending(self, give if self.form == "row" else None)
        taken = self._checked(batches, pending)
        if self.form == "row":
            given = (row for batch in taken for row in self.rows(batch))
        elif self.form == "pandas":
            given = (batch.to_pandas() for batch in taken)
        elif self.form == "numpy":
            given = (tuple(self.batch_values(batch)) for batch in taken)
        else:
            given = taken
        given = _Given(iter(given))
        with pending.looked_for(given):
            yield from self._answer(given, pending, is_cancelled)

    def _answer(self, given, pending, is_cancelled):
        columns = None
        while True:
            # Nothing is given out in here: what ends this generator is no exception of the handler's.
            try:
                if columns is None:
                    answers = iter(self.target(given) or ())
                    columns = self._row_columns(answers, given, pending) if self.form == "row" else map(self.array_of, answers)
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
            yield self.part_of(column)

    def part_of(self, column):
        """A part of a reply."""
        return pa.RecordBatch.from_arrays([column], schema=self.reply_schema)

    def _checked(self, batches, pending):
        batches = iter(batches)
        while True:
            pending.flush()
            batch = next(batches, None)
            if batch is None:
                return
            yield self.check_arguments(batch)

    def _row_columns(self, answers, given, pending):
        # Of the values, at most: others may have taken some.
        values, size, is_sized = pending.values, 0, not self.has_small_results
        for value in answers if self.has_fixed_results else map(as_it_is, answers):
            values.append(value)
            if is_sized:
                size += len(value) if type(value) is str else size_of(value)
            if given.cut is not None:
                return
            if len(values) >= _PART_ROWS or size >= PART_BYTES:
                size = 0
                if (column := pending.take()) is not None:
                    yield column
        if (column := pending.take()) is not None:
            yield column


class _Pending:
    """Results of rows that have not gone out. The thread that adds them takes them as well, and adds none until they are out. Others hold
    the lock until those are out that they take."""

    def __init__(self, function, give):
        self._function, self._give = function, give
        self.values, self._lock, self._ended = [], threading.Lock(), threading.Event()
        # Why results were lost. None go out behind them.
        self._failure = None

    def take(self):
        """The results that there are as a column; None if there are none. Raises what has kept earlier ones."""
        with self._lock:
            return self._column()

    def _column(self):
        if self._failure is not None:
            raise self._failure
        # Others may be added meanwhile.
        values = self.values[:]
        del self.values[: len(values)]
        try:
            return self._function.column_of(values) if values else None
        except CallError as error:
            # Which of those that happened to be there says nothing.
            error.row = None
            raise

    def flush(self):
        """Gives what there is, unless others are about to. It waits for nobody: they may wait for rows that this thread is to take."""
        if self._give is None or not self._lock.acquire(blocking=False):
            return
        try:
            if not self._ended.is_set() and (column := self._column()) is not None:
                self._give(self._function.part_of(column))
        except BaseException as cause:
            self._failure = cause
            raise
        finally:
            self._lock.release()

    @contextlib.contextmanager
    def looked_for(self, given):
        """Has results go out soon, whatever the handler waits for. Afterwards, none do."""
        if self._give is not None:
            # Without a thread, they wait for others, or for the next batch.
            with contextlib.suppress(RuntimeError, MemoryError):
                _thread.start_new_thread(self._look, (given,))
        try:
            yield
        finally:
            self._ended.set()
            with self._lock:
                pass

    def _look(self, given):
        try:
            while not self._ended.wait(_LOOK_S):
                self.flush()
        except BaseException as cause:
            given.cut = given.cut or cause


class _Given:
    """What the handler is given, one after the other. What cuts it off is raised once, whoever has met it, and remembered: a handler that
    catches it, or is not told, would take what it has got for all there is."""

    def __init__(self, items):
        self._items, self._lock, self._is_told, self.cut = items, threading.Lock(), False, None

    def __iter__(self):
        return self

    def __next__(self):
        # A handler may ask on several threads.
        with self._lock:
            if self.cut is None:
                try:
                    item = next(self._items)
                    if self.cut is None:
                        return item
                except StopIteration:
                    if self.cut is None:
                        raise
                except BaseException as cause:
                    self.cut = self.cut or cause
            if self._is_told:
                raise StopIteration
            self._is_told = True
            raise self.cut
