"""What every test stands on: a clean environment, and the real servers where a test needs them."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

POSTGRES = os.environ.get("TEST_POSTGRES_URL", "postgresql://obleth:obleth@127.0.0.1:5432/postgres")
"""A role that may create databases; `deploy/dev/services` makes this one."""
REDIS = os.environ.get("TEST_REDIS_URL", "redis://127.0.0.1:6379/9")

TAKES_LONGEST = (
    "simulation/test_fleet_seeds.py",
    "faults/test_replicas_break.py",
    "deploy/test_fleet.py",
    "faults/",
    "dashboard/",
    "release/",
)
"""Files that are begun first: with one worker a file, none is to be alone with a long one at the
end."""

for _name in [name for name in os.environ if name.upper().startswith("OBLETH_")]:
    del os.environ[_name]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent

    def begun(item: pytest.Item) -> int:
        path = item.path.relative_to(here).as_posix()
        places = (at for at, long in enumerate(TAKES_LONGEST) if path.startswith(long))
        return next(places, len(TAKES_LONGEST))

    items.sort(key=begun)


@pytest.fixture(autouse=True)
def empty_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run each test in a folder of its own: no developer's `.env` or database is ever read."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def postgres_url() -> Iterator[str]:
    """A fresh, empty database on the real server, as SQLAlchemy takes it; dropped afterwards."""
    name = f"obleth_test_{secrets.token_hex(6)}"
    asyncio.run(_on_postgres(f'CREATE DATABASE "{name}"'))
    yield f"{POSTGRES.replace('postgresql://', 'postgresql+asyncpg://').rpartition('/')[0]}/{name}"
    asyncio.run(_on_postgres(f'DROP DATABASE "{name}" WITH (FORCE)'))


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite+aiosqlite:///{tmp_path / 'policy.db'}"


@pytest.fixture
def redis_url() -> str:
    """The real server's test database; shared, so keys must be prefixed or flushed by the test."""
    return REDIS


async def _on_postgres(statement: str) -> None:
    connection = await asyncpg.connect(POSTGRES)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
