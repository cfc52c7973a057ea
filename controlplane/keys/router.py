"""/keys. They are made under their tenant."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response, status

from controlplane.dependencies import Changing, Store, provided
from controlplane.fields import Empty
from controlplane.keys.schemas import KeyPatch, KeyQuery, KeyView, KeyWithSecret
from controlplane.keys.service import KeyService
from controlplane.paging import Page
from controlplane.preconditions import tagged
from controlplane.routes import ApiRoute

router = APIRouter(prefix="/keys", tags=["keys"], route_class=ApiRoute)
Keys = Annotated[KeyService, provided(KeyService)]


@router.get("")
async def list_keys(query: Annotated[KeyQuery, Query()], store: Store, keys: Keys) -> Page[KeyView]:
    async with store.reading() as session:
        return await keys.page(session, query)


@router.get("/{key_id}")
async def get_key(key_id: str, store: Store, keys: Keys, response: Response) -> KeyView:
    async with store.reading() as session:
        return tagged(response, await keys.get(session, key_id))


@router.patch("/{key_id}")
async def update_key(
    key_id: str, body: KeyPatch, begin: Changing, keys: Keys, response: Response
) -> KeyView:
    async with begin() as change:
        view = await keys.update(change, key_id, body)
    return tagged(response, view)


@router.post("/{key_id}/rotate")
async def rotate_key(
    key_id: str, begin: Changing, keys: Keys, response: Response, _: Empty | None = None
) -> KeyWithSecret:
    """Replace the secret. The old one stops working; the new one is shown here, never again."""
    async with begin() as change:
        view = await keys.rotate(change, key_id)
    response.headers["Cache-Control"] = "no-store"
    return tagged(response, view)


@router.delete("/{key_id}", status_code=status.HTTP_204_NO_CONTENT)
async def delete_key(key_id: str, begin: Changing, keys: Keys) -> None:
    async with begin() as change:
        await keys.delete(change, key_id)
