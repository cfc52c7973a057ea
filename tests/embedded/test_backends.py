"""Endpoints and capacity as an operator and a client see them, over the API and real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from obleth.backend import SimulatedBackend
from tests.embedded.conftest import Product, Starting
from tests.redis_server import server

OFTEN: dict[str, Any] = {
    "endpoint_health_secs": 0.1,
    "capacity_discovery_interval_secs": 3600,  # what changes must not need it
}


@pytest.fixture
async def product(starting: Starting, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Product]:
    """A product that checks endpoints often, and lets them come back soon."""
    monkeypatch.setattr("dataplane.discovery.health.REST_SECS", 0.1)
    async with starting(**OFTEN) as running:
        yield running


async def until_health(product: Product, model: dict[str, Any], *wanted: str) -> None:
    """Returns when the API shows a model's endpoints, in the order they were made, like this."""
    async with asyncio.timeout(20):
        while True:
            listed = (await product.api.get(f"/models/{model['id']}/endpoints")).json()["items"]
            if [each["health"] for each in listed] == list(wanted):
                return


async def until_size(product: Product, size: int) -> None:
    async with asyncio.timeout(20):
        while True:
            text = (await product.operations.get("/metrics")).text
            if f'obleth_pool_size{{model="m"}} {size}.0' in text:
                return


async def two_endpoints(product: Product, other: SimulatedBackend, **fields: Any) -> dict[str, Any]:
    """A model served by both backends; the product's own goes first."""
    model = await product.model("m", **fields)
    await product.make(f"/models/{model['id']}/endpoints", url=other.url, priority=1)
    return model


async def test_the_api_tells_how_endpoints_are(product: Product) -> None:
    async with SimulatedBackend() as other:
        model = await two_endpoints(product, other)
        await until_health(product, model, "healthy", "healthy")
        await other.stop_listening()
        other.drop_connections()
        await until_health(product, model, "healthy", "unhealthy")
        metrics = (await product.operations.get("/metrics")).text
        assert 'obleth_endpoints{health="unhealthy",model="m"} 1.0' in metrics
        await other.listen_again()
        await until_health(product, model, "healthy", "healthy")


async def test_with_redis_the_api_tells_what_replicas_publish_there(
    starting: Starting, tmp_path: Path
) -> None:
    async with server(tmp_path) as redis, starting(redis_url=redis.url, **OFTEN) as product:
        model = await product.model("m")
        await until_health(product, model, "healthy")
        await product.backend.stop_listening()
        product.backend.drop_connections()
        await until_health(product, model, "unhealthy")


async def test_an_endpoint_that_is_switched_off_or_moved_is_unknown(product: Product) -> None:
    model = await product.model("m")
    await until_health(product, model, "healthy")
    (one,) = (await product.api.get(f"/models/{model['id']}/endpoints")).json()["items"]
    path = f"/models/{model['id']}/endpoints/{one['id']}"
    assert (await product.api.patch(path, json={"enabled": False})).json()["health"] == "unknown"
    moved = await product.api.patch(path, json={"enabled": True, "url": "http://127.0.0.1:1/v1"})
    assert moved.json()["health"] != "healthy"
    await until_health(product, model, "unhealthy")


async def test_no_request_pays_for_an_endpoint_that_is_known_to_be_down(product: Product) -> None:
    async with SimulatedBackend() as other:
        model = await two_endpoints(product, other, max_retries=0)
        _, key = await product.tenant("t")
        await product.backend.stop_listening()
        product.backend.drop_connections()
        await until_health(product, model, "unhealthy", "healthy")
        answers = [await product.ask(key, "m") for _ in range(5)]
        assert [answer.status_code for answer in answers] == [200] * 5
        assert len(other.log) == 5
        await product.backend.listen_again()
        await until_health(product, model, "healthy", "healthy")
        assert (await product.ask(key, "m")).status_code == 200
        assert len(other.log) == 5


async def test_requests_find_out_before_any_check_and_move_to_another_endpoint(
    starting: Starting,
) -> None:
    async with starting() as product, SimulatedBackend() as other:
        model = await two_endpoints(product, other, max_retries=1)
        _, key = await product.tenant("t")
        await until_health(product, model, "healthy", "healthy")
        await product.backend.stop_listening()
        product.backend.drop_connections()
        answers = [await product.ask(key, "m") for _ in range(5)]
        assert [answer.status_code for answer in answers] == [200] * 5
        await until_health(product, model, "unhealthy", "healthy")


async def test_with_no_healthy_endpoint_requests_are_tried_all_the_same(product: Product) -> None:
    model = await product.model("m", max_retries=0)
    _, key = await product.tenant("t")
    await product.backend.stop_listening()
    product.backend.drop_connections()
    await until_health(product, model, "unhealthy")
    assert (await product.ask(key, "m")).status_code == 502
    await product.backend.listen_again()
    assert (await product.ask(key, "m")).status_code == 200


async def test_a_pool_has_the_slots_of_the_endpoints_that_are_healthy(product: Product) -> None:
    capacity = {
        "mode": "discovered",
        "source": "endpoints",
        "per_replica_max_in_flight": 2,
        "headroom": 1.5,
    }
    async with SimulatedBackend() as other:
        model = await two_endpoints(product, other, capacity=capacity)
        _, key = await product.tenant("t")
        await until_health(product, model, "healthy", "healthy")
        assert (await product.ask(key, "m")).status_code == 200
        await until_size(product, 6)
        await other.stop_listening()
        other.drop_connections()
        await until_health(product, model, "healthy", "unhealthy")
        await until_size(product, 3)


async def test_an_endpoint_gets_no_more_than_its_cap_when_the_other_is_down(
    product: Product,
) -> None:
    async with SimulatedBackend() as other:
        model = await product.make("/models", name="m", max_in_flight=8, max_retries=0)
        for url in (other.url, product.backend.url):
            await product.make(f"/models/{model['id']}/endpoints", url=url, max_in_flight=2)
        _, key = await product.tenant("t")
        await until_health(product, model, "healthy", "healthy")
        assert (await product.ask(key, "m")).status_code == 200
        await until_size(product, 4)
        await other.stop_listening()
        other.drop_connections()
        await until_health(product, model, "unhealthy", "healthy")
        slow = {"x-sim-first-token-ms": "200"}
        answers = await asyncio.gather(*(product.ask(key, "m", headers=slow) for _ in range(8)))
        assert [answer.status_code for answer in answers] == [200] * 8
        assert product.backend.peak("m") == 2
        await other.listen_again()
        await until_size(product, 4)


async def test_with_no_backend_ready_requests_wait_and_go_when_one_is(product: Product) -> None:
    capacity = {"mode": "discovered", "source": "endpoints", "per_replica_max_in_flight": 1}
    model = await product.model("m", capacity=capacity, max_retries=0)
    _, key = await product.tenant("t")
    await until_health(product, model, "healthy")
    await product.backend.stop_listening()
    product.backend.drop_connections()
    await until_health(product, model, "unhealthy")
    waiting: list[asyncio.Task[httpx.Response]] = [
        asyncio.create_task(product.ask(key, "m")) for _ in range(2)
    ]
    await product.queued(2)
    await product.backend.listen_again()
    answers = await asyncio.gather(*waiting)
    assert [answer.status_code for answer in answers] == [200, 200]
    assert {answer.headers["x-obleth-admission"] for answer in answers} == {"queued"}


async def test_endpoints_caps_bound_what_runs_on_each(product: Product) -> None:
    async with SimulatedBackend() as other:
        model = await product.make("/models", name="m", load_balancing="round_robin")
        for backend, cap in ((product.backend, 1), (other, 2)):
            await product.make(
                f"/models/{model['id']}/endpoints", url=backend.url, max_in_flight=cap
            )
        _, key = await product.tenant("t")
        slow = {"headers": {"x-sim-token-ms": "600000"}, "stream": True}
        asked = [asyncio.create_task(product.ask(key, "m", **slow)) for _ in range(5)]
        await product.queued(2)
        await other.until(lambda: other.running("m") == 2)
        assert product.backend.running("m") == 1
        for each in asked:
            each.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
