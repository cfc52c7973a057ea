"""Calls to an upstream that are cut off at any moment, once or twice, leave nothing behind."""

from __future__ import annotations

import asyncio
import random

import pytest

from dataplane.proxy.aiohttp_upstream import AiohttpUpstream
from shared.network import NetworkRules
from tests.proxy.serving import TIMEOUTS, Peer, Upstream, upstream

TASKS = 20
ROUNDS = 30


async def _slowly(_: Upstream, peer: Peer) -> None:
    """An answer in pieces, so that a call can be cut off before, between and after them."""
    while True:
        await peer.request()
        await asyncio.sleep(0)
        await peer.start_stream()
        for _number in range(3):
            await asyncio.sleep(0)
            await peer.chunk(b"data: {}\n\n")
        await peer.end_stream()


async def _call(through: AiohttpUpstream, url: str) -> bytes:
    body = b""
    async with through.request("POST", f"{url}/chat", [], b"{}", TIMEOUTS) as response:
        async for chunk in response.chunks():
            body += chunk
    return body


def _in_use(through: AiohttpUpstream) -> int:
    """Connections that a call is said to have."""
    connectors = [session.connector for session in (through._pooled, through._fresh)]
    return sum(len(each._acquired) for each in connectors if each is not None)


async def _cut_off(task: asyncio.Task[bytes], chance: random.Random) -> None:
    for _ in range(chance.choice((1, 2))):
        for _ in range(chance.randrange(40)):
            await asyncio.sleep(0)
        task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_calls_cut_off_at_any_moment_leave_no_connection_that_nobody_owns(seed: int) -> None:
    chance, through = random.Random(seed), AiohttpUpstream(NetworkRules())
    async with upstream(_slowly) as up:
        for _ in range(ROUNDS):
            tasks = [asyncio.create_task(_call(through, up.url)) for _ in range(TASKS)]
            await asyncio.gather(*(_cut_off(task, chance) for task in tasks))
        connections = up.connections
        bodies = await asyncio.gather(*(_call(through, up.url) for _ in range(10)))
        assert bodies == [b"data: {}\n\n" * 3] * 10
        assert connections > TASKS, "some were cut off in the middle"
        assert _in_use(through) == 0
        await through.close()
        await up.until(lambda up: up.open == 0)
        left = [each for each in asyncio.all_tasks() if "aiohttp" in repr(each.get_coro())]
        assert left == []
