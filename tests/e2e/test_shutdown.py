"""SIGTERM takes nothing from those who are being served, and tells those who wait."""

import asyncio
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.processes import Demo

SLOTS = 8
BODY: dict[str, Any] = {
    "model": "demo-model",
    "stream": True,
    "max_tokens": 60,
    "messages": [{"role": "user", "content": "Hello"}],
}


async def test_sigterm_ends_the_queue_with_503_and_lets_streams_end(tmp_path: Path) -> None:
    with Demo("--no-traffic", folder=tmp_path, OBLETH_SHUTDOWN_GRACE_SECS="30") as demo:
        demo.await_ready()
        headers = {"authorization": f"Bearer {demo.key('chatbot')}"}
        async with httpx.AsyncClient(
            base_url=demo.gateway, headers=headers, trust_env=False, timeout=60
        ) as client:
            streaming = [asyncio.Event() for _ in range(SLOTS)]
            served = [asyncio.create_task(_stream(client, event)) for event in streaming]
            await asyncio.gather(*(event.wait() for event in streaming))
            queued = asyncio.create_task(client.post("/v1/chat/completions", json=BODY))
            await _until_queued(demo)
            demo.terminate()
            refused = await queued
            bodies = await asyncio.gather(*served)
        assert demo.exit_code() == 0
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "1"
    assert refused.json()["error"]["code"] == "shutting_down"
    assert [body.count(b"data: [DONE]") for body in bodies] == [1] * SLOTS
    assert [body.count(b'"error"') for body in bodies] == [0] * SLOTS


async def test_a_stream_longer_than_the_grace_ends_with_an_error_event(tmp_path: Path) -> None:
    with Demo("--no-traffic", folder=tmp_path, OBLETH_SHUTDOWN_GRACE_SECS="0") as demo:
        demo.await_ready()
        headers = {"authorization": f"Bearer {demo.key('chatbot')}"}
        async with httpx.AsyncClient(
            base_url=demo.gateway, headers=headers, trust_env=False, timeout=60
        ) as client:
            body = b""
            try:
                async with client.stream("POST", "/v1/chat/completions", json=BODY) as answer:
                    async for chunk in answer.aiter_raw():
                        if not body:
                            demo.terminate()
                        body += chunk
            except httpx.RemoteProtocolError:
                pass  # the connection is cut after the event, so that nobody takes it for the end
        assert demo.exit_code() == 0
    assert b"shutting_down" in body
    assert b"[DONE]" not in body


async def _stream(client: httpx.AsyncClient, streaming: asyncio.Event) -> bytes:
    body = b""
    async with client.stream("POST", "/v1/chat/completions", json=BODY) as answer:
        async for chunk in answer.aiter_raw():
            body += chunk
            streaming.set()
    return body


async def _until_queued(demo: Demo) -> None:
    metrics = demo.find(r"^  metrics +(\S+)$")
    async with httpx.AsyncClient(trust_env=False) as client:
        while True:
            text = (await client.get(metrics)).text
            if 'obleth_queue_depth{model="demo-model"} 1.0' in text:
                return
            await asyncio.sleep(0.05)
