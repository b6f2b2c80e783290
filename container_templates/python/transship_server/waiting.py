"""Handlers that wait, such as for a web service: functions of `async def`.

Their calls run on one event loop, which has a thread of its own, so that a client that a handler keeps serves all of them. Of a
batch, as many calls are under way at a time as the manifest's `concurrency` says. Results keep the order of the rows. The first row
that fails ends the batch: calls of later rows are cancelled, and those of earlier rows go on, since one of them may fail as well.
"""

import _thread
import asyncio
import concurrent.futures
import contextlib
import inspect
import sys
import threading
import traceback

from .errors import CallError, Cancelled, from_exception

# Between two looks at whether the client has gone.
_LOOK_S = 0.02
# How long the thread of the event loop may take to start.
_START_PATIENCE_S = 5
# Rows after which a handler that does not wait lets others go on.
_ROWS_IN_TURN = 256


def is_waiting(target):
    """Whether a handler is to be awaited."""
    if inspect.isclass(target):
        return any(inspect.iscoroutinefunction(getattr(target, name, None)) for name in ("step", "merge", "finish"))
    return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(getattr(target, "__call__", None))


def call_rows(target, rows, concurrency, is_cancelled):
    """The handler's values for rows, which are tuples. Raises CallError, or Cancelled."""
    calls = _Calls(target, rows, goes_on=False)
    _run(calls, concurrency, is_cancelled)
    if calls.failed is not None:
        raise from_exception(calls.errors[calls.failed], calls.failed) from None
    return calls.results


def call_each(target, rows, concurrency, is_cancelled):
    """The handler's value for each row, and the exception of each row that has one. Raises CallError, or Cancelled."""
    calls = _Calls(target, rows, goes_on=True)
    _run(calls, concurrency, is_cancelled)
    if calls.failed is not None:
        raise calls.errors[calls.failed]
    return calls.results, [calls.errors.get(row) for row in range(len(calls.results))]


def call(target, arguments, is_cancelled):
    """What one call gives. Raises the handler's exception, or Cancelled."""
    calls = _Calls(target, [arguments], goes_on=True)
    _run(calls, 1, is_cancelled)
    if calls.errors:
        raise calls.errors[0]
    return calls.results[0]


def _run(calls, concurrency, is_cancelled):
    loop = _loop.get()
    running = asyncio.run_coroutine_threadsafe(calls.run(concurrency), loop)
    while not concurrent.futures.wait([running], _LOOK_S).done:
        if is_cancelled():
            # A handler that does not heed it is not waited for.
            calls.is_stopped = True
            running.cancel()
            raise Cancelled
    running.result()


class _Calls:
    """The calls of a batch. results has a value per row, None where there is an error; errors are by row."""

    def __init__(self, target, rows, goes_on):
        self._target, self._rows, self._goes_on = target, enumerate(rows), goes_on
        self.results, self.errors = [], {}
        # The first row that failed, if that ends the batch.
        self.failed = None
        self.is_stopped = False
        # The tasks that call, with the row that each is at, and those of them that were cancelled.
        self._tasks, self._cancelled = {}, set()
        # Set when one of them has ended or was cancelled. They start one another, so nobody could wait for all of them.
        self._changed = asyncio.Event()

    async def run(self, concurrency):
        """Calls the handler for all rows, so many at a time."""
        self._start(concurrency)
        try:
            # One that does not heed its cancellation is not waited for.
            while self._tasks.keys() - self._cancelled:
                await self._changed.wait()
                self._changed.clear()
                for task in [task for task in self._tasks if task.done() and task not in self._cancelled]:
                    del self._tasks[task]
                    # What is raised here is no exception of the handler's.
                    task.result()
        finally:
            self.is_stopped = True
            self._cancel_after(-1)

    def _start(self, concurrency):
        task = asyncio.create_task(self._call_in_turn(concurrency))
        self._tasks[task] = -1
        task.add_done_callback(lambda _: self._changed.set())

    async def _call_in_turn(self, concurrency):
        me, is_first = asyncio.current_task(), True
        while not self.is_stopped and self.failed is None:
            row, arguments = next(self._rows, (None, None))
            if row is None:
                return
            self.results.append(None)
            self._tasks[me] = row
            # Others are started one by one: there may be fewer rows than calls may be under way.
            if is_first and len(self._tasks) < concurrency:
                self._start(concurrency)
            is_first = False
            try:
                self.results[row] = await self._target(*arguments)
            except BaseException as exception:
                if me in self._cancelled:
                    return
                self._note(row, exception)
            if row % _ROWS_IN_TURN == 0:
                await asyncio.sleep(0)

    def _note(self, row, exception):
        self.errors[row] = exception
        ends = not self._goes_on or isinstance(exception, CallError)
        if ends and (self.failed is None or row < self.failed):
            self.failed = row
            self._cancel_after(row)

    def _cancel_after(self, row):
        me = asyncio.current_task()
        for task, its_row in self._tasks.items():
            if its_row > row and task is not me:
                self._cancelled.add(task)
                task.cancel()
                self._changed.set()


class _Loop:
    """The event loop, which runs from the first call on."""

    def __init__(self):
        self._lock, self._loop = threading.Lock(), None

    def get(self):
        """The loop. Raises CallError."""
        with self._lock:
            if self._loop is None:
                loop, runs = asyncio.new_event_loop(), threading.Event()
                # threading.Thread would wait for ever for a thread that ends before it runs, for want of memory.
                with contextlib.suppress(RuntimeError):
                    _thread.start_new_thread(self._run, (loop, runs))
                    runs.wait(_START_PATIENCE_S)
                if not runs.is_set():
                    raise CallError("busy", "the server has no thread for functions that wait")
                # Only now: a loop that no thread runs would have every call wait. The next call tries again.
                self._loop = loop
            return self._loop

    @staticmethod
    def _run(loop, runs):
        asyncio.set_event_loop(loop)
        runs.set()
        while True:
            try:
                loop.run_forever()
            except BaseException:
                # A task that the handler has started ends neither the loop nor the server, even if there is no stream to say so.
                with contextlib.suppress(BaseException):
                    traceback.print_exc(file=sys.stderr)


_loop = _Loop()
