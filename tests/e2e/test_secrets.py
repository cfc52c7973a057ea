"""What is secret, and what requests say, is in no log, figure, table, key or live picture."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.fernet import Fernet

from shared import redis as shared_redis
from tests import redis_server
from tests.e2e.processes import Process
from tests.proxy.serving import Peer, Upstream, upstream

ADMIN, VIEWER, INTERNAL = "canary-admin", "canary-viewer", "canary-internal"
ENDPOINT_KEY, PEPPER, PROMPT, SESSION = (
    f"canary-{name}" for name in ("endpoint-key", "pepper", "prompt", "session")
)
SEALING = Fernet.generate_key().decode()


@pytest.fixture
async def redis(tmp_path: Path) -> AsyncIterator[redis_server.Server]:
    async with redis_server.server(tmp_path) as own:
        yield own


async def _echo(_: Upstream, peer: Peer) -> None:
    """Refuses the endpoint's key and repeats it, as some upstreams do; breaks off a stream."""
    while True:
        asked = await peer.request()
        if not asked.body:  # a check whether the endpoint is there
            await peer.answer(b"{}")
            continue
        told = f"bad key {asked.header('authorization')}: {asked.body.decode()}"
        if asked.json.get("stream"):
            await peer.start_stream()
            await peer.chunk(f"data: {json.dumps({'choices': [], 'told': told})}\n\n".encode())
            peer.reset()
            return
        await peer.answer(json.dumps({"error": told}).encode(), "401 Unauthorized")


async def _ask_in_every_wrong_way(client: httpx.AsyncClient, key: str, poor: str) -> list[int]:
    """Keys and a prompt wherever they may come to stand, and answers that repeat them."""
    headers = {"authorization": f"Bearer {key}", "x-obleth-session-id": SESSION}
    chat = {"model": "m", "messages": [{"role": "user", "content": PROMPT}], "user": key}
    wrong_key = {**headers, "authorization": f"Bearer {key}0"}
    sent: list[dict[str, Any]] = [
        {"json": chat},
        {"json": {**chat, "stream": True}},
        {"json": chat, "params": {"key": key, "prompt": PROMPT}},
        {"json": {**chat, "model": "m", "metadata": {"session_id": SESSION, "key": key}}},
        {"content": f'{{"model": "m", "{key}": "{PROMPT}'.encode()},
        {"json": chat, "headers": {**headers, "authorization": f"Bearer {poor}"}},
        {"json": chat, "headers": wrong_key},
        {"json": chat, "headers": {**headers, "x-api-key": f"{key}1"}},
        {"json": chat, "headers": {**headers, "x-request-id": f"of {key}"}},
    ]
    statuses = []
    for each in sent:
        try:
            answer = await client.post("/v1/chat/completions", **{"headers": headers, **each})
            statuses.append(answer.status_code)
        except httpx.RemoteProtocolError:
            statuses.append(0)  # the stream that broke off
    await client.get(f"/v1/{key}", headers=headers)
    return statuses


async def _everything_kept(redis_url: str) -> str:
    """All keys of Redis with what is in them."""
    kept = []
    async with shared_redis.client(redis_url) as redis:
        async for name in redis.scan_iter():
            kept.append(str(name))
            match await redis.type(name):
                case "string":
                    kept.append(str(await redis.get(name)))
                case "hash":
                    kept.append(repr(await redis.hgetall(name)))
                case "zset":
                    kept.append(repr(await redis.zrange(name, 0, -1)))
    return "\n".join(kept)


async def test_no_secret_and_no_text_of_a_request_is_kept_or_told_anywhere(
    tmp_path: Path, redis: redis_server.Server
) -> None:
    environment = {
        "OBLETH_ADMIN_TOKEN": ADMIN,
        "OBLETH_VIEWER_TOKEN": VIEWER,
        "OBLETH_INTERNAL_TOKEN": INTERNAL,
        "OBLETH_API_KEY_PEPPER": PEPPER,
        "OBLETH_ENCRYPTION_KEY": SEALING,
        "OBLETH_REDIS_URL": redis.url,
        "OBLETH_REDIS_RESPONSE_TIMEOUT_MS": "5000",
        "OBLETH_FAIRSHARE_SESSION_AFFINITY": "true",
        "OBLETH_LOG_FORMAT": "json",
        "OBLETH_LOG_LEVEL": "debug",
    }
    async with upstream(_echo) as up:
        with Process("serve", folder=tmp_path, **environment) as serve:
            listening = await serve.said(r'"listening": \[([^\]]+)\]')
            proxy, admin, metrics = (f"http://{each}" for each in json.loads(f"[{listening}]"))
            async with (
                httpx.AsyncClient(
                    base_url=f"{admin}/api/v1/",
                    headers={"authorization": f"Bearer {ADMIN}"},
                    trust_env=False,
                ) as api,
                httpx.AsyncClient(base_url=proxy, trust_env=False, timeout=30) as client,
            ):
                keys = await _policy(api, up.url)
                statuses = await _ask_in_every_wrong_way(client, *keys)
                assert statuses == [401, 0, 401, 401, 400, 403, 401, 401, 401]
                told = await _everything_told(api, client, metrics)
                told += await _everything_kept(redis.url)
            serve.terminate()
            assert serve.exit_code() == 0
            told += serve.errors() + "\n".join(serve.lines)
    told += await asyncio.to_thread(_files, tmp_path)
    secrets = (ADMIN, VIEWER, INTERNAL, ENDPOINT_KEY, PEPPER, PROMPT, SESSION, SEALING, *keys)
    assert "upstream_broke_off" in told
    assert [each for each in secrets if each in told] == []


def _files(folder: Path) -> str:
    """The database."""
    found = [path.read_bytes() for path in folder.glob("obleth.db*")]
    assert found
    return b"".join(found).decode("latin-1")


async def _policy(api: httpx.AsyncClient, url: str) -> list[str]:
    """A model, and the secrets of a key with a budget and of one with next to none."""
    model = (await api.post("models", json={"name": "m", "max_retries": 0})).json()
    endpoint = {"url": url, "api_key": ENDPOINT_KEY}
    assert (await api.post(f"models/{model['id']}/endpoints", json=endpoint)).is_success
    tenant = {"name": "t", "tokens_per_minute": 1_000_000}
    tenant = (await api.post("tenants", json=tenant)).json()
    path = f"tenants/{tenant['id']}/keys"
    made = [
        await api.post(path, json={"name": name, "budget_tokens": budget})
        for name, budget in (("k", 1_000_000), ("poor", 1))
    ]
    return [str(answer.json()["secret"]) for answer in made]


async def _everything_told(api: httpx.AsyncClient, client: httpx.AsyncClient, metrics: str) -> str:
    """What every other reader is given, once the usage of the last request is there."""
    for _ in range(1000):
        if len((await api.get("usage/requests")).json()["items"]) >= 5:
            break
        await asyncio.sleep(0.05)
    of_policy = ["audit", "settings", "keys", "models/export"]
    paths = ["usage", "usage/requests", "fairshare/live", "replicas", *of_policy]
    answers = [await api.get(path) for path in paths]
    answers.append(await client.get(f"{metrics}/metrics"))
    assert [answer.status_code for answer in answers] == [200] * len(answers)
    return "\n".join(answer.text for answer in answers)
