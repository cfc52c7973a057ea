"""The schema's history on both databases: up, compared with the tables, down, and raced for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import asyncpg  # type: ignore[import-untyped]
import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError
from sqlalchemy import inspect, text

from migrations import schema
from shared import tables
from shared.database import Database, DatabaseUnavailable, create_migration_engine
from tests.controlplane.api import Told, plane
from tests.controlplane.conftest import SERVER, postgres_url, unused_name

ROOT = Path(__file__).resolve().parents[2]
AT_ONCE = 3


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database with nothing in it."""
    if request.param == "sqlite":
        yield f"sqlite+aiosqlite:///{tmp_path / 'policy.db'}"
        return
    url: str = request.getfixturevalue("bare_postgres")
    yield url
    asyncio.run(_run(url, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public"))


@pytest.fixture
def alembic(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> Config:
    """What the `alembic` command reads in the project's folder."""
    monkeypatch.setenv("OBLETH_DATABASE_URL", empty_url)
    return Config(toml_file=ROOT / "pyproject.toml")


async def _tables(url: str) -> set[str]:
    engine = create_migration_engine(url)
    async with engine.connect() as connection:
        names = await connection.run_sync(lambda c: inspect(c).get_table_names())
    await engine.dispose()
    return set(names)


async def _run(url: str, *statements: str) -> None:
    engine = create_migration_engine(url)
    async with engine.begin() as connection:
        for statement in statements:
            await connection.execute(text(statement))
    await engine.dispose()


async def _inspect(url: str) -> schema.Schema:
    database = Database(url)
    try:
        return await schema.inspect(database)
    finally:
        await database.close()


def test_the_steps_lead_up_to_the_tables_and_back_down(alembic: Config, empty_url: str) -> None:
    command.upgrade(alembic, "head")
    command.check(alembic)
    described = set(tables.Row.metadata.tables)
    assert asyncio.run(_tables(empty_url)) == described | {"alembic_version"}
    command.downgrade(alembic, "base")
    assert asyncio.run(_tables(empty_url)) == {"alembic_version"}
    command.upgrade(alembic, "head")
    command.check(alembic)


def test_a_table_that_no_step_makes_is_found_out(alembic: Config, empty_url: str) -> None:
    command.upgrade(alembic, "head")
    asyncio.run(_run(empty_url, "DROP TABLE budget_usage"))
    with pytest.raises(CommandError, match="budget_usage"):
        command.check(alembic)


def test_there_is_one_line_of_steps(alembic: Config) -> None:
    assert len(ScriptDirectory.from_config(alembic).get_heads()) == 1


async def test_migrating_makes_what_always_exists_and_repeating_it_changes_nothing(
    empty_url: str,
) -> None:
    assert (await _inspect(empty_url)).fit is schema.Fit.OLDER
    for _ in range(2):
        await schema.migrate(empty_url)
        found = await _inspect(empty_url)
        assert (found.fit, found.problem) == (schema.Fit.FITS, None)
    database = Database(empty_url)
    async with database.reading() as session:
        group = await session.get(tables.GroupRow, "default")
        counter = await session.get(tables.RevisionRow, tables.REVISION_ID)
    await database.close()
    assert group is not None
    assert group.weight == 100
    assert counter is not None
    assert counter.value == 0


async def test_processes_that_start_together_do_each_step_once(empty_url: str) -> None:
    await asyncio.gather(*(schema.migrate(empty_url) for _ in range(AT_ONCE)))
    assert (await _inspect(empty_url)).fit is schema.Fit.FITS


async def test_control_planes_that_start_together_are_all_ready(empty_url: str) -> None:
    planes = [plane(empty_url, Told()) for _ in range(AT_ONCE)]
    await asyncio.gather(*(one.start() for one in planes))
    await asyncio.gather(*(one.stop() for one in planes))
    assert (await _inspect(empty_url)).fit is schema.Fit.FITS


async def test_a_step_that_fails_leaves_nothing_behind(empty_url: str) -> None:
    await _run(empty_url, "CREATE TABLE usage_requests (id INTEGER)")
    with pytest.raises(Exception, match="usage_requests"):
        await schema.migrate(empty_url)
    assert await _tables(empty_url) == {"usage_requests"}
    await _run(empty_url, "DROP TABLE usage_requests")
    await schema.migrate(empty_url)


async def test_a_schema_of_a_newer_build_is_told_and_left_alone(empty_url: str) -> None:
    await schema.migrate(empty_url)
    await _run(empty_url, "UPDATE alembic_version SET version_num = '9999'")
    found = await _inspect(empty_url)
    assert (found.fit, found.found) == (schema.Fit.NEWER, "9999")
    assert "newer" in (found.problem or "")
    with pytest.raises(schema.SchemaIsNewer, match="9999"):
        await schema.migrate(empty_url)
    assert (await _inspect(empty_url)).found == "9999"


async def test_a_schema_of_an_older_build_is_told(empty_url: str) -> None:
    found = await _inspect(empty_url)
    assert (found.fit, found.found) == (schema.Fit.OLDER, None)
    assert "obleth migrate" in (found.problem or "")


async def test_a_database_that_cannot_be_reached_is_told_as_such(tmp_path: Path) -> None:
    for url in (f"sqlite+aiosqlite:///{tmp_path}/nowhere/x.db", postgres_url(unused_name())):
        with pytest.raises(DatabaseUnavailable):
            await schema.migrate(url)


async def test_the_lock_is_free_again_when_its_holder_dies(postgres_database: str) -> None:
    """A migration waits for one that is under way, and goes on when that one's process is gone."""
    name = postgres_database.rpartition("/")[2]
    holder = create_migration_engine(postgres_database)
    connection = await holder.connect()
    await connection.run_sync(schema.lock)
    pid = await connection.scalar(text("SELECT pg_backend_pid()"))
    observer = await asyncpg.connect(f"{SERVER}/{name}")
    waiting = asyncio.ensure_future(schema.migrate(postgres_database))
    queued = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    while not await observer.fetchval(queued):
        assert not waiting.done()
    await observer.execute("SELECT pg_terminate_backend($1)", pid)
    await waiting
    await observer.close()
    await connection.invalidate()
    await connection.close()
    await holder.dispose()
