"""A TCP proxy of our own between one client and one server, and the weather on it.

All links run on one thread with a loop of its own: whatever the test's loop is busy with, a link is
as slow as its weather says and no slower.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from tests import listeners

RESEND_SECS = 0.2
"""After how long TCP sends again what was lost, at first; each further time twice as long."""
PIECE = 16
"""Bytes that arrive together on a link with a rate."""
_RESET = struct.pack("ii", 1, 0)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Weather:
    """How a link is. Times in seconds; chances from 0 to 1."""

    delay: float = 0.0
    """Of each piece of data from the server."""
    loss: float = 0.0
    """Chance of a piece to be lost on the wire and sent again."""
    swallows: float = 0.0
    """Chance of a reply, and of all after it on its connection, never to arrive."""
    bytes_per_sec: float | None = None
    is_half_open: bool = False
    """Connections are taken and nothing passes: what is sent meanwhile is gone, an end too, and so
    is the connection it was sent on."""
    refuses: bool = False
    """Connections end as they begin."""


FAIR = Weather()


class Link:
    """Where a client connects instead of the server at `to`, a port of this machine."""

    def __init__(self, to: int, seed: int) -> None:
        self.to = to
        self.weather = FAIR
        self.random = random.Random(seed)
        self.port = 0
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        """Reset every connection."""
        for connection in list(self._connections):
            connection.reset()

    async def bury(self) -> None:
        """Let both sides hear of the end of connections that have lost something."""
        for connection in list(self._connections):
            if connection.is_dead:
                connection.reset()

    async def close(self) -> None:
        assert self._server is not None, "open it first"
        await listeners.close(self._server)
        await self.cut()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        connection = _Connection(self, writer)
        self._connections.add(connection)
        try:
            if not self.weather.refuses:
                await connection.run(reader)
        except OSError:
            pass  # the server is not there: the client hears of it below
        finally:
            connection.reset()
            self._connections.discard(connection)


class _Connection:
    def __init__(self, link: Link, client: asyncio.StreamWriter) -> None:
        self._link = link
        self._writers = [client]
        self._pumps: list[asyncio.Task[None]] = []
        self.is_dead = False

    async def run(self, from_client: asyncio.StreamReader) -> None:
        from_server, server = await asyncio.open_connection("127.0.0.1", self._link.to)
        (client,) = self._writers
        self._writers.append(server)
        self._pumps = [
            asyncio.create_task(self._pump(from_client, server, is_reply=False)),
            asyncio.create_task(self._pump(from_server, client, is_reply=True)),
        ]
        await asyncio.wait(self._pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in self._pumps:
            pump.cancel()
        await asyncio.wait(self._pumps)

    def reset(self) -> None:
        for pump in self._pumps:
            pump.cancel()
        for writer in self._writers:
            endpoint: socket.socket = writer.get_extra_info("socket")
            if not writer.transport.is_closing():
                endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_reply: bool
    ) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        try:
            while data := await reader.read(65536):
                weather = self._link.weather
                if self._is_lost(weather, is_reply=is_reply):
                    continue
                for piece in _pieces(data, weather):
                    due = max(due + 1e-6, loop.time() + self._pause(weather, is_reply=is_reply))
                    if weather.bytes_per_sec is not None:
                        due += len(piece) / weather.bytes_per_sec
                    loop.call_at(due, writer.write, piece)
        except OSError:
            pass  # an end like any other
        if self.is_dead or self._link.weather.is_half_open:
            self.is_dead = True
            await asyncio.Event().wait()  # until it is reset
        await asyncio.sleep(max(0.0, due - loop.time()))

    def _is_lost(self, weather: Weather, *, is_reply: bool) -> bool:
        if weather.is_half_open or (is_reply and self._link.random.random() < weather.swallows):
            self.is_dead = True
        return self.is_dead

    def _pause(self, weather: Weather, *, is_reply: bool) -> float:
        pause = weather.delay if is_reply else 0.0
        again = RESEND_SECS
        while self._link.random.random() < weather.loss:
            pause += again
            again *= 2
        return pause


def _pieces(data: bytes, weather: Weather) -> list[bytes]:
    size = PIECE if weather.bytes_per_sec is not None else len(data)
    return [data[at : at + size] for at in range(0, len(data), size)]


class Links:
    """Several links on their thread, closed at the end of the block."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._links: list[Link] = []

    async def __aenter__(self) -> Self:
        self._thread.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for link in self._links:
            await self._there(link.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)
        self._loop.close()

    async def open(self, to: int, seed: int) -> Link:
        link = Link(to, seed)
        await self._there(link.open())
        self._links.append(link)
        return link

    async def set(self, weather: Weather, *links: Link) -> None:
        """This weather from now on; what the weather before has killed is heard of."""
        for link in links:
            link.weather = weather
            if not weather.is_half_open:
                await self._there(link.bury())

    async def cut(self, *links: Link) -> None:
        """Reset what is connected over these links."""
        for link in links:
            await self._there(link.cut())

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
