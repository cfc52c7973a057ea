"""Server-sent events, read from a copy of the bytes: usage figures, and the one event to remove.

No I/O. A line ends with LF, CRLF or CR and with nothing else; an event ends with an empty line; a
line that starts with a colon is a comment. Bytes are fed as they come, cut anywhere, and come back
as they are to be sent on.

Without `strips_usage` they come back at once and unchanged. With it, the gateway asked for an event
that the client did not: it has no choices and only reports usage, and it is removed whole. For that
an event is held back until its empty line, which is when a client could first act on it. Comments
between events are not held, nor an event longer than `HELD_BYTES_MAX`, which cannot be the one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum, auto
from typing import Final

from dataplane.proxy import usage_figures
from dataplane.proxy.usage_figures import TAIL_BYTES, Usage

HELD_BYTES_MAX: Final = 64 * 1024
"""The longest event that is held back."""
DATA_BYTES_MAX: Final = 256 * 1024
"""Of longer data only the end is kept, and searched for usage figures."""

_LINE_END: Final = re.compile(rb"\r\n|\r|\n")


class _Mark(Enum):
    """What the bytes up to a line's end are."""

    BETWEEN = auto()
    """A comment before an event has begun."""
    INSIDE = auto()
    EVENT_END = auto()
    USAGE_EVENT_END = auto()
    """The end of an event that only reports usage."""
    LINE_FEED = auto()
    """The LF of a CRLF whose CR ended the chunk before."""


class SseReader:
    """One stream of events."""

    def __init__(self, *, strips_usage: bool = False) -> None:
        self._strips: Final = strips_usage
        self._events: Final = _Events()
        self._held = bytearray()
        self._lets_pass = False
        """Whether the event under way is too long to be held back."""
        self._removed_last = False

    @property
    def usage(self) -> Usage | None:
        """The figures reported so far."""
        return self._events.usage

    @property
    def events(self) -> int:
        """Events with data so far, pings and the closing `[DONE]` apart: about one a token."""
        return self._events.count

    @property
    def at_boundary(self) -> bool:
        """Whether what has been sent on ends between two events."""
        return (self._strips and not self._lets_pass) or self._events.at_boundary

    def feed(self, chunk: bytes) -> bytes:
        """Take the next bytes; return those to send on now."""
        if not self._strips:
            for _ in self._events.marks(chunk):
                pass
            return chunk
        out = bytearray()
        start = 0
        for end, mark in self._events.marks(chunk):
            self._pass_or_hold(chunk[start:end], mark, out)
            start = end
        self._held += chunk[start:]
        if self._lets_pass or len(self._held) > HELD_BYTES_MAX:
            self._lets_pass = True
            self._release(out)
        return bytes(out)

    def finish(self) -> bytes:
        """The stream has ended, and whole: return what was still held back."""
        removes = self._events.finish() and self._strips and not self._lets_pass
        return b"" if removes else bytes(self._held)

    def _pass_or_hold(self, piece: bytes, mark: _Mark, out: bytearray) -> None:
        if mark is _Mark.LINE_FEED and self._removed_last:
            return
        self._held += piece
        self._removed_last = mark is _Mark.USAGE_EVENT_END and not self._lets_pass
        if self._removed_last:
            self._held.clear()
        elif mark in (_Mark.EVENT_END, _Mark.USAGE_EVENT_END):
            self._release(out)
            self._lets_pass = False
        elif mark is _Mark.BETWEEN or (mark is _Mark.LINE_FEED and self._events.at_boundary):
            self._release(out)

    def _release(self, out: bytearray) -> None:
        out += self._held
        self._held.clear()


class _Events:
    """The lines and events of a stream, without their bytes."""

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self.count = 0
        self._line = bytearray()
        """The line under way."""
        self._line_is_cut = False
        """Whether its start has been dropped for its length."""
        self._data = bytearray()
        self._data_is_cut = False
        self._has_fields = False
        self._has_data = False
        self._is_ping = False
        self._after_cr = False

    @property
    def at_boundary(self) -> bool:
        return not (self._line or self._line_is_cut or self._has_fields)

    def marks(self, chunk: bytes) -> Iterator[tuple[int, _Mark]]:
        """Each line that ends in `chunk`: where it ends, and what ends there."""
        start = 0
        if self._after_cr and chunk.startswith(b"\n"):
            start = 1
            yield start, _Mark.LINE_FEED
        for match in _LINE_END.finditer(chunk, start):
            line = chunk[start : match.start()]
            start = match.end()
            if self._line:
                line = bytes(self._line) + line
                self._line.clear()
            yield start, self._take_line(line)
        if chunk:
            self._after_cr = chunk.endswith(b"\r")
        self._line += chunk[start:]
        if len(self._line) > DATA_BYTES_MAX:
            self._line_is_cut = True
            del self._line[:-TAIL_BYTES]

    def finish(self) -> bool:
        """The stream has ended; whether an event that only reports usage was left open."""
        if self._line:
            self._take_line(bytes(self._line))
        return self._end_event()

    def _take_line(self, line: bytes) -> _Mark:
        if self._line_is_cut:
            self._line_is_cut = False
            self._add_data(line, is_cut=True)
            return _Mark.INSIDE
        if not line:
            return _Mark.USAGE_EVENT_END if self._end_event() else _Mark.EVENT_END
        if line.startswith(b":"):
            return _Mark.INSIDE if self._has_fields else _Mark.BETWEEN
        self._has_fields = True
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._add_data(value, is_cut=False)
        elif name == b"event":
            self._is_ping = value == b"ping"
        return _Mark.INSIDE

    def _add_data(self, value: bytes, *, is_cut: bool) -> None:
        if self._has_data:
            self._data += b"\n"
        self._has_fields = self._has_data = True
        self._data += value
        self._data_is_cut |= is_cut
        if len(self._data) > DATA_BYTES_MAX:
            self._data_is_cut = True
            del self._data[:-TAIL_BYTES]

    def _end_event(self) -> bool:
        """Count the event under way; whether it only reports usage."""
        only_usage = False
        if self._has_data and self._data != b"[DONE]" and not self._is_ping:
            self.count += 1
            if b'"usage"' in self._data:
                only_usage = self._read_usage(bytes(self._data))
        self._data.clear()
        self._data_is_cut = self._has_fields = self._has_data = self._is_ping = False
        return only_usage

    def _read_usage(self, data: bytes) -> bool:
        if self._data_is_cut:
            found, only_usage = usage_figures.of_tail(data), False
        else:
            envelope = usage_figures.envelope(data)
            if envelope is None:
                return False
            found = usage_figures.of_envelope(envelope)
            only_usage = envelope.has_no_choices and envelope.figures().startswith(b"{")
        if found is not None:
            self.usage = found if self.usage is None else self.usage.updated(found)
        return only_usage
