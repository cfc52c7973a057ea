"""The embedded product inside the test's loop: all listeners, a simulated backend, the API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
import pytest

from obleth import server
from obleth.backend import SimulatedBackend
from obleth.embedded import Sockets, embedded_service
from obleth.service import Service
from obleth.settings import EmbeddedSettings
from shared.settings import ListenAddress, load

TOKEN = "admin-token-of-the-tests"
FREE_PORT = ListenAddress("127.0.0.1", 0)


@dataclass
class Product:
    """A running product, as an operator and a client see it."""

    service: Service
    backend: SimulatedBackend
    api: httpx.AsyncClient
    client: httpx.AsyncClient
    operations: httpx.AsyncClient

    async def make(self, path: str, **fields: Any) -> dict[str, Any]:
        answer = await self.api.post(path, json=fields)
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()
        return made

    async def model(self, name: str, **fields: Any) -> dict[str, Any]:
        """A model served by the backend."""
        made = await self.make("/models", name=name, **fields)
        await self.make(f"/models/{made['id']}/endpoints", url=self.backend.url)
        return made

    async def tenant(self, name: str, **fields: Any) -> tuple[dict[str, Any], str]:
        """A tenant, and the secret of its key."""
        made = await self.make("/tenants", name=name, **fields)
        key = await self.make(f"/tenants/{made['id']}/keys", name="main")
        return made, str(key["secret"])

    async def ask(self, key: str, model: str, **fields: Any) -> httpx.Response:
        return await self.client.post(
            "/v1/chat/completions",
            headers={"authorization": f"Bearer {key}", **fields.pop("headers", {})},
            json={
                "model": model,
                "messages": [{"role": "user", "content": "Hello"}],
                "max_tokens": 1,
                **fields,
            },
        )

    async def queued(self, number: int) -> None:
        """Returns when so many requests wait for a slot."""
        while True:
            text = (await self.operations.get("/metrics")).text
            depths = [line for line in text.splitlines() if line.startswith("obleth_queue_depth{")]
            if sum(float(line.rpartition(" ")[2]) for line in depths) == number:
                return


Starting = Callable[..., AbstractAsyncContextManager[Product]]


@asynccontextmanager
async def started(**settings: Any) -> AsyncIterator[Product]:
    """A product under the given settings, `database_url` among them, as a block."""
    chosen = load(
        EmbeddedSettings,
        **{
            "admin_token": TOKEN,
            "policy_poll_secs": 3600,  # changes must not need it
            "shutdown_grace_secs": 5,
            **settings,
        },
    )
    sockets = Sockets(*(server.bind(FREE_PORT, "-") for _ in range(3)))
    service = embedded_service(chosen, sockets)
    async with SimulatedBackend() as backend:
        await service.start()
        try:
            async with (
                _client(f"http://{sockets.admin_address}/api/v1", TOKEN) as api,
                _client(f"http://{sockets.proxy_address}") as client,
                _client(f"http://{sockets.metrics_address}") as operations,
            ):
                yield Product(service, backend, api, client, operations)
        finally:
            await service.stop()


@pytest.fixture
def starting(sqlite_url: str) -> Starting:
    """A product under the given settings, as a block."""
    return partial(started, database_url=sqlite_url)


def _client(base_url: str, token: str | None = None) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    return httpx.AsyncClient(base_url=base_url, headers=headers, trust_env=False, timeout=30)


@pytest.fixture
async def product(starting: Starting) -> AsyncIterator[Product]:
    async with starting() as running:
        yield running
