"""What may be done to endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pydantic import SecretStr
from sqlalchemy.ext.asyncio import AsyncSession

from controlplane.endpoints.health import EndpointHealth, Health
from controlplane.endpoints.repository import EndpointRepository
from controlplane.endpoints.schemas import (
    ChangedEndpoint,
    EndpointCreate,
    EndpointFields,
    EndpointPatch,
    EndpointView,
    StoredEndpoint,
)
from controlplane.paging import Page, PageQuery
from controlplane.policy_store import Change
from controlplane.problems import FieldError, Invalid, NameTaken, NotFound
from shared import network, tables
from shared.invalidation import Kind
from shared.secrets import seal
from shared.tables import EndpointRow

_KIND: Final = "endpoint"


class EndpointService:
    """`encryption_keys` seal API keys, the first one; they must be known to the data plane.
    `health` asks the replicas how endpoints are.
    """

    def __init__(
        self,
        rules: network.NetworkRules,
        *,
        encryption_keys: Sequence[str],
        health: EndpointHealth,
    ) -> None:
        self._rules = rules
        self._health = health
        self._encryption_keys = encryption_keys

    async def page(
        self, session: AsyncSession, model_id: str, query: PageQuery
    ) -> Page[StoredEndpoint]:
        endpoints = EndpointRepository(session)
        await self._check_model(endpoints, model_id)
        rows, cursor = await endpoints.page(model_id, query)
        return Page(items=[StoredEndpoint.of(row) for row in rows], next_cursor=cursor)

    async def get(self, session: AsyncSession, model_id: str, endpoint_id: str) -> StoredEndpoint:
        row = await self._get(EndpointRepository(session), model_id, endpoint_id)
        return StoredEndpoint.of(row)

    async def shown(self, *endpoints: StoredEndpoint) -> list[EndpointView]:
        """Endpoints with how they are now. Call it with no session open: it asks elsewhere."""
        known = await self._health.now()
        return [
            EndpointView(
                **each.model_dump(),
                health=known.get(each.id, Health.UNKNOWN) if each.enabled else Health.UNKNOWN,
            )
            for each in endpoints
        ]

    async def create(self, change: Change, model_id: str, wanted: EndpointCreate) -> StoredEndpoint:
        endpoints = EndpointRepository(change.session)
        await self._check_model(endpoints, model_id)
        url = self.checked_url(wanted.url)
        await self._check_free(endpoints, model_id, url)
        return self.insert(change, model_id, url, wanted)

    def insert(
        self, change: Change, model_id: str, url: str, wanted: EndpointCreate
    ) -> StoredEndpoint:
        """Add an endpoint at a URL that was checked and is known to be free."""
        row = EndpointRow(
            id=tables.new_id(),
            model_id=model_id,
            url=url,
            sealed_api_key=self._sealed(wanted.api_key),
            **wanted.columns(set(EndpointCreate.model_fields)),
        )
        change.created(row)
        view = StoredEndpoint.of(row)
        change.record("create", _KIND, view.id, view.url, None, view)
        change.invalidate(Kind.MODEL, model_id)
        return view

    async def update(
        self, change: Change, model_id: str, endpoint_id: str, patch: EndpointPatch
    ) -> StoredEndpoint:
        endpoints = EndpointRepository(change.session)
        row = await self._get(endpoints, model_id, endpoint_id)
        change.check(row)
        url = row.url
        if "url" in patch.model_fields_set:
            url = self.checked_url(patch.url)
            if url != row.url:
                await self._check_free(endpoints, model_id, url)
        return self.assign(change, row, url, patch, patch.model_fields_set)

    def assign(
        self, change: Change, row: EndpointRow, url: str, wanted: EndpointFields, fields: set[str]
    ) -> StoredEndpoint:
        """Give an endpoint the `fields` of `wanted`, and a URL that was checked and is free."""
        before = StoredEndpoint.of(row)
        values = {"url": url, **wanted.columns(fields)}
        replaced = "api_key" in fields and (
            wanted.api_key is not None or row.sealed_api_key is not None
        )
        if replaced:
            values["sealed_api_key"] = self._sealed(wanted.api_key)
        if not change.assign(row, values):
            return before
        after = ChangedEndpoint.of(row, api_key_replaced=replaced)
        change.record("update", _KIND, row.id, row.url, before, after)
        change.invalidate(Kind.MODEL, row.model_id)
        return StoredEndpoint.of(row)

    async def delete(self, change: Change, model_id: str, endpoint_id: str) -> None:
        row = await self._get(EndpointRepository(change.session), model_id, endpoint_id)
        change.check(row)
        await self.remove(change, row)

    async def remove(self, change: Change, row: EndpointRow) -> None:
        """Delete an endpoint that was looked up."""
        await EndpointRepository(change.session).delete(row)
        change.record("delete", _KIND, row.id, row.url, StoredEndpoint.of(row), None)
        change.invalidate(Kind.MODEL, row.model_id)

    async def remove_all(self, change: Change, model_id: str) -> None:
        """Delete the endpoints of a model, which is about to go, too."""
        for row in (await EndpointRepository(change.session).of_models([model_id]))[model_id]:
            await self.remove(change, row)

    def checked_url(self, url: str, path: str = "") -> str:
        """A URL as it is stored. Raises Invalid; `path` goes before the field's."""
        try:
            return network.checked_url(url, self._rules)
        except network.AddressRefused as refused:
            raise Invalid(FieldError(f"{path}url", str(refused))) from None

    def _sealed(self, api_key: SecretStr | None) -> str | None:
        if api_key is None:
            return None
        return seal(api_key.get_secret_value(), self._encryption_keys)

    async def _check_model(self, endpoints: EndpointRepository, model_id: str) -> None:
        if await endpoints.model(model_id) is None:
            raise NotFound("model", model_id)

    async def _check_free(self, endpoints: EndpointRepository, model_id: str, url: str) -> None:
        if await endpoints.at(model_id, url) is not None:
            raise NameTaken("url", f"the model has an endpoint at {url} already")

    async def _get(
        self, endpoints: EndpointRepository, model_id: str, endpoint_id: str
    ) -> EndpointRow:
        await self._check_model(endpoints, model_id)
        row = await endpoints.get(model_id, endpoint_id)
        if row is None:
            raise NotFound(_KIND, endpoint_id)
        return row
