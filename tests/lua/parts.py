"""Replicas on a server that a test may break."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from redis.asyncio import Redis

from dataplane.admission.slots.port import Claim, Holding
from dataplane.admission.slots.redis import RedisSlots
from dataplane.admission.slots.scripts import SlotScripts
from shared.redis_keys import SlotKeys
from tests.redis_server import PATIENT_SECS

KEYS = SlotKeys()


def replica(redis: Redis, name: str, *, ttl: float = 15, secs: float = PATIENT_SECS) -> RedisSlots:
    return RedisSlots(SlotScripts(redis, secs=secs), replica=name, ttl=ttl)


async def two(redis: Redis) -> tuple[RedisSlots, RedisSlots]:
    """Two that may claim."""
    one, other = replica(redis, "one"), replica(redis, "two")
    await one.heartbeat([])
    await other.heartbeat([])
    await one.heartbeat([])
    return one, other


def claim(id: str, **changed: Any) -> Claim:
    plain: dict[str, Any] = {
        "pool": "m",
        "group": "g",
        "tenant": "t",
        "key": "k",
        "pool_size": 2,
        "ceiling": 100,
    }
    return Claim(id, **(plain | changed))


def held(id: str, pool: str = "m") -> Holding:
    return Holding(id, pool, "g", "t", "k")


async def until(holds: Callable[[], Awaitable[object]]) -> None:
    """Wait until something holds."""
    for _ in range(1000):
        if await holds():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError("it never came to hold")


def stand_still(secs: float) -> None:
    """What being stopped, or starved of its processor, does to a process."""
    time.sleep(secs)
