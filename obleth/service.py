"""A process's life, the same for every command: start the planes, serve, drain, stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import structlog

from obleth.server import Listener, StopSignal

_GOODBYE_SECS: Final = 12.0
"""Beyond its grace, for a plane to tell those it cuts off, and for them to read it."""
_SIDE_GRACE_SECS: Final = 2.0
"""For requests to the listeners that are not drained."""

log = structlog.get_logger(__name__)


class Plane(Protocol):
    """What a process runs."""

    async def start(self) -> None:
        """Returns when requests can be served."""

    async def drain(self, grace_secs: float) -> None:
        """Take no new work and refuse what waits; what runs ends within `grace_secs` or is cut off.

        May be cancelled and called again with less patience.
        """

    async def stop(self) -> None:
        """Write what is to be written and let go; no request runs any more."""


class Service:
    """Planes and the listeners they are served on.

    Planes start in the order given and stop in the opposite one. The first listener is the one
    whose requests are drained: it takes no more connections from then on, while the others answer
    (health, metrics) until the draining has ended.
    """

    def __init__(
        self, planes: Sequence[Plane], listeners: Sequence[Listener], grace_secs: float
    ) -> None:
        self._planes = planes
        self._listeners = listeners
        self._grace_secs = grace_secs
        self._running: list[Plane] = []

    @property
    def listening(self) -> list[str]:
        """Where, the drained listener first."""
        return [str(listener.address) for listener in self._listeners]

    async def start(self) -> None:
        """Start everything; when something fails, stop what had started and raise."""
        try:
            for plane in self._planes:
                await plane.start()
                self._running.append(plane)
            for listener in reversed(self._listeners):
                await listener.start()
        except BaseException:
            self._grace_secs = 0
            await self.stop()
            raise

    async def stop(self, signal: StopSignal | None = None) -> None:
        """Drain and stop; a second signal ends the draining."""
        first, *others = self._listeners
        closing = asyncio.create_task(first.stop(self._grace_secs + _GOODBYE_SECS))
        await self._drain(signal)
        await closing
        for listener in others:
            await listener.stop(_SIDE_GRACE_SECS)
        while self._running:
            await self._running.pop().stop()

    async def _drain(self, signal: StopSignal | None) -> None:
        draining = asyncio.create_task(self._drain_planes(self._grace_secs))
        hurried = asyncio.create_task(signal.hurried()) if signal else None
        waiting = {draining, hurried} if hurried else {draining}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if hurried:
            hurried.cancel()
        if draining.done():
            draining.result()
            return
        draining.cancel()
        await asyncio.wait([draining])
        await self._drain_planes(0)

    async def _drain_planes(self, grace_secs: float) -> None:
        for plane in self._running:
            await plane.drain(grace_secs)


async def run(make: Callable[[], Service]) -> None:
    """Make a service inside the running loop and serve until a signal says to stop."""
    signal = StopSignal()
    signal.install()
    service = make()
    await service.start()
    log.info("ready", listening=service.listening)
    await signal.wait()
    await service.stop(signal)
    log.info("stopped")
