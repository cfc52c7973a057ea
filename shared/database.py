"""The database, the same for SQLite and PostgreSQL.

`reading()` is for queries, `transaction()` for writes; both turn "the database cannot be had just
now" into `DatabaseUnavailable`, whatever the driver calls it. Nothing here waits longer than the
bounds below, so that a database that hangs is a database that is away.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from sqlalchemy import Connection, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.pool import NullPool

CONNECT_SECS: Final = 5
STATEMENT_SECS: Final = 15
LOCK_SECS: Final = 5
MIGRATION_SECS: Final = 120
"""How long one migration waits for another."""
POOL_SIZE: Final = 5

_BEGIN: Final = "obleth_begin"
_POSTGRES_AWAY: Final = ("08", "53", "57", "58", "55P03", "40", "25006", "3D000", "28")
"""SQLSTATEs (or their classes) of a server that is gone, full, stopping, locked, read-only, or that
no longer knows us: nothing the statement itself got wrong."""
_SQLITE_AWAY: Final = frozenset(
    (
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_NOTADB,
    )
)
"""The same of a file that is locked, gone, full, damaged or not ours to write."""


class DatabaseUnavailable(Exception):
    """The database cannot be reached or cannot answer now. Trying again later may help."""


class Database:
    """An engine and the two ways to use it. One for a process; `close()` it at the end."""

    def __init__(self, url: str, *, pool_size: int = POOL_SIZE) -> None:
        self.url = url
        self.engine = create_engine(url, pool_size=pool_size)
        self._writing = self.engine.execution_options(**{_BEGIN: "BEGIN IMMEDIATE"})

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncSession]:
        """A session whose queries see one state of the database (SQLite) or each the latest."""
        async with self._session(self.engine) as session:
            yield session

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncSession]:
        """A session that commits at the end of the block, or takes everything back on an error.

        On SQLite it is the only writer from its first statement on, so that what it has read still
        holds when it writes.
        """
        async with self._session(self._writing) as session:
            yield session
            await session.commit()

    async def close(self) -> None:
        await self.engine.dispose()

    @asynccontextmanager
    async def _session(self, engine: AsyncEngine) -> AsyncIterator[AsyncSession]:
        async with translated_errors(), AsyncSession(engine, expire_on_commit=False) as session:
            yield session


def create_engine(url: str, **options: Any) -> AsyncEngine:
    """An engine with our bounds: no wait without an end, SQLite with WAL and foreign keys on.

    Its errors do not repeat the values of a statement, which may be secret.
    """
    if url.startswith("sqlite"):
        return _sqlite(url, _prepare_sqlite, LOCK_SECS, pool_timeout=CONNECT_SECS, **options)
    return create_async_engine(
        url,
        hide_parameters=True,
        connect_args={
            "timeout": CONNECT_SECS,
            "command_timeout": STATEMENT_SECS,
            "server_settings": {
                "application_name": "obleth",
                "lock_timeout": f"{LOCK_SECS}s",
                "idle_in_transaction_session_timeout": "30s",
            },
        },
        pool_timeout=CONNECT_SECS,
        pool_pre_ping=True,
        **options,
    )


def create_migration_engine(url: str) -> AsyncEngine:
    """An engine whose statements may take long, and whose transactions write from the start.

    On SQLite references are not checked, so that tables can be rebuilt; check them at the end.
    """
    if url.startswith("sqlite"):
        engine = _sqlite(url, _prepare_sqlite_migration, MIGRATION_SECS, poolclass=NullPool)
        return engine.execution_options(**{_BEGIN: "BEGIN IMMEDIATE"})
    return create_async_engine(
        url,
        hide_parameters=True,
        connect_args={
            "timeout": CONNECT_SECS,
            "server_settings": {"application_name": "obleth migrate"},
        },
        poolclass=NullPool,
    )


@asynccontextmanager
async def translated_errors() -> AsyncIterator[None]:
    """Turn a query's failure into DatabaseUnavailable where that is what it means."""
    try:
        yield
    except (DBAPIError, PoolTimeout, OSError, TimeoutError) as error:
        if is_unavailable(error):
            raise DatabaseUnavailable("the database is away") from error
        raise


def is_unavailable(error: BaseException) -> bool:
    """Whether `error`, raised by a query, says that the database is away and not that we erred."""
    if not isinstance(error, DBAPIError):
        return isinstance(error, PoolTimeout | OSError | TimeoutError)
    sqlite_code = getattr(error.orig, "sqlite_errorcode", None)
    if sqlite_code is not None:
        return sqlite_code & 0xFF in _SQLITE_AWAY
    state = getattr(error.orig, "sqlstate", None)
    if state is not None:
        return str(state).startswith(_POSTGRES_AWAY)
    if isinstance(getattr(error.orig, "__cause__", None), ValueError):
        return False  # asyncpg files values it cannot encode under interface errors
    return error.connection_invalidated or isinstance(error, OperationalError | InterfaceError)


def _sqlite(
    url: str, prepare: Callable[[DBAPIConnection, object], None], wait_secs: int, **options: Any
) -> AsyncEngine:
    engine = create_async_engine(
        url, hide_parameters=True, connect_args={"timeout": wait_secs}, **options
    )
    event.listen(engine.sync_engine, "connect", prepare)
    event.listen(engine.sync_engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: DBAPIConnection, _: object) -> None:
    # Its own knows the letters of ASCII alone, so that a search in any case would be none.
    connection.create_function("lower", 1, lambda text: text and text.lower(), deterministic=True)
    _run_pragmas(connection, "journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON")


def _prepare_sqlite_migration(connection: DBAPIConnection, _: object) -> None:
    _run_pragmas(connection, "journal_mode=WAL", "foreign_keys=OFF")


def _run_pragmas(connection: DBAPIConnection, *pragmas: str) -> None:
    # The driver would begin transactions only before writes; `_begin_sqlite` does it instead.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in pragmas:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get(_BEGIN, "BEGIN"))
