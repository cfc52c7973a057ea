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
        return await endpoints.page(session, model_id, query)


@router.post("", status_code=status.HTTP_201_CREATED)
async def create_endpoint(
    model_id: str, body: EndpointCreate, begin: Changing, endpoints: Endpoints, response: Response
) -> EndpointView:
    async with begin() as change:
        view = await endpoints.create(change, model_id, body)
    return tagged(response, view)


@router.get("/{endpoint_id}")
async def get_endpoint(
    model_id: str, endpoint_id: str, store: Store, endpoints: Endpoints, response: Response
) -> EndpointView:
    async with store.reading() as session:
        return tagged(response, await endpoints.get(session, model_id, endpoint_id))


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
        view = await endpoints.update(change, model_id, endpoint_id, body)
    return tagged(response, view)


@router.delete("/{endpoint_id}", status_code=status.HTTP_204_NO_CONTENT)
async def delete_endpoint(
    model_id: str, endpoint_id: str, begin: Changing, endpoints: Endpoints
) -> None:
    async with begin() as change:
        await endpoints.delete(change, model_id, endpoint_id)
