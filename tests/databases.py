"""Fixtures for tests that run on both databases, each test on an empty one with the schema."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from shared.database import Database
from shared.tables import Row

__all__ = ["database", "database_url"]


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    name = "sqlite_url" if request.param == "sqlite" else "postgres_url"
    url: str = request.getfixturevalue(name)
    return url


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = Database(database_url)
    async with database.engine.begin() as connection:
        await connection.run_sync(Row.metadata.create_all)
    yield database
    await database.close()
