"""The embedded product, for browsers."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from obleth import server
from obleth.backend import SimulatedBackend
from obleth.backend.switches import TENANT_HEADER
from obleth.embedded import Sockets, embedded_service
from obleth.settings import EmbeddedSettings
from shared.settings import ListenAddress, load
from tests.dashboard.background import Background

ADMIN = "admin-token-of-the-tests"
VIEWER = "viewer-token-of-the-tests"


class Product(Background):
    """A running product: `url` of the dashboard, `api` to set things up, requests that hang."""

    def __init__(self, database_url: str, **settings: Any) -> None:
        super().__init__()
        self.database_url = database_url
        self._settings = load(
            EmbeddedSettings,
            **{
                "database_url": database_url,
                "admin_token": ADMIN,
                "viewer_token": VIEWER,
                "shutdown_grace_secs": 0.1,
                **settings,
            },
        )
        self._asked: list[asyncio.Task[httpx.Response]] = []

    def make(self, path: str, **fields: Any) -> dict[str, Any]:
        answer = self.api.post(path, json=fields)
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()
        return made

    def get(self, path: str) -> dict[str, Any]:
        answer = self.api.get(path)
        assert answer.is_success, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def model(self, name: str, **fields: Any) -> dict[str, Any]:
        """A model served by the backend."""
        made = self.make("/models", name=name, **fields)
        self.make(f"/models/{made['id']}/endpoints", url=self.backend.url)
        return made

    def tenant(self, name: str, **fields: Any) -> tuple[dict[str, Any], str]:
        """A tenant, and the secret of its key."""
        made = self.make("/tenants", name=name, **fields)
        return made, str(self.make(f"/tenants/{made['id']}/keys", name="main")["secret"])

    def ask(self, number: int, tenant: str, key: str, model: str) -> None:
        """Send requests that never end, and return once the product counts all it was sent."""

        async def ask() -> None:
            for _ in range(number):
                self._asked.append(asyncio.create_task(self._ask(tenant, key, model)))

        self.run(ask())
        while True:
            live = self.get("/fairshare/live")
            if live["in_flight"] + live["queued"] >= len(self._asked):
                return

    def step(self, tenant: str, key: str, model: str, *, session: str) -> None:
        """One step of a session, from its request to the end of its answer."""
        headers = {"x-obleth-session-id": session, "x-sim-head-delay-ms": "0"}
        answer = self.run(self._ask(tenant, key, model, **headers))
        assert answer.is_success, answer.text

    def runs(self, model: str) -> dict[str, int]:
        """What the backend says it runs, by tenant."""
        found: dict[str, int] = {}
        for record in self.backend.log:
            if record.model == model and record.outcome is None:
                name = record.header(TENANT_HEADER) or ""
                found[name] = found.get(name, 0) + 1
        return found

    def until_runs(self, model: str, number: int) -> None:
        self.run(self.backend.until(lambda: sum(self.runs(model).values()) == number))

    async def _ask(self, tenant: str, key: str, model: str, **headers: str) -> httpx.Response:
        return await self._client.post(
            "/v1/chat/completions",
            headers={
                "authorization": f"Bearer {key}",
                TENANT_HEADER: tenant,
                "x-sim-head-delay-ms": "600000",
                **headers,
            },
            json={"model": model, "messages": [{"role": "user", "content": "Hello"}]},
        )

    async def start(self) -> None:
        free = ListenAddress("127.0.0.1", 0)
        sockets = Sockets(*(server.bind(free, "-") for _ in range(3)))
        service = embedded_service(self._settings, sockets)
        self.backend = await self.stack.enter_async_context(SimulatedBackend())
        await service.start()
        self.stack.push_async_callback(service.stop)
        self.url = f"http://{sockets.admin_address}"
        self._client = await self.stack.enter_async_context(
            httpx.AsyncClient(
                base_url=f"http://{sockets.proxy_address}",
                trust_env=False,
                timeout=600,
                limits=httpx.Limits(max_connections=None),
            )
        )
        self.api = httpx.Client(
            base_url=f"{self.url}/api/v1",
            headers={"authorization": f"Bearer {ADMIN}"},
            trust_env=False,
            timeout=30,
        )
        self.stack.callback(self.api.close)
        self.stack.push_async_callback(self._cancel)

    async def _cancel(self) -> None:
        for task in self._asked:
            task.cancel()
        await asyncio.gather(*self._asked, return_exceptions=True)
