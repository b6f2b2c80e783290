"""Table functions: any number of results per row, each with the number of its row.

A row handler is called per row and returns an iterable, or is a generator. A batch handler is called per batch and
gives pairs of row numbers (from zero, ascending) and a column of results: one pair, or an iterable of them.
"""

import itertools

import pyarrow as pa

from . import constants, types
from .errors import CallError, from_exception
from .function import PART_BYTES, Cancelled, Function, Pace, as_it_is, size_of

# Results that are sent before the rest of the batch is computed.
_PART_ROWS = 1024


class TableFunction(Function):
    """A table function of the handler."""

    kind = "table"

    @property
    def schema(self):
        """Fields of the arguments, then "row" and the result."""
        return pa.schema([*self.argument_schema, *self.reply_schema])

    @property
    def reply_columns(self):
        """The row number and the result."""
        return [("row", types.TYPES["int4"]), (self.name, self.result)]

    def answer(self, batch, is_cancelled=lambda: False):
        """The reply to a batch, in parts of which the last ends it."""
        batch = self.check_arguments(batch, keeps_constants=True)
        if self.form == "row":
            parts = self._row_parts(batch, is_cancelled)
        else:
            parts = itertools.chain.from_iterable(
                self._batch_parts(piece, first) for first, piece in constants.pieces(batch, self.arguments)
            )
        for rows, column in parts:
            yield pa.RecordBatch.from_arrays([pa.array(rows, pa.int32()), column], schema=self.reply_schema)

    def _row_parts(self, batch, is_cancelled):
        rows, values, count, number, size = [], [], 0, 0, 0
        calls, answers, pace = enumerate(self.rows(batch)), None, Pace(is_cancelled)
        while True:
            # Nothing is given out in here: what ends this generator is no exception of the handler's.
            try:
                if answers is None:
                    number, row = next(calls, (number, None))
                    if row is None:
                        break
                    answers = iter(self.target(*row) or ())
                    # A row counts as well: it may have no results.
                    count += 1
                wanted = min(max(pace.due - count, 1), _PART_ROWS - len(values))
                given = itertools.islice(answers, wanted)
                given = given if self.has_fixed_results else map(as_it_is, given)
                if self.has_small_results:
                    some = list(given)
                else:
                    some, size = _fitting(given, size)
                    wanted = wanted if size < PART_BYTES else len(some)
                answers = answers if len(some) == wanted else None
                count += len(some)
                if count >= pace.due:
                    pace.check(count)
            except (Cancelled, CallError):
                raise
            except BaseException as exception:
                raise from_exception(exception, number) from None
            rows += [number] * len(some)
            values += some
            if len(values) == _PART_ROWS or size >= PART_BYTES:
                yield rows, self.column_of(values, rows)
                rows, values, size = [], [], 0
        yield rows, self.column_of(values, rows)

    def _batch_parts(self, batch, first):
        try:
            columns = self.batch_values(batch)
            answer = self.target(*columns) if columns else self.target(batch.num_rows)
            pairs = iter([answer] if isinstance(answer, tuple) else answer)
        except BaseException as exception:
            raise from_exception(exception) from None
        last = 0
        while True:
            try:
                pair = next(pairs, None)
            except BaseException as exception:
                raise from_exception(exception) from None
            if pair is None:
                return
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise CallError("bad_result", "It gave something else than a pair of row numbers and results.")
            # Of an Arrow array, a list would have scalars of Arrow's.
            rows = pair[0].to_pylist() if isinstance(pair[0], (pa.Array, pa.ChunkedArray)) else list(pair[0])
            column = types.own(self.array_of(pair[1]))
            if len(rows) != len(column):
                raise CallError("bad_result", f"It gave {len(rows)} row numbers for {len(column)} results.")
            ascending = itertools.pairwise(itertools.chain([last], rows))
            if any(not 0 <= row < batch.num_rows for row in rows) or any(a > b for a, b in ascending):
                raise CallError("bad_result", "It gave row numbers that are not those of the batch, ascending.")
            # The next pair goes on from there.
            last = rows[-1] if rows else last
            yield [first + row for row in rows] if first else rows, column


def _fitting(values, size):
    """The values up to the one with which a part of this size is full, and its size then."""
    fitting = []
    for value in values:
        fitting.append(value)
        size += len(value) if type(value) is str else size_of(value)
        if size >= PART_BYTES:
            break
    return fitting, size
