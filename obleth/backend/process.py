"""The simulated backend as a process of its own."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from obleth.backend.options import BackendOptions
from obleth.backend.server import SimulatedBackend


def run(
    options: BackendOptions, on_ready: Callable[[SimulatedBackend], None] | None = None
) -> None:
    """Serve until SIGINT or SIGTERM. `on_ready` is called once it listens. Raises CannotListen."""
    asyncio.run(_serve(options, on_ready))


async def _serve(
    options: BackendOptions, on_ready: Callable[[SimulatedBackend], None] | None
) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    async with SimulatedBackend(options) as backend:
        if on_ready is not None:
            on_ready(backend)
        await stopping.wait()
