"""A scalar function that goes on after a row on which the handler raises an exception (docs/protocol.md §4.9).

Its reply has a second column, with the error of each row that has one. A row handler is called once for each row. A handler
of whole columns that raises is called again with halves of the rows, down to single ones; where no row may be called twice,
it is given one row at a time from the beginning.
"""

import functools

import pyarrow as pa

from . import constants, types, waiting
from .errors import CallError, message_of
from .function import Cancelled, Function, Pace

# Longest error of one row. Once those of a batch have _MOST_IN_ALL characters together, each further one has _FEW_CHARACTERS:
# every row may have an error, and what all of them say must not need more memory than results do.
_MOST_CHARACTERS = 4096
_MOST_IN_ALL = 1 << 20
_FEW_CHARACTERS = 256


class Forgiving(Function):
    """The function of which answer(batch) gives results and errors."""

    def __init__(self, function, may_repeat):
        super().__init__(
            function.name, function.target, function.form, function.arguments, function.result, function.concurrency
        )
        self._may_repeat = may_repeat

    @functools.cached_property
    def reply_columns(self):
        return [(self.name, self.result), ("error", types.by_name("text"))]

    def answer(self, batch, is_cancelled=lambda: False, may_encode=False):
        batch = self.check_arguments(batch, keeps_constants=True)
        call = self._call_each if self.form == "row" else self._call_pieces
        results, errors = call(batch, is_cancelled)
        yield pa.RecordBatch.from_arrays([results, pa.array(errors, pa.string())], schema=self.reply_schema)

    def _call_each(self, batch, is_cancelled):
        if self.is_waiting:
            results, exceptions = waiting.call_each(self.row_target, self.rows(batch), self.concurrency, is_cancelled)
            text_of = _Texts().add
            errors = [None if exception is None else text_of(message_of(exception)) for exception in exceptions]
            return self.column_of(results), errors
        target = self.row_target
        results, errors, text_of = [], [], _Texts().add
        pace = Pace(is_cancelled)
        due = pace.due
        for row in self.rows(batch):
            value = error = None
            try:
                value = target(*row)
            except CallError:
                raise
            except BaseException as exception:
                error = text_of(message_of(exception))
            results.append(value)
            errors.append(error)
            if len(results) >= due:
                due = pace.check(len(results))
        return self.column_of(results), errors

    def _call_pieces(self, batch, is_cancelled):
        answers, errors, text_of = [], [], _Texts().add
        for _, piece in constants.pieces(batch, self.arguments):
            step = max(piece.num_rows, 1) if self._may_repeat else 1
            ranges = [(first, min(step, piece.num_rows - first)) for first in range(0, piece.num_rows, step)]
            ranges.reverse()
            while ranges:
                if is_cancelled():
                    raise Cancelled
                first, count = ranges.pop()
                try:
                    answer = self._call_columns(piece.slice(first, count), is_cancelled)
                    answers.append(answer if count == batch.num_rows else types.own(answer))
                    errors += [None] * count
                except CallError as error:
                    if error.kind != "user_code":
                        raise
                    if count > 1:
                        ranges += [(first + count // 2, count - count // 2), (first, count // 2)]
                    else:
                        answers.append(pa.nulls(1, self.result.arrow))
                        errors.append(text_of(error.message))
        return (pa.concat_arrays(answers) if answers else pa.nulls(0, self.result.arrow)), errors


class _Texts:
    """The errors of a batch."""

    def __init__(self):
        self._left = _MOST_IN_ALL

    def add(self, text):
        """What of an error's text is reported."""
        text = text[: _MOST_CHARACTERS if self._left > 0 else _FEW_CHARACTERS]
        self._left -= len(text)
        # A lone surrogate is no character.
        return text.encode(errors="replace").decode()
