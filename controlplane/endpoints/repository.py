"""Endpoints in the database."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from controlplane import paging
from shared.tables import EndpointRow, ModelRow


class EndpointRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def get(self, model_id: str, endpoint_id: str) -> EndpointRow | None:
        row = await self._session.get(EndpointRow, endpoint_id)
        return row if row is not None and row.model_id == model_id else None

    async def model(self, model_id: str) -> ModelRow | None:
        return await self._session.get(ModelRow, model_id)

    async def page(
        self, model_id: str, query: paging.PageQuery
    ) -> tuple[Sequence[EndpointRow], str | None]:
        """A model's, in the order in which they were made."""
        statement = select(EndpointRow).where(EndpointRow.model_id == model_id)
        return await paging.fetch(self._session, statement, [EndpointRow.id], query)

    async def of_models(self, model_ids: Iterable[str]) -> dict[str, list[EndpointRow]]:
        """Each model's endpoints, in the order in which they were made."""
        rows = await self._session.scalars(
            select(EndpointRow)
            .where(EndpointRow.model_id.in_(list(model_ids)))
            .order_by(EndpointRow.id)
        )
        found = defaultdict[str, list[EndpointRow]](list)
        for row in rows:
            found[row.model_id].append(row)
        return found

    async def at(self, model_id: str, url: str) -> EndpointRow | None:
        """A model's endpoint at a URL."""
        mine = select(EndpointRow).where(EndpointRow.model_id == model_id, EndpointRow.url == url)
        return (await self._session.scalars(mine)).one_or_none()

    async def delete(self, row: EndpointRow) -> None:
        await self._session.delete(row)
