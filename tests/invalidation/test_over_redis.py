"""What the control plane says about changes reaches every replica's policy through a real Redis."""

from __future__ import annotations

import asyncio
import secrets
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from controlplane.invalidation import UNSENT_MAX, RedisPublisher
from dataplane.errors import InvalidApiKey
from dataplane.policy.subscriber import EVERYTHING, InvalidationSubscriber
from shared import redis as shared_redis
from shared.invalidation import Invalidation, Kind
from tests.policy.world import World, secret
from tests.redis_server import PATIENT_SECS, Server, server


class Replica:
    """A policy cache that hears invalidations, and what it heard."""

    def __init__(self, url: str, channel: str) -> None:
        self.world = World()
        self.heard: list[Invalidation] = []
        self._news = asyncio.Event()
        self.subscriber = InvalidationSubscriber(
            url, self._invalidate, answer_secs=PATIENT_SECS, channel=channel
        )

    def _invalidate(self, change: Invalidation) -> None:
        self.heard.append(change)
        self.world.cache.invalidate(change)
        self._news.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Returns once something holds of what it has heard."""
        async with asyncio.timeout(PATIENT_SECS):
            while not holds():
                self._news.clear()
                await self._news.wait()

    async def has_heard(self, *changes: Invalidation) -> None:
        """Returns once it has heard these, in this order, and nothing else."""
        await self.until(lambda: len(self.heard) >= len(changes))
        assert self.heard == list(changes)
        self.heard.clear()

    async def is_refused(self, name: str) -> bool:
        try:
            await self.world.key(name)
        except InvalidApiKey:
            return True
        return False


class Fleet:
    """Replicas and a control plane's publisher on one server."""

    def __init__(self, own_server: Server) -> None:
        self.server = own_server
        self.channel = f"test:{secrets.token_hex(6)}"
        self.publisher = RedisPublisher(
            own_server.url, answer_secs=PATIENT_SECS, channel=self.channel
        )
        self.replicas = [Replica(own_server.url, self.channel) for _ in range(2)]

    async def start(self) -> None:
        for replica in self.replicas:
            replica.subscriber.start()
        await self.have_heard(EVERYTHING)

    async def have_heard(self, *changes: Invalidation) -> None:
        await asyncio.gather(*(replica.has_heard(*changes) for replica in self.replicas))

    async def stop(self) -> None:
        await self.publisher.stop()
        for replica in self.replicas:
            await replica.subscriber.stop()
            await replica.world.cache.stop()


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with server(tmp_path) as own_server:
        made = Fleet(own_server)
        await made.start()
        yield made
        await made.stop()


def change(number: int, kind: Kind = Kind.KEY, id_: str = "k1") -> Invalidation:
    return Invalidation(kind, id_, number)


async def test_every_replica_hears_each_change_in_order(fleet: Fleet) -> None:
    changes = [change(1), change(2, Kind.TENANT, "t1"), change(3, Kind.GROUP, "naïve ⚖")]
    await fleet.publisher.publish(changes[:2])
    await fleet.publisher.publish(changes[2:])
    await fleet.have_heard(*changes)


async def test_a_key_revoked_while_nobody_could_hear_it_is_refused_once_they_hear_again(
    fleet: Fleet,
) -> None:
    for replica in fleet.replicas:
        replica.world.put("k1")
        await replica.world.key("k1")
    await fleet.server.stop()
    for replica in fleet.replicas:
        replica.world.remove("k1")
        assert not await replica.is_refused("k1"), "nobody knows yet, and the cache still serves"
    await fleet.server.start()
    await fleet.have_heard(EVERYTHING)
    for replica in fleet.replicas:
        assert await replica.is_refused("k1")
        assert replica.world.cache.cached_key(secret("k1")) is None


async def test_a_replica_whose_connection_was_cut_hears_again_and_reloads(fleet: Fleet) -> None:
    async with shared_redis.client(fleet.server.url) as redis:
        await redis.client_kill_filter(_type="pubsub")
    await fleet.have_heard(EVERYTHING)
    await fleet.publisher.publish([change(1)])
    await fleet.have_heard(change(1))


async def test_a_message_from_a_newer_version_counts_as_a_change_of_everything(
    fleet: Fleet,
) -> None:
    async with shared_redis.client(fleet.server.url) as redis:
        await redis.publish(fleet.channel, '{"kind":"region","id":"eu","revision":1}')
        await redis.publish(fleet.channel, "not even JSON")
    await fleet.have_heard(EVERYTHING, EVERYTHING)


async def test_a_replica_hears_on_after_a_mistake_nobody_foresaw_over_one_message(
    fleet: Fleet,
) -> None:
    def mistake(change: Invalidation) -> None:
        if change.revision == 1:
            raise LookupError("a mistake")

    fleet.replicas[0].world.cache.subscribe(mistake)
    await fleet.publisher.publish([change(1), change(2)])
    await fleet.replicas[0].has_heard(change(1), change(2))


@pytest.mark.parametrize("frozen", [True, False])
async def test_a_write_does_not_wait_for_redis_and_is_told_of_when_redis_is_back(
    fleet: Fleet, frozen: bool
) -> None:
    if frozen:
        fleet.server.signal(signal.SIGSTOP)
    else:
        await fleet.server.stop()
    for number in range(100):
        publishing = fleet.publisher.publish([change(number)])
        with pytest.raises(StopIteration):
            publishing.send(None)  # done without waiting for anything at all
    if frozen:
        fleet.server.signal(signal.SIGCONT)
    else:
        await fleet.server.start()
    told = {change(number) for number in range(100)}
    for replica in fleet.replicas:
        # Whoever subscribed again after it was told has forgotten everything instead.
        heard = replica.heard
        await replica.until(lambda heard=heard: EVERYTHING in heard or told <= set(heard))
    await fleet.publisher.publish([change(1000)])
    for replica in fleet.replicas:
        await replica.until(lambda heard=replica.heard: change(1000) in heard)


async def test_what_waits_to_be_told_is_bounded(fleet: Fleet) -> None:
    await fleet.server.stop()
    for number in range(3 * UNSENT_MAX):
        await fleet.publisher.publish([change(number)])
    await fleet.server.start()
    for replica in fleet.replicas:
        await replica.until(lambda heard=replica.heard: EVERYTHING in heard)
    newest = change(3 * UNSENT_MAX)
    await fleet.publisher.publish([newest])
    covers_it = {newest, Invalidation(Kind.ALL, "", newest.revision)}
    for replica in fleet.replicas:
        await replica.until(lambda heard=replica.heard: not covers_it.isdisjoint(heard))
    assert (await fleet.server.calls())["publish"] <= UNSENT_MAX + 1


async def test_a_publisher_that_stops_says_first_what_is_left_to_say(fleet: Fleet) -> None:
    await fleet.publisher.publish([change(1)])
    await fleet.publisher.stop()
    await fleet.have_heard(change(1))


async def test_a_publisher_without_redis_stops_all_the_same(fleet: Fleet) -> None:
    await fleet.server.stop()
    publisher = RedisPublisher(fleet.server.url, answer_secs=0.1, channel=fleet.channel)
    await publisher.publish([change(1)])
    async with asyncio.timeout(PATIENT_SECS):
        await publisher.stop()
