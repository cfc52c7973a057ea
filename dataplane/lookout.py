"""Looks at what the other replicas have, twice a second, for as long as slots are shared."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import structlog
from redis.asyncio import Redis

from dataplane import neighbours, publisher
from dataplane.live_view import ReplicaView
from dataplane.scheduler.standing import Served
from shared.redis import RedisUnavailable, round_trip
from shared.redis_keys import SlotKeys

log = structlog.stdlib.get_logger(__name__)


class Lookout:
    """Tells `seen` what it saw, every interval while `is_on()`; at once when `look_now` is called.

    `others` names the live replicas beside this one; `asked` says which scores are wanted, by pool.
    `interval` is in seconds, `answer_secs` how long Redis may take. A look that comes to nothing is
    not tried again: the next one is newer.
    """

    def __init__(
        self,
        redis: Redis,
        *,
        others: Callable[[], Iterable[str]],
        asked: Callable[[], Mapping[str, list[str]]],
        seen: Callable[[Iterable[ReplicaView], Mapping[str, Served]], None],
        is_on: Callable[[], bool],
        interval: float,
        answer_secs: float,
        keys: SlotKeys | None = None,
    ) -> None:
        self._redis: Final = redis
        self._others: Final = others
        self._asked: Final = asked
        self._seen: Final = seen
        self._is_on: Final = is_on
        self._interval: Final = interval
        self._answer_secs: Final = answer_secs
        self._keys: Final = SlotKeys() if keys is None else keys
        self._now: Final = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.create_task(self._run(), name="lookout")

    def look_now(self) -> None:
        """Do not wait for the interval to pass."""
        self._now.set()

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _run(self) -> None:
        while True:
            self._now.clear()
            if self._is_on():
                try:
                    await self._look()
                except RedisUnavailable as error:
                    log.debug("neighbours_not_seen", detail=str(error))
                except Exception:
                    # A fault of ours in one look, and no reason to be blind from then on.
                    log.exception("look_failed")
            try:
                async with asyncio.timeout(self._interval):
                    await self._now.wait()
            except TimeoutError:
                continue

    async def _look(self) -> None:
        views = await publisher.published(
            self._redis, self._others(), answer_secs=self._answer_secs
        )
        asked = {pool: fields for pool, fields in self._asked().items() if fields}
        served: dict[str, Served] = {}
        if asked:
            commands = [("HMGET", self._keys.served(pool), *asked[pool]) for pool in asked]
            replies = await round_trip(self._redis, commands, secs=self._answer_secs)
            for pool, values in zip(asked, replies, strict=True):
                if isinstance(values, list):
                    served[pool] = neighbours.served(asked[pool], values)
        if self._is_on():
            self._seen(views.values(), served)
