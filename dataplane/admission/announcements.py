"""What replicas tell each other on the announcement channel, and who listens.

A message is a JSON object. `pool` (with `ceiling`, whether others than its own waiters may go on):
a slot that somebody waits for was freed. `replica`: that replica came, went, or has all it holds on
the books now. Anything else is passed over, so that a newer replica may say more. A message may be
lost, doubled or late: it hurries what would happen anyway.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from redis.asyncio.client import PubSub, Redis
from redis.exceptions import RedisError

RECONNECT_SECS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Freed:
    """A slot of `pool` was freed, and the replicas that were refused may try again."""

    pool: str
    ceiling: bool
    """Whether somebody was refused by the limit over all pools: then any pool may try."""


@dataclass(frozen=True, slots=True)
class ReplicaChanged:
    """The set of live replicas, or of those whose holdings are on the books, is another."""

    replica: str


@dataclass(frozen=True, slots=True)
class Listening:
    """The subscription stands, for the first time or again: messages may have been missed."""


@dataclass(frozen=True, slots=True)
class Deaf:
    """The subscription is lost; it is tried again."""

    reason: str


Announcement = Freed | ReplicaChanged | Listening | Deaf


def parse(text: str) -> Freed | ReplicaChanged | None:
    """What a message says; None if it is not understood."""
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        return None
    match message:
        case {"pool": str(pool)}:
            return Freed(pool, message.get("ceiling") is True)
        case {"replica": str(replica)}:
            return ReplicaChanged(replica)
    return None


class Announcements:
    """Listens on a connection of its own and tells what it hears, in order.

    `secs` is how long Redis may take to answer. It is asked for a sign of life after `quiet`
    seconds without a message, so that a connection that died without a word is noticed.
    """

    def __init__(
        self,
        redis: Redis,
        channel: str,
        tell: Callable[[Announcement], None],
        *,
        secs: float,
        quiet: float,
    ) -> None:
        self._redis: Final = redis
        self._channel: Final = channel
        self._tell: Final = tell
        self._secs: Final = secs
        self._quiet: Final = quiet
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="announcements")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _run(self) -> None:
        while True:
            try:
                async with self._subscription() as subscription:
                    self._tell(Listening())
                    await self._listen(subscription)
            except (RedisError, OSError, TimeoutError) as error:
                self._tell(Deaf(f"{type(error).__name__}: {error}"))
            await asyncio.sleep(RECONNECT_SECS)

    @asynccontextmanager
    async def _subscription(self) -> AsyncIterator[PubSub]:
        async with aclosing(self._redis.pubsub()) as subscription:
            async with asyncio.timeout(self._secs):
                await subscription.subscribe(self._channel)
                while (await _next(subscription))["type"] != "subscribe":
                    pass
            yield subscription

    async def _listen(self, subscription: PubSub) -> None:
        while True:
            try:
                async with asyncio.timeout(self._quiet):
                    message = await _next(subscription)
            except TimeoutError:
                async with asyncio.timeout(self._secs):
                    await subscription.ping()
                    message = await _next(subscription)
            if message["type"] == "message" and (said := parse(message["data"])) is not None:
                self._tell(said)


async def _next(subscription: PubSub) -> dict[str, Any]:
    """The next message of any kind. Raises `ConnectionError` when the connection has ended."""
    while True:
        message: dict[str, Any] | None = await subscription.get_message(timeout=None)
        if message is not None:
            return message
