"""Redis dies, freezes, forgets and refuses, under a fleet of real replicas."""

from __future__ import annotations

import asyncio
import signal

import pytest

from tests.faults.conftest import Fault
from tests.faults.fleet import Fleet
from tests.faults.trial import fallback_begun

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_redis_killed_and_started_empty(three: Fleet, fault: Fault) -> None:
    async with fault("Redis killed, started empty", fallback_begun):
        await three.redis.stop()
        await asyncio.sleep(three.timings.outage)
        await three.redis.start()


async def test_redis_frozen(three: Fleet, fault: Fault) -> None:
    async with fault("Redis frozen", fallback_begun):
        three.redis.signal(signal.SIGSTOP)
        await asyncio.sleep(three.timings.outage)
        three.redis.signal(signal.SIGCONT)
