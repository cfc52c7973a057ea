"""What may be done to tenants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from controlplane.models.repository import ModelRepository
from controlplane.paging import Page
from controlplane.policy_store import Change
from controlplane.problems import FieldError, Invalid, NameTaken, NotFound
from controlplane.tenants.repository import TenantRepository
from controlplane.tenants.schemas import (
    DeletedTenantView,
    TenantCreate,
    TenantPatch,
    TenantQuery,
    TenantView,
)
from shared import tables
from shared.invalidation import Kind
from shared.tables import TenantRow

_KIND = "tenant"


class TenantService:
    """`any_model`: models need not be registered to be allowed, as there is a default upstream."""

    def __init__(self, *, any_model: bool) -> None:
        self._any_model = any_model

    async def page(self, session: AsyncSession, query: TenantQuery) -> Page[TenantView]:
        rows, cursor = await TenantRepository(session).page(query)
        return Page(items=[TenantView.of(row) for row in rows], next_cursor=cursor)

    async def get(self, session: AsyncSession, tenant_id: str) -> TenantView:
        return TenantView.of(await self._get(TenantRepository(session), tenant_id))

    async def create(self, change: Change, wanted: TenantCreate) -> TenantView:
        await self._check_free(change, wanted.name)
        values = await self._columns(change, dict(wanted), allowed_before=())
        row = TenantRow(id=tables.new_id(), **values)
        change.created(row)
        view = TenantView.of(row)
        change.record("create", _KIND, view.id, view.name, None, view)
        change.invalidate(Kind.TENANT, view.id)
        return view

    async def update(self, change: Change, tenant_id: str, patch: TenantPatch) -> TenantView:
        row = await self._get(TenantRepository(change.session), tenant_id)
        change.check(row)
        changes = patch.changes()
        if changes.get("name", row.name) != row.name:
            await self._check_free(change, changes["name"])
        values = await self._columns(change, changes, allowed_before=row.allowed_models or ())
        return self._assign(change, row, values)

    async def delete(self, change: Change, tenant_id: str) -> None:
        tenants = TenantRepository(change.session)
        row = await self._get(tenants, tenant_id)
        change.check(row)
        keys = [f"{key.id} {key.prefix} {key.name}" for key in await tenants.keys(tenant_id)]
        change.record("delete", _KIND, row.id, row.name, DeletedTenantView.of(row, keys=keys), None)
        await tenants.delete(row)
        change.invalidate(Kind.TENANT, tenant_id)

    async def follow(self, change: Change, renamed: Mapping[str, str]) -> None:
        """Have tenants that may use a model under an old name use it under its new one."""
        for row in await TenantRepository(change.session).with_allowed_models():
            names = row.allowed_models or []
            if not renamed.keys().isdisjoint(names):
                new = list(dict.fromkeys(renamed.get(name, name) for name in names))
                self._assign(change, row, {"allowed_models": new})

    def _assign(self, change: Change, row: TenantRow, values: Mapping[str, Any]) -> TenantView:
        before = TenantView.of(row)
        if not change.assign(row, values):
            return before
        after = TenantView.of(row)
        change.record("update", _KIND, after.id, after.name, before, after)
        change.invalidate(Kind.TENANT, after.id)
        return after

    async def _columns(
        self, change: Change, fields: dict[str, Any], allowed_before: Sequence[str]
    ) -> dict[str, Any]:
        """Fields of the API as columns, with everything they name looked up."""
        if "group" in fields:
            group = fields.pop("group")
            if not await TenantRepository(change.session).has_group(group):
                raise Invalid(
                    FieldError("group", f"must be a group; there is none named {group!r}")
                )
            fields["group_name"] = group
        if fields.get("allowed_models") is not None:
            fields["allowed_models"] = await self._own_names(
                change, fields["allowed_models"], allowed_before
            )
        return fields

    async def _own_names(
        self, change: Change, names: Sequence[str], allowed_before: Sequence[str]
    ) -> list[str]:
        own = await ModelRepository(change.session).own_names(names)
        # What a tenant was allowed before stays valid, though the model may be gone by now.
        errors = [
            FieldError(f"allowed_models.{i}", f"must be a model; there is none named {name!r}")
            for i, name in enumerate(names)
            if name not in own and name not in allowed_before and not self._any_model
        ]
        if errors:
            raise Invalid(*errors)
        return list(dict.fromkeys(own.get(name, name) for name in names))

    async def _get(self, tenants: TenantRepository, tenant_id: str) -> TenantRow:
        row = await tenants.get(tenant_id)
        if row is None:
            raise NotFound(_KIND, tenant_id)
        return row

    async def _check_free(self, change: Change, name: str) -> None:
        if await TenantRepository(change.session).named(name) is not None:
            raise NameTaken("name", f"there is a tenant {name!r} already")
