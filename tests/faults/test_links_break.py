"""What lies between the replicas and Redis is slow, loses things, or ends in nothing."""

from __future__ import annotations

import asyncio

import pytest

from tests.faults.conftest import Fault
from tests.faults.fleet import Fleet
from tests.faults.link import FAIR, Weather
from tests.faults.trial import fallback_begun

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_slower_and_slower(three: Fleet, fault: Fault) -> None:
    answer = three.timings.answer_ms / 1000
    async with fault("Links slow: 0.4, 0.96, 1.04, 1.6 of the deadline", fallback_begun):
        for part in (0.4, 0.96, 1.04, 1.6):
            await _set(three, Weather(delay=part * answer))
            await asyncio.sleep(three.timings.outage)
        await _set(three, FAIR)


async def test_half_open(three: Fleet, fault: Fault) -> None:
    async with fault("Links half open", fallback_begun):
        await _set(three, Weather(is_half_open=True))
        await asyncio.sleep(three.timings.outage)
        await _set(three, FAIR)


async def test_reset(three: Fleet, fault: Fault) -> None:
    async with fault("Links reset, ten times", fallback_begun):
        for _ in range(10):
            await three.links.cut(*(one.link for one in three.replicas))
            await asyncio.sleep(three.timings.outage / 10)


async def test_connections_killed_by_redis(three: Fleet, fault: Fault) -> None:
    name = "Redis ends its clients' connections, ten times"
    async with fault(name, fallback_begun), three.on_redis() as redis:
        for _ in range(10):
            await redis.client_kill_filter(_type="normal", skipme=True)
            await redis.client_kill_filter(_type="pubsub", skipme=True)
            await asyncio.sleep(three.timings.outage / 10)


@pytest.mark.parametrize("loss", [0.1, 0.3])
async def test_lossy(three: Fleet, fault: Fault, loss: float) -> None:
    async with fault(f"Links lose {loss:.0%} and send it again", fallback_begun):
        await _set(three, Weather(loss=loss))
        await asyncio.sleep(three.timings.outage)
        await _set(three, FAIR)


async def test_replies_lost(three: Fleet, fault: Fault) -> None:
    """Whatever was asked for has been done, and nobody was told."""
    async with fault("Links lose one reply in ten for good", fallback_begun):
        await _set(three, Weather(swallows=0.1))
        await asyncio.sleep(three.timings.outage)
        await _set(three, FAIR)


async def test_narrow(three: Fleet, fault: Fault) -> None:
    async with fault("Links of 64 kbit/s", fallback_begun):
        await _set(three, Weather(bytes_per_sec=8000))
        await asyncio.sleep(three.timings.outage)
        await _set(three, FAIR)


async def _set(three: Fleet, weather: Weather) -> None:
    await three.links.set(weather, *(one.link for one in three.replicas))
