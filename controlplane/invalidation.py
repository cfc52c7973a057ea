"""Telling the data plane what changed, once it is committed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

import structlog

from shared import redis_keys
from shared.invalidation import Invalidation, Kind
from shared.redis import Command, RedisUnavailable, client, round_trip

log = structlog.stdlib.get_logger(__name__)

UNSENT_MAX: Final = 1000
"""Invalidations kept while Redis is away. Beyond it one that covers them all takes their place."""
AT_A_TIME: Final = 100
RETRY_SECS: Final = 1.0


class InvalidationPublisher(Protocol):
    """Brings invalidations to every replica, as well as it can.

    Called after the commit, so the change stands whatever happens here: an adapter keeps its
    errors to itself (and logs them) and does not wait long. Whoever is missed finds out from the
    revision number in the database.
    """

    async def publish(self, changes: Sequence[Invalidation]) -> None: ...


class NobodyListens:
    """No way to reach any replica: they find out from the database alone."""

    async def publish(self, changes: Sequence[Invalidation]) -> None:
        """Tell nobody."""


class InTurn:
    """Several ways to reach replicas, used one after another."""

    def __init__(self, *publishers: InvalidationPublisher) -> None:
        self._publishers: Final = publishers

    async def publish(self, changes: Sequence[Invalidation]) -> None:
        for publisher in self._publishers:
            await publisher.publish(changes)


class RedisPublisher:
    """Publishes on a channel, off the path of the write that it tells of.

    A write never waits for Redis. What could not be sent is sent again each second until it is: a
    replica that hears something twice only reads it again. `answer_secs` is how long Redis may
    take to answer.
    """

    def __init__(
        self, redis_url: str, *, answer_secs: float, channel: str = redis_keys.INVALIDATE
    ) -> None:
        self._redis: Final = client(redis_url, connections=1, name="obleth-invalidate")
        self._answer_secs: Final = answer_secs
        self._channel: Final = channel
        self._unsent: list[Invalidation] = []
        self._sending: asyncio.Task[None] | None = None
        self._is_away = False

    async def publish(self, changes: Sequence[Invalidation]) -> None:
        """See `InvalidationPublisher`. Returns at once."""
        self._unsent += changes
        if len(self._unsent) > UNSENT_MAX:
            newest = max(change.revision for change in self._unsent)
            self._unsent = [Invalidation(Kind.ALL, "", newest)]
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send(), name="invalidations")

    async def stop(self) -> None:
        """Send what is left if Redis answers, and close the connection."""
        if self._sending is not None:
            await asyncio.wait([self._sending], timeout=self._answer_secs)
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
        if self._unsent:
            log.warning("invalidations_not_sent", changes=len(self._unsent))
        await self._redis.aclose()

    async def _send(self) -> None:
        while self._unsent:
            batch = self._unsent[:AT_A_TIME]
            try:
                await self._announce(batch)
            except RedisUnavailable as error:
                await self._rest(error)
                continue
            if self._is_away:
                self._is_away = False
                log.info("redis_back", detail="policy changes are announced again")
            # By identity: meanwhile one that covers them all may have taken their place.
            sent = {id(change) for change in batch}
            self._unsent = [change for change in self._unsent if id(change) not in sent]

    async def _announce(self, changes: Sequence[Invalidation]) -> None:
        commands: list[Command] = [("PUBLISH", self._channel, one.encode()) for one in changes]
        for reply in await round_trip(self._redis, commands, secs=self._answer_secs):
            if isinstance(reply, Exception):
                raise RedisUnavailable(f"Redis: {reply}") from reply

    async def _rest(self, error: RedisUnavailable) -> None:
        if not self._is_away:
            self._is_away = True
            log.warning(
                "redis_away",
                error=str(error),
                detail="replicas find policy changes in the database meanwhile",
            )
        await asyncio.sleep(RETRY_SECS)
