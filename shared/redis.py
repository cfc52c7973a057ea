"""How both planes talk to Redis: no hidden retries, and an answer in time or none at all.

redis-py repeats a command that timed out, ten times unless told otherwise, and takes its timeouts
from the URL's query string if they stand there. Neither is wanted: a claim may be sent once only,
and whoever waits for it has a deadline. So retries are off whatever the URL says, and the deadline
is one `asyncio.timeout` around the whole call: waiting for a connection, opening it, sending and
reading. The library discards the connection of a call that is cut off, so that a late reply never
reaches the next caller; `tests/lua/test_client.py` holds it to that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.maint_notifications import MaintNotificationsConfig

CONNECTIONS: Final = 16
"""Calls of one client that may be under way at once."""

BROKEN: Final = (RedisError, OSError, RuntimeError)
"""What a call raises on a connection that has ended. uvloop says it with a RuntimeError where the
other side reset the connection between two calls, or before the first."""

Command = Sequence[str | int | bytes]


class RedisUnavailable(Exception):
    """Redis cannot be reached, or did not answer in time; what was sent may have been done."""


class _Pool(BlockingConnectionPool):
    """Gives every connection back, whoever is cancelled while it does."""

    async def release(self, connection: AbstractConnection) -> None:
        await asyncio.shield(self._release(connection))

    async def _release(self, connection: AbstractConnection) -> None:
        await super().release(connection)
        async with self._condition:
            # A waiter that is cancelled as it is woken takes the wake-up with it: wake them all.
            self._condition.notify_all()


def client(url: str, *, connections: int = CONNECTIONS, name: str | None = None) -> Redis:
    """A client for `round_trip`, or for one subscription. Close it with `aclose`.

    It connects when first used. Calls beyond `connections` at once wait for one to end. It has no
    timeouts of its own: put it under `asyncio.timeout` where `round_trip` does not.
    """
    options: dict[str, Any] = dict(parse_url(url))
    options |= {
        "decode_responses": True,
        "client_name": name,
        "driver_info": None,
        "health_check_interval": 0,
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
        "max_connections": connections,
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_error": [],
        "retry_on_timeout": False,
        # With one, every send would be a task of its own.
        "socket_timeout": None,
        "socket_connect_timeout": None,
        "timeout": None,
    }
    return Redis.from_pool(_Pool(**options))


async def round_trip(redis: Redis, commands: Sequence[Command], *, secs: float) -> list[Any]:
    """Send commands together and read their replies, in order, in `secs` altogether.

    A command that Redis refuses has its `ResponseError` in place of a reply; the others are carried
    out all the same. Raises `RedisUnavailable`; then any of them may have been, or may yet be.
    """
    try:
        async with asyncio.timeout(secs), redis.pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            return list(await pipeline.execute(raise_on_error=False))
    except TimeoutError as error:
        raise RedisUnavailable(f"no answer from Redis in {secs * 1000:.0f} ms") from error
    except BROKEN as error:
        raise RedisUnavailable(f"Redis: {type(error).__name__}: {error}") from error
