"""How a server stops taking connections without losing one on the way in.

A connection that asyncio has accepted reaches its protocol two turns of the loop later. When the
server is closed in between, nobody has the connection: neither served nor closed, its client waits
until the collector finds the socket (Python 3.11; CPython's issue 109564).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, Protocol

_TURNS_TO_PROTOCOL: Final = 2


class Listening(Protocol):
    """A socket, or what asyncio shows of one."""

    def fileno(self) -> int: ...


async def stop_accepting(listening: Iterable[Listening]) -> None:
    """Accept nobody more from these sockets, which stay open.

    Returns when every connection that was accepted has its protocol. Who connects from now on is
    reset as the sockets close. On uvloop, which accepts and hands over in one step, nothing is to
    be done.
    """
    loop = asyncio.get_running_loop()
    for each in listening:
        loop.remove_reader(each.fileno())
    for _ in range(_TURNS_TO_PROTOCOL):
        await asyncio.sleep(0)
