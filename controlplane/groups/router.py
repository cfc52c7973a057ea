"""/groups. A group's name may hold slashes, so it takes the rest of the path."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response, status

from controlplane.dependencies import Changing, Store, provided
from controlplane.groups.schemas import GroupCreate, GroupPatch, GroupView
from controlplane.groups.service import GroupService
from controlplane.paging import Page, SearchQuery
from controlplane.preconditions import tagged
from controlplane.routes import ApiRoute

router = APIRouter(prefix="/groups", tags=["groups"], route_class=ApiRoute)
Groups = Annotated[GroupService, provided(GroupService)]


@router.get("")
async def list_groups(
    query: Annotated[SearchQuery, Query()], store: Store, groups: Groups
) -> Page[GroupView]:
    async with store.reading() as session:
        return await groups.page(session, query)


@router.post("", status_code=status.HTTP_201_CREATED)
async def create_group(
    body: GroupCreate, begin: Changing, groups: Groups, response: Response
) -> GroupView:
    async with begin() as change:
        view = await groups.create(change, body)
    return tagged(response, view)


@router.get("/{name:path}")
async def get_group(name: str, store: Store, groups: Groups, response: Response) -> GroupView:
    async with store.reading() as session:
        return tagged(response, await groups.get(session, name))


@router.patch("/{name:path}")
async def update_group(
    name: str, body: GroupPatch, begin: Changing, groups: Groups, response: Response
) -> GroupView:
    async with begin() as change:
        view = await groups.update(change, name, body)
    return tagged(response, view)


@router.delete("/{name:path}", status_code=status.HTTP_204_NO_CONTENT)
async def delete_group(name: str, begin: Changing, groups: Groups) -> None:
    async with begin() as change:
        await groups.delete(change, name)
