"""Usage in the database. The data plane writes it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, String, case, func, literal_column, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from controlplane import paging
from controlplane.paging import SortKey
from controlplane.usage.schemas import By, UsageConditions, UsageFilter, UsageQuery, UsageSum
from shared.tables import UsageRow

_COLUMNS: Final[dict[By, tuple[SortKey, InstrumentedAttribute[str] | None]]] = {
    "tenant": (UsageRow.tenant_id, UsageRow.tenant),
    "key": (UsageRow.key_id, UsageRow.key),
    "model": (UsageRow.model, None),
    "group": (UsageRow.group_name, None),
}
"""What usage can be summed by, and its name where that is something else."""
_DAYS: Final[dict[str, SortKey]] = {
    "sqlite": literal_column("strftime('%Y-%m-%d', usage_requests.started_at)", String),
    "postgresql": literal_column(
        "to_char(timezone('UTC', usage_requests.started_at), 'YYYY-MM-DD')", String
    ),
}
"""The day a request started on, in UTC. Without parameters, so that it can be grouped by."""


class UsageRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def page(self, query: UsageFilter) -> tuple[Sequence[UsageRow], str | None]:
        """Requests, newest first."""
        return await paging.fetch(
            self._session,
            select(UsageRow).where(*_conditions(query)),
            [UsageRow.started_at, UsageRow.id],
            query,
            newest_first=True,
        )

    async def sums(self, query: UsageQuery) -> tuple[list[UsageSum], str | None]:
        """Sums in the order of their ids."""
        subject, name = self._column(query.by)
        statement = (
            select(
                subject,
                func.count(),
                func.sum(case((UsageRow.admission == "queued", 1), else_=0)),
                func.sum(case((UsageRow.admission == "rejected", 1), else_=0)),
                func.coalesce(func.sum(UsageRow.input_tokens), 0),
                func.coalesce(func.sum(UsageRow.output_tokens), 0),
                func.coalesce(func.sum(UsageRow.cached_tokens), 0),
                func.sum(case((UsageRow.estimated, 1), else_=0)),
                func.avg(UsageRow.queue_ms),
                func.max(UsageRow.queue_ms),
                func.min(UsageRow.started_at),
                func.max(UsageRow.started_at),
            )
            .where(*_conditions(query))
            .group_by(subject)
        )
        last = paging.last(query, [subject.type.python_type])
        if last is not None:
            statement = statement.where(subject > last[0])
        rows = (
            await self._session.execute(statement.order_by(subject).limit(query.limit + 1))
        ).all()
        rows, more = rows[: query.limit], len(rows) > query.limit
        names = await self._latest_names(subject, name, {row[0]: row[-1] for row in rows}, query)
        sums = [_sum(row, names[row[0]]) for row in rows]
        return sums, paging.encode([sums[-1].id]) if more else None

    def _column(self, by: By) -> tuple[SortKey, InstrumentedAttribute[str] | None]:
        if by == "day":
            return _DAYS[self._session.get_bind().dialect.name], None
        return _COLUMNS[by]

    async def _latest_names(
        self,
        subject: SortKey,
        name: InstrumentedAttribute[str] | None,
        latest: dict[str, datetime],
        query: UsageQuery,
    ) -> dict[str, str]:
        """Tenants and keys can be renamed; all else is its name."""
        if name is None:
            return {one: one for one in latest}
        rows = await self._session.execute(
            select(subject, UsageRow.started_at, name).where(
                *_conditions(query),
                subject.in_(latest),
                UsageRow.started_at.in_(set(latest.values())),
            )
        )
        return {one: called for one, at, called in rows if at == latest[one]}


def _conditions(query: UsageConditions) -> list[ColumnElement[bool]]:
    wanted: dict[InstrumentedAttribute[str], str | None] = {
        UsageRow.tenant_id: query.tenant_id,
        UsageRow.key_id: query.key_id,
        UsageRow.model: query.model,
        UsageRow.group_name: query.group,
    }
    conditions = [column == value for column, value in wanted.items() if value is not None]
    if query.since is not None:
        conditions.append(UsageRow.started_at >= query.since)
    if query.until is not None:
        conditions.append(UsageRow.started_at < query.until)
    return conditions


def _sum(row: Any, name: str) -> UsageSum:
    return UsageSum(
        id=row[0],
        name=name,
        requests=row[1],
        queued=row[2],
        rejected=row[3],
        input_tokens=row[4],
        output_tokens=row[5],
        cached_tokens=row[6],
        estimated=row[7],
        queue_ms_mean=row[8],
        queue_ms_max=row[9],
        first_at=row[10],
        last_at=row[11],
    )
