"""What terms have used, kept in the database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import and_, delete, or_, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.sql.dml import ReturningInsert

from dataplane.budgets.port import TermStoreUnavailable
from dataplane.budgets.terms import Term
from shared.database import Database, DatabaseUnavailable
from shared.tables import BudgetUsageRow

_KEY: Final = ("scope", "scope_id", "period_started_at")


class DatabaseTermStore:
    """`TermStore` on SQLite or PostgreSQL.

    Totals only ever grow here: one that is saved late, or twice, takes nothing back.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self, terms: Sequence[Term]) -> Mapping[Term, int]:
        """See `TermStore.load`."""
        if not terms:
            return {}
        by_row = {_identity(term): term for term in terms}
        query = select(
            BudgetUsageRow.scope,
            BudgetUsageRow.scope_id,
            BudgetUsageRow.period_started_at,
            BudgetUsageRow.committed_tokens,
        ).where(
            or_(
                *(
                    and_(
                        BudgetUsageRow.scope == scope,
                        BudgetUsageRow.scope_id == scope_id,
                        BudgetUsageRow.period_started_at == start,
                    )
                    for scope, scope_id, start in by_row
                )
            )
        )
        async with self._errors(), self._database.reading() as session:
            rows = (await session.execute(query)).all()
        return {by_row[scope, scope_id, start]: used for scope, scope_id, start, used in rows}

    async def save(self, used: Mapping[Term, int]) -> None:
        """See `TermStore.save`."""
        if not used:
            return
        async with self._errors(), self._database.transaction() as session:
            connection = await session.connection()
            await connection.execute(self._upsert_totals(), _rows(used))

    async def add(self, used: Mapping[Term, int]) -> Mapping[Term, int]:
        """See `TermStore.add`."""
        if not used:
            return {}
        statement = self._upsert_sums(_rows(used))
        async with self._errors(), self._database.transaction() as session:
            rows = (await session.execute(statement)).all()
        totals = {(scope, scope_id, start): total for scope, scope_id, start, total in rows}
        return {term: totals[_identity(term)] for term in used}

    async def purge(self, before: float, at_most: int) -> int:
        """See `retention.PurgedStore.purge`."""
        oldest = (
            select(*(getattr(BudgetUsageRow, name) for name in _KEY))
            .where(BudgetUsageRow.calendar, BudgetUsageRow.period_started_at < _moment(before))
            .limit(at_most)
        )
        keys = tuple_(*(getattr(BudgetUsageRow, name) for name in _KEY))
        async with self._errors(), self._database.transaction() as session:
            connection = await session.connection()
            done = await connection.execute(delete(BudgetUsageRow).where(keys.in_(oldest)))
            return done.rowcount

    def _upsert_totals(self) -> sqlite.Insert | postgresql.Insert:
        insert = self._insert()
        return insert.on_conflict_do_update(
            index_elements=_KEY,
            set_={
                "committed_tokens": insert.excluded.committed_tokens,
                "calendar": and_(BudgetUsageRow.calendar, insert.excluded.calendar),
                "updated_at": insert.excluded.updated_at,
            },
            where=insert.excluded.committed_tokens > BudgetUsageRow.committed_tokens,
        )

    def _upsert_sums(self, rows: list[dict[str, Any]]) -> ReturningInsert[str, str, datetime, int]:
        insert = self._insert().values(rows)
        return insert.on_conflict_do_update(
            index_elements=_KEY,
            set_={
                "committed_tokens": BudgetUsageRow.committed_tokens
                + insert.excluded.committed_tokens,
                "calendar": and_(BudgetUsageRow.calendar, insert.excluded.calendar),
                "updated_at": insert.excluded.updated_at,
            },
        ).returning(
            BudgetUsageRow.scope,
            BudgetUsageRow.scope_id,
            BudgetUsageRow.period_started_at,
            BudgetUsageRow.committed_tokens,
        )

    def _insert(self) -> sqlite.Insert | postgresql.Insert:
        if self._database.engine.dialect.name == "postgresql":
            return postgresql.insert(BudgetUsageRow)
        return sqlite.insert(BudgetUsageRow)

    @asynccontextmanager
    async def _errors(self) -> AsyncIterator[None]:
        try:
            yield
        except (DatabaseUnavailable, SQLAlchemyError) as error:
            raise TermStoreUnavailable(str(error)) from error


def _rows(used: Mapping[Term, int]) -> list[dict[str, Any]]:
    """One row a term, in an order in which writers cannot wait for each other in a circle."""
    now = datetime.now(UTC)
    sums: dict[tuple[str, str, datetime], int] = {}
    kept: set[tuple[str, str, datetime]] = set()
    for term, tokens in used.items():  # two terms may have begun at the same moment
        sums[_identity(term)] = sums.get(_identity(term), 0) + tokens
        if not term.calendar:
            kept.add(_identity(term))
    return [
        {
            "scope": scope,
            "scope_id": scope_id,
            "period_started_at": start,
            "committed_tokens": tokens,
            "calendar": (scope, scope_id, start) not in kept,
            "updated_at": now,
        }
        for (scope, scope_id, start), tokens in sorted(sums.items())
    ]


def _identity(term: Term) -> tuple[str, str, datetime]:
    return str(term.scope), term.subject_id, _start(term)


def _start(term: Term) -> datetime:
    return _moment(term.starts_ms / 1000)


def _moment(unix_secs: float) -> datetime:
    return datetime.fromtimestamp(unix_secs, UTC)
