"""Table, map and aggregate functions: how their answers come in parts, and which answers are refused."""

import itertools
import queue
import sys
import threading
import time
import types

import pyarrow as pa
import pytest
from transship_server import flight, rest
from transship_server.aggregate_function import AggregateFunction
from transship_server.errors import CallError, Cancelled
from transship_server.map_function import MapFunction
from transship_server.table_function import TableFunction
from transship_server.types import by_name


def batch(*columns):
    return pa.RecordBatch.from_arrays([pa.array(values, kind) for values, kind in columns], [str(i) for i in range(len(columns))])


def int8(*values):
    return batch((list(values), pa.int64()))


def rows_of(parts):
    return [(row["row"], list(row.values())[1]) for part in parts for row in part.to_pylist()]


def test_table_rows_carry_their_number(functions):
    calls = batch((["a", "b", "c"], pa.utf8()), ([2, 0, 1], pa.int32()))
    assert rows_of(functions["repeat"].answer(calls)) == [(0, "a"), (0, "a"), (2, "c")]


def test_large_answers_come_in_parts_that_end(functions):
    parts = list(functions["repeat"].answer(batch((["a", "b"], pa.utf8()), ([2000, 100], pa.int32()))))
    assert [part.num_rows for part in parts] == [1024, 1024, 52]
    assert rows_of(parts).count((1, "b")) == 100
    assert [part.num_rows for part in functions["repeat"].answer(batch(([], pa.utf8()), ([], pa.int32())))] == [0]


def test_large_results_go_out_in_small_parts():
    entry = by_name("text")
    made = [
        TableFunction("f", lambda x: (i * "x" for i in [400_000] * 7), "row", [("x", by_name("int8"))], entry).answer(int8(1)),
        MapFunction("f", lambda rows: (i * "x" for i in [400_000] * 7), "row", [("x", by_name("int8"))], entry).run(iter([])),
    ]
    for parts in made:
        sizes = [part.num_rows for part in parts]
        assert sizes == [3, 3, 1]
    many = TableFunction("f", lambda x: itertools.repeat(50_000 * "x", 600), "row", [("x", by_name("int8"))], entry).answer(int8(1))
    sizes = [part.num_rows for part in many]
    assert max(sizes) == 21 and sum(sizes) == 600


def test_table_batches_of_composite_rows(functions):
    expected = [(0, {"a": 1, "b": "x"}), (1, {"a": 2, "b": "y"}), (1, {"a": 3, "b": "z"}), (2, {"a": 4, "b": None})]
    assert rows_of(functions["pairs"].answer(int8(1, 2, 3))) == expected


def test_table_errors_name_the_row_or_the_rule(functions):
    with pytest.raises(CallError) as caught:
        list(functions["repeat"].answer(batch((["a", "b"], pa.utf8()), ([1, -1], pa.int32()))))
    assert (caught.value.kind, caught.value.row) == ("user_code", 1)
    with pytest.raises(CallError, match="ascending"):
        list(functions["backwards"].answer(int8(1, 2)))


def test_map_keeps_state_between_batches(functions):
    parts = list(functions["running"].run(iter([int8(1, 2), int8(3)])))
    assert [value for part in parts for value in part.column(0).to_pylist()] == [1, 3, 6]
    assert [part.column(0).to_pylist() for part in functions["longest"].run(iter([int8(1, 2), int8(3)]))] == [[2]]


def aggregate(groups, step, numbers, values=None, states=None):
    count = len(numbers)
    calls = batch((numbers, pa.int64()), (values or [None] * count, pa.int64()), (states or [None] * count, pa.binary()))
    return groups.answer(calls, step)


def test_groups_are_apart_and_merge(functions, monkeypatch):
    # Another test may have loaded another handler since; pickles name classes by module.
    module = types.ModuleType("handler")
    module.__dict__.update(functions["add"].target.__globals__)
    monkeypatch.setitem(sys.modules, "handler", module)
    groups, others = functions["Sum"].groups(), functions["Sum"].groups()
    assert aggregate(groups, "accumulate", [1, 2, 1], [10, 20, 30]).num_rows == 0
    assert aggregate(groups, "finish", [2, 1, 3]).column(0).to_pylist() == [20, 40, 0]
    aggregate(others, "accumulate", [7], [5])
    state = aggregate(others, "state", [7]).column(1).to_pylist()
    aggregate(groups, "merge", [1], states=state)
    assert aggregate(groups, "finish", [1]).column(0).to_pylist() == [45]
    aggregate(groups, "forget", [1])
    assert aggregate(groups, "finish", [1]).column(0).to_pylist() == [0]


def test_aggregate_errors(functions):
    groups = functions["Sum"].groups()
    with pytest.raises(CallError) as caught:
        aggregate(groups, "accumulate", [1, 1], [1, 13])
    assert (caught.value.kind, caught.value.row) == ("user_code", 1)
    with pytest.raises(CallError, match="no step"):
        aggregate(groups, "explode", [1])


@pytest.mark.parametrize(
    ("pairs", "is_ascending"),
    [([[0, 1], [1, 2]], True), ([[0], [], [0, 2]], True), ([[1], [0]], False), ([[2], [], [1]], False), ([[0, 2], [1, 2]], False)],
)
@pytest.mark.parametrize("kind", [list, pa.array, lambda rows: pa.chunked_array([pa.array(rows, pa.int32())])])
def test_table_rows_ascend_over_all_pairs(pairs, is_ascending, kind):
    entry = by_name("int8")
    function = TableFunction("f", lambda x: ((kind(rows), pa.array(rows, pa.int64())) for rows in pairs), "arrow", [("x", entry)], entry)
    if is_ascending:
        assert rows_of(function.answer(int8(1, 2, 3))) == [(row, row) for rows in pairs for row in rows]
        return
    with pytest.raises(CallError, match="ascending") as caught:
        list(function.answer(int8(1, 2, 3)))
    assert caught.value.kind == "bad_result"


class Slow:
    """An aggregate whose step lasts until it is told to end, and that notes whether two ran at a time."""

    begun, goes_on = threading.Event(), threading.Event()
    running = most = 0

    def __init__(self):
        self.count = 0

    def step(self, x):
        Slow.running += 1
        Slow.most = max(Slow.most, Slow.running)
        Slow.begun.set()
        assert Slow.goes_on.wait(10)
        self.count += 1
        Slow.running -= 1

    def finish(self):
        return self.count


def test_an_exchange_in_use_is_kept_and_takes_one_request_at_a_time(monkeypatch):
    entry = by_name("int8")
    function, exchanges = AggregateFunction("Slow", Slow, "row", [("x", entry)], entry), rest._Exchanges()
    later, clock = [0], time.monotonic
    # Of this module alone, and never before the real time: servers of other tests look at it too.
    monkeypatch.setattr(rest, "time", types.SimpleNamespace(**vars(time) | {"monotonic": lambda: clock() + later[0]}))

    def ask(name, number, step):
        calls = batch(([0], pa.int64()), ([1], pa.int64()), ([None], pa.binary()))
        return exchanges.answer(function, {"exchange": name, "step": step}, number, calls, lambda: False)

    threads = [threading.Thread(target=ask, args=("long", number, "accumulate"), daemon=True) for number in (0, 1)]
    threads[0].start()
    assert Slow.begun.wait(10)
    # Another exchange begins, long after the request did that still runs.
    later[0] += 10 * rest._EXCHANGE_IDLE_S
    ask("other", 0, "forget")
    threads[1].start()
    deadline = 200
    while exchanges._exchanges["long"].users < 2 and (deadline := deadline - 1):
        threads[1].join(0.01)
    Slow.goes_on.set()
    for thread in threads:
        thread.join(10)
    # It was used until its last step ended.
    later[0] += rest._EXCHANGE_IDLE_S / 2
    assert ask("long", 2, "finish").column(0).to_pylist() == [2]
    assert Slow.most == 1
    later[0] += rest._EXCHANGE_IDLE_S + 1
    with pytest.raises(CallError, match="no exchange 'long'"):
        ask("long", 3, "finish")


def given_batches():
    """Two batches, and then one that a client should not have sent."""
    yield int8(1, 2)
    yield int8(3)
    yield batch((["x"], pa.utf8()))


def caught(rows):
    total = 0
    try:
        for (x,) in rows:
            total += x
    except Exception:
        pass
    yield total


def caught_columns(batches):
    try:
        total = sum(len(batch) for batch in batches)
    except Exception:
        total = -1
    return [pa.array([total], pa.int64())]


def caught_again(rows):
    while True:
        try:
            yield next(rows)[0]
        except StopIteration:
            return
        except Exception:
            pass


@pytest.mark.parametrize("target, form", [(caught, "row"), (caught_again, "row"), (caught_columns, "arrow"), (caught_columns, "pandas")])
def test_a_map_function_that_catches_the_end_of_its_rows_fails_all_the_same(target, form):
    """It would take the rows before for all of them."""
    made = MapFunction("f", target, form, [("x", by_name("int8"))], by_name("int8"))
    with pytest.raises(CallError) as found:
        list(made.run(given_batches()))
    assert found.value.kind == "protocol_violation"

    def gone():
        yield int8(1)
        raise Cancelled

    with pytest.raises(Cancelled):
        list(made.run(gone()))


def test_a_map_function_may_take_its_rows_on_several_threads():
    def target(rows):
        taken = []
        threads = [threading.Thread(target=lambda: taken.extend(x for (x,) in rows)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        yield len(taken)

    made = MapFunction("f", target, "row", [("x", by_name("int8"))], by_name("int8"))
    batches = [int8(*range(1000)) for _ in range(20)]
    assert [part.column(0).to_pylist() for part in made.run(iter(batches))] == [[20_000]]


def as_they_come(rows):
    for (x,) in rows:
        yield x


def from_a_thread(rows):
    taken = queue.Queue()

    def take():
        for (x,) in rows:
            taken.put(x)
        taken.put(None)

    threading.Thread(target=take, daemon=True).start()
    yield from iter(taken.get, None)


@pytest.mark.parametrize("target", [as_they_come, from_a_thread])
def test_results_of_a_map_function_do_not_wait_for_rows(target):
    given = queue.Queue()

    def batches():
        for x in range(5):
            yield int8(x, x)
            # The next batch comes once there are the results for this one.
            found = []
            while len(found) < 2:
                found += given.get(timeout=20)
            assert found == [x, x]

    made = MapFunction("f", target, "row", [("x", by_name("int8"))], by_name("int8"))
    give = lambda part: given.put(part.column(0).to_pylist())  # noqa: E731
    for part in made.run(batches(), give=give):
        give(part)
    assert given.empty()


def test_results_of_a_map_function_do_not_wait_for_others():
    told = threading.Event()

    def target(rows):
        yield 1
        assert told.wait(20)
        yield 2

    found = []

    def give(part):
        found.extend(part.column(0).to_pylist())
        told.set()

    made = MapFunction("f", target, "row", [("x", by_name("int8"))], by_name("int8"))
    for part in made.run(iter([]), give=give):
        give(part)
    assert found == [1, 2]


def test_many_results_keep_their_order_whoever_gives_them():
    found = []
    made = MapFunction("f", from_a_thread, "row", [("x", by_name("int8"))], by_name("int8"))
    give = lambda part: found.extend(part.column(0).to_pylist())  # noqa: E731
    for part in made.run((int8(*range(100 * n, 100 * n + 100)) for n in range(300)), give=give):
        give(part)
    assert found == list(range(30_000))


def test_nothing_is_given_behind_results_that_are_lost():
    found = []

    def target(rows):
        yield 1
        time.sleep(0.2)
        yield 2

    def lose(_):
        raise OSError("it is lost")

    made = MapFunction("f", target, "row", [("x", by_name("int8"))], by_name("int8"))
    with pytest.raises(CallError, match="it is lost"):
        found.extend(made.run(iter([]), give=lose))
    assert found == []


@pytest.mark.parametrize("result", [1, 1 << 70])
def test_rows_whose_results_are_lost_are_not_all_rows(result):
    stored, has_failed = [], threading.Event()

    def target(rows):
        count = 0
        for _ in rows:
            count += 1
            if count == 2:
                yield result
                assert has_failed.wait(20)
        stored.append(count)

    def lose(_):
        raise OSError("it is lost")

    made = MapFunction("f", target, "row", [("x", by_name("int8"))], by_name("int8"))
    column_of = made.column_of

    def tell(values):
        try:
            return column_of(values)
        finally:
            # The results fail before the handler goes on, here or where they are given.
            threading.Timer(0.2, has_failed.set).start()

    made.column_of = tell
    with pytest.raises(CallError) as failed:
        list(made.run(iter([int8(*range(100))]), give=lose))
    assert stored == []
    assert failed.value.row is None


def test_rows_are_taken_while_results_that_wait_for_them_are_converted():
    class Taken:
        """Elements that come from a thread which takes rows."""

        def __init__(self, taken):
            self._taken = taken

        def __deepcopy__(self, _):
            return self

        def __iter__(self):
            return (self._taken.get(timeout=20) for _ in range(2))

    def target(rows):
        taken = queue.Queue()
        threading.Thread(target=lambda: [taken.put(x) for (x,) in rows], daemon=True).start()
        yield Taken(taken)

    def batches():
        for x in range(2):
            time.sleep(0.1)
            yield int8(x)

    found = []
    made = MapFunction("f", target, "row", [("x", by_name("int8"))], by_name("int8[]"))
    give = lambda part: found.extend(part.column(0).to_pylist())  # noqa: E731
    for part in made.run(batches(), give=give):
        give(part)
    assert found == [[0, 1]]


def test_nothing_is_given_once_a_map_function_has_ended():
    found = []

    def target(rows):
        yield 1
        raise ValueError("2")

    made = MapFunction("f", target, "row", [("x", by_name("int8"))], by_name("int8"))
    with pytest.raises(CallError):
        list(made.run(iter([]), give=found.append))
    before = len(found)
    time.sleep(0.1)
    assert len(found) == before


def test_a_stream_whose_client_has_gone_does_not_end_as_one_that_is_over():
    class Reader:
        def read_chunk(self):
            raise StopIteration

    assert next(flight._Calls(Reader(), lambda: False), None) is None
    with pytest.raises(Cancelled):
        next(flight._Calls(Reader(), lambda: True))
