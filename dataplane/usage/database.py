"""Usage in the database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final

import structlog
from sqlalchemy import bindparam, delete, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import OperationalError, ProgrammingError, SQLAlchemyError

from dataplane.usage.record import UsageRecord, UsageStoreUnavailable
from shared.database import Database, DatabaseUnavailable
from shared.tables import KeyRow, UsageRow

log = structlog.stdlib.get_logger(__name__)

_LENGTHS: Final[Mapping[str, int]] = {
    column.name: length
    for column in UsageRow.__table__.columns
    if (length := getattr(column.type, "length", None))
}
_TOKENS_MAX: Final = 2**63 - 1


class DatabaseUsageStore:
    """`UsageStore` on SQLite or PostgreSQL."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def write(self, records: Sequence[UsageRecord]) -> int:
        """See `UsageStore.write`."""
        if not records:
            return 0
        try:
            await self._write(records)
        except (DatabaseUnavailable, OperationalError, ProgrammingError) as error:
            # Away, or of another schema.
            raise UsageStoreUnavailable(str(error)) from error
        except SQLAlchemyError as error:
            # Not the database's fault, so one record's: the others must not wait for it for ever.
            if len(records) == 1:
                log.warning("usage_refused", id=records[0].id, error=type(error).__name__)
                return 1
            return sum([await self.write([record]) for record in records])
        return 0

    async def purge(self, before: float, at_most: int) -> int:
        """See `UsageStore.purge`."""
        oldest = (
            select(UsageRow.id)
            .where(UsageRow.started_at < _moment(before))
            .order_by(UsageRow.started_at)
            .limit(at_most)
        )
        async with self._errors(), self._database.transaction() as session:
            connection = await session.connection()
            done = await connection.execute(delete(UsageRow).where(UsageRow.id.in_(oldest)))
            return done.rowcount

    async def _write(self, records: Sequence[UsageRecord]) -> None:
        async with self._database.transaction() as session:
            connection = await session.connection()
            await connection.execute(self._insert(), [_row(record) for record in records])
            await connection.execute(_TOUCH, _last_used(records))

    def _insert(self) -> sqlite.Insert | postgresql.Insert:
        if self._database.engine.dialect.name == "postgresql":
            return postgresql.insert(UsageRow).on_conflict_do_nothing()
        return sqlite.insert(UsageRow).on_conflict_do_nothing()

    @asynccontextmanager
    async def _errors(self) -> AsyncIterator[None]:
        try:
            yield
        except (DatabaseUnavailable, SQLAlchemyError) as error:
            raise UsageStoreUnavailable(str(error)) from error


_TOUCH: Final = (
    update(KeyRow)
    .where(KeyRow.id == bindparam("key_id"))
    .where(or_(KeyRow.last_used_at.is_(None), KeyRow.last_used_at < bindparam("used_at")))
    .values(last_used_at=bindparam("used_at"))
)


def _last_used(records: Sequence[UsageRecord]) -> list[dict[str, Any]]:
    """When each key was last used, in one order for every writer, so that none waits in a ring."""
    last: dict[str, float] = {}
    for record in records:
        last[record.key.id] = max(record.started_at, last.get(record.key.id, record.started_at))
    return [{"key_id": id_, "used_at": _moment(at)} for id_, at in sorted(last.items())]


def _row(record: UsageRecord) -> dict[str, Any]:
    key = record.key
    row = {
        "id": record.id,
        "request_id": record.request_id,
        "started_at": _moment(record.started_at),
        "group_name": key.tenant.group.name,
        "tenant_id": key.tenant.id,
        "tenant": key.tenant.name,
        "key_id": key.id,
        "key": key.name,
        "model": record.model,
        "admission": record.admission,
        "status": record.status,
        "partial": record.is_partial,
        "queue_ms": record.queue_ms,
        "ttfb_ms": record.ttfb_ms,
        "duration_ms": record.duration_ms,
        "input_tokens": _tokens(record.input_tokens),
        "output_tokens": _tokens(record.output_tokens),
        "cached_tokens": _tokens(record.cached_tokens),
        "estimated": record.is_estimated,
        "session": record.session,
    }
    return {
        name: _text(name, value) if isinstance(value, str) else value for name, value in row.items()
    }


def _text(column: str, value: str) -> str:
    """A client's own text as a column takes it: no NUL, no lone surrogate, not too long."""
    stored = value.encode("utf-8", "replace").decode().replace("\0", "")
    return stored[: _LENGTHS[column]]


def _tokens(count: int | None) -> int | None:
    return None if count is None else max(0, min(count, _TOKENS_MAX))


def _moment(unix_secs: float) -> datetime:
    return datetime.fromtimestamp(unix_secs, UTC)
