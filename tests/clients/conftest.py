"""One product for all clients of a module: a simulated backend behind it, and an odd one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.clients.table import Shop
from tests.clients.upstream import FLAKY, TOOLS, upstream
from tests.embedded.conftest import started


@pytest.fixture(scope="module")
def database_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite+aiosqlite:///{tmp_path_factory.mktemp('shop') / 'policy.db'}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shop(database_url: str) -> AsyncIterator[Shop]:
    async with started(database_url=database_url) as product, upstream() as odd:
        await product.model("sim")
        for name in (TOOLS, FLAKY):
            model = await product.make("/models", name=name, max_retries=0)
            await product.make(f"/models/{model['id']}/endpoints", url=odd.url)
        _, key = await product.tenant("clients")
        yield Shop(product, key)
