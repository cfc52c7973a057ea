"""Upstreams called with aiohttp.

What aiohttp is told, and why: no automatic decompression (bytes cross as they came), no redirects
(they would carry a key to another host), no cookies, no proxies from the environment, no limit on
connections (the pools limit, and a second, hidden queue would be unfair), idle connections dropped
before upstreams drop them. What it does not do by itself: cut a connection at once and wait until
it is closed, and try once more when an idle connection turns out to be dead.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import weakref
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from ipaddress import ip_address
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.tracing import Trace
from yarl import URL

from dataplane.proxy.upstream import (
    Body,
    Timeouts,
    UpstreamBroken,
    UpstreamConnectError,
    UpstreamError,
    UpstreamTimeout,
)
from shared.network import AddressRefused, NetworkRules, check_address

KEEP_ALIVE_SECS: Final = 4.0
"""How long an idle connection is kept: less than the five seconds of many Python servers."""
STALE_SECS: Final = 1.0
"""A connection that had been idle and is closed this soon after a request, without a byte, was dead
before the request came: the request is sent once more. Later it counts as a failure."""
HEADER_BYTES_MAX: Final = 64 * 1024
READ_BUFFER_BYTES: Final = 64 * 1024
"""Twice this is read ahead of a client that does not read, then the upstream is not read from."""
WRITE_PIECE_BYTES: Final = 64 * 1024
DNS_CACHE_SECS: Final = 10
_LONGEST_PLAIN_BODY: Final = 256 * 1024
"""A longer body is handed to the transport piece by piece, waiting for it to drain in between."""


_NO_LINGERING: Final = struct.pack("ii", 1, 0)


class _Line:
    """The connection of one call, known as soon as there is one, whatever becomes of the call."""

    def __init__(self) -> None:
        self.protocol: ResponseHandler | None = None
        self.transport: asyncio.Transport | None = None
        self.is_reused = False

    async def cut(self) -> None:
        """Close the connection without flushing; returns once it is closed."""
        if self.protocol is None or self.transport is None:
            return
        own = self.transport.get_extra_info("socket")
        if own is not None and own.fileno() >= 0:
            # A reset, so that the upstream learns of it even while it reads nothing: an ordinary
            # end would wait its turn behind what has been sent and not been taken.
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGERING)
        closed = self.protocol.closed
        self.transport.abort()
        if closed is not None:
            with suppress(aiohttp.ClientError, OSError):
                await closed


_line: ContextVar[_Line] = ContextVar("upstream_line")
"""How a connector tells the call under way which connection it was given."""


class _Connector(aiohttp.TCPConnector):
    """Tells each call its connection, and keeps to the network rules when it connects.

    They are asked about every address that is about to be connected to, after names have been
    resolved, so that neither a literal address nor a name that changes its mind gets past them.
    """

    def __init__(self, rules: NetworkRules, *, force_close: bool) -> None:
        self._rules = rules
        self._seen: weakref.WeakSet[ResponseHandler] = weakref.WeakSet()
        kwargs: dict[str, Any] = {} if force_close else {"keepalive_timeout": KEEP_ALIVE_SECS}
        super().__init__(
            limit=0,
            ttl_dns_cache=DNS_CACHE_SECS,
            force_close=force_close,
            socket_factory=self._open_socket,
            **kwargs,
        )

    def _open_socket(self, info: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, _, address = info
        try:
            check_address(ip_address(str(address[0]).partition("%")[0]), self._rules)
        except AddressRefused as refused:
            raise OSError(str(refused)) from refused
        return socket.socket(family, kind, protocol)

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's own signature
    ) -> aiohttp.connector.Connection:
        connection = await super().connect(req, traces, timeout)
        line = _line.get()
        protocol = connection.protocol
        assert protocol is not None, "a connection that was just given has a protocol"
        line.protocol = protocol
        line.transport = protocol.transport
        line.is_reused = protocol in self._seen
        if not line.is_reused:
            self._seen.add(protocol)
        return connection


class AiohttpUpstream:
    """`Upstream` over HTTP/1.1. Made and closed inside the event loop it is used in."""

    def __init__(self, rules: NetworkRules) -> None:
        self._pooled = _session(_Connector(rules, force_close=False))
        self._fresh = _session(_Connector(rules, force_close=True))

    async def close(self) -> None:
        """Close every connection."""
        await self._pooled.close()
        await self._fresh.close()

    def request(
        self,
        method: str,
        url: str,
        headers: Sequence[tuple[str, str]],
        body: Body,
        timeouts: Timeouts,
    ) -> _Call:
        """One call; see `Upstream.request`."""
        return _Call(self._pooled, self._fresh, method, url, headers, body, timeouts)


def _session(connector: _Connector) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        skip_auto_headers=("user-agent", "accept", "accept-encoding", "content-type"),
        read_bufsize=READ_BUFFER_BYTES,
        max_line_size=HEADER_BYTES_MAX,
        max_field_size=HEADER_BYTES_MAX,
    )


class _Stale(UpstreamBroken):
    """The connection had died while it was idle."""


class _Call:
    """One call as a block."""

    def __init__(
        self,
        pooled: aiohttp.ClientSession,
        fresh: aiohttp.ClientSession,
        method: str,
        url: str,
        headers: Sequence[tuple[str, str]],
        body: Body,
        timeouts: Timeouts,
    ) -> None:
        self._pooled = pooled
        self._fresh = fresh
        self._method = method
        self._url = url
        self._headers = headers
        self._body = body
        self._timeouts = timeouts
        self._line = _Line()
        self._response: aiohttp.ClientResponse | None = None

    async def __aenter__(self) -> _Response:
        try:
            return await self._send(self._pooled)
        except _Stale:
            return await self._send(self._fresh)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        response = self._response
        if response is None or response.closed:
            return  # the body has ended and the connection went back to its pool
        response.close()
        await self._line.cut()

    async def _send(self, session: aiohttp.ClientSession) -> _Response:
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._line = line = _Line()
        token = _line.set(line)
        try:
            async with asyncio.timeout(self._timeouts.head_secs):
                self._response = await session.request(
                    self._method,
                    URL(self._url, encoded=True),
                    headers=self._headers,
                    data=self._payload(),
                    allow_redirects=False,
                    timeout=aiohttp.ClientTimeout(
                        total=None, sock_connect=self._timeouts.connect_secs
                    ),
                )
        except BaseException as failure:
            # Whatever ended it, cancellation too: nothing may go on at the upstream.
            await line.cut()
            if not isinstance(failure, OSError | aiohttp.ClientError | ValueError):
                raise
            is_early = loop.time() - began < STALE_SECS
            raise self._reason(failure, is_early=is_early) from failure
        finally:
            _line.reset(token)
        if line.protocol is not None and not self._response.closed:
            line.protocol.read_timeout = self._timeouts.read_secs
            line.protocol.start_timeout()
        return _Response(self._response)

    def _payload(self) -> bytes | AsyncIterable[bytes] | None:
        if isinstance(self._body, bytes) and len(self._body) > _LONGEST_PLAIN_BODY:
            return _pieces(self._body)
        return self._body or None

    def _reason(self, failure: Exception, *, is_early: bool) -> UpstreamError:
        match failure:
            case aiohttp.ConnectionTimeoutError() | aiohttp.ClientConnectorError():
                return UpstreamConnectError(f"cannot connect: {failure}")
            case TimeoutError():
                return UpstreamTimeout(f"no answer within {self._timeouts.head_secs:g} s")
            case aiohttp.ServerDisconnectedError() | aiohttp.ClientOSError() if (
                self._line.is_reused and is_early and isinstance(self._body, bytes)
            ):
                return _Stale("an idle connection had been closed")
            case _:
                return UpstreamBroken(f"no valid answer: {failure or type(failure).__name__}")


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), WRITE_PIECE_BYTES):
        yield body[start : start + WRITE_PIECE_BYTES]


class _Response:
    """An answer whose head has arrived."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._content = response.content
        self.status: Final = response.status
        self.headers: Final = [(name.lower(), value) for name, value in response.raw_headers]

    def chunks(self) -> Self:
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        try:
            chunk = await self._content.readany()
        except TimeoutError as failure:
            raise UpstreamTimeout("silent inside the body") from failure
        except (aiohttp.ClientError, OSError, RuntimeError) as failure:
            # RuntimeError is what aiohttp raises when the connection went before the body did.
            raise UpstreamBroken(f"broke off inside the body: {failure}") from failure
        if not chunk:
            raise StopAsyncIteration
        return chunk
