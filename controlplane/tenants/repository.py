"""Tenants in the database."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from controlplane import paging
from controlplane.tenants.schemas import TenantQuery
from shared.tables import BudgetUsageRow, GroupRow, KeyRow, TenantRow


class TenantRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def get(self, tenant_id: str) -> TenantRow | None:
        return await self._session.get(TenantRow, tenant_id)

    async def named(self, name: str) -> TenantRow | None:
        return (
            await self._session.scalars(select(TenantRow).where(TenantRow.name == name))
        ).one_or_none()

    async def page(self, query: TenantQuery) -> tuple[Sequence[TenantRow], str | None]:
        """In the order in which they were made."""
        statement = select(TenantRow)
        if query.id is not None:
            statement = statement.where(TenantRow.id.in_(query.id))
        if query.group is not None:
            statement = statement.where(TenantRow.group_name == query.group)
        if query.search is not None:
            statement = statement.where(TenantRow.name.icontains(query.search, autoescape=True))
        return await paging.fetch(self._session, statement, [TenantRow.id], query)

    async def has_group(self, name: str) -> bool:
        return await self._session.get(GroupRow, name) is not None

    async def with_allowed_models(self) -> Sequence[TenantRow]:
        """The tenants that may not use every model."""
        restricted = select(TenantRow).where(TenantRow.allowed_models.is_not(None))
        return (await self._session.scalars(restricted)).all()

    async def keys(self, tenant_id: str) -> Sequence[KeyRow]:
        mine = select(KeyRow).where(KeyRow.tenant_id == tenant_id).order_by(KeyRow.id)
        return (await self._session.scalars(mine)).all()

    async def delete(self, row: TenantRow) -> None:
        """Delete a tenant, its keys, and what was counted against their budgets."""
        key_ids = select(KeyRow.id).where(KeyRow.tenant_id == row.id)
        counted = BudgetUsageRow
        await self._session.execute(
            delete(counted).where(
                or_(
                    (counted.scope == "tenant") & (counted.scope_id == row.id),
                    (counted.scope == "key") & counted.scope_id.in_(key_ids),
                )
            )
        )
        await self._session.execute(delete(TenantRow).where(TenantRow.id == row.id))
