"""A client of the Management API as the tests use it, and what it is told of changes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx
from sqlalchemy import select

from controlplane.main import ControlPlane, build
from controlplane.settings import ControlPlaneSettings
from shared.database import Database
from shared.invalidation import Invalidation
from shared.tables import RevisionRow

ADMIN = "admin-token-of-the-tests"
VIEWER = "viewer-token-of-the-tests"
NO_SUCH_ID = "00000000-0000-7000-8000-000000000000"


class Told:
    """A publisher that keeps what it is told, and what others could read at that moment."""

    def __init__(self) -> None:
        self.changes: list[Invalidation] = []
        self.committed: list[int | None] = []
        self.database: Database | None = None

    async def publish(self, changes: Sequence[Invalidation]) -> None:
        self.changes += changes
        if self.database is not None:
            async with self.database.reading() as session:
                self.committed.append(await session.scalar(select(RevisionRow.value)))

    def taken(self) -> set[tuple[str, str]]:
        """Kind and id of what has been told since the last call."""
        taken = {(str(change.kind), change.id) for change in self.changes}
        self.changes.clear()
        return taken


class Api:
    """Calls the API of one control plane in this process."""

    def __init__(self, plane: ControlPlane, told: Told, token: str | None = ADMIN) -> None:
        self.plane = plane
        self.told = told
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(plane.app),
            base_url="http://gateway/api/v1",
            headers=headers,
        )

    async def call(
        self, method: str, path: str, body: Any = None, *, expect: int, **options: Any
    ) -> Any:
        """Send `body` (bytes as they are, all else as JSON); the answer's JSON, if any."""
        if isinstance(body, bytes):
            options["content"] = body
        elif body is not None:
            options["json"] = body
        answer = await self.client.request(method, path, **options)
        assert answer.status_code == expect, f"{answer.status_code} {answer.text}"
        if expect >= 400:
            assert answer.headers["content-type"] == "application/problem+json"
        return answer.json() if answer.content else None

    async def get(self, path: str, *, expect: int = 200, **options: Any) -> Any:
        return await self.call("GET", path, expect=expect, **options)

    async def post(self, path: str, body: Any = None, *, expect: int = 201, **options: Any) -> Any:
        return await self.call("POST", path, body, expect=expect, **options)

    async def patch(self, path: str, body: Any, *, expect: int = 200, **options: Any) -> Any:
        return await self.call("PATCH", path, body, expect=expect, **options)

    async def put(self, path: str, body: Any, *, expect: int = 200, **options: Any) -> Any:
        return await self.call("PUT", path, body, expect=expect, **options)

    async def delete(self, path: str, *, expect: int = 204, **options: Any) -> Any:
        return await self.call("DELETE", path, expect=expect, **options)

    async def group(self, name: str = "research", **fields: Any) -> Any:
        return await self.post("/groups", {"name": name, **fields})

    async def tenant(self, name: str = "acme", **fields: Any) -> Any:
        return await self.post("/tenants", {"name": name, **fields})

    async def key(self, tenant_id: str, name: str = "laptop", **fields: Any) -> Any:
        return await self.post(f"/tenants/{tenant_id}/keys", {"name": name, **fields})

    async def model(self, name: str = "llama", **fields: Any) -> Any:
        return await self.post("/models", {"name": name, **fields})

    async def endpoint(self, model_id: str, url: str = "http://10.0.0.1/v1", **fields: Any) -> Any:
        return await self.post(f"/models/{model_id}/endpoints", {"url": url, **fields})

    async def items(self, path: str, **params: Any) -> list[Any]:
        """The items of a list's first page."""
        found: list[Any] = (await self.get(path, params=params))["items"]
        return found

    async def everything(self) -> list[Any]:
        """All policy and the whole audit log, to tell whether anything was stored."""
        found = [
            (await self.get(path))
            for path in ("/groups", "/tenants", "/keys", "/models/export", "/audit")
        ]
        async with self.plane.database.reading() as session:
            found.append(await session.scalar(select(RevisionRow.value)))
        return found

    async def close(self) -> None:
        await self.client.aclose()


def plane(database_url: str, told: Told, **settings: Any) -> ControlPlane:
    """A control plane over a database that has the schema; it is to be stopped."""
    return build(
        ControlPlaneSettings(
            database_url=database_url,
            **{"admin_token": ADMIN, "viewer_token": VIEWER, **settings},
        ),
        publisher=told,
    )


def fields(problem: Any) -> set[str]:
    """The fields that a problem names."""
    return {error["field"] for error in problem["errors"]}


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def raw(**given: str) -> bytes:
    """An object with values written as they stand, also such as no JSON library writes."""
    return ("{" + ", ".join(f"{json.dumps(k)}: {v}" for k, v in given.items()) + "}").encode()
