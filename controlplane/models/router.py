"""/models."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response, status

from controlplane.dependencies import Changing, Store, provided
from controlplane.models.schemas import (
    ModelCreate,
    ModelPatch,
    ModelView,
    SessionAffinity,
    SessionAffinityView,
)
from controlplane.models.service import ModelService
from controlplane.models.transfer import Export, Import, ImportResult, TransferService
from controlplane.paging import Page, SearchQuery
from controlplane.preconditions import tag, tagged
from controlplane.routes import ApiRoute

router = APIRouter(prefix="/models", tags=["models"], route_class=ApiRoute)
Models = Annotated[ModelService, provided(ModelService)]
Transfer = Annotated[TransferService, provided(TransferService)]


@router.get("")
async def list_models(
    query: Annotated[SearchQuery, Query()], store: Store, models: Models
) -> Page[ModelView]:
    async with store.reading() as session:
        return await models.page(session, query)


@router.post("", status_code=status.HTTP_201_CREATED)
async def create_model(
    body: ModelCreate, begin: Changing, models: Models, response: Response
) -> ModelView:
    async with begin() as change:
        view = await models.create(change, body)
    return tagged(response, view)


@router.get("/export")
async def export_models(store: Store, transfer: Transfer) -> Export:
    """All models with their endpoints, as `POST /models/import` takes them; never API keys."""
    async with store.reading() as session:
        return await transfer.export(session)


@router.post("/import")
async def import_models(body: Import, begin: Changing, transfer: Transfer) -> ImportResult:
    """Create models and replace those of the same name, all or none.

    What a model leaves out takes its default, except `endpoints`, which then stay as they are. An
    endpoint that stays at its URL keeps its API key unless given another.
    """
    async with begin() as change:
        return await transfer.import_(change, body)


@router.get("/{model_id}")
async def get_model(model_id: str, store: Store, models: Models, response: Response) -> ModelView:
    async with store.reading() as session:
        return tagged(response, await models.get(session, model_id))


@router.patch("/{model_id}")
async def update_model(
    model_id: str, body: ModelPatch, begin: Changing, models: Models, response: Response
) -> ModelView:
    async with begin() as change:
        view = await models.update(change, model_id, body)
    return tagged(response, view)


@router.put("/{model_id}/session-affinity")
async def set_session_affinity(
    model_id: str, body: SessionAffinity, begin: Changing, models: Models, response: Response
) -> SessionAffinityView:
    """Replace what the model sets itself; `{}` follows the gateway in everything."""
    async with begin() as change:
        done = await models.set_affinity(change, model_id, body)
    response.headers["ETag"] = tag(done.revision)
    return done.view


@router.delete("/{model_id}", status_code=status.HTTP_204_NO_CONTENT)
async def delete_model(model_id: str, begin: Changing, models: Models) -> None:
    """Delete a model with its endpoints. What runs finishes; what waits for it gets 404."""
    async with begin() as change:
        await models.delete(change, model_id)
