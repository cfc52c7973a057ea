"""A real Redis server for the tests of this folder, theirs to break."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from shared import redis as shared_redis
from tests.redis_server import Server, server


@pytest.fixture
async def own_server(tmp_path: Path) -> AsyncIterator[Server]:
    async with server(tmp_path) as running:
        yield running


@pytest.fixture
async def redis(own_server: Server) -> AsyncIterator[Redis]:
    async with shared_redis.client(own_server.url) as client:
        yield client
