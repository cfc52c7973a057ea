"""The audit log in the database. It is written by `policy_store`, within each change."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from controlplane import paging
from controlplane.audit.schemas import AuditQuery
from shared.tables import AuditRow


class AuditRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def page(self, query: AuditQuery) -> tuple[Sequence[AuditRow], str | None]:
        """Newest first."""
        statement = select(AuditRow)
        if query.kind is not None:
            statement = statement.where(AuditRow.kind == query.kind)
        if query.subject_id is not None:
            statement = statement.where(AuditRow.subject_id == query.subject_id)
        return await paging.fetch(
            self._session, statement, [AuditRow.revision, AuditRow.id], query, newest_first=True
        )
