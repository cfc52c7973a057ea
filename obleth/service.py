"""A process's life, the same for every command: start the planes, serve, drain, stop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final, Protocol

import structlog

from obleth.server import Listener, StopSignal

_SIDE_GRACE_SECS: Final = 2.0

log = structlog.get_logger(__name__)


class Plane(Protocol):
    """What a process runs."""

    async def start(self) -> None:
        """Returns when requests can be served."""

    def close(self) -> None:
        """Take no new work and refuse what waits; what runs goes on."""

    async def stop(self) -> None:
        """Write what is to be written and let go; no request runs any more."""


class Service:
    """Planes and the listeners they are served on.

    Listeners are closed in the order given: the one whose requests are drained comes first, so that
    health and metrics answer until it has ended; the others then close soon. Planes start in the
    order given and stop in the opposite one.
    """

    def __init__(
        self, planes: Sequence[Plane], listeners: Sequence[Listener], grace_secs: float
    ) -> None:
        self._planes = planes
        self._listeners = listeners
        self._grace_secs = grace_secs
        self._running = AsyncExitStack()

    async def start(self) -> None:
        """Start everything; when something fails, stop what had started and raise."""
        try:
            for plane in self._planes:
                await plane.start()
                self._running.push_async_callback(plane.stop)
            for listener in reversed(self._listeners):
                await listener.start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self, signal: StopSignal | None = None) -> None:
        """Drain and stop; a second signal ends the draining."""
        hurrying = asyncio.create_task(self._hurry(signal)) if signal else None
        for plane in self._planes:
            plane.close()
        grace_secs = self._grace_secs
        for listener in self._listeners:
            await listener.stop(grace_secs)
            grace_secs = min(grace_secs, _SIDE_GRACE_SECS)
        await self._running.aclose()
        if hurrying:
            hurrying.cancel()

    async def _hurry(self, signal: StopSignal) -> None:
        await signal.hurried()
        for listener in self._listeners:
            listener.hurry()


async def run(service: Service) -> int:
    """Serve until a signal says to stop; the process's exit code."""
    signal = StopSignal()
    signal.install()
    await service.start()
    log.info("ready")
    await signal.wait()
    await service.stop(signal)
    log.info("stopped")
    return 0
