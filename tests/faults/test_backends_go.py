"""Backends come and go behind real replicas: each finds out by itself, and all hold one size."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from aiohttp import web

from tests.faults.fleet import POLL_SECS, Fleet, Timings, fleet
from tests.faults.link import Weather
from tests.faults.load import End
from tests.faults.trial import FULL_SECS
from tests.listeners import application

pytestmark = pytest.mark.asyncio(loop_scope="module")

OFTEN = "0.3"
"""Seconds between questions of any kind."""
EACH = 6
"""Slots of a backend."""


class Slices:
    """An API server that has one EndpointSlice, and tells whoever watches it of each change."""

    def __init__(self, ready: int) -> None:
        self.ready = ready
        self._version = 1
        self._changed = asyncio.Condition()

    async def become(self, ready: int) -> None:
        async with self._changed:
            self.ready, self._version = ready, self._version + 1
            self._changed.notify_all()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            version = {"resourceVersion": str(self._version)}
            return web.json_response({"metadata": version, "items": [self._slice()]})
        response = web.StreamResponse()
        await response.prepare(request)
        said = int(request.query["resourceVersion"])
        while True:
            async with self._changed:
                while self._version == said:
                    await self._changed.wait()
                said, event = self._version, {"type": "MODIFIED", "object": self._slice()}
            await response.write(json.dumps(event).encode() + b"\n")

    def _slice(self) -> dict[str, object]:
        pods = [{"addresses": [f"10.0.0.{number}"]} for number in range(self.ready)]
        return {
            "metadata": {"name": "vllm-1", "resourceVersion": str(self._version)},
            "endpoints": pods,
        }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def slices(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Slices, str]]:
    """It, and its address."""
    own = Slices(2)
    app = web.Application()
    app.router.add_get("/apis/discovery.k8s.io/v1/namespaces/ai/endpointslices", own.handle)
    async with application(app) as port:
        yield own, f"http://127.0.0.1:{port}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def three(
    database: str,
    timings: Timings,
    slices: tuple[Slices, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Fleet]:
    """Three replicas that ask often."""
    folder = tmp_path_factory.mktemp("fleet")
    (folder / "token").write_text("token")
    (folder / "namespace").write_text("ai")
    asks = {
        "OBLETH_POLICY_POLL_SECS": OFTEN,
        "OBLETH_ENDPOINT_HEALTH_SECS": OFTEN,
        "OBLETH_CAPACITY_DISCOVERY_INTERVAL_SECS": OFTEN,
        "OBLETH_KUBERNETES_API_URL": slices[1],
        "OBLETH_KUBERNETES_SERVICE_ACCOUNT_DIR": str(folder),
    }
    async with fleet(folder, database, timings, each=[asks] * 3) as own:
        yield own


async def served(three: Fleet, model: str) -> None:
    """Have every replica serve a request of the model: before, it has no pool of it."""
    async with asyncio.timeout(FULL_SECS):
        while True:
            asked = await asyncio.gather(*three.burst(model, len(three.replicas), secs=0.01))
            if all(one.end is End.WHOLE for one in asked):
                return
            await asyncio.sleep(POLL_SECS)


async def until_sizes(three: Fleet, model: str, size: int) -> None:
    """Returns when all replicas have found this size."""
    name = f'obleth_pool_size{{model="{model}"}}'
    async with asyncio.timeout(FULL_SECS):
        while True:
            found = [(await one.figures(three.session)).get(name) for one in three.replicas]
            if found == [size] * len(three.replicas):
                return
            await asyncio.sleep(POLL_SECS)


async def test_a_pool_never_runs_more_than_the_healthy_endpoints_that_any_replica_has_found(
    three: Fleet,
) -> None:
    backend = three.backend
    link = await three.links.open(urlsplit(backend.url).port or 0, seed=1)
    counts = {"mode": "discovered", "source": "endpoints", "per_replica_max_in_flight": EACH}
    model = await three.api.model("follows", capacity=counts, load_balancing="round_robin")
    await three.api.endpoint(model["id"], backend.url)
    await three.api.endpoint(model["id"], f"http://127.0.0.1:{link.port}/v1")
    await served(three, "follows")
    await until_sizes(three, "follows", 2 * EACH)
    await three.until_shared()
    backend.reset()
    async with three.load(follows=5 * EACH):
        await backend.until(lambda: backend.running("follows") == 2 * EACH, FULL_SECS)
        link.weather = Weather(refuses=True)
        await three.links.cut(link)
        await until_sizes(three, "follows", EACH)
        assert backend.peak("follows") == 2 * EACH
        await backend.until(lambda: backend.running("follows") <= EACH, FULL_SECS)
        backend.reset()
        await backend.until(lambda: len(backend.log) >= 5 * EACH, FULL_SECS)
        assert backend.peak("follows") == EACH


async def test_a_pool_follows_the_pods_of_its_service_on_every_replica(
    three: Fleet, slices: tuple[Slices, str]
) -> None:
    pods, backend = slices[0], three.backend
    counts = {
        "mode": "discovered",
        "source": "kubernetes",
        "service": "vllm",
        "per_replica_max_in_flight": EACH,
    }
    model = await three.api.model("pods", capacity=counts)
    await three.api.endpoint(model["id"], backend.url)
    await served(three, "pods")
    await until_sizes(three, "pods", 2 * EACH)
    await three.until_shared()
    for ready in (1, 0, 3):
        await pods.become(ready)
        await until_sizes(three, "pods", ready * EACH)
    tasks = three.burst("pods", 5 * EACH, secs=600)
    await backend.until(lambda: backend.running("pods") >= 3 * EACH, FULL_SECS)
    assert backend.peak("pods") == 3 * EACH
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
