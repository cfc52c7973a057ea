"""What a replica answers on its operations listener."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
import pytest

from dataplane.metrics import Metrics, PoolFigures
from dataplane.ops import app as ops
from dataplane.ops.readiness import assess


@dataclass
class Replica:
    loaded: bool = True
    schema_problem: str | None = None
    is_draining: bool = False
    mode: str = "local"


@pytest.fixture
def replica() -> Replica:
    return Replica()


@pytest.fixture
async def client(replica: Replica) -> AsyncIterator[httpx.AsyncClient]:
    app = ops.build(
        assess=lambda: assess(replica, mode=replica.mode, is_draining=replica.is_draining),
        metrics=Metrics(
            is_registered=lambda name: True, pools=lambda: [PoolFigures("m1", 8, 1, 0, 0)]
        ),
    )
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://replica") as client:
        yield client


async def test_health_depends_on_nothing(replica: Replica, client: httpx.AsyncClient) -> None:
    replica.loaded, replica.is_draining = False, True
    answer = await client.get("/healthz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
    assert (await client.head("/healthz")).status_code == 200


async def test_a_replica_with_policy_is_ready_and_names_its_mode(
    client: httpx.AsyncClient,
) -> None:
    answer = await client.get("/readyz")
    assert answer.status_code == 200
    assert answer.json() == {"ready": True, "mode": "local", "problems": []}


async def test_a_replica_on_its_own_stays_ready(
    replica: Replica, client: httpx.AsyncClient
) -> None:
    replica.mode = "fallback"
    answer = await client.get("/readyz")
    assert (answer.status_code, answer.json()["mode"]) == (200, "fallback")


async def test_what_stands_in_the_way_is_said(replica: Replica, client: httpx.AsyncClient) -> None:
    replica.loaded, replica.is_draining = False, True
    replica.schema_problem = "the database's schema is newer than this build"
    answer = await client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json() == {
        "ready": False,
        "mode": "local",
        "problems": [
            "policy has not been loaded yet",
            "the database's schema is newer than this build",
            "shutting down",
        ],
    }
    assert (await client.head("/readyz")).status_code == 503


async def test_metrics_are_scraped_in_prometheus_text(client: httpx.AsyncClient) -> None:
    answer = await client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert 'obleth_pool_size{model="m1"} 8.0' in answer.text
    assert "process_resident_memory_bytes" in answer.text


@pytest.mark.parametrize("path", ["/", "/docs", "/openapi.json", "/v1/models"])
async def test_nothing_else_is_there(client: httpx.AsyncClient, path: str) -> None:
    assert (await client.get(path)).status_code == 404
