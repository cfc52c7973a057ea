"""How endpoints are, as the replicas that call them find."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, Protocol

import msgspec
import structlog

from shared import redis_keys
from shared.redis import RedisUnavailable, client, round_trip

log = structlog.stdlib.get_logger(__name__)

_decoder: Final = msgspec.json.Decoder(dict[str, str])


class Health(StrEnum):
    UNKNOWN = "unknown"
    """Not enabled, not checked yet, or no replica can be asked."""
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    DEGRADED = "degraded"
    """Healthy to some replicas, unhealthy to others."""


class EndpointHealth(Protocol):
    """Asks whoever calls endpoints. Never raises: what cannot be had is unknown."""

    async def now(self) -> Mapping[str, Health]:
        """The health of every endpoint of which anybody knows, by its id."""


class NobodyKnows:
    """No replica can be asked."""

    async def now(self) -> Mapping[str, Health]:
        """See `EndpointHealth.now`: nothing."""
        return {}


class PublishedHealth:
    """What live replicas publish in Redis, together."""

    def __init__(self, redis_url: str, *, answer_secs: float) -> None:
        self._redis: Final = client(redis_url, connections=2, name="obleth-endpoint-health")
        self._answer_secs: Final = answer_secs

    async def now(self) -> Mapping[str, Health]:
        """See `EndpointHealth.now`."""
        roster = redis_keys.SlotKeys().roster
        try:
            (replicas,) = await round_trip(self._redis, [("HKEYS", roster)], secs=self._answer_secs)
            if not isinstance(replicas, list) or not replicas:
                return {}
            commands = [("GET", redis_keys.endpoint_health(name)) for name in replicas]
            said = await round_trip(self._redis, commands, secs=self._answer_secs)
        except RedisUnavailable as error:
            log.warning("endpoint_health_not_read", error=str(error))
            return {}
        return merged(each for text in said if (each := _decoded(text)) is not None)

    async def stop(self) -> None:
        """Close the connection."""
        await self._redis.aclose()


def merged(said: Iterable[Mapping[str, str]]) -> dict[str, Health]:
    """One health out of what each replica says, by endpoint."""
    found: dict[str, Health] = {}
    for one in said:
        for endpoint, text in one.items():
            if text not in (Health.HEALTHY, Health.UNHEALTHY):
                continue  # a newer replica may know more kinds
            health = Health(text)
            found[endpoint] = health if found.get(endpoint, health) is health else Health.DEGRADED
    return found


def _decoded(text: object) -> dict[str, str] | None:
    if not isinstance(text, str):
        return None  # it has just started, or has just gone
    try:
        return _decoder.decode(text)
    except msgspec.DecodeError:
        log.warning("endpoint_health_not_understood")
        return None
