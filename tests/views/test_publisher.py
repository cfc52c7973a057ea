"""A replica's view on a real Redis: there while it runs, gone when it stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from dataplane import live_view
from dataplane.live_view import ReplicaView
from dataplane.lookout import Lookout
from dataplane.publisher import Publisher, published
from shared import redis as shared_redis
from shared import redis_keys
from shared.redis import RedisUnavailable
from tests.redis_server import PATIENT_SECS, Server, server

INTERVAL = 0.05
RARELY = 60.0
"""So that a view outlives whatever pauses the machine makes."""


@pytest.fixture
async def own_server(tmp_path: Path) -> AsyncIterator[Server]:
    async with server(tmp_path) as running:
        yield running


@pytest.fixture
async def redis(own_server: Server) -> AsyncIterator[Redis]:
    async with shared_redis.client(own_server.url) as client:
        yield client


def view(name: str, in_flight: int = 0) -> ReplicaView:
    return ReplicaView(
        instance=name,
        url="http://host:9091",
        version="1",
        mode="shared",
        algorithm="hierarchical",
        replicas=2,
        started_at=1.0,
        taken_at=2.0,
        global_max_in_flight=10,
        configured_global_max_in_flight=10,
        in_flight=in_flight,
        pools=(),
    )


class Replica:
    """A publisher whose figures and mode the test sets."""

    def __init__(self, redis: Redis, name: str = "r1", interval: float = INTERVAL) -> None:
        self.redis, self.name = redis, name
        self.in_flight = 0
        self.publisher = Publisher(
            redis,
            redis_keys.view(name),
            text=lambda: live_view.encode(view(name, self.in_flight)),
            interval=interval,
            answer_secs=PATIENT_SECS,
        )

    async def seen(self) -> ReplicaView | None:
        return (await published(self.redis, [self.name], answer_secs=PATIENT_SECS)).get(self.name)

    async def until(self, in_flight: int | None) -> None:
        """Until the view says this; None: until there is none."""
        async with asyncio.timeout(10):
            while (now := await self.seen()) is None or now.in_flight != in_flight:
                if now is None and in_flight is None:
                    return
                await asyncio.sleep(INTERVAL / 5)


async def test_a_view_follows_its_replica(redis: Redis) -> None:
    replica = Replica(redis)
    replica.publisher.start()
    for in_flight in (0, 3, 5):
        replica.in_flight = in_flight
        await replica.until(in_flight)
    await replica.publisher.stop()


async def test_a_view_lives_for_three_intervals(redis: Redis) -> None:
    replica = Replica(redis, interval=RARELY)
    replica.publisher.start()
    await replica.until(0)
    life_ms = await redis.pttl(redis_keys.view("r1"))
    assert 2 * RARELY * 1000 < life_ms <= 3 * RARELY * 1000
    await replica.publisher.stop()


async def test_a_clean_stop_takes_the_view_back(redis: Redis) -> None:
    replica = Replica(redis, interval=RARELY)
    replica.publisher.start()
    await replica.until(0)
    await replica.publisher.stop()
    assert await replica.seen() is None
    assert await redis.keys("*") == []


async def test_publishing_goes_on_after_redis_was_away(redis: Redis, own_server: Server) -> None:
    replica = Replica(redis)
    replica.publisher.start()
    await replica.until(0)
    await own_server.stop()
    with pytest.raises(RedisUnavailable):
        await replica.seen()
    await own_server.start()
    replica.in_flight = 7
    await replica.until(7)
    await replica.publisher.stop()


async def test_views_that_are_not_there_or_make_no_sense_are_left_out(redis: Redis) -> None:
    replica = Replica(redis, "r2", RARELY)
    replica.publisher.start()
    await replica.until(0)
    await redis.set(redis_keys.view("odd"), "[1, 2]")
    found = await published(redis, ["r1", "r2", "odd"], answer_secs=PATIENT_SECS)
    assert list(found) == ["r2"]
    assert await published(redis, [], answer_secs=PATIENT_SECS) == {}
    await replica.publisher.stop()


async def test_publishing_goes_on_after_a_mistake_nobody_foresaw(redis: Redis) -> None:
    figures = iter([1, "not a number", 3])
    publisher = Publisher(
        redis,
        redis_keys.view("r1"),
        text=lambda: live_view.encode(view("r1", int(next(figures, 3)))),
        interval=INTERVAL,
        answer_secs=PATIENT_SECS,
    )
    publisher.start()
    async with asyncio.timeout(10):
        while True:
            seen = (await published(redis, ["r1"], answer_secs=PATIENT_SECS)).get("r1")
            if seen is not None and seen.in_flight == 3:
                break
            await asyncio.sleep(INTERVAL / 5)
    await publisher.stop()


async def test_a_replica_goes_on_looking_at_others_after_a_mistake_nobody_foresaw(
    redis: Redis,
) -> None:
    seen: asyncio.Queue[list[str]] = asyncio.Queue()
    await redis.hset(redis_keys.SlotKeys().served("m"), "g:default", "not a score")
    asked = iter([{"m": ["g:default"]}])
    lookout = Lookout(
        redis,
        others=lambda: ["r1"],
        asked=lambda: next(asked, {}),
        seen=lambda views, served: seen.put_nowait([each.instance for each in views]),
        is_on=lambda: True,
        interval=INTERVAL,
        answer_secs=PATIENT_SECS,
    )
    await redis.set(redis_keys.view("r1"), live_view.encode(view("r1")))
    lookout.start()
    async with asyncio.timeout(10):
        assert await seen.get() == ["r1"]
    await lookout.stop()
