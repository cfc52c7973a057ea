"""/models/{id}/endpoints."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response, status

from controlplane.dependencies import Changing, Store, provided
from controlplane.endpoints.schemas import EndpointCreate, EndpointPatch, EndpointView
from controlplane.endpoints.service import EndpointService
from controlplane.paging import Page, PageQuery
from controlplane.preconditions import tagged
from controlplane.routes import ApiRoute

router = APIRouter(prefix="/models/{model_id}/endpoints", tags=["endpoints"], route_class=ApiRoute)
Endpoints = Annotated[EndpointService, provided(EndpointService)]


@router.get("")
async def list_endpoints(
    model_id: str, query: Annotated[PageQuery, Query()], store: Store, endpoints: Endpoints
) -> Page[EndpointView]:
    async with store.reading() as session:
        page = await endpoints.page(session, model_id, query)
    return Page(items=await endpoints.shown(*page.items), next_cursor=page.next_cursor)


@router.post("", status_code=status.HTTP_201_CREATED)
async def create_endpoint(
    model_id: str, body: EndpointCreate, begin: Changing, endpoints: Endpoints, response: Response
) -> EndpointView:
    async with begin() as change:
        made = await endpoints.create(change, model_id, body)
    (view,) = await endpoints.shown(made)
    return tagged(response, view)


@router.get("/{endpoint_id}")
async def get_endpoint(
    model_id: str, endpoint_id: str, store: Store, endpoints: Endpoints, response: Response
) -> EndpointView:
    async with store.reading() as session:
        found = await endpoints.get(session, model_id, endpoint_id)
    (view,) = await endpoints.shown(found)
    return tagged(response, view)


@router.patch("/{endpoint_id}")
async def update_endpoint(
    model_id: str,
    endpoint_id: str,
    body: EndpointPatch,
    begin: Changing,
    endpoints: Endpoints,
    response: Response,
) -> EndpointView:
    async with begin() as change:
        changed = await endpoints.update(change, model_id, endpoint_id, body)
    (view,) = await endpoints.shown(changed)
    return tagged(response, view)


@router.delete("/{endpoint_id}", status_code=status.HTTP_204_NO_CONTENT)
async def delete_endpoint(
    model_id: str, endpoint_id: str, begin: Changing, endpoints: Endpoints
) -> None:
    async with begin() as change:
        await endpoints.delete(change, model_id, endpoint_id)
