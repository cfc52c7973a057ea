"""What a Redis server must be like to keep slots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from redis.asyncio import Redis

from dataplane.admission.slots.port import SlotsUnavailable
from shared.redis import RedisUnavailable, round_trip


async def server_warnings(redis: Redis, *, secs: float) -> list[str]:
    """What about a Redis server keeps slots from being safe on it, a sentence each.

    Raises `SlotsUnavailable` if it does not say.
    """
    try:
        replies = await round_trip(redis, [("INFO", "server"), ("INFO", "memory")], secs=secs)
    except RedisUnavailable as error:
        raise SlotsUnavailable(str(error)) from error
    info: dict[str, Any] = {}
    for reply in replies:
        if isinstance(reply, Mapping):
            info.update(reply)
    return [*version_warnings(info), *eviction_warnings(info)]


def version_warnings(info: Mapping[str, Any]) -> Iterable[str]:
    """Whether the server, by its own `INFO`, is Redis 6.2 or newer, or any Valkey."""
    if info.get("server_name") == "valkey" or "valkey_version" in info:
        return
    version = str(info.get("redis_version", ""))
    try:
        number = tuple(int(part) for part in version.split(".")[:2])
    except ValueError:
        yield f"Redis does not say its version ({version!r}); 6.2 or newer, or Valkey, is needed"
        return
    if number < (6, 2):
        yield f"Redis {version} is too old: 6.2 or newer, or Valkey, is needed"


def eviction_warnings(info: Mapping[str, Any]) -> Iterable[str]:
    """Whether a full server would drop slots to make room."""
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if policy != "noeviction" and int(info.get("maxmemory", 0)) > 0:
        yield (
            f"Redis may drop slots when its memory is full (maxmemory-policy {policy}), and then "
            "more requests run than the limits allow: set it to noeviction"
        )
