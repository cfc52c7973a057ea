"""Databases with the schema, and the API over them, on SQLite and on PostgreSQL.

Making, migrating and dropping a database, and putting a control plane together, take longer than
most tests. So there is one PostgreSQL database for all of them and a file for each module, under
one control plane a module on one event loop; what a test stored is deleted after it.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import pytest
import pytest_asyncio
from sqlalchemy import delete, exists, or_, select, update

from controlplane.main import ControlPlane
from migrations import schema
from shared import tables
from shared.database import Database
from tests.conftest import POSTGRES
from tests.controlplane.api import VIEWER, Api, Told, plane

SERVER = POSTGRES.rpartition("/")[0]
StartApi = Callable[..., Awaitable[Api]]


def unused_name() -> str:
    return f"obleth_test_{secrets.token_hex(6)}"


def postgres_url(name: str) -> str:
    return f"{SERVER.replace('postgresql://', 'postgresql+asyncpg://')}/{name}"


async def on_postgres_now(statement: str) -> None:
    connection = await asyncpg.connect(f"{SERVER}/postgres")
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


def on_postgres(statement: str) -> None:
    """The same for fixtures, which run on no event loop."""
    asyncio.run(on_postgres_now(statement))


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("migrated") / "policy.db"
    asyncio.run(schema.migrate(f"sqlite+aiosqlite:///{path}"))
    return path


@pytest.fixture(scope="session")
def bare_postgres() -> Iterator[str]:
    """A database with nothing in it at first."""
    name = unused_name()
    on_postgres(f'CREATE DATABASE "{name}"')
    yield postgres_url(name)
    on_postgres(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture(scope="session")
def postgres_database() -> Iterator[str]:
    name = unused_name()
    on_postgres(f'CREATE DATABASE "{name}"')
    asyncio.run(schema.migrate(postgres_url(name)))
    yield postgres_url(name)
    on_postgres(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture(scope="module")
def sqlite_database(migrated_file: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("module") / "policy.db"
    shutil.copy(migrated_file, path)
    return f"sqlite+aiosqlite:///{path}"


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """A database with the schema."""
    url: str = request.getfixturevalue(f"{request.param}_database")
    return url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(database_url: str) -> AsyncIterator[tuple[ControlPlane, Told]]:
    told = Told()
    started = plane(database_url, told)
    told.database = started.database
    yield started, told
    await started.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def api(running: tuple[ControlPlane, Told]) -> AsyncIterator[Api]:
    """The API over an empty database, called with the admin token."""
    started, told = running
    api = Api(started, told)
    yield api
    await api.close()
    told.taken()
    told.committed.clear()
    await empty(started.database)


@pytest_asyncio.fixture(loop_scope="module")
async def start_api(api: Api) -> AsyncIterator[StartApi]:
    """Start another control plane, with settings of the test's own, and give its API."""
    async with AsyncExitStack() as stack:

        async def start(**settings: Any) -> Api:
            told = Told()
            url = settings.pop("database_url", api.plane.database.url)
            started = plane(url, told, **settings)
            stack.push_async_callback(started.stop)
            other = Api(started, told)
            stack.push_async_callback(other.close)
            return other

        yield start


@pytest_asyncio.fixture(loop_scope="module")
async def viewer(api: Api) -> AsyncIterator[Api]:
    """The same control plane, called with the viewer token."""
    viewer = Api(api.plane, api.told, VIEWER)
    yield viewer
    await viewer.close()


@pytest_asyncio.fixture(loop_scope="module")
async def stranger(api: Api) -> AsyncIterator[Api]:
    """The same control plane, called without a token."""
    stranger = Api(api.plane, api.told, None)
    yield stranger
    await stranger.close()


async def empty(database: Database) -> None:
    """Delete everything but what always exists, if there is anything."""
    written = or_(
        select(tables.RevisionRow.value).scalar_subquery() > 0,
        exists().select_from(tables.UsageRow),
    )
    async with database.reading() as session:
        if not await session.scalar(select(written)):
            return
    async with database.transaction() as session:
        for table in reversed(tables.Row.metadata.sorted_tables):
            if table.name not in ("revision", "groups"):
                await session.execute(delete(table))
        await session.execute(delete(tables.GroupRow).where(tables.GroupRow.name != "default"))
        await session.execute(update(tables.GroupRow).values(weight=100, revision=0))
        await session.execute(update(tables.RevisionRow).values(value=0))
