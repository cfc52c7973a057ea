"""Redis dies, freezes, forgets and refuses, under a fleet of real replicas."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from tests.faults.conftest import Fault
from tests.faults.fleet import Fleet
from tests.faults.trial import fallback_begun, twice

pytestmark = pytest.mark.asyncio(loop_scope="module")

BUSY = "local n = 0; while n < 1 do end"
MOVE_CLOCK = (Path(__file__).parent / "clock_moved.lua").read_text()
PERSISTENT = ("--appendonly", "yes", "--appendfsync", "everysec")


async def test_killed_and_started_empty(three: Fleet, fault: Fault) -> None:
    async with fault("Redis killed, started empty", fallback_begun):
        await three.redis.stop()
        await asyncio.sleep(three.timings.outage)
        await three.redis.start()


async def test_frozen(three: Fleet, fault: Fault) -> None:
    async with fault("Redis frozen", fallback_begun):
        three.redis.signal(signal.SIGSTOP)
        await asyncio.sleep(three.timings.outage)
        three.redis.signal(signal.SIGCONT)


@pytest.mark.parametrize("what", ["WRITE", "ALL"])
async def test_paused(three: Fleet, fault: Fault, what: str) -> None:
    """Also where reads are answered: a probe that only reads would call it healthy."""
    async with fault(f"Redis pauses its clients' {what.lower()}", fallback_begun):
        async with three.on_redis() as redis:
            await redis.client_pause(round(three.timings.outage * 1000), all=what == "ALL")
        await asyncio.sleep(three.timings.outage)


async def test_asleep(three: Fleet, fault: Fault) -> None:
    async with fault("Redis sleeps", fallback_begun), three.on_redis() as redis:
        await redis.execute_command("DEBUG", "SLEEP", three.timings.outage)


async def test_read_only(three: Fleet, fault: Fault) -> None:
    async with fault("Redis is read only", fallback_begun), three.on_redis() as redis:
        await redis.replicaof("127.0.0.1", "1")
        await asyncio.sleep(three.timings.outage)
        await redis.replicaof("NO", "ONE")


async def test_busy_with_a_script(three: Fleet, fault: Fault) -> None:
    async with fault("Redis runs a long script", fallback_begun), three.on_redis() as redis:
        await redis.config_set("busy-reply-threshold", 100)
        long = asyncio.create_task(_endless_script(redis))
        await asyncio.sleep(three.timings.outage)
        async with three.on_redis() as other:
            await other.script_kill()
        await long
        await redis.config_set("busy-reply-threshold", 5000)


async def _endless_script(redis: Redis) -> None:
    with pytest.raises(RedisError, match="killed"):
        await redis.eval(BUSY, 0)


async def test_without_room_for_clients(three: Fleet, fault: Fault) -> None:
    name = "Redis takes no clients, and ended those it had"
    async with fault(name, fallback_begun), three.on_redis() as redis:
        await redis.config_set("maxclients", 1)
        await redis.client_kill_filter(_type="normal", skipme=True)
        await redis.client_kill_filter(_type="pubsub", skipme=True)
        await asyncio.sleep(three.timings.outage)
        await redis.config_set("maxclients", 1000)


@pytest.mark.parametrize("what", ["everything", "a pool", "a wrong type"])
async def test_keys_gone(three: Fleet, fault: Fault, what: str) -> None:
    """Who is not on the roster any more is granted nothing until all it runs is on the books again.
    Where a pool's key alone is gone the pool seems empty until the next heartbeats."""
    allows = twice if what == "a pool" else fallback_begun
    async with fault(f"Keys gone: {what}", allows), three.on_redis() as redis:
        if what == "everything":
            await redis.flushall()
        else:
            for name in [name async for name in redis.scan_iter(match="*:pool:*")]:
                await redis.delete(name)
                if what == "a wrong type":
                    await redis.set(name, "not a set")
        await asyncio.sleep(three.timings.outage)


@pytest.mark.parametrize("secs", [60, -3600])
async def test_clock_moved(three: Fleet, fault: Fault, secs: int) -> None:
    """By moving every time that Redis has written down the other way, at one instant. Forward,
    every lease has lapsed at once and is there again with the next heartbeat."""
    async with fault(f"Redis's clock moved by {secs} s", fallback_begun):
        async with three.on_redis() as redis:
            await redis.eval(MOVE_CLOCK, 0, secs * 1000)
        await asyncio.sleep(three.timings.outage)


async def test_killed_with_what_it_had_written(three: Fleet, fault: Fault) -> None:
    await _persist(three)
    async with fault("Redis killed, started with its files", fallback_begun):
        await three.redis.stop()
        await asyncio.sleep(three.timings.outage)
        await three.redis.start(*PERSISTENT)


async def test_killed_with_all_but_its_last_second(three: Fleet, fault: Fault) -> None:
    """A power cut: what was granted in that second is on nobody's books but its holder's."""
    await _persist(three)
    async with fault("Redis back without its last second", fallback_begun):
        before = await asyncio.to_thread(three.redis.written)
        await asyncio.sleep(1.0)
        await three.redis.stop()
        await asyncio.to_thread(three.redis.rewrite, before)
        await three.redis.start(*PERSISTENT)


async def _persist(three: Fleet) -> None:
    async with three.on_redis() as redis:
        answer: Any = await redis.config_get("appendonly")
        if answer["appendonly"] != "yes":
            await redis.config_set("appendonly", "yes")
