"""What calling an upstream looks like to whoever forwards a request, whichever client does it."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

Body = bytes | AsyncIterable[bytes]
"""A stream is sent chunked unless the headers declare its length, and is sent at most once."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long an upstream may take, in seconds."""

    connect_secs: float
    head_secs: float
    """From the call to the head of the response, connecting and sending the body included."""
    read_secs: float
    """Silence inside the body of the response."""


class UpstreamError(Exception):
    """The upstream gave no whole answer. The text is for operators and may name the endpoint."""


class UpstreamConnectError(UpstreamError):
    """No connection: refused, unreachable, unknown name, an address that is not allowed."""


class UpstreamTimeout(UpstreamError):
    """Too slow: to connect, to answer, or silent inside the body."""


class UpstreamBroken(UpstreamError):
    """Connected, but what came was not HTTP, or it stopped before it was whole."""


class UpstreamResponse(Protocol):
    """An answer whose head has arrived. Used inside the block that opened it."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Sequence[tuple[bytes, bytes]]:
        """As received, with lower-case names."""

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives, undecoded. Raises `UpstreamTimeout` and `UpstreamBroken`.

        While nobody asks for the next chunk, the upstream is not read from.
        """


class Upstream(Protocol):
    """Calls upstreams. Redirects are not followed, cookies not kept, bodies not decompressed."""

    def request(
        self,
        method: str,
        url: str,
        headers: Sequence[tuple[str, str]],
        body: Body,
        timeouts: Timeouts,
    ) -> AbstractAsyncContextManager[UpstreamResponse]:
        """One call, as a block: entered when the head has arrived, raising any `UpstreamError`.

        Leaving it before the body has ended cuts the connection, and returns once it is closed: an
        upstream that watches knows by then that nobody listens. Cancelling is safe at any moment.
        """
