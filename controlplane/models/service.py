"""What may be done to models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncSession

from controlplane.endpoints.service import EndpointService
from controlplane.models.repository import ModelRepository
from controlplane.models.schemas import (
    Capacity,
    ModelCreate,
    ModelFields,
    ModelPatch,
    ModelView,
    SessionAffinity,
    SessionAffinityView,
)
from controlplane.paging import Page, SearchQuery
from controlplane.policy_store import Change
from controlplane.problems import FieldError, Invalid, NameTaken, NotFound
from controlplane.tenants.service import TenantService
from shared import tables
from shared.invalidation import Kind
from shared.policy import AffinityPolicy
from shared.tables import ModelRow

_KIND = "model"


@dataclass(frozen=True, slots=True)
class Tagged:
    """Something to answer with and the revision of the model it is part of."""

    view: SessionAffinityView
    revision: int


class ModelService:
    """`gateway`: session affinity where a model does not set its own."""

    def __init__(
        self, tenants: TenantService, endpoints: EndpointService, *, gateway: AffinityPolicy
    ) -> None:
        self._tenants = tenants
        self._endpoints = endpoints
        self._gateway = gateway

    async def page(self, session: AsyncSession, query: SearchQuery) -> Page[ModelView]:
        models = ModelRepository(session)
        rows, cursor = await models.page(query)
        aliases = await models.aliases(row.id for row in rows)
        return Page(
            items=[ModelView.of(row, aliases[row.id], self._gateway) for row in rows],
            next_cursor=cursor,
        )

    async def get(self, session: AsyncSession, model_id: str) -> ModelView:
        models = ModelRepository(session)
        return await self.view(models, await self._get(models, model_id))

    async def view(self, models: ModelRepository, row: ModelRow) -> ModelView:
        aliases = await models.aliases([row.id])
        return ModelView.of(row, aliases[row.id], self._gateway)

    async def views(
        self, models: ModelRepository, rows: Mapping[str, ModelRow]
    ) -> dict[str, ModelView]:
        """Models as they are, under the keys they came with."""
        aliases = await models.aliases(row.id for row in rows.values())
        return {
            name: ModelView.of(row, aliases[row.id], self._gateway) for name, row in rows.items()
        }

    async def create(self, change: Change, wanted: ModelCreate) -> ModelView:
        models = ModelRepository(change.session)
        await self._check_names(models, None, wanted.name, wanted.aliases)
        view = await self.insert(change, wanted)
        await self.let_tenants_follow(change, view, view.name)
        return view

    async def insert(self, change: Change, wanted: ModelCreate) -> ModelView:
        """Add a model whose names are known to be free."""
        models = ModelRepository(change.session)
        values = wanted.columns(set(ModelCreate.model_fields))
        row = ModelRow(id=tables.new_id(), **values)
        change.created(row)
        await models.give_names(row.id, wanted.name, wanted.aliases)
        view = ModelView.of(row, wanted.aliases, self._gateway)
        change.record("create", _KIND, view.id, view.name, None, view)
        change.invalidate(Kind.MODEL, view.id)
        return view

    async def update(self, change: Change, model_id: str, patch: ModelPatch) -> ModelView:
        models = ModelRepository(change.session)
        row = await self._get(models, model_id)
        change.check(row)
        before = await self.view(models, row)
        set_fields = patch.model_fields_set
        if patch.capacity is not None:
            capacity = Capacity.patched(row.capacity, patch.capacity).stored()
            patch = patch.model_copy(update={"capacity": capacity})
        name = patch.name if "name" in set_fields else before.name
        aliases = patch.aliases if "aliases" in set_fields else before.aliases
        if (name, aliases) != (before.name, before.aliases):
            await self._check_names(models, model_id, name, aliases)
            await models.free_names([model_id])
        return await self.assign(change, row, before, patch, set_fields, aliases)

    async def assign(
        self,
        change: Change,
        row: ModelRow,
        before: ModelView,
        wanted: ModelFields,
        fields: set[str],
        aliases: list[str],
    ) -> ModelView:
        """Give a model the `fields` of `wanted`; its names, where they differ, are freed before."""
        models = ModelRepository(change.session)
        changed = change.assign(row, wanted.columns(fields))
        if (row.name, aliases) != (before.name, before.aliases):
            await models.give_names(row.id, row.name, aliases)
            change.touched(row)
            changed = True
        if not changed:
            return before
        after = ModelView.of(row, aliases, self._gateway)
        change.record("update", _KIND, after.id, after.name, before, after)
        change.invalidate(Kind.MODEL, after.id)
        await self.let_tenants_follow(change, after, before.name)
        return after

    async def set_affinity(self, change: Change, model_id: str, wanted: SessionAffinity) -> Tagged:
        patch = ModelPatch(session_affinity=wanted)
        view = await self.update(change, model_id, patch)
        answer = SessionAffinityView(
            session_affinity=view.session_affinity, effective=view.session_affinity_effective
        )
        return Tagged(answer, view.revision)

    async def delete(self, change: Change, model_id: str) -> None:
        models = ModelRepository(change.session)
        row = await self._get(models, model_id)
        change.check(row)
        await self._endpoints.remove_all(change, model_id)
        change.record("delete", _KIND, row.id, row.name, await self.view(models, row), None)
        await models.delete(row)
        change.invalidate(Kind.MODEL, model_id)

    async def let_tenants_follow(self, change: Change, view: ModelView, old_name: str) -> None:
        """Tenants' lists hold models' own names, so those that meant this one under another name
        (its old one, or what has become an alias) now say its own."""
        meant = {old_name, *view.aliases} - {view.name}
        if meant:
            await self._tenants.follow(change, dict.fromkeys(meant, view.name))

    async def _check_names(
        self, models: ModelRepository, model_id: str | None, name: str, aliases: Sequence[str]
    ) -> None:
        check_distinct(name, aliases)
        owners = await models.owners([name, *aliases])
        for i, one in enumerate([name, *aliases]):
            if owners.get(one, model_id) != model_id:
                field = f"aliases.{i - 1}" if i else "name"
                raise NameTaken(field, f"a model answers to {one!r} already")

    async def _get(self, models: ModelRepository, model_id: str) -> ModelRow:
        row = await models.get(model_id)
        if row is None:
            raise NotFound(_KIND, model_id)
        return row


def check_distinct(name: str, aliases: Sequence[str], path: str = "") -> None:
    """Raises Invalid when a model would have one name twice. `path` goes before the field's."""
    seen = {name}
    for i, alias in enumerate(aliases):
        if alias in seen:
            raise Invalid(FieldError(f"{path}aliases.{i}", "must differ from the other names"))
        seen.add(alias)
