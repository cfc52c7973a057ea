"""What terms have used, kept in the database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from sqlalchemy import and_, or_, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError

from dataplane.budgets.port import TermStoreUnavailable
from dataplane.budgets.terms import Term
from shared.database import Database, DatabaseUnavailable
from shared.tables import BudgetUsageRow


class DatabaseTermStore:
    """`TermStore` on SQLite or PostgreSQL.

    Totals only ever grow here: a write that arrives late, or twice, takes nothing back.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self, terms: Sequence[Term]) -> Mapping[Term, int]:
        """See `TermStore.load`."""
        if not terms:
            return {}
        by_row = {(str(term.scope), term.subject_id, _start(term)): term for term in terms}
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
        now = datetime.now(UTC)
        rows = [
            {
                "scope": str(term.scope),
                "scope_id": term.subject_id,
                "period_started_at": _start(term),
                "committed_tokens": tokens,
                "updated_at": now,
            }
            for term, tokens in used.items()
        ]
        async with self._errors(), self._database.transaction() as session:
            connection = await session.connection()
            await connection.execute(self._upsert(), rows)

    def _upsert(self) -> sqlite.Insert | postgresql.Insert:
        on_postgres = self._database.engine.dialect.name == "postgresql"
        insert: sqlite.Insert | postgresql.Insert = (
            postgresql.insert(BudgetUsageRow) if on_postgres else sqlite.insert(BudgetUsageRow)
        )
        return insert.on_conflict_do_update(
            index_elements=["scope", "scope_id", "period_started_at"],
            set_={
                "committed_tokens": insert.excluded.committed_tokens,
                "updated_at": insert.excluded.updated_at,
            },
            where=insert.excluded.committed_tokens > BudgetUsageRow.committed_tokens,
        )

    @asynccontextmanager
    async def _errors(self) -> AsyncIterator[None]:
        try:
            yield
        except (DatabaseUnavailable, SQLAlchemyError) as error:
            raise TermStoreUnavailable(str(error)) from error


def _start(term: Term) -> datetime:
    return datetime.fromtimestamp(term.starts_ms / 1000, UTC)
