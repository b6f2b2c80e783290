"""Offers of shared tables (docs/protocol.md §4.13, §10): a client gives tables to this server, and its calls name the offer.

The library of the server core takes offers, on a thread of its own. It is loaded once a client connects, so containers without
tables do without it. Which offer a call has is kept in a context variable: threads that the handler starts, and what runs beside,
have none. What the handler leaves running has the variable, but no offer any more once the call has ended. So nobody sees tables of
another's call.

A call that names an offer opens it before its handler is called, and has its tables until it ends, whatever the client does meanwhile. So
an offer that is not here is never an exception that a handler could catch.
"""

import contextlib
import contextvars
import os
import select
import socket
import sys
import threading
import time
import weakref

from .errors import CallError
from .tables import Table

FIELD = "transship-tables"
_LIBRARY = f"{os.path.dirname(os.path.dirname(os.path.abspath(__file__)))}/lib/libtransship_core.so"
_BACKLOG = 128
# Offers whose opened tables are kept for later calls, and for how long after their last call began.
_MOST_OFFERS = 8
UNUSED_S = 10

_call = contextvars.ContextVar("transship_tables", default=None)


class _Call:
    """A call that names an offer, and the offer until the call ends, if there is one: tasks and threads of asyncio's copy the context, and
    go on."""

    __slots__ = ("offer",)

    def __init__(self, offer):
        self.offer = offer


class _Offer:
    """An opened offer, the tables of it that calls have opened, by name, and when the last of these calls began."""

    def __init__(self, library, name, handle):
        self.name, self.tables, self.used = name, {}, 0
        self._library, self._handle = library, handle
        weakref.finalize(self, library.close_offer, handle).atexit = False

    def is_there(self):
        """Whether its client has not ended it."""
        return bool(self._library.is_there(self._handle))

    def open(self, name):
        """Opens a table. Raises LookupError if the offer has none of this name."""
        return Table(self._library, self._library.open(self._handle, name))


class _Offers:
    """Where offers are taken, and those that calls have named of late, the last at the end."""

    def __init__(self):
        self.is_listening, self._library, self._failure = False, None, None
        self._recent, self._lock = {}, threading.Lock()

    def listen(self, path):
        """Takes offers on a socket at a path from now on, if the image has the library."""
        if not os.path.exists(_LIBRARY):
            return
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen(_BACKLOG)
        self.is_listening = True
        threading.Thread(target=self._serve, args=(listener,), name="tables", daemon=True).start()

    def _serve(self, listener):
        waiting = select.poll()
        waiting.register(listener, select.POLLIN)
        waiting.poll()
        try:
            from .core import Library

            self._library = Library(_LIBRARY)
            self._library.serve(listener.fileno())
        except Exception as cause:
            print(f"transship_server: cannot take shared tables: {cause}", file=sys.stderr, flush=True)
            self.is_listening, self._failure = False, cause
            listener.close()

    def named(self, name):
        """The offer that a call names; None if there is none."""
        library = self._library
        if library is None:
            return None
        with self._lock:
            offer = self._recent.pop(name, None)
            if offer is not None and offer.is_there():
                self._recent[name] = offer
                offer.used = time.monotonic()
                return offer
        # A client that offers something else most likely has ended what it had offered before. Tables are closed once the lock is free.
        self.forget_unused()
        handle = library.open_offer(name)
        if handle is None:
            return None
        offer, surplus = _Offer(library, name, handle), None
        offer.used = time.monotonic()
        with self._lock:
            if (found := self._recent.pop(name, None)) is not None and found.is_there():
                # Another call was faster.
                offer, surplus = found, offer
            self._recent[name] = offer
            if len(self._recent) > _MOST_OFFERS:
                surplus = self._recent.pop(next(iter(self._recent)))
        del surplus
        return offer

    def are_kept(self):
        """Whether tables wait to be forgotten."""
        return bool(self._recent)

    def forget_unused(self):
        """Closes the tables of offers that have ended, or that no call has named for long, but those that handlers keep."""
        before = time.monotonic() - UNUSED_S
        with self._lock:
            unused = [offer for offer in self._recent.values() if offer.used < before or not offer.is_there()]
            for offer in unused:
                del self._recent[offer.name]

    def unknown(self):
        """What a call is refused with that names no offer of this server's. It is no exception of the handler's."""
        cause = f": {self._failure}" if self._failure else ""
        return CallError("protocol_violation", f"the server does not have the offer of tables that the call names{cause}")


_offers = _Offers()
listen, are_kept, forget_unused = _offers.listen, _offers.are_kept, _offers.forget_unused


def are_taken():
    """Whether this server takes offers."""
    return _offers.is_listening


@contextlib.contextmanager
def named(name):
    """While a call is answered that names an offer, or None."""
    call = None if name is None else _Call(_offers.named(name))
    token = _call.set(call)
    try:
        yield
    finally:
        _call.reset(token)
        if call is not None:
            call.offer = None


def check():
    """Raises CallError if the running call names an offer that is not there."""
    call = _call.get()
    if call is not None and call.offer is None:
        raise _offers.unknown()


def table(name):
    """The shared table that the running call has by this name. Raises LookupError if there is none."""
    call = _call.get()
    if call is None:
        raise LookupError(f'the call has no shared table "{name}": name it in the key tables of the function\'s body')
    offer = call.offer
    if offer is None:
        raise LookupError(f'the call has no shared table "{name}": it has ended')
    found = offer.tables.get(name)
    if found is None:
        found = offer.tables.setdefault(name, offer.open(name))
    return found
