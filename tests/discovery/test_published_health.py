"""What replicas say of endpoints in Redis, and what the control plane makes of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from redis.asyncio import Redis

from controlplane.endpoints.health import Health, PublishedHealth, merged
from shared import redis as shared_redis
from shared import redis_keys
from tests.redis_server import Server, server


@pytest.fixture
async def own_server(tmp_path: Path) -> AsyncIterator[Server]:
    async with server(tmp_path) as running:
        yield running


@pytest.fixture
async def redis(own_server: Server) -> AsyncIterator[Redis]:
    async with shared_redis.client(own_server.url) as client:
        yield client


@pytest.fixture
async def published(own_server: Server) -> AsyncIterator[PublishedHealth]:
    made = PublishedHealth(own_server.url, answer_secs=10)
    yield made
    await made.stop()


async def says(redis: Redis, replica: str, text: bytes | str | None = None, **health: str) -> None:
    """A replica on the roster publishes the health of endpoints."""
    await redis.hset(redis_keys.SlotKeys().roster, replica, "1 1 1 1")
    if text is None and health:
        text = msgspec.json.encode(health)
    if text is not None:
        await redis.set(redis_keys.endpoint_health(replica), text)


def test_what_replicas_agree_on_stands_and_the_rest_is_degraded() -> None:
    assert merged([]) == {}
    assert merged([{"a": "healthy", "b": "unhealthy"}, {"a": "healthy", "b": "unhealthy"}]) == {
        "a": Health.HEALTHY,
        "b": Health.UNHEALTHY,
    }
    split = [{"a": "healthy"}, {"a": "unhealthy"}, {"a": "unhealthy"}]
    assert merged(split) == merged(reversed(split)) == {"a": Health.DEGRADED}
    assert merged([{"a": "healthy"}, {}]) == {"a": Health.HEALTHY}
    assert merged([{"a": "weird", "b": "healthy"}]) == {"b": Health.HEALTHY}


async def test_what_live_replicas_publish_is_put_together(
    redis: Redis, published: PublishedHealth
) -> None:
    assert await published.now() == {}
    await says(redis, "r1", a="healthy", b="healthy")
    await says(redis, "r2", a="healthy", b="unhealthy")
    await says(redis, "has just started")
    await says(redis, "speaks in riddles", text="?")
    assert await published.now() == {"a": Health.HEALTHY, "b": Health.DEGRADED}


async def test_while_redis_is_away_nothing_is_known(
    own_server: Server, redis: Redis, published: PublishedHealth
) -> None:
    await says(redis, "r1", a="healthy")
    assert await published.now() == {"a": Health.HEALTHY}
    await own_server.stop()
    assert await published.now() == {}
