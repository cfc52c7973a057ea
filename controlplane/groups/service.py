"""What may be done to groups."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from controlplane.groups.repository import GroupRepository
from controlplane.groups.schemas import GroupCreate, GroupPatch, GroupView
from controlplane.paging import Page, SearchQuery
from controlplane.policy_store import Change
from controlplane.problems import InUse, NameTaken, NotFound
from shared import policy
from shared.invalidation import Kind
from shared.tables import GroupRow

_KIND = "group"


class GroupService:
    async def page(self, session: AsyncSession, query: SearchQuery) -> Page[GroupView]:
        rows, cursor = await GroupRepository(session).page(query)
        return Page(items=[GroupView.of(row) for row in rows], next_cursor=cursor)

    async def get(self, session: AsyncSession, name: str) -> GroupView:
        return GroupView.of(await self._get(GroupRepository(session), name))

    async def create(self, change: Change, wanted: GroupCreate) -> GroupView:
        await self._check_free(GroupRepository(change.session), wanted.name)
        row = GroupRow(name=wanted.name, weight=wanted.weight)
        change.created(row)
        view = GroupView.of(row)
        change.record("create", _KIND, view.name, view.name, None, view)
        change.invalidate(Kind.GROUP, view.name)
        return view

    async def update(self, change: Change, name: str, patch: GroupPatch) -> GroupView:
        groups = GroupRepository(change.session)
        row = await self._get(groups, name)
        change.check(row)
        before = GroupView.of(row)
        changes = patch.changes()
        renamed = changes.get("name", name) != name
        if renamed:
            if name == policy.DEFAULT_GROUP:
                raise InUse("the default group keeps its name: tenants that name none are in it")
            await self._check_free(groups, changes["name"])
            await groups.touch_tenants(name, change)
        if not change.assign(row, changes):
            return before
        after = GroupView.of(row)
        change.record(
            "update",
            _KIND,
            name,
            after.name,
            before,
            after,
        )
        change.invalidate(Kind.GROUP, name)
        if renamed:
            change.invalidate(Kind.GROUP, after.name)
        return after

    async def delete(self, change: Change, name: str) -> None:
        groups = GroupRepository(change.session)
        row = await self._get(groups, name)
        change.check(row)
        if name == policy.DEFAULT_GROUP:
            raise InUse("the default group always exists")
        members = await groups.count_tenants(name)
        if members:
            raise InUse(f"{members} tenants are in the group; move or delete them first")
        await change.session.delete(row)
        before = GroupView.of(row)
        change.record("delete", _KIND, name, name, before, None)
        change.invalidate(Kind.GROUP, name)

    async def _get(self, groups: GroupRepository, name: str) -> GroupRow:
        row = await groups.get(name)
        if row is None:
            raise NotFound(_KIND, name)
        return row

    async def _check_free(self, groups: GroupRepository, name: str) -> None:
        if await groups.get(name) is not None:
            raise NameTaken("name", f"there is a group {name!r} already")
