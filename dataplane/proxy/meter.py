"""What is learnt from a response while its bytes go by: usage figures and how far it has come."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final

from dataplane.proxy import headers as crossing
from dataplane.proxy.headers import Headers
from dataplane.proxy.sse import SseReader
from dataplane.proxy.usage_figures import JsonUsage, Usage

UNPACKED_BYTES_MAX: Final = 16 * 1024 * 1024
"""How much of a compressed body is unpacked in search of usage figures."""
_UNPACKED_AT_A_TIME: Final = 256 * 1024
_BYTES_PER_TOKEN: Final = 4
"""A guess at output tokens where an answer does not say and has no events to count."""


class Meter:
    """Sees every chunk of one response's body and says what to send on.

    `strips_usage`: remove the event that reports usage, which the client did not ask for.
    """

    def __init__(self, headers: Headers, *, strips_usage: bool = False) -> None:
        headers = list(headers)
        content_type = (crossing.find(headers, b"content-type") or b"").lower()
        encoding = (crossing.find(headers, b"content-encoding") or b"identity").strip().lower()
        self.is_event_stream: Final = content_type.startswith(b"text/event-stream")
        self._unpacker = _unpacker(encoding)
        self.takes_event: Final = self.is_event_stream and encoding == b"identity"
        """Whether an event of the gateway's own can be added at the end."""
        self.changes_bytes: Final = strips_usage and self.takes_event
        """Whether what is sent on may differ from what came."""
        self._sse = SseReader(strips_usage=self.changes_bytes) if self.is_event_stream else None
        self._json = JsonUsage() if b"json" in content_type and not self.is_event_stream else None
        self._is_readable = encoding == b"identity" or self._unpacker is not None
        self._bytes = 0

    @property
    def usage(self) -> Usage | None:
        """The upstream's own figures; None while or if it gives none."""
        if self._sse is not None:
            return self._sse.usage
        return None if self._json is None else self._json.result()

    @property
    def guessed_output_tokens(self) -> int:
        """What the answer may have cost as far as it has come, judged by its size alone."""
        if self._sse is not None and self._is_readable:
            return self._sse.events
        return self._bytes // _BYTES_PER_TOKEN

    @property
    def has_content(self) -> bool:
        """Whether anything but comments has come."""
        if self._sse is not None and self._is_readable:
            return self._sse.events > 0
        return self._bytes > 0

    @property
    def at_boundary(self) -> bool:
        """Whether an event can be added after what has been sent on."""
        return self._sse is None or self._sse.at_boundary

    def feed(self, chunk: bytes) -> bytes:
        """Take the next chunk of the body; return the bytes to send on."""
        self._bytes += len(chunk)
        if self._unpacker is not None:
            for piece in self._unpacker.unpack(chunk):
                self._look_at(piece)
            return chunk
        return self._look_at(chunk)

    def finish(self) -> bytes:
        """The body has ended, whole: return what was still held back."""
        return self._sse.finish() if self._sse is not None else b""

    def _look_at(self, piece: bytes) -> bytes:
        if not self._is_readable:
            return piece
        if self._sse is not None:
            return self._sse.feed(piece)
        if self._json is not None:
            self._json.feed(piece)
        return piece


def _unpacker(encoding: bytes) -> _Unpacker | None:
    match encoding:
        case b"gzip" | b"x-gzip":
            return _Unpacker(zlib.MAX_WBITS | 16)
        case b"deflate":
            return _Unpacker(zlib.MAX_WBITS)
    return None


class _Unpacker:
    """Decompresses a copy, a bounded piece at a time, up to a bounded total."""

    def __init__(self, window_bits: int) -> None:
        self._stream = zlib.decompressobj(window_bits)
        self._left = UNPACKED_BYTES_MAX

    def unpack(self, chunk: bytes) -> Iterator[bytes]:
        while chunk and self._left > 0:
            try:
                piece = self._stream.decompress(chunk, _UNPACKED_AT_A_TIME)
            except zlib.error:
                self._left = 0  # not what it says it is: the figures are guessed instead
                return
            if not piece:
                return
            self._left -= len(piece)
            yield piece
            chunk = self._stream.unconsumed_tail
