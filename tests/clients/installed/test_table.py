"""Client × feature, for clients that are installed beside the project: run by `make clients`."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.clients.table import ABSENT, FEATURES, PROMPT, TOKENS, TOOL, Shop, check

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

HERE = Path(__file__).parent
PYTHON = str(HERE.parents[2] / ".venv-clients" / "bin" / "python")
CLIENTS = {
    "openai for Node": ["node", "openai_node.mjs"],
    "LangChain": [PYTHON, "langchain_client.py"],
    "LiteLLM": [PYTHON, "litellm_client.py"],
}
OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false"}
"""No client is to call anybody but the gateway."""
told: dict[str, Any] = {}
"""What each client was told, by its name: it runs once, for all its features."""


async def run(client: str, shop: Shop) -> Any:
    given = {"prompt": PROMPT, "tokens": TOKENS, "tool": TOOL, "absent": ABSENT}
    process = await asyncio.create_subprocess_exec(
        *CLIENTS[client],
        shop.url,
        shop.key,
        json.dumps(given),
        cwd=HERE,
        env={**os.environ, **OFFLINE},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return json.loads(out)


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_client_can(client: str, feature: str, shop: Shop) -> None:
    if client not in told:
        told[client] = await run(client, shop)
    check(feature, told[client][feature])
