"""Bringing a database to this build's schema, and telling whether it is there.

Every run holds one lock and is one transaction, so that processes started together do each step
once, and one that dies half-way leaves nothing behind, neither tables nor lock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final, Literal

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from shared import database, tables

_LOCK: Final = 0x6F626C657468
"""Key of the advisory lock: any number that nothing else in the database uses."""
_STEP_LOCK_SECS: Final = 10
"""A step that needs a table others keep busy gives up before it makes everyone queue behind it."""


class Fit(StrEnum):
    FITS = "fits"
    OLDER = "older"
    NEWER = "newer"


@dataclass(frozen=True, slots=True)
class Schema:
    """How the schema in a database compares with the one this build was made for."""

    fit: Fit
    found: str | None
    """The last step applied; None: an empty database."""
    expected: str

    @property
    def problem(self) -> str | None:
        """What is wrong and what to do about it; None when it fits."""
        match self.fit:
            case Fit.FITS:
                return None
            case Fit.OLDER:
                return (
                    f"the database's schema is older than this build: it is at "
                    f"{self.found or 'nothing'}, {self.expected} is needed; run `obleth migrate`"
                )
            case Fit.NEWER:
                return (
                    f"the database's schema is newer than this build: it is at {self.found}, "
                    f"this build knows none after {self.expected}; upgrade this process"
                )


class SchemaIsNewer(Exception):
    """The database was migrated by a newer build; going back is an operator's decision."""


async def migrate(url: str) -> None:
    """Bring the database at `url` to this build's schema; one that is there stays untouched.

    Waits up to two minutes for another process that is at it. Raises SchemaIsNewer, and
    `shared.database.DatabaseUnavailable`.
    """
    engine = database.create_migration_engine(url)
    try:
        async with database.translated_errors(), engine.begin() as connection:
            await connection.run_sync(_upgrade)
    finally:
        await engine.dispose()


async def inspect(store: database.Database) -> Schema:
    """Compare the database's schema with this build's. Raises DatabaseUnavailable."""
    async with database.translated_errors(), store.engine.connect() as connection:
        return await connection.run_sync(_inspect)


def lock(connection: Connection) -> None:
    """Be the only one who migrates until the connection's transaction ends."""
    if connection.dialect.name == "sqlite":
        return  # the transaction began as the only writer
    connection.execute(text(f"SET LOCAL lock_timeout = '{database.MIGRATION_SECS}s'"))
    connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
    connection.execute(text(f"SET LOCAL lock_timeout = '{_STEP_LOCK_SECS}s'"))


def run(connection: Connection) -> None:
    """Alembic's environment: do the command at hand in the connection's transaction."""
    from alembic import context

    on_sqlite = connection.dialect.name == "sqlite"
    lock(connection)
    context.configure(
        connection=connection,
        target_metadata=tables.Row.metadata,
        render_as_batch=on_sqlite,
        transactional_ddl=True,
        render_item=_render,
    )
    with context.begin_transaction():
        context.run_migrations()
    if on_sqlite and (broken := connection.exec_driver_sql("PRAGMA foreign_key_check").all()):
        raise RuntimeError(f"a migration broke references: {broken[:10]}")


def _upgrade(connection: Connection) -> None:
    lock(connection)
    schema = _inspect(connection)
    if schema.fit is Fit.NEWER:
        raise SchemaIsNewer(schema.problem)
    if schema.fit is Fit.OLDER:
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _inspect(connection: Connection) -> Schema:
    head, known = _steps()
    found = MigrationContext.configure(connection).get_current_revision()
    if found == head:
        return Schema(Fit.FITS, found, head)
    return Schema(Fit.OLDER if found is None or found in known else Fit.NEWER, found, head)


@cache
def _steps() -> tuple[str, frozenset[str]]:
    """The last step this build knows, and all of them."""
    script = ScriptDirectory.from_config(_config())
    head = script.get_current_head()
    assert head is not None
    return head, frozenset(step.revision for step in script.walk_revisions())


def _render(kind: str, item: object, _: object) -> str | Literal[False]:
    """Steps describe the schema of their time, so they name no type of ours."""
    if kind == "type" and isinstance(item, tables.Timestamp):
        return "sa.DateTime(timezone=True)"
    return False


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
