"""Servers of a test's own, in its loop, that leave no connection behind when they go."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from obleth.accepting import stop_accepting


async def close(server: asyncio.Server) -> None:
    """Accept nobody more; returns when whoever was accepted is served by a task that has begun."""
    await stop_accepting(server.sockets)
    await asyncio.sleep(0)
    server.close()


@asynccontextmanager
async def application(
    app: web.Application, tls: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """It on a free port of the loopback interface: the port. What is open at the end is cut."""
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    assert runner.server is not None
    server = await asyncio.get_running_loop().create_server(runner.server, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        await close(server)
        await runner.cleanup()
