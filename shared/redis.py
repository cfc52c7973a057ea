"""How both planes talk to Redis: no hidden retries, and an answer in time or none at all.

redis-py repeats a command that timed out, ten times unless told otherwise, and takes its timeouts
from the URL's query string if they stand there. Neither is wanted: a claim may be sent once only,
and whoever waits for it has a deadline. So retries are off whatever the URL says, and the deadline
is one block around the whole call (`Patience`): waiting for a connection, opening it, sending and
reading. The library discards the connection of a call that is cut off, so that a late reply never
reaches the next caller; `tests/lua/test_client.py` holds it to that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ReadOnlyError, RedisError
from redis.maint_notifications import MaintNotificationsConfig

CONNECTIONS: Final = 16
"""Calls of one client that may be under way at once."""

BROKEN: Final = (RedisError, OSError, RuntimeError)
"""What a call raises on a connection that has ended. uvloop says it with a RuntimeError where the
other side reset the connection between two calls, or before the first."""

TICK_SECS: Final = 0.05
"""How finely a deadline tells the time in which the loop turned from that in which it did not."""

Command = Sequence[str | int | bytes]


class RedisUnavailable(Exception):
    """Redis cannot be reached, or did not answer in time; what was sent may have been done."""


class _Pool(BlockingConnectionPool):
    """Gives every connection back, whoever is cancelled while it does, and no dead one out."""

    async def ensure_connection(self, connection: AbstractConnection) -> None:
        writer = connection._writer
        # The library looks for an end of the connection, not for a reset.
        was_reset = writer is not None and writer.transport.is_closing()
        if was_reset or connection.should_reconnect():  # type: ignore[no-untyped-call]
            await connection.disconnect(nowait=True)
        await super().ensure_connection(connection)

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


class Patience:
    """`asyncio.timeout` for an answer from elsewhere: raises `TimeoutError` after `secs` seconds in
    which the loop turned.

    While the loop stands still (a process that is stopped, or starved of its processor) an answer
    that has come cannot be read. To count that time would be to take one's own absence for the
    server's, and to throw away what it said. So the time is counted in ticks, and of a tick that
    comes late only its own length counts.
    """

    __slots__ = ("_left", "_limit", "_loop", "_tick")

    def __init__(self, secs: float) -> None:
        self._left = secs
        self._limit: Final = asyncio.timeout(None)

    async def __aenter__(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._limit.__aenter__()
        self._wait()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._tick.cancel()
        await self._limit.__aexit__(kind, error, traceback)

    def _wait(self) -> None:
        step = min(self._left, TICK_SECS)
        self._left -= step
        then = self._wait if self._left > 0 else self._end
        self._tick = self._loop.call_later(step, then)

    def _end(self) -> None:
        self._limit.reschedule(self._loop.time())


def dial_anew(redis: Redis) -> None:
    """Have calls from now on go to whoever answers now under the server's name: after a failure it
    may be another than at the other end of the connections there are.
    """
    pool = redis.connection_pool
    for connection in (*pool._available_connections, *pool._in_use_connections):
        connection.mark_for_reconnect()  # type: ignore[no-untyped-call]


async def round_trip(redis: Redis, commands: Sequence[Command], *, secs: float) -> list[Any]:
    """Send commands together and read their replies, in order; `secs` is for all: see `Patience`.

    A command that Redis refuses has its `ResponseError` in place of a reply; the others are carried
    out all the same. Raises `RedisUnavailable`; then any of them may have been, or may yet be.
    """
    try:
        async with Patience(secs), redis.pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            replies = list(await pipeline.execute(raise_on_error=False))
    except TimeoutError as error:
        dial_anew(redis)
        raise RedisUnavailable(f"no answer from Redis in {secs * 1000:.0f} ms") from error
    except BROKEN as error:
        dial_anew(redis)
        raise RedisUnavailable(f"Redis: {type(error).__name__}: {error}") from error
    if any(isinstance(reply, ReadOnlyError) for reply in replies):
        dial_anew(redis)
    return replies
