"""All models at once: out for keeping or another gateway, in to create or replace them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, Field
from sqlalchemy.ext.asyncio import AsyncSession

from controlplane.endpoints.repository import EndpointRepository
from controlplane.endpoints.schemas import EndpointCreate
from controlplane.endpoints.service import EndpointService
from controlplane.fields import Input
from controlplane.models.repository import ModelRepository
from controlplane.models.schemas import ModelCreate, ModelView
from controlplane.models.service import ModelService, check_distinct
from controlplane.policy_store import Change
from controlplane.problems import FieldError, Invalid, NameTaken
from shared.policy import LoadBalancing
from shared.tables import EndpointRow, ModelRow


class ExportedEndpoint(BaseModel):
    url: str
    weight: int
    priority: int
    enabled: bool
    max_in_flight: int | None


class ExportedModel(BaseModel):
    name: str
    aliases: list[str]
    upstream_model: str | None
    enabled: bool
    max_in_flight: int | None
    admission_weight: int
    capacity: dict[str, Any] | None
    load_balancing: LoadBalancing
    session_affinity: dict[str, Any]
    request_timeout_secs: float
    max_retries: int
    endpoints: list[ExportedEndpoint]


class Export(BaseModel):
    models: list[ExportedModel]


class ImportedModel(ModelCreate):
    endpoints: Annotated[list[EndpointCreate], Field(max_length=100)] | None = Field(
        None, description="All the model is to have; null or left out: as they are."
    )


class Import(Input):
    models: Annotated[list[ImportedModel], Field(max_length=1000)]


class ImportResult(BaseModel):
    """The names of models, by what became of them."""

    created: list[str] = []
    updated: list[str] = []
    unchanged: list[str] = []


class TransferService:
    def __init__(self, models: ModelService, endpoints: EndpointService) -> None:
        self._models = models
        self._endpoints = endpoints

    async def export(self, session: AsyncSession) -> Export:
        models = ModelRepository(session)
        rows = await models.all()
        aliases = await models.aliases(row.id for row in rows)
        endpoints = await EndpointRepository(session).of_models(row.id for row in rows)
        return Export(models=[_exported(row, aliases[row.id], endpoints[row.id]) for row in rows])

    async def import_(self, change: Change, wanted: Import) -> ImportResult:
        models = ModelRepository(change.session)
        stored = await models.named(one.name for one in wanted.models)
        await self._check_names(models, wanted.models, stored)
        before = await self._models.views(models, stored)
        await models.free_names(
            stored[one.name].id
            for one in wanted.models
            if one.name in stored and one.aliases != before[one.name].aliases
        )
        result = ImportResult()
        for i, one in enumerate(wanted.models):
            row = stored.get(one.name)
            if row is None:
                view = await self._models.insert(change, one)
                await self._models.let_tenants_follow(change, view, view.name)
            else:
                view = await self._models.assign(
                    change, row, before[one.name], one, set(ModelCreate.model_fields), one.aliases
                )
            moved = await self._replace_endpoints(change, view, one, f"models.{i}.endpoints.")
            if row is None:
                result.created.append(one.name)
            elif moved or view.revision == change.revision:
                result.updated.append(one.name)
            else:
                result.unchanged.append(one.name)
        return result

    async def _check_names(
        self,
        models: ModelRepository,
        wanted: Sequence[ImportedModel],
        stored: Mapping[str, ModelRow],
    ) -> None:
        seen = set[str]()
        replaced = {row.id for row in stored.values()}
        owners = await models.owners(name for one in wanted for name in (one.name, *one.aliases))
        for i, one in enumerate(wanted):
            check_distinct(one.name, one.aliases, f"models.{i}.")
            for j, name in enumerate((one.name, *one.aliases)):
                field = f"models.{i}.aliases.{j - 1}" if j else f"models.{i}.name"
                if name in seen:
                    raise Invalid(FieldError(field, "must differ from the other models' names"))
                if owners.get(name) not in (None, *replaced):
                    raise NameTaken(field, f"another model answers to {name!r} already")
                seen.add(name)

    async def _replace_endpoints(
        self, change: Change, model: ModelView, wanted: ImportedModel, path: str
    ) -> bool:
        if wanted.endpoints is None:
            return False
        rows = (await EndpointRepository(change.session).of_models([model.id]))[model.id]
        left = {row.url: row for row in rows}
        changed, seen = False, set[str]()
        for i, one in enumerate(wanted.endpoints):
            url = self._endpoints.checked_url(one.url, f"{path}{i}.")
            if url in seen:
                raise Invalid(FieldError(f"{path}{i}.url", "must differ from the others"))
            seen.add(url)
            row = left.pop(url, None)
            if row is None:
                view = self._endpoints.insert(change, model.id, url, one)
            else:
                fields = set(EndpointCreate.model_fields) - {"api_key"}
                fields |= one.model_fields_set & {"api_key"}
                view = self._endpoints.assign(change, row, url, one, fields)
            changed |= view.revision == change.revision
        for row in left.values():
            await self._endpoints.remove(change, row)
        return changed or bool(left)


def _exported(
    row: ModelRow, aliases: Sequence[str], endpoints: Sequence[EndpointRow]
) -> ExportedModel:
    return ExportedModel(
        name=row.name,
        aliases=list(aliases),
        upstream_model=row.upstream_model,
        enabled=row.enabled,
        max_in_flight=row.max_in_flight,
        admission_weight=row.admission_weight,
        capacity=row.capacity,
        load_balancing=LoadBalancing(row.load_balancing),
        session_affinity=row.session_affinity,
        request_timeout_secs=row.request_timeout_secs,
        max_retries=row.max_retries,
        endpoints=[
            ExportedEndpoint(
                url=one.url,
                weight=one.weight,
                priority=one.priority,
                enabled=one.enabled,
                max_in_flight=one.max_in_flight,
            )
            for one in endpoints
        ],
    )
