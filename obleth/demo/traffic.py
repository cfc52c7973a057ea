"""Live traffic for the demo: each tenant's clients ask again as soon as they are answered."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

import httpx
import structlog

from obleth.backend.switches import TENANT_HEADER
from obleth.demo.set_up import SHARES

REPORT_SECS: Final = 10.0
WARM_UP_SECS: Final = 3.0
"""Whoever came first found the pool empty; that says nothing about shares and is not counted."""
PAUSE_SECS: Final = 1.0
"""After a refusal or a failure."""
REPLY_TOKENS: Final = (15, 45)
TOPICS: Final = ("slots", "queues", "weights", "tenants", "streams", "budgets", "sessions")

log = structlog.get_logger(__name__)


class Traffic:
    """A block during which the demo's tenants are busy. Says every ten seconds who was served."""

    def __init__(self, gateway: str, model: str, keys: Mapping[str, str]) -> None:
        self._model = model
        self._keys = keys
        self._served: Counter[str] = Counter()
        self._served_lately: Counter[str] = Counter()
        self._client = httpx.AsyncClient(
            base_url=gateway,
            trust_env=False,
            timeout=httpx.Timeout(300, connect=5),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        )
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        for share in SHARES:
            for number in range(share.clients):
                self._tasks.append(asyncio.create_task(self._ask_for_ever(share.tenant, number)))
        self._tasks.append(asyncio.create_task(self._report_for_ever()))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.aclose()

    async def _ask_for_ever(self, tenant: str, number: int) -> None:
        while True:
            try:
                await self._ask(tenant, number)
                self._served[tenant] += 1
                self._served_lately[tenant] += 1
            except httpx.HTTPError as failure:
                log.debug("demo_request_failed", tenant=tenant, error=repr(failure))
                await asyncio.sleep(PAUSE_SECS)

    async def _ask(self, tenant: str, number: int) -> None:
        topic = random.choice(TOPICS)  # noqa: S311 - variety, not secrecy
        body = {
            "model": self._model,
            "stream": True,
            "max_tokens": random.randint(*REPLY_TOKENS),  # noqa: S311
            "messages": [
                {"role": "system", "content": f"You answer questions for {tenant}."},
                {"role": "user", "content": f"Client {number} asks about {topic}."},
            ],
        }
        headers = {"Authorization": f"Bearer {self._keys[tenant]}", TENANT_HEADER: tenant}
        async with self._client.stream(
            "POST", "/v1/chat/completions", json=body, headers=headers
        ) as response:
            response.raise_for_status()
            async for _ in response.aiter_raw():
                pass

    async def _report_for_ever(self) -> None:
        await asyncio.sleep(WARM_UP_SECS)
        self._served.clear()
        self._served_lately.clear()
        while True:
            await asyncio.sleep(REPORT_SECS)
            lately, self._served_lately = self._served_lately, Counter()
            parts = ", ".join(f"{share.tenant} {lately[share.tenant]}" for share in SHARES)
            ratio = self._served[SHARES[0].tenant] / max(1, self._served[SHARES[1].tenant])
            print(
                f"requests served in the last {REPORT_SECS:.0f} s: {parts};"
                f" since the start {ratio:.1f} : 1",
                flush=True,
            )
