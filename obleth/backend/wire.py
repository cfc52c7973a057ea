"""One HTTP/1.1 response written by hand, so that it can also be written wrongly.

A web framework would not send a response head byte by byte, two lengths, a reset in the middle of
an event or hop-by-hop headers. The rest is plain: a head, then a body with a length, in chunks, or
until the connection closes.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import zlib
from collections.abc import Callable, Sequence
from http.client import responses
from typing import Final

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import HttpVersion11

from obleth.backend.switches import Faults

_WRITE_BYTES: Final = 65536
_GZIP_WINDOW: Final = 31

_HOP_BY_HOP: Final = (
    ("Connection", "x-hop"),
    ("x-hop", "1"),
    ("Keep-Alive", "timeout=1"),
    ("Proxy-Authenticate", 'Basic realm="sim"'),
    ("Proxy-Connection", "keep-alive"),
    ("Trailer", "x-late"),
    ("Upgrade", "h2c"),
)
_DUPLICATES: Final = (
    ("Set-Cookie", "first=1"),
    ("Set-Cookie", "second=2"),
    ("x-twice", "one"),
    ("x-twice", "two"),
)


class Written(web.StreamResponse):
    """Tells the server that the response is already out, and whether the connection goes on."""

    def __init__(self, *, keep_alive: bool) -> None:
        super().__init__()
        self._keep_alive = keep_alive

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        return


class Wire:
    """The response to one request. Bytes are collected until `flush`, `finish` or a cut.

    Every method may raise ConnectionError once the client is gone.
    """

    def __init__(self, request: web.BaseRequest, faults: Faults) -> None:
        self._writer = request.writer
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("the client is gone")
        self._transport = transport
        self._faults = faults
        self._head = bytearray()
        self._body = bytearray()
        self._flush_at = 1 if faults.write_bytes else _WRITE_BYTES
        self._chunked = request.version >= HttpVersion11 and faults.framing != "close"
        self._streaming = False
        self._keep_alive = bool(request.keep_alive)
        self._gzip = zlib.compressobj(wbits=_GZIP_WINDOW) if faults.encoding == "gzip" else None

    async def head(
        self, status: int, headers: Sequence[tuple[str, str]], *, length: int | None = None
    ) -> None:
        """The status line and headers; `length` None for a body whose end is not known yet."""
        lines = list(headers)
        faults = self._faults
        if self._gzip is not None:
            lines.append(("Content-Encoding", "gzip"))
        if length is not None and self._gzip is None and faults.framing is None:
            lines.append(("Content-Length", str(length)))
        else:
            self._streaming = True
            if self._chunked:
                lines.append(("Transfer-Encoding", "chunked"))
            else:
                self._keep_alive = False
        if "hop" in faults.answer_headers:
            lines += _HOP_BY_HOP
        if "duplicate" in faults.answer_headers:
            lines += _DUPLICATES
        if "two-lengths" in faults.answer_headers:
            lines.append(("Content-Length", str((length or 0) + 1)))
        if not self._keep_alive:
            lines.append(("Connection", "close"))
        text = f"HTTP/1.1 {status} {responses.get(status, 'Simulated')}\r\n"
        text += "".join(f"{name}: {value}\r\n" for name, value in lines) + "\r\n"
        if not faults.head_gap_ms:
            self._head += text.encode("latin-1")
            return
        for byte in text.encode("latin-1"):
            await self._writer.write(bytes((byte,)))
            await asyncio.sleep(faults.head_gap_ms / 1000)

    def body(self, data: bytes) -> None:
        """A piece of the body; nothing is sent before the next flush."""
        self._body += data

    @property
    def full(self) -> bool:
        """Whether so much is collected that it should be sent."""
        return len(self._body) >= self._flush_at

    async def flush(self) -> None:
        """Send what was collected, at the client's pace."""
        await self._send(self._take())

    async def finish(self, before_last: Callable[[], None], *, proper: bool = True) -> Written:
        """Send the rest and end the body; `before_last` is called just before the last write.

        `proper` False closes the connection with the body's end still owed.
        """
        data = self._take(last=proper)
        size = self._faults.write_bytes or _WRITE_BYTES
        last = max(0, (len(data) - 1) // size * size)
        await self._send(data[:last])
        before_last()
        if data:
            await self._writer.write(data[last:])
        return Written(keep_alive=self._keep_alive and proper)

    async def reset(self, before_last: Callable[[], None]) -> Written:
        """Send what was collected, then reset the connection."""
        await self.flush()
        # Everything must have left for the kernel: an abort drops what has not.
        self._transport.set_write_buffer_limits(high=0)
        await self._writer.drain()
        before_last()
        _reset_on_close(self._transport)
        self._transport.abort()
        return Written(keep_alive=False)

    def _take(self, *, last: bool = False) -> bytes:
        """What was collected, as it goes over the wire; `last` ends the body."""
        body = bytes(self._body)
        if self._gzip is not None and (body or last):
            body = self._gzip.compress(body)
            body += self._gzip.flush(zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH)
        head = bytes(self._head)
        self._head.clear()
        self._body.clear()
        if not (self._streaming and self._chunked):
            return head + body
        chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
        return head + chunk + (b"0\r\n\r\n" if last else b"")

    async def _send(self, data: bytes) -> None:
        if not data:
            return
        size = self._faults.write_bytes
        if size is None:
            await self._writer.write(data)
            return
        for at in range(0, len(data), size):
            await self._writer.write(data[at : at + size])
            await asyncio.sleep(0)  # lets other requests go on between the writes


def _reset_on_close(transport: asyncio.Transport) -> None:
    """Have the socket answer its closing with a reset instead of an orderly end."""
    own = transport.get_extra_info("socket")
    # Through a second descriptor: not every event loop lets options be set on its own sockets.
    second = socket.socket(fileno=socket.dup(own.fileno()))
    with second:
        second.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
