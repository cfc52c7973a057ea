"""/tenants, and making keys for one."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response, status

from controlplane.dependencies import Changing, Store, provided
from controlplane.keys.schemas import KeyCreate, KeyWithSecret
from controlplane.keys.service import KeyService
from controlplane.paging import Page
from controlplane.preconditions import tagged
from controlplane.routes import ApiRoute
from controlplane.tenants.schemas import TenantCreate, TenantPatch, TenantQuery, TenantView
from controlplane.tenants.service import TenantService

router = APIRouter(prefix="/tenants", tags=["tenants"], route_class=ApiRoute)
Tenants = Annotated[TenantService, provided(TenantService)]
Keys = Annotated[KeyService, provided(KeyService)]


@router.get("")
async def list_tenants(
    query: Annotated[TenantQuery, Query()], store: Store, tenants: Tenants
) -> Page[TenantView]:
    async with store.reading() as session:
        return await tenants.page(session, query)


@router.post("", status_code=status.HTTP_201_CREATED)
async def create_tenant(
    body: TenantCreate, begin: Changing, tenants: Tenants, response: Response
) -> TenantView:
    async with begin() as change:
        view = await tenants.create(change, body)
    return tagged(response, view)


@router.get("/{tenant_id}")
async def get_tenant(
    tenant_id: str, store: Store, tenants: Tenants, response: Response
) -> TenantView:
    async with store.reading() as session:
        return tagged(response, await tenants.get(session, tenant_id))


@router.patch("/{tenant_id}")
async def update_tenant(
    tenant_id: str, body: TenantPatch, begin: Changing, tenants: Tenants, response: Response
) -> TenantView:
    async with begin() as change:
        view = await tenants.update(change, tenant_id, body)
    return tagged(response, view)


@router.delete("/{tenant_id}", status_code=status.HTTP_204_NO_CONTENT)
async def delete_tenant(tenant_id: str, begin: Changing, tenants: Tenants) -> None:
    """Delete a tenant and its keys; what they use is refused from now on."""
    async with begin() as change:
        await tenants.delete(change, tenant_id)


@router.post("/{tenant_id}/keys", status_code=status.HTTP_201_CREATED)
async def create_key(
    tenant_id: str, body: KeyCreate, begin: Changing, keys: Keys, response: Response
) -> KeyWithSecret:
    """Make a key. `secret` is the key itself, shown here and never again."""
    async with begin() as change:
        view = await keys.create(change, tenant_id, body)
    response.headers["Cache-Control"] = "no-store"
    return tagged(response, view)
