"""Models and their names in the database."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncSession

from controlplane import paging
from shared.tables import ModelNameRow, ModelRow


class ModelRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def get(self, model_id: str) -> ModelRow | None:
        return await self._session.get(ModelRow, model_id)

    async def named(self, names: Iterable[str]) -> dict[str, ModelRow]:
        """Models by their own names."""
        found = await self._session.scalars(select(ModelRow).where(ModelRow.name.in_(list(names))))
        return {row.name: row for row in found}

    async def page(self, query: paging.SearchQuery) -> tuple[Sequence[ModelRow], str | None]:
        """In the order in which they were made."""
        statement = select(ModelRow)
        if query.search is not None:
            statement = statement.where(ModelRow.name.icontains(query.search, autoescape=True))
        return await paging.fetch(self._session, statement, [ModelRow.id], query)

    async def all(self) -> Sequence[ModelRow]:
        return (await self._session.scalars(select(ModelRow).order_by(ModelRow.id))).all()

    async def aliases(self, model_ids: Iterable[str]) -> dict[str, list[str]]:
        """Each model's aliases in order."""
        rows = await self._session.execute(
            select(ModelNameRow.model_id, ModelNameRow.name)
            .where(ModelNameRow.model_id.in_(list(model_ids)), ModelNameRow.position > 0)
            .order_by(ModelNameRow.position)
        )
        found = defaultdict[str, list[str]](list)
        for model_id, name in rows:
            found[model_id].append(name)
        return found

    async def owners(self, names: Iterable[str]) -> dict[str, str]:
        """The id of the model that answers to each name, of those that are taken."""
        rows = await self._session.execute(
            select(ModelNameRow.name, ModelNameRow.model_id).where(
                ModelNameRow.name.in_(list(names))
            )
        )
        return {row.name: row.model_id for row in rows}

    async def own_names(self, names: Iterable[str]) -> dict[str, str]:
        """Of each name or alias that is registered, its model's own name."""
        rows = await self._session.execute(
            select(ModelNameRow.name, ModelRow.name.label("own"))
            .join(ModelRow, ModelRow.id == ModelNameRow.model_id)
            .where(ModelNameRow.name.in_(list(names)))
        )
        return {row.name: row.own for row in rows}

    async def free_names(self, model_ids: Iterable[str]) -> None:
        """Take all their names from models; they must be given new ones before the commit."""
        await self._session.execute(
            delete(ModelNameRow).where(ModelNameRow.model_id.in_(list(model_ids)))
        )

    async def give_names(self, model_id: str, name: str, aliases: Sequence[str]) -> None:
        """Give a model without names its own and its aliases."""
        await self._session.flush()  # the model's own row comes first
        await self._session.execute(
            insert(ModelNameRow),
            [
                {"name": one, "model_id": model_id, "position": position}
                for position, one in enumerate((name, *aliases))
            ],
        )

    async def delete(self, row: ModelRow) -> None:
        """Delete a model with its names and endpoints."""
        await self._session.execute(delete(ModelRow).where(ModelRow.id == row.id))
