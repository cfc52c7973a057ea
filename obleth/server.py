"""One uvicorn server per listener, all on one event loop, under our own signals and shutdown.

Resources are started and stopped around the servers, never by an ASGI lifespan: when a drain runs
into its limit, uvicorn ends the lifespan before the last streams have cleaned up after themselves.
"""

from __future__ import annotations

import asyncio
import math
import signal
import socket
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from typing import Any, Final

import structlog
import uvicorn
from uvicorn.loops.auto import auto_loop_factory

from dataplane.openai_api.head_limits import LimitedHttpTools
from obleth.accepting import stop_accepting
from obleth.failures import Failed
from shared.settings import ListenAddress

_KEEP_ALIVE_SECS: Final = 75
"""Longer than load balancers and SDKs keep an idle connection, so that they close first."""
_BACKLOG: Final = 2048
_LAST_CALL_SECS: Final = 0.2
"""How long a connection that was accepted last has to send its request."""
_LAST_WORDS_SECS: Final = 5.0
"""How long cancelled requests get to clean up."""

log = structlog.get_logger(__name__)


class CannotListen(Failed):
    """An address cannot be bound; says which, why, and the variable that moves it."""


def bind(address: ListenAddress, variable: str) -> socket.socket:
    """A bound TCP socket, so that a taken port is told before anything is started.

    Raises CannotListen.
    """
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _cannot(address, variable, error) from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(where)
        # Listening at once makes a second process on the port fail here and not later. Nobody is
        # answered before the server accepts.
        bound.listen(_BACKLOG)
    except OSError as error:
        bound.close()
        raise _cannot(address, variable, error) from None
    bound.setblocking(False)
    return bound


def _cannot(address: ListenAddress, variable: str, error: OSError) -> CannotListen:
    return CannotListen(
        f"cannot listen on {address}: {(error.strerror or str(error)).lower()};"
        f" set {variable} to another host:port"
    )


def bound_address(bound: socket.socket) -> ListenAddress:
    """Where a socket really listens, also when port 0 was asked for."""
    host, port = bound.getsockname()[:2]
    return ListenAddress(host, port)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.accepting = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.accepting.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take in what has arrived, then stop: a connection that is closed before it was accepted,
        or before its request was read, would be reset."""
        await asyncio.sleep(0.001)  # the loop accepts who waits
        for server in self.servers:
            await stop_accepting(server.sockets)
            server.close()
        await asyncio.sleep(_LAST_CALL_SECS)
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Signals are the process's matter: several servers share it."""
        yield


class Listener:
    """An ASGI application on one socket, spoken to by uvicorn or by a protocol class of its own."""

    def __init__(
        self, app: Any, bound: socket.socket, protocol: type[asyncio.Protocol] | None = None
    ) -> None:
        self._socket = bound
        self.address: Final = bound_address(bound)
        self._server = _Server(
            uvicorn.Config(
                app,
                http=protocol or LimitedHttpTools,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=_KEEP_ALIVE_SECS,
                backlog=_BACKLOG,
            )
        )
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns once connections are accepted."""
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        await self._server.accepting.wait()

    async def stop(self, grace_secs: float) -> None:
        """Accept nobody; let open requests end for up to `grace_secs`; cancel what is left.

        Returns when no request of this listener runs any more.
        """
        if self._serving is None:
            self._socket.close()
            return
        self._server.config.timeout_graceful_shutdown = math.ceil(grace_secs)
        self._server.should_exit = True
        await self._serving
        left = set(self._server.server_state.tasks)
        if left:  # the server has cancelled them, and does not wait for their end
            await asyncio.wait(left, timeout=_LAST_WORDS_SECS)


class StopSignal:
    """SIGTERM and SIGINT, handled once for the whole process: the first drains, the second hurries.

    `wait()` returns at the first, `hurried()` at the second.
    """

    def __init__(self) -> None:
        self._first = asyncio.Event()
        self._second = asyncio.Event()

    def install(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.received, number)

    def received(self, number: signal.Signals) -> None:
        """A signal came."""
        if self._first.is_set():
            log.warning("stopping at once", signal=number.name)
            self._second.set()
        else:
            log.info("stopping", signal=number.name)
            self._first.set()

    async def wait(self) -> None:
        await self._first.wait()

    async def hurried(self) -> None:
        await self._second.wait()


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end, on uvloop where it is to be had."""
    with asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
        runner.run(main)
