"""The tokens an upstream says it used, read from a copy of what it sends. Pure.

Every dialect puts them in an object named `usage`; where it stands and what its fields are called
differs. Figures that no request can reach are cut down and marked, figures that are no whole number
count as not given: one absurd answer must not cost a tenant its budget.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final

import msgspec

TOKENS_MAX: Final = 10_000_000
"""More than any model's context holds; larger figures are cut to it and marked."""
WHOLE_BYTES_MAX: Final = 1024 * 1024
"""A JSON text up to this size is kept and decoded whole."""
TAIL_BYTES: Final = 64 * 1024
"""Of a longer one only the end is kept: usage figures stand there, or are not found."""

_USAGE_KEY: Final = re.compile(rb'"usage"[ \t\r\n]*:[ \t\r\n]*(?=\{)')
_FROM_POSITION: Final = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the upstream reports them; None where it does not say."""

    input_tokens: int | None = None
    """All of the prompt, what came from a cache included."""
    output_tokens: int | None = None
    cached_tokens: int | None = None
    clamped: bool = False
    """Whether a figure was absurd and has been cut."""

    def updated(self, later: Usage) -> Usage:
        """These figures, overridden by what a later report gives."""
        return Usage(
            _later(self.input_tokens, later.input_tokens),
            _later(self.output_tokens, later.output_tokens),
            _later(self.cached_tokens, later.cached_tokens),
            self.clamped or later.clamped,
        )


def _later(old: int | None, new: int | None) -> int | None:
    return old if new is None else new


class _Inner(msgspec.Struct):
    usage: msgspec.Raw = msgspec.Raw(b"null")


class Envelope(msgspec.Struct):
    """The places a `usage` object can have in one JSON text, undecoded."""

    usage: msgspec.Raw = msgspec.Raw(b"null")
    message: msgspec.Raw = msgspec.Raw(b"null")
    response: msgspec.Raw = msgspec.Raw(b"null")
    choices: msgspec.Raw = msgspec.Raw(b"null")

    @property
    def has_no_choices(self) -> bool:
        """Whether `choices` is there and empty, as in a chunk that only reports usage."""
        return bytes(self.choices).translate(None, b" \t\r\n") == b"[]"

    def figures(self) -> bytes:
        """The `usage` object, wherever it stands; `null` when there is none."""
        found = bytes(self.usage)
        for holder in (self.message, self.response):
            if found != b"null":
                break
            if bytes(memoryview(holder)[:1]) == b"{":
                found = bytes(_decode_inner(holder).usage)
        return found


_decode_envelope: Final = msgspec.json.Decoder(Envelope).decode
_decode_inner: Final = msgspec.json.Decoder(_Inner).decode


def envelope(text: bytes) -> Envelope | None:
    """One JSON text as far as usage figures go; None when it is no JSON object."""
    try:
        return _decode_envelope(text)
    except (msgspec.DecodeError, RecursionError):
        return None


def of_envelope(found: Envelope) -> Usage | None:
    """The figures an envelope holds, if it holds any."""
    figures = found.figures()
    if not figures.startswith(b"{"):
        return None
    try:
        return of_object(json.loads(figures))
    except (ValueError, RecursionError):
        return None


def of_tail(tail: bytes) -> Usage | None:
    """The figures of the last `usage` object in the end of a text too long to keep."""
    position = None
    for match in _USAGE_KEY.finditer(tail):
        position = match.end()
    if position is None:
        return None
    try:
        found, _ = _FROM_POSITION.raw_decode(tail[position:].decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    return of_object(found)


def of_object(found: object) -> Usage | None:
    """The figures in a decoded `usage` object of either dialect; None if it has none."""
    if not isinstance(found, dict):
        return None
    reader = _Reader(found)
    if "prompt_tokens" in found or "completion_tokens" in found:
        usage = Usage(
            reader.count(found, "prompt_tokens"),
            reader.count(found, "completion_tokens"),
            reader.detail("prompt_tokens_details", "cached_tokens"),
        )
    else:
        cached = reader.count(found, "cache_read_input_tokens")
        written = reader.count(found, "cache_creation_input_tokens")
        given = reader.count(found, "input_tokens")
        if cached is None:
            cached = reader.detail("input_tokens_details", "cached_tokens")
        elif given is not None:
            given += cached  # Anthropic counts what the cache gave apart from the rest
        if written is not None and given is not None:
            given += written
        usage = Usage(
            None if given is None else min(given, TOKENS_MAX),
            reader.count(found, "output_tokens"),
            cached,
        )
    if usage == Usage():
        # What generates no text, as reranking, may give nothing but the sum.
        total = reader.count(found, "total_tokens")
        if total is None:
            return None
        usage = Usage(total, 0)
    return Usage(usage.input_tokens, usage.output_tokens, usage.cached_tokens, reader.clamped)


class _Reader:
    def __init__(self, figures: dict[str, Any]) -> None:
        self._figures = figures
        self.clamped = False

    def count(self, holder: dict[str, Any], name: str) -> int | None:
        value = holder.get(name)
        if type(value) is not int or value < 0:
            self.clamped |= value is not None
            return None
        if value > TOKENS_MAX:
            self.clamped = True
            return TOKENS_MAX
        return value

    def detail(self, holder: str, name: str) -> int | None:
        inner = self._figures.get(holder)
        return self.count(inner, name) if isinstance(inner, dict) else None


class JsonUsage:
    """Looks for usage figures in one JSON body that arrives in pieces. Memory is bounded."""

    def __init__(self, whole_bytes_max: int = WHOLE_BYTES_MAX) -> None:
        self._whole_bytes_max = whole_bytes_max
        self._text = bytearray()
        self._is_whole = True

    def feed(self, data: bytes) -> None:
        self._text += data
        if len(self._text) > self._whole_bytes_max:
            self._is_whole = False
            del self._text[:-TAIL_BYTES]

    def result(self) -> Usage | None:
        """The figures, once all has been fed."""
        if not self._is_whole:
            return of_tail(bytes(self._text))
        found = envelope(bytes(self._text))
        return None if found is None else of_envelope(found)
