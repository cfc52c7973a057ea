"""What may be done to API keys."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from controlplane.keys import secret as secrets
from controlplane.keys.repository import KeyRepository
from controlplane.keys.schemas import KeyCreate, KeyPatch, KeyQuery, KeyView, KeyWithSecret
from controlplane.paging import Page
from controlplane.policy_store import Change
from controlplane.problems import NotFound
from shared import tables
from shared.invalidation import Kind
from shared.secrets import key_digest
from shared.tables import KeyRow

_KIND = "key"


class KeyService:
    """`pepper` goes into what is stored of a key; it must be the data plane's."""

    def __init__(self, *, pepper: str) -> None:
        self._pepper = pepper

    async def page(self, session: AsyncSession, query: KeyQuery) -> Page[KeyView]:
        rows, cursor = await KeyRepository(session).page(query)
        return Page(items=[KeyView.of(row) for row in rows], next_cursor=cursor)

    async def get(self, session: AsyncSession, key_id: str) -> KeyView:
        return KeyView.of(await self._get(KeyRepository(session), key_id))

    async def create(self, change: Change, tenant_id: str, wanted: KeyCreate) -> KeyWithSecret:
        if not await KeyRepository(change.session).has_tenant(tenant_id):
            raise NotFound("tenant", tenant_id)
        row = KeyRow(id=tables.new_id(), tenant_id=tenant_id, **dict(wanted))
        secret = self._give_secret(row)
        change.created(row)
        view = KeyView.of(row)
        change.record("create", _KIND, view.id, view.name, None, view)
        change.invalidate(Kind.KEY, view.id)
        return KeyWithSecret.of(row, secret=secret)

    async def update(self, change: Change, key_id: str, patch: KeyPatch) -> KeyView:
        row = await self._get(KeyRepository(change.session), key_id)
        change.check(row)
        before = KeyView.of(row)
        if not change.assign(row, patch.changes()):
            return before
        after = KeyView.of(row)
        change.record("update", _KIND, after.id, after.name, before, after)
        change.invalidate(Kind.KEY, after.id)
        return after

    async def rotate(self, change: Change, key_id: str) -> KeyWithSecret:
        """Replace the secret; the old one is refused from now on."""
        row = await self._get(KeyRepository(change.session), key_id)
        change.check(row)
        before = KeyView.of(row)
        secret = self._give_secret(row)
        change.touched(row)
        change.record("rotate", _KIND, row.id, row.name, before, KeyView.of(row))
        change.invalidate(Kind.KEY, row.id)
        return KeyWithSecret.of(row, secret=secret)

    async def delete(self, change: Change, key_id: str) -> None:
        keys = KeyRepository(change.session)
        row = await self._get(keys, key_id)
        change.check(row)
        await keys.delete(row)
        change.record("delete", _KIND, row.id, row.name, KeyView.of(row), None)
        change.invalidate(Kind.KEY, row.id)

    def _give_secret(self, row: KeyRow) -> str:
        secret = secrets.new_secret()
        row.digest = key_digest(secret, self._pepper)
        row.prefix = secrets.prefix(secret)
        return secret

    async def _get(self, keys: KeyRepository, key_id: str) -> KeyRow:
        row = await keys.get(key_id)
        if row is None:
            raise NotFound(_KIND, key_id)
        return row
