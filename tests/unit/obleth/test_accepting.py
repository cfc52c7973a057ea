"""A connection is served or refused, whatever turn of the loop finds its server closing."""

import asyncio
import socket

import pytest

from obleth.accepting import stop_accepting


class Greeting(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"hello")
        transport.close()


@pytest.mark.parametrize("turns", range(6))
async def test_who_connects_as_a_server_stops_is_served_or_reset(turns: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Greeting, "127.0.0.1", 0)
    with socket.create_connection(server.sockets[0].getsockname(), timeout=5) as client:
        for _ in range(turns):
            await asyncio.sleep(0)
        await stop_accepting(server.sockets)
        server.close()
        try:
            told = await asyncio.to_thread(client.recv, 100)
        except ConnectionResetError:
            told = b"reset"
    assert told in (b"hello", b"reset")
