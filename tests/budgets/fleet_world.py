"""Replicas that share budgets on a real Redis, whose scripts see the time that the test says."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import Redis

from dataplane import scripts
from dataplane.budgets.fleet import FleetBudgets
from dataplane.budgets.port import TermStore
from dataplane.budgets.redis import LEASE_SECS, RedisBooks
from dataplane.scripts import RedisScripts, Script, ScriptCall
from shared import redis as shared_redis
from shared.redis_keys import BudgetKeys
from tests.budgets.world import MemoryTermStore, Time
from tests.conftest import REDIS
from tests.redis_server import PATIENT_SECS

TIME = "redis.call('TIME')"


class TimedScripts(RedisScripts):
    """The scripts of budgets with another clock in place of the server's."""

    def __init__(self, redis: Redis, tag: str, time: Time, *, secs: float) -> None:
        self._clock = f"{tag}:clock"
        theirs = f"redis.call('HMGET', '{self._clock}', 'secs', 'micros')"
        timed = {}
        for name, script in scripts.load("dataplane.budgets").items():
            assert script.text.count(TIME) == 1
            timed[name] = Script.of(name, script.text.replace(TIME, theirs))
        super().__init__(redis, timed, secs=secs)
        self._server = redis
        self._time = time

    async def run(self, calls: Sequence[ScriptCall]) -> list[Any]:
        ms = round(self._time.wall * 1000)
        told = ("HSET", self._clock, "secs", ms // 1000, "micros", ms % 1000 * 1000)
        await shared_redis.round_trip(self._server, [told], secs=self._secs)
        return await super().run(calls)


class FleetWorld:
    """Replicas `make` made, on one server, one database and one clock."""

    def __init__(self, url: str = REDIS, *, lease_secs: float = LEASE_SECS) -> None:
        self.url = url
        self.lease_secs = lease_secs
        self.tag = f"{{test:{secrets.token_hex(6)}}}"
        self.keys = BudgetKeys(self.tag)
        self.time = Time()
        self.store = MemoryTermStore()
        self.replicas = 1
        self.made: list[FleetBudgets] = []
        self.redis = shared_redis.client(url)

    def make(
        self,
        *,
        secs: float = PATIENT_SECS,
        store: TermStore | None = None,
        save_every_secs: float = 1.0,
        scripts: type[TimedScripts] = TimedScripts,
    ) -> FleetBudgets:
        redis = shared_redis.client(self.url, connections=2)
        timed = scripts(redis, self.tag, self.time, secs=secs)
        replica = FleetBudgets(
            RedisBooks(redis, timed, keys=self.keys, lease_secs=self.lease_secs),
            self.store if store is None else store,
            replicas=lambda: self.replicas,
            clock=lambda: self.time.monotonic,
            wall=lambda: self.time.wall,
            save_every_secs=save_every_secs,
        )
        self.made.append(replica)
        return replica

    async def names(self) -> list[str]:
        """The keys that replicas have written."""
        found = [name async for name in self.redis.scan_iter(match=f"{self.tag}:1:*")]
        return sorted(found)

    async def until_reserved(self, tokens: int) -> None:
        """Wait until so much is reserved in the one term there is."""
        for _ in range(1000):
            for name in await self.names():
                if ":count:" in name and await self.redis.hget(name, "reserved") == str(tokens):
                    return
            await asyncio.sleep(0.01)
        raise TimeoutError("it was never reserved")

    async def stop(self) -> None:
        for replica in self.made:
            await replica.stop()
        names = [name async for name in self.redis.scan_iter(match=f"{self.tag}:*")]
        if names:
            await self.redis.delete(*names)
        await self.redis.aclose()


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds that comes about in the background."""
    for _ in range(1000):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError("it never came to hold")


@asynccontextmanager
async def fleet_world(
    url: str = REDIS, *, lease_secs: float = LEASE_SECS
) -> AsyncIterator[FleetWorld]:
    world = FleetWorld(url, lease_secs=lease_secs)
    try:
        yield world
    finally:
        await world.stop()
