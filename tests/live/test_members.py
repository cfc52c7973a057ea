"""Who lives in the fleet, by what is on the roster and what is published."""

from __future__ import annotations

from pathlib import Path

from redis.asyncio import Redis

from dataplane import live_view
from dataplane.live.fleet import Member, members
from dataplane.live.history import History as Samples
from dataplane.live.replica import Live
from dataplane.live_view import ReplicaView
from shared import redis as shared_redis
from shared import redis_keys
from tests.live.views import pick, pool, replica, tenant
from tests.redis_server import PATIENT_SECS, server

ROSTER = redis_keys.SlotKeys().roster


async def enrol(redis: Redis, name: str, *, ago_ms: int, ttl_ms: int = 15_000) -> None:
    seconds, micros = await redis.time()
    heard = seconds * 1000 + micros // 1000 - ago_ms
    await redis.hset(ROSTER, name, f"{heard} {ttl_ms} 1 1")


async def test_only_those_whose_heartbeat_is_still_good_live(tmp_path: Path) -> None:
    async with server(tmp_path) as own, shared_redis.client(own.url) as redis:
        await enrol(redis, "b", ago_ms=4_000)
        await enrol(redis, "a", ago_ms=-60_000)  # its clock, or Redis', was set back
        await enrol(redis, "dead", ago_ms=20_000)
        await redis.hset(ROSTER, "odd", "what is this")
        view = replica(instance="b", interval_ms=500)
        await redis.set(redis_keys.view("b"), live_view.encode(view), px=1_200)
        found = {each.name: each for each in await members(redis, answer_secs=PATIENT_SECS)}
        assert list(found) == ["a", "b"]
        assert found["a"].heartbeat_age_ms == 0
        assert 4_000 <= found["b"].heartbeat_age_ms < 15_000
        assert (found["a"].view, found["b"].view) == (None, view)
        # A view lives for three intervals: what is left of them tells its age.
        assert 300 <= found["b"].view_age_ms <= 1_500


async def test_the_age_of_the_picture_is_that_of_the_oldest_view_in_it() -> None:
    async def found() -> list[Member]:
        ages = {"a": 1_400, "b": 300, "c": 900}
        views = {name: replica(instance=name, mode="shared", replicas=4) for name in ages}
        return [
            *(Member(name, 0, views[name], age_ms) for name, age_ms in ages.items()),
            Member("new", 0, None, 0),
        ]

    live = Live(
        "a",
        view=lambda: replica(instance="a", mode="shared", replicas=4),
        members=found,
        samples=Samples(0),
        model_name=lambda name: None,
    )
    state = await live.state()
    # Its own is drawn now, and a replica that has not published yet is not in it.
    assert (state.state_age_ms, state.replicas_reporting, state.replicas) == (900, 3, 4)


async def test_who_waits_elsewhere_has_waited_since_its_replica_last_said_so() -> None:
    def waiting(name: str, waited_ms: int) -> ReplicaView:
        picks = (pick("a", 0.0, waited_ms=waited_ms),)
        on = pool(1, tenant("a", 0, 1), next_in_line=picks, oldest_wait_ms=waited_ms)
        return replica(on, instance=name, mode="shared", replicas=2)

    async def found() -> list[Member]:
        return [Member("b", 0, waiting("b", 1_000), 400)]

    live = Live(
        "a",
        view=lambda: waiting("a", 1_200),
        members=found,
        samples=Samples(0),
        model_name=lambda name: None,
    )
    (one,) = (await live.state()).pools
    assert one.oldest_wait_ms == 1_400
    assert [(next.instance, next.waited_ms) for next in one.next_in_line] == [
        ("b", 1_400),
        ("a", 1_200),
    ]


async def test_where_nobody_lives_nobody_is_found(tmp_path: Path) -> None:
    async with server(tmp_path) as own, shared_redis.client(own.url) as redis:
        assert await members(redis, answer_secs=PATIENT_SECS) == []
