"""One address for several servers: each connection goes to the next of them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from tests import listeners

PIECE = 65536


@asynccontextmanager
async def balancer(urls: Sequence[str]) -> AsyncIterator[str]:
    """The URL at which it listens. Connections that are open at the end are cut."""
    turns = itertools.cycle([(parts.hostname, parts.port) for parts in map(urlsplit, urls)])
    connections: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a connection is served by a task"
        connections.add(task)
        try:
            there, onward = await asyncio.open_connection(*next(turns))
            # One that a side breaks off has ended.
            with contextlib.suppress(ConnectionError):
                await asyncio.gather(_pipe(reader, onward), _pipe(there, writer))
        finally:
            writer.close()
            connections.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        await listeners.close(server)
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while piece := await reader.read(PIECE):
            writer.write(piece)
            await writer.drain()
    finally:
        writer.close()
