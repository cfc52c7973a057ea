"""A server whose connections tell the request they carry, at once, that its client has gone."""

from __future__ import annotations

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from obleth.backend.ledger import Account, Outcome


class Connection(RequestHandler):
    """One client connection. The account of the request in progress is closed when it is lost.

    The server also cancels that request's task, but a pass of the loop later: until then the slot
    would look taken although nobody is there.
    """

    __slots__ = ("account",)

    account: Account | None

    def connection_lost(self, exc: BaseException | None) -> None:
        account = getattr(self, "account", None)
        if account is not None:
            account.close(Outcome.CLIENT_LEFT)
        super().connection_lost(exc)


class Server(web.Server):
    """aiohttp's low-level server with our connections; a client that leaves cancels its request."""

    def __call__(self) -> Connection:
        return Connection(self, loop=self._loop, **self._kwargs)

    def abort_connections(self) -> None:
        """Drop every connection without a word."""
        for connection in self.connections:
            if connection.transport is not None:
                connection.transport.abort()
