"""Replicas that live through their heartbeats, on a real server."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis

from dataplane.admission.announcements import (
    Announcement,
    Announcements,
    Deaf,
    Freed,
    Listening,
    ReplicaChanged,
    parse,
)
from dataplane.admission.heartbeat import Heartbeat
from dataplane.admission.replica import Mode, ReplicaSettings, Stance
from dataplane.admission.slots.port import Answer, Heard, Holding, SlotsUnavailable
from dataplane.admission.slots.redis import RedisSlots
from dataplane.admission.slots.scripts import SlotScripts
from shared import redis as shared_redis
from shared.redis_keys import RELEASED
from tests.contract.slot_worlds import answers
from tests.lua.parts import KEYS, claim, held
from tests.redis_server import PATIENT_SECS, Server

HURRIED_SECS = 1.0
"""A deadline for tests in which it passes."""


class Living:
    """One replica, its heartbeat and its ear, and all they told."""

    def __init__(
        self,
        clients: tuple[Redis, Redis, Redis],
        name: str,
        settings: ReplicaSettings,
        secs: float,
    ) -> None:
        requests, own, ear = clients
        self.running: list[Holding] = []
        self.stances: list[Stance] = []
        self.heard: list[Heard | None] = []
        self.said: list[Announcement] = []
        self._told = asyncio.Event()
        self.slots = RedisSlots(
            SlotScripts(requests, secs=secs),
            replica=name,
            ttl=15,
            heartbeats=SlotScripts(own, secs=secs),
        )
        self.heartbeat = Heartbeat(
            self.slots,
            name,
            settings,
            holdings=lambda: self.running,
            changed=self._take_stance,
            done=self._hear,
        )
        self.ear = Announcements(ear, RELEASED, self._listen, secs=secs, quiet=1)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENT_SECS):
            while not holds():
                self._told.clear()
                await self._told.wait()

    async def until_mode(self, mode: Mode) -> None:
        await self.until(lambda: self.heartbeat.stance.mode is mode)

    def _take_stance(self, stance: Stance) -> None:
        self.stances.append(stance)
        self._told.set()

    def _hear(self, heard: Heard | None) -> None:
        self.heard.append(heard)
        self._told.set()

    def _listen(self, announcement: Announcement) -> None:
        self.said.append(announcement)
        self.heartbeat.announced(announcement)
        self._told.set()


@asynccontextmanager
async def living(
    url: str, name: str, heartbeat: float = 60, secs: float = PATIENT_SECS
) -> AsyncIterator[Living]:
    async with (
        shared_redis.client(url) as requests,
        shared_redis.client(url, connections=1) as own,
        shared_redis.client(url, connections=1) as ear,
    ):
        clients = (requests, own, ear)
        one = Living(clients, name, ReplicaSettings(heartbeat=heartbeat), secs)
        one.ear.start()
        await one.until(lambda: bool(one.said))
        one.heartbeat.start()
        try:
            await one.until(lambda: bool(one.heard))
            yield one
        finally:
            await one.heartbeat.stop()
            await one.ear.stop()


async def test_a_second_replica_makes_both_shared_long_before_a_heartbeat_is_due(
    own_server: Server,
) -> None:
    async with living(own_server.url, "one") as one:
        assert one.heartbeat.stance.mode is Mode.LOCAL
        one.running = [held("a"), held("b")]
        async with living(own_server.url, "two") as two:
            await one.until_mode(Mode.SHARED)
            await two.until_mode(Mode.SHARED)
            assert await answers(two.slots, [], [claim("c", pool_size=3), claim("d")]) == [
                Answer.GRANTED,
                Answer.POOL,
            ]
            assert len(one.heard) <= 4
            assert [stance.paused for stance in one.stances].count(True) <= 1
            assert Stance(Mode.FALLBACK, 2, 2, claims=True, paused=False) in two.stances


async def test_what_a_lone_replica_runs_is_not_on_the_books_so_that_its_end_needs_no_call(
    own_server: Server, redis: Redis
) -> None:
    async with living(own_server.url, "one", heartbeat=0.1) as one:
        one.running = [held("a")]
        told = len(one.heard)
        await one.until(lambda: len(one.heard) > told + 2)
        assert await redis.exists(KEYS.all, KEYS.held("one")) == 0
        async with living(own_server.url, "two", heartbeat=0.1) as two:
            await one.until_mode(Mode.SHARED)
            await two.until_mode(Mode.SHARED)
            assert await redis.zrange(KEYS.all, 0, -1) == ["a"]


async def test_a_replica_that_leaves_is_noticed_by_the_last_one_at_its_next_heartbeat(
    own_server: Server,
) -> None:
    async with living(own_server.url, "one", heartbeat=0.2) as one:
        async with living(own_server.url, "two", heartbeat=0.2) as two:
            await one.until_mode(Mode.SHARED)
            await two.heartbeat.stop()
            await two.slots.leave([])
        await one.until_mode(Mode.LOCAL)


@pytest.mark.parametrize("fault", ["frozen", "killed", "read only"])
async def test_after_an_outage_both_are_shared_again_with_all_they_hold_on_the_books(
    own_server: Server, fault: str
) -> None:
    secs = HURRIED_SECS if fault == "frozen" else PATIENT_SECS
    async with (
        living(own_server.url, "one", heartbeat=1, secs=secs) as one,
        living(own_server.url, "two", heartbeat=1, secs=secs) as two,
    ):
        await one.until_mode(Mode.SHARED)
        await two.until_mode(Mode.SHARED)
        await _break(own_server, fault)
        for each in (one, two):
            with pytest.raises(SlotsUnavailable):
                await answers(each.slots, [], [claim("lost")])
            each.heartbeat.slots_unavailable()
            assert each.heartbeat.stance == Stance(Mode.FALLBACK, 2, 2, claims=False, paused=False)
        one.running = [held("a")]
        two.running = [held("b")]
        await _heal(own_server, fault)
        await one.until_mode(Mode.SHARED)
        await two.until_mode(Mode.SHARED)
        assert await answers(one.slots, [], [claim("c", pool_size=3), claim("d")]) == [
            Answer.GRANTED,
            Answer.POOL,
        ]


async def _break(server: Server, fault: str) -> None:
    match fault:
        case "frozen":
            server.signal(signal.SIGSTOP)
        case "killed":
            await server.stop()
        case _:
            async with shared_redis.client(server.url) as redis:
                await redis.replicaof("127.0.0.1", "1")


async def _heal(server: Server, fault: str) -> None:
    match fault:
        case "frozen":
            server.signal(signal.SIGCONT)
        case "killed":
            await server.start()
        case _:
            async with shared_redis.client(server.url) as redis:
                await redis.replicaof("NO", "ONE")


async def test_a_claim_that_meets_lost_books_brings_the_replica_back_at_once(
    own_server: Server, redis: Redis
) -> None:
    async with living(own_server.url, "one") as one, living(own_server.url, "two") as two:
        await one.until_mode(Mode.SHARED)
        await two.until_mode(Mode.SHARED)
        await redis.flushall()
        for each in (one, two):
            assert await answers(each.slots, [], [claim("a")]) == [Answer.NOT_LIVE]
            each.heartbeat.lapsed()
        await one.until_mode(Mode.SHARED)
        await two.until_mode(Mode.SHARED)


async def test_a_cut_subscription_is_told_of_and_stands_again(
    own_server: Server, redis: Redis
) -> None:
    async with living(own_server.url, "one") as one:
        assert one.said[0] == Listening()
        await redis.client_kill_filter(_type="pubsub")
        await one.until(lambda: Listening() in one.said[1:])
        assert any(isinstance(each, Deaf) for each in one.said)
        await redis.publish(RELEASED, '{"pool": "m", "ceiling": true}')
        await one.until(lambda: Freed("m", ceiling=True) in one.said)


async def test_a_subscription_to_a_frozen_server_is_noticed_without_a_message(
    own_server: Server,
) -> None:
    async with living(own_server.url, "one", secs=HURRIED_SECS) as one:
        own_server.signal(signal.SIGSTOP)
        await one.until(lambda: any(isinstance(each, Deaf) for each in one.said))
        own_server.signal(signal.SIGCONT)
        await one.until(lambda: one.said[-1] == Listening())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"pool": "m", "ceiling": false, "more": 1}', Freed("m", ceiling=False)),
        ('{"pool": "m"}', Freed("m", ceiling=False)),
        ('{"replica": "one"}', ReplicaChanged("one")),
        ('{"pool": 7}', None),
        ("[]", None),
        ("", None),
        ("[" * 100_000, None),
    ],
)
def test_messages_that_are_not_understood_are_passed_over(
    text: str, said: Announcement | None
) -> None:
    assert parse(text) == said
