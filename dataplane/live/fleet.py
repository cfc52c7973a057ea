"""Reads who lives in the fleet and what each publishes. Both planes' processes do."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from redis.asyncio import Redis

from dataplane import live_view
from dataplane.live_view import ReplicaView
from dataplane.publisher import LIFE_INTERVALS, published
from shared import redis_keys
from shared.redis import RedisUnavailable, round_trip


@dataclass(frozen=True, slots=True)
class Member:
    """A live replica."""

    name: str
    heartbeat_age_ms: int
    view: ReplicaView | None
    """None: it has not published yet."""
    view_age_ms: int

    @property
    def view_now(self) -> ReplicaView | None:
        """Its view, of whose waiters each has waited for longer by now."""
        return None if self.view is None else live_view.aged(self.view, self.view_age_ms)


async def members(redis: Redis, *, answer_secs: float) -> list[Member]:
    """The replicas that live by the clock of Redis, in name order. Raises `RedisUnavailable`."""
    ages = await _roster(redis, answer_secs)
    asked = [("PTTL", redis_keys.view(name)) for name in ages]
    views, lives = await asyncio.gather(
        published(redis, ages, answer_secs=answer_secs), round_trip(redis, asked, secs=answer_secs)
    )
    found = []
    for (name, age_ms), left_ms in zip(ages.items(), lives, strict=True):
        view = views.get(name)
        life_ms = 0 if view is None else LIFE_INTERVALS * view.interval_ms
        left_ms = left_ms if isinstance(left_ms, int) else life_ms
        found.append(Member(name, age_ms, view, max(0, life_ms - max(0, left_ms))))
    return found


async def _roster(redis: Redis, answer_secs: float) -> dict[str, int]:
    """How many milliseconds ago each live replica was heard of."""
    key = redis_keys.SlotKeys().roster
    time, roster = await round_trip(redis, [("TIME",), ("HGETALL", key)], secs=answer_secs)
    for reply in (time, roster):
        if isinstance(reply, Exception):
            raise RedisUnavailable(str(reply)) from reply
    now_ms = int(time[0]) * 1000 + int(time[1]) // 1000
    ages = {}
    for name, record in sorted(roster.items()):
        heard, ttl, *_ = [*str(record).split(" "), "", ""]
        if heard.isdecimal() and ttl.isdecimal() and now_ms - int(heard) < int(ttl):
            ages[name] = max(0, now_ms - int(heard))
    return ages
