"""Client × feature, for the clients that are at hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.sdks import Anthropic, OpenAI, OpenAIResponses
from tests.clients.shaped import ClaudeCode, Codex, OpenCode
from tests.clients.table import FEATURES, TEXT, Shop, check
from tests.embedded.conftest import Product, started

pytestmark = pytest.mark.asyncio(loop_scope="module")

CLIENTS: list[Callable[[Shop], Any]] = [
    OpenAI,
    OpenAIResponses,
    Anthropic,
    ClaudeCode,
    Codex,
    OpenCode,
]


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__)
async def test_a_client_can(client: Callable[[Shop], Any], feature: str, shop: Shop) -> None:
    made = client(shop)
    async with made.client:
        check(feature, await getattr(made, feature)())


async def test_sdks_come_back_when_the_gateway_says_so(sqlite_url: str) -> None:
    """Nobody is served within the time a request may wait, so it is refused, and tried again."""
    async with started(database_url=sqlite_url, admission_timeout_secs=0.05) as product:
        await product.model("sim", max_in_flight=1)
        _, key = await product.tenant("t")
        full = Shop(product, key)
        slow = {"headers": {"x-sim-token-ms": "600000"}, "stream": True}
        holding = asyncio.create_task(product.ask(key, "sim", **slow))
        await product.backend.until(lambda: product.backend.running("sim") == 1)
        refused = await product.ask(key, "sim")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        clients = [OpenAI(full), Anthropic(full)]
        asking = [asyncio.create_task(client.plain()) for client in clients]
        while await refusals(product) < 3:
            pass
        holding.cancel()
        assert await asyncio.gather(*asking) == [TEXT, TEXT]
        for client in clients:
            await client.client.close()


async def refusals(product: Product) -> int:
    text = (await product.operations.get("/metrics")).text
    wanted = 'obleth_requests_total{admission="rejected",model="sim",status="503"} '
    found = [line for line in text.splitlines() if line.startswith(wanted)]
    return int(float(found[0].removeprefix(wanted))) if found else 0
