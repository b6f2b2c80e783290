"""A call whose client has gone ends after the row that runs (docs/protocol.md §4.8), however few rows the batch has."""

import time

import pyarrow as pa
import pytest
from transship_server import types
from transship_server.aggregate_function import AggregateFunction
from transship_server.function import Cancelled, Function, Pace
from transship_server.table_function import TableFunction

INT8 = types.TYPES["int8"]


class Rows:
    """Handlers that count their rows, each of which takes 20 ms; the client goes during the third."""

    def __init__(self):
        self.count = 0

    def has_gone(self):
        return self.count >= 3

    def scalar(self, x):
        self.count += 1
        time.sleep(0.02)
        return x

    def table(self, x):
        self.scalar(x)
        return ()

    def aggregate(self):
        return self

    def step(self, x):
        self.scalar(x)


def batch(*columns):
    return pa.RecordBatch.from_arrays([pa.array(column, pa.int64()) for column in columns], [str(i) for i in range(len(columns))])


def test_scalar_functions_stop():
    rows = Rows()
    with pytest.raises(Cancelled):
        list(Function("f", rows.scalar, "row", [("x", INT8)], INT8).answer(batch(range(20)), rows.has_gone))
    assert rows.count == 3


def test_table_functions_stop_even_without_results():
    rows = Rows()
    with pytest.raises(Cancelled):
        list(TableFunction("f", rows.table, "row", [("x", INT8)], INT8).answer(batch(range(20)), rows.has_gone))
    assert rows.count == 3


def test_aggregate_functions_stop():
    rows = Rows()
    calls = pa.RecordBatch.from_arrays(
        [pa.array([0] * 20, pa.int64()), pa.array(range(20), pa.int64()), pa.nulls(20, pa.binary())], ["group", "x", "state"]
    )
    groups = AggregateFunction("f", rows.aggregate, "row", [("x", INT8)], INT8).groups()
    with pytest.raises(Cancelled):
        groups.answer(calls, "accumulate", rows.has_gone)
    assert rows.count == 3


def test_fast_rows_are_not_looked_at_one_by_one():
    looks = []
    pace = Pace(lambda: looks.append(1))
    done = 0
    while done < 10_000:
        done = pace.check(pace.due)
    assert 1 <= len(looks) <= 100
