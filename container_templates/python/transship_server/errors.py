"""The one error that travels to a client (docs/protocol.md §5)."""

import traceback


class CallError(Exception):
    """A call that failed. kind is one of the kinds of docs/protocol.md §5; row counts from zero within the batch."""

    def __init__(self, kind, message, row=None, trace=None):
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.row = row
        self.trace = trace

    def to_wire(self):
        """The members of the wire form that are known."""
        wire = {"kind": self.kind, "message": self.message}
        if self.row is not None:
            wire["row"] = self.row
        if self.trace:
            wire["traceback"] = self.trace
        return wire


class Cancelled(Exception):
    """The client has gone; nobody waits for the rest."""


def from_exception(exception, row=None):
    """The error for an exception of the handler, whatever it is (sys.exit() ends no server), its traceback cut to the handler's own frames.
    A CallError is none of the handler's, and stays as it is."""
    if isinstance(exception, CallError):
        return exception
    frames = exception.__traceback__
    own = frames
    while own is not None and __package__ + "/" in own.tb_frame.f_code.co_filename.replace("\\", "/"):
        own = own.tb_next
    try:
        lines = traceback.format_exception(type(exception), exception, own or frames)
    except BaseException:
        # The handler's class cannot say what it is.
        lines = []
    return CallError("user_code", message_of(exception), row, "".join(lines).rstrip())


def message_of(exception):
    """What an exception of the handler says, without its traceback."""
    try:
        text = str(exception)
    except BaseException:
        text = ""
    return f"{type(exception).__name__}: {text}" if text else type(exception).__name__
