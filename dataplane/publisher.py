"""Publishes a replica's view for whoever shows the fleet, and reads those of the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import structlog
from redis.asyncio import Redis

from dataplane import live_view
from dataplane.live_view import ReplicaView
from shared import redis_keys
from shared.redis import RedisUnavailable, round_trip

INTERVAL_SECS: Final = 0.5
LIFE_INTERVALS: Final = 3
"""For how many intervals a view is good: one slow publish does not drop a replica."""

log = structlog.stdlib.get_logger(__name__)


class Publisher:
    """Puts `text()` at a key of the replica's own every interval, in whatever mode it is: that is
    how whoever shows the fleet finds it.

    `interval` is in seconds; `answer_secs` how long Redis may take. What cannot be
    published is not tried again: the next is newer.
    """

    def __init__(
        self,
        redis: Redis,
        key: str,
        *,
        text: Callable[[], bytes],
        interval: float,
        answer_secs: float,
    ) -> None:
        self._redis: Final = redis
        self._key: Final = key
        self._text: Final = text
        self._interval: Final = interval
        self._answer_secs: Final = answer_secs
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to publish."""
        self._task = asyncio.create_task(self._run(), name="publisher")

    async def stop(self) -> None:
        """Publish no more, and take back what is published."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        try:
            await round_trip(self._redis, [("DEL", self._key)], secs=self._answer_secs)
        except RedisUnavailable as error:
            log.info("view_not_deleted", detail=str(error))  # it is gone in a moment anyway

    async def _run(self) -> None:
        while True:
            try:
                await self._publish()
            except RedisUnavailable as error:
                log.debug("view_not_published", detail=str(error))
            except Exception:
                # A fault of ours in one view, and no reason not to be seen from then on.
                log.exception("view_failed", key=self._key)
            await asyncio.sleep(self._interval)

    async def _publish(self) -> None:
        life_ms = round(LIFE_INTERVALS * self._interval * 1000)
        await round_trip(
            self._redis, [("SET", self._key, self._text(), "PX", life_ms)], secs=self._answer_secs
        )


async def published(
    redis: Redis, names: Iterable[str], *, answer_secs: float
) -> dict[str, ReplicaView]:
    """The views of these replicas that are there now. Raises `RedisUnavailable`."""
    asked = list(names)
    if not asked:
        return {}
    commands = [("GET", redis_keys.view(name)) for name in asked]
    replies = await round_trip(redis, commands, secs=answer_secs)
    views = {}
    for name, text in zip(asked, replies, strict=True):
        if not isinstance(text, str):
            continue
        try:
            views[name] = live_view.decode(text)
        except ValueError as error:
            log.warning("view_not_understood", replica=name, detail=str(error))
    return views
