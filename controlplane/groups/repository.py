"""Groups in the database."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from controlplane import paging
from controlplane.policy_store import Change
from shared.tables import GroupRow, TenantRow


class GroupRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def get(self, name: str) -> GroupRow | None:
        return await self._session.get(GroupRow, name)

    async def page(self, query: paging.SearchQuery) -> tuple[Sequence[GroupRow], str | None]:
        """By name."""
        statement = select(GroupRow)
        if query.search is not None:
            statement = statement.where(GroupRow.name.icontains(query.search, autoescape=True))
        return await paging.fetch(self._session, statement, [GroupRow.name], query)

    async def count_tenants(self, name: str) -> int:
        members = select(func.count()).select_from(TenantRow).where(TenantRow.group_name == name)
        return await self._session.scalar(members) or 0

    async def touch_tenants(self, name: str, change: Change) -> None:
        """Note on a group's tenants that what they say of their group has changed."""
        await self._session.execute(
            update(TenantRow)
            .where(TenantRow.group_name == name)
            .values(revision=change.revision, updated_at=change.at)
        )
