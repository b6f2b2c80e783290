"""Lines that a handler writes while it answers a batch, for a caller who asks for them (docs/protocol.md §4.11).

What is written to sys.stdout and sys.stderr still goes to the container's log. While a batch is answered whose caller asks, the
same text is collected as well. Where it belongs is kept in a context variable: threads that the handler starts, and what runs
beside, write to the log alone. So nobody gets lines of another's batch.
"""

import base64
import contextlib
import contextvars
import json
import sys

FIELD = "transship-lines"
WANTED = "yes"
# As in udf_protocol/codec/src/lines.rs.
MAX_LINES = 100
MAX_LINE_BYTES = 1000
_MAX_BYTES = 5500

_collected = contextvars.ContextVar("transship_lines", default=None)


class Lines:
    """The lines of one batch."""

    def __init__(self):
        self._texts, self._bytes, self._left_out, self._partial = [], 0, 0, ""

    def write(self, text):
        """Adds text, in which a line break ends a line."""
        *whole, self._partial = (self._partial + text).split("\n")
        for line in whole:
            self._add(line)
        # What never ends is cut anyway.
        self._partial = self._partial[: MAX_LINE_BYTES + 1]

    def _add(self, line):
        if self._left_out or len(self._texts) == MAX_LINES:
            self._left_out += 1
            return
        encoded = line.encode(errors="replace")
        if len(encoded) > MAX_LINE_BYTES:
            encoded = encoded[:MAX_LINE_BYTES].decode(errors="ignore").encode() + b"..."
        line = encoded.decode()
        size = len(json.dumps(line, ensure_ascii=False).encode()) + 1
        if self._bytes + size > _MAX_BYTES:
            self._left_out += 1
            return
        self._bytes += size
        self._texts.append(line)

    def take(self):
        """The lines so far, with one at the end that says how many more there were."""
        if self._partial:
            partial, self._partial = self._partial, ""
            self._add(partial)
        texts = self._texts
        if self._left_out:
            texts.append(f"[{self._left_out} more lines are in the container's log]")
        self._texts, self._bytes, self._left_out = [], 0, 0
        return texts

    def field(self):
        """The value of the field of a reply over HTTP; empty if nothing was written."""
        texts = self.take()
        return base64.b64encode(json.dumps(texts, ensure_ascii=False).encode()).decode() if texts else ""


class _Stream:
    """A stream whose text is also collected. In everything else it is the stream."""

    def __init__(self, stream):
        self._stream = stream

    def write(self, text):
        written = self._stream.write(text)
        if (lines := _collected.get()) is not None:
            lines.write(text)
        return written

    def writelines(self, texts):
        for text in texts:
            self.write(text)

    def __iter__(self):
        return iter(self._stream)

    def __getattr__(self, name):
        return getattr(self._stream, name)


def install():
    """Has the standard streams collected from now on."""
    sys.stdout, sys.stderr = _Stream(sys.stdout), _Stream(sys.stderr)


@contextlib.contextmanager
def collecting(are_wanted):
    """While a batch is answered: its lines, or None if nobody asks for them."""
    lines = Lines() if are_wanted else None
    token = _collected.set(lines)
    try:
        yield lines
    finally:
        _collected.reset(token)
