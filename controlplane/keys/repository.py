"""API keys in the database."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from controlplane import paging
from controlplane.keys.schemas import KeyQuery
from shared.tables import BudgetUsageRow, KeyRow, TenantRow


class KeyRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def get(self, key_id: str) -> KeyRow | None:
        return await self._session.get(KeyRow, key_id)

    async def has_tenant(self, tenant_id: str) -> bool:
        return await self._session.get(TenantRow, tenant_id) is not None

    async def page(self, query: KeyQuery) -> tuple[Sequence[KeyRow], str | None]:
        """In the order in which they were made."""
        statement = select(KeyRow)
        if query.tenant_id is not None:
            statement = statement.where(KeyRow.tenant_id == query.tenant_id)
        if query.search is not None:
            statement = statement.where(KeyRow.name.icontains(query.search, autoescape=True))
        return await paging.fetch(self._session, statement, [KeyRow.id], query)

    async def delete(self, row: KeyRow) -> None:
        """Delete a key and what was counted against its budget."""
        counted = BudgetUsageRow
        await self._session.execute(
            delete(counted).where(counted.scope == "key", counted.scope_id == row.id)
        )
        await self._session.delete(row)
