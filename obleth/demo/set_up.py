"""What the demo sets up, over the Management API: two groups, two tenants, keys, one model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import httpx

from obleth.failures import Failed

SLOTS: Final = 8


@dataclass(frozen=True, slots=True)
class Share:
    """One of the demo's tenants, alone in its group."""

    tenant: str
    group: str
    weight: int
    clients: int
    """Clients of the live traffic: more than its share of the slots, so that some always wait."""


SHARES: Final = (
    Share("chatbot", "chatbot", 500, clients=24),
    Share("api-batch", "api", 50, clients=8),
)


@dataclass(frozen=True, slots=True)
class Keys:
    """Secrets of API keys by tenant, one for whoever looks on and one for the live traffic."""

    yours: dict[str, str]
    traffic: dict[str, str]


async def set_up(admin: str, token: str, *, model: str, backend: str) -> Keys:
    """Make what is missing, bring up to date what is there, and give out fresh keys.

    Raises Failed.
    """
    async with httpx.AsyncClient(
        base_url=f"{admin}/api/v1",
        headers={"Authorization": f"Bearer {token}"},
        trust_env=False,
        timeout=30,
    ) as client:
        api = _Api(client)
        keys = Keys({}, {})
        for share in SHARES:
            await api.ensure("/groups", share.group, weight=share.weight)
            tenant = await api.ensure("/tenants", share.tenant, group=share.group)
            keys.yours[share.tenant] = await api.fresh_key(tenant["id"], "yours")
            keys.traffic[share.tenant] = await api.fresh_key(tenant["id"], "live traffic")
        made = await api.ensure("/models", model, max_in_flight=SLOTS)
        await api.point(made["id"], backend)
        return keys


class _Api:
    """The few operations the demo needs."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def ensure(self, path: str, name: str, **fields: Any) -> dict[str, Any]:
        """A resource of this name with these fields."""
        made = await self._client.post(path, json={"name": name, **fields})
        if made.status_code != httpx.codes.CONFLICT:
            return _checked(made)
        found = next(one for one in await self._all(path) if one["name"] == name)
        return _checked(await self._client.patch(f"{path}/{found.get('id', name)}", json=fields))

    async def fresh_key(self, tenant_id: str, name: str) -> str:
        """The secret of a tenant's key of this name: new, or rotated so that it is known."""
        for key in await self._all("/keys"):
            if key["tenant_id"] == tenant_id and key["name"] == name:
                rotated = _checked(await self._client.post(f"/keys/{key['id']}/rotate"))
                return str(rotated["secret"])
        made = _checked(await self._client.post(f"/tenants/{tenant_id}/keys", json={"name": name}))
        return str(made["secret"])

    async def point(self, model_id: str, url: str) -> None:
        """Have a model served by `url` alone."""
        path = f"/models/{model_id}/endpoints"
        for endpoint in await self._all(path):
            _checked(await self._client.delete(f"{path}/{endpoint['id']}"))
        _checked(await self._client.post(path, json={"url": url}))

    async def _all(self, path: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            page = _checked(
                await self._client.get(path, params={"cursor": cursor} if cursor else None)
            )
            items += page["items"]
            cursor = page["next_cursor"]
            if cursor is None:
                return items


def _checked(response: httpx.Response) -> dict[str, Any]:
    if response.is_error:
        where = f"{response.request.method} {response.request.url.path}"
        raise Failed(f"the Management API refused {where}: {response.text}")
    answer: dict[str, Any] = response.json() if response.content else {}
    return answer
