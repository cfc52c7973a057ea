"""What several workers tell Prometheus, added up: each request once, whatever it asked for."""

from __future__ import annotations

import asyncio
import random
import socket
from collections import Counter
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from obleth.backend import SimulatedBackend
from tests.e2e.processes import START_SECS, Process
from tests.redis_server import server

WORKERS = 2
REQUESTS = 60
JUNK = 300
ADMIN = "admin-token-of-the-tests"


async def test_the_sum_over_workers_listeners_is_right(tmp_path: Path, postgres_url: str) -> None:
    proxy, first, admin = await asyncio.to_thread(_free_ports)
    async with server(tmp_path) as redis, SimulatedBackend() as backend:
        environment = {
            "OBLETH_DATABASE_URL": postgres_url,
            "OBLETH_REDIS_URL": redis.url,
            "OBLETH_ADMIN_TOKEN": ADMIN,
            "OBLETH_FAIRSHARE_REPLICA_HEARTBEAT_SECS": "0.3",
            "OBLETH_FAIRSHARE_REPLICA_TTL_SECS": "5",
            "OBLETH_PROXY_LISTEN": f"127.0.0.1:{proxy}",
            "OBLETH_METRICS_LISTEN": f"127.0.0.1:{first}",
            "OBLETH_ADMIN_LISTEN": f"127.0.0.1:{admin}",
        }
        limits = httpx.Limits(max_keepalive_connections=0)
        folder = tmp_path / "workers"
        folder.mkdir()
        with Process("controlplane", folder=folder, **environment):
            api, client, *listeners = (
                httpx.AsyncClient(
                    base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60, limits=limits
                )
                for port in (admin, proxy, first, first + 1)
            )
            api.headers["authorization"] = f"Bearer {ADMIN}"
            await _answers(api, "/api/v1/health")
            key = await _policy(api, backend.url)
            with Process("dataplane", "--workers", str(WORKERS), folder=folder, **environment):
                for listener in listeners:
                    await _answers(listener, "/readyz")
                await _shared(listeners)
                headers = {"authorization": f"Bearer {key}"}
                names = random.Random(1)
                models = ["m"] * REQUESTS + [names.randbytes(9).hex() for _ in range(JUNK)]
                await asyncio.gather(
                    *(
                        client.post(
                            "/v1/chat/completions",
                            headers=headers,
                            json={
                                "model": model,
                                "max_tokens": 2,
                                "messages": [{"role": "user", "content": "Hello"}],
                            },
                        )
                        for model in models
                    )
                )
                sums = await _sums(listeners)
            for each in (api, client, *listeners):
                await each.aclose()
    ran = len(backend.log)
    assert ran == REQUESTS
    assert sums["obleth_requests_total", "m", "200"] == ran
    assert sums["obleth_requests_total", "(unrouted)", "404"] == JUNK
    assert sums[("obleth_request_seconds_count", "m")] == ran
    assert sums["obleth_upstream_attempts_total", "m", "answered"] == ran
    assert sums["obleth_slot_calls_total", "claim", "answered"] > 0
    assert sums[("obleth_in_flight", "m")] == sums[("obleth_queue_depth", "m")] == 0
    assert {labels[1] for labels in sums if labels[0] == "obleth_requests_total"} == {
        "m",
        "(unrouted)",
    }


async def _policy(api: httpx.AsyncClient, upstream: str) -> str:
    """One model and one tenant; its key."""

    async def make(path: str, **fields: object) -> dict[str, str]:
        answer = await api.post(f"/api/v1{path}", json=fields)
        assert answer.status_code == 201, answer.text
        made: dict[str, str] = answer.json()
        return made

    model = await make("/models", name="m", max_in_flight=4)
    await make(f"/models/{model['id']}/endpoints", url=upstream)
    tenant = await make("/tenants", name="t")
    return (await make(f"/tenants/{tenant['id']}/keys", name="k"))["secret"]


async def _sums(listeners: list[httpx.AsyncClient]) -> Counter[tuple[str, ...]]:
    """Samples by name, and by the labels that tell them apart here, summed over the listeners."""
    sums: Counter[tuple[str, ...]] = Counter()
    for listener in listeners:
        text = (await listener.get("/metrics")).text
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                told = ("model", "script", "status", "outcome")
                labels = tuple(sample.labels[name] for name in told if name in sample.labels)
                sums[(sample.name, *labels)] += int(sample.value)
    return sums


async def _shared(listeners: list[httpx.AsyncClient]) -> None:
    async with asyncio.timeout(START_SECS):
        for listener in listeners:
            while True:
                if (await listener.get("/readyz")).json()["mode"] == "shared":
                    break
                await asyncio.sleep(0.05)


async def _answers(client: httpx.AsyncClient, path: str) -> None:
    async with asyncio.timeout(START_SECS):
        while True:
            try:
                if (await client.get(path)).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.05)


def _free_ports() -> tuple[int, int, int]:
    """Three ports, the second with the one after it free too."""
    while True:
        with socket.socket() as one, socket.socket() as two, socket.socket() as three:
            for probe in (one, two, three):
                probe.bind(("127.0.0.1", 0))
            port = two.getsockname()[1]
            with socket.socket() as next_one:
                try:
                    next_one.bind(("127.0.0.1", port + 1))
                except OSError:
                    continue
                return one.getsockname()[1], port, three.getsockname()[1]
