"""Server-sent events as bytes, in every form the format allows and careless clients trip over."""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from obleth.backend.switches import Faults

_NEWLINES: Final = {"lf": b"\n", "crlf": b"\r\n", "cr": b"\r"}


class Event(NamedTuple):
    """One event: its data (JSON, or `[DONE]`) and, where the dialect has them, its name."""

    data: bytes
    name: str | None = None


DONE: Final = Event(b"[DONE]")


class Framing:
    """Writes events in one request's form."""

    def __init__(self, faults: Faults) -> None:
        newline = _NEWLINES[faults.newline]
        self._newline = newline
        self._multiline = faults.multiline
        self._data = b"data: " if faults.data_space else b"data:"
        self._before = (b": nothing to see here" + newline) * faults.comments
        if faults.empty_events:
            self._before += b"event: nothing" + newline + newline
        self._plain = not self._before and not self._multiline
        self.comment = b": keep-alive" + newline + newline

    def event(self, event: Event) -> bytes:
        newline = self._newline
        if self._plain and event.name is None:
            return b"%b%b%b%b" % (self._data, event.data, newline, newline)
        name = b"" if event.name is None else b"event: " + event.name.encode() + newline
        lines = [event.data]
        if self._multiline and event.data.startswith(b"{"):
            spread = json.dumps(json.loads(event.data), ensure_ascii=False, indent=1)
            lines = spread.encode().split(b"\n")
        data = b"".join(self._data + line + newline for line in lines)
        return self._before + name + data + newline
