"""Listening on one channel, for as long as the process lives, on a connection of its own.

Whoever listens is told when the subscription stands, every time: what was said before that was
missed. Redis is asked for a sign of life where nothing is said, so that a connection that died
without a word is noticed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final

import structlog
from redis.asyncio.client import PubSub, Redis

from shared.redis import BROKEN, Patience

RECONNECT_SECS: Final = 1.0

log = structlog.stdlib.get_logger(__name__)


class Subscription:
    """`heard` gets each message, in order; `listening` is called when the subscription stands, for
    the first time or again; `deaf`, with the reason, when it is lost or could not be had.

    `secs` is how long Redis may take to answer; after `quiet` seconds without a message it is asked
    for a sign of life.
    """

    def __init__(
        self,
        redis: Redis,
        channel: str,
        *,
        heard: Callable[[str], None],
        listening: Callable[[], None],
        deaf: Callable[[str], None],
        secs: float,
        quiet: float,
    ) -> None:
        self._redis: Final = redis
        self._channel: Final = channel
        self._heard: Final = heard
        self._listening: Final = listening
        self._deaf: Final = deaf
        self._secs: Final = secs
        self._quiet: Final = quiet
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"subscription to {self._channel}")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _run(self) -> None:
        while True:
            try:
                async with self._subscribed() as subscription:
                    self._listening()
                    await self._listen(subscription)
            except BROKEN as error:
                self._deaf(f"{type(error).__name__}: {error}")
            await asyncio.sleep(RECONNECT_SECS)

    @asynccontextmanager
    async def _subscribed(self) -> AsyncIterator[PubSub]:
        async with aclosing(self._redis.pubsub()) as subscription:
            async with Patience(self._secs):
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
                async with Patience(self._secs):
                    await subscription.ping()
                    message = await _next(subscription)
            if message["type"] == "message":
                self._pass_on(message["data"])

    def _pass_on(self, message: str) -> None:
        try:
            self._heard(message)
        except Exception:
            # A fault of ours over one message, and no reason to hear none from then on.
            log.exception("message_failed", channel=self._channel)


async def _next(subscription: PubSub) -> dict[str, Any]:
    """The next message of any kind. Raises `ConnectionError` when the connection has ended."""
    while True:
        message: dict[str, Any] | None = await subscription.get_message(timeout=None)
        if message is not None:
            return message
