"""Lets calls in one by one, for as long as each is over soon.

Threads that compute at the same time hand the interpreter's lock to one another at each library call, which takes longer than
what they compute: two sessions get less done than one. So a call waits for the one before it; but one that has taken longer
than PATIENCE_S, which may wait for something itself, is left to go on beside the next.
"""

import collections
import threading
import time

PATIENCE_S = 0.01


class Turns:
    """Whose turn it is."""

    def __init__(self):
        self._lock = threading.Lock()
        self._waiting = collections.deque()
        self._current = None
        self._since = 0.0

    def turn(self):
        """A turn, to be held by a with statement."""
        return _Turn(self)

    def take(self, mine):
        """Waits for a turn."""
        with self._lock:
            if self._current is None:
                return self._begin(mine)
            mine.has_come = threading.Event()
            self._waiting.append(mine)
            place = len(self._waiting)
        # Each of those before it may take its time. Looking later than that is no harm, looking often would be.
        while not mine.has_come.wait(place * PATIENCE_S):
            with self._lock:
                if self._waiting and self._waiting[0] is mine and time.monotonic() - self._since >= PATIENCE_S:
                    return self._begin(self._waiting.popleft())
            place = 1

    def _begin(self, whose):
        self._current, self._since = whose, time.monotonic()

    def leave(self, mine):
        """Ends a turn; the next may begin."""
        with self._lock:
            # Somebody may have begun beside it.
            if self._current is not mine:
                return
            self._current = None
            if self._waiting:
                self._begin(self._waiting.popleft())
                self._current.has_come.set()


class _Turn:
    """One call's turn. has_come is an Event, if it has to be waited for."""

    __slots__ = ("_turns", "has_come")

    def __init__(self, turns):
        self._turns = turns

    def __enter__(self):
        self._turns.take(self)

    def __exit__(self, *_):
        self._turns.leave(self)
