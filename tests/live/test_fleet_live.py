"""The control plane's answers about a fleet: real replicas, real Redis, over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from controlplane import main as controlplane
from controlplane.settings import ControlPlaneSettings
from dataplane import live_view
from dataplane.admission import Ask
from dataplane.main import DataPlane
from dataplane.settings import DataPlaneSettings
from migrations import schema
from obleth import server as serving
from obleth.embedded import fleet_live
from obleth.server import Listener
from shared import redis as shared_redis
from shared import redis_keys
from shared.policy import GroupPolicy, KeyPolicy, ModelPolicy, TenantPolicy
from shared.settings import ListenAddress
from tests.redis_server import Server, server

TOKEN = "internal-token-of-the-tests"
ADMIN = "admin-token-of-the-tests"
NAME = "<img src=x onerror=alert(1)>\"'&"
MODEL = ModelPolicy(id="m1", name="model", max_in_flight=4)


def a_key(tenant: str) -> KeyPolicy:
    policy = TenantPolicy(tenant, f"{tenant} {NAME}", GroupPolicy("g", 100), 100)
    return KeyPolicy(f"{tenant}-key", "key", policy, 100, None)


class Replica:
    """A data plane with its operations listener, and requests that run until they are ended."""

    def __init__(self, plane: DataPlane, listener: Listener) -> None:
        self.plane, self.listener = plane, listener
        self._over = asyncio.Event()
        self._running: list[asyncio.Task[None]] = []

    @property
    def name(self) -> str:
        return self.plane.live.instance

    def send(self, tenant: str, number: int) -> None:
        self._running += [asyncio.create_task(self._run(tenant)) for _ in range(number)]

    async def _run(self, tenant: str) -> None:
        async with self.plane.admission.admit(Ask(a_key(tenant), MODEL, 10)):
            await self._over.wait()

    async def stop(self) -> None:
        self._over.set()
        await asyncio.gather(*self._running)
        await self.listener.stop(1)
        await self.plane.drain(0)
        await self.plane.stop()


class Fleet:
    """Replicas that can be started, and a control plane's API over them."""

    def __init__(self, stack: AsyncExitStack, redis: Server, folder: Path) -> None:
        self._stack, self.redis, self._folder = stack, redis, folder
        self.common = {
            "database_url": f"sqlite+aiosqlite:///{folder / 'policy.db'}",
            "redis_url": redis.url,
            "redis_response_timeout_ms": 5000,  # nothing here is about deadlines
        }

    async def replica(self, *, token: str | None = TOKEN, **settings: Any) -> Replica:
        bound = serving.bind(ListenAddress("127.0.0.1", 0), "-")
        plane = DataPlane(
            DataPlaneSettings(
                **{
                    **self.common,
                    "metrics_listen": serving.bound_address(bound),
                    "internal_token": token,
                    "fairshare_replica_heartbeat_secs": 0.2,
                    "fairshare_replica_ttl_secs": 5,
                    **settings,
                }
            )
        )
        replica = Replica(plane, Listener(plane.operations, bound))
        await plane.start()
        await replica.listener.start()
        self._stack.push_async_callback(replica.stop)
        return replica

    async def api(self, token: str | None = TOKEN) -> httpx.AsyncClient:
        settings = ControlPlaneSettings(**self.common, admin_token=ADMIN, internal_token=token)
        built = controlplane.build(settings, live=fleet_live(settings))
        self._stack.push_async_callback(built.stop)
        return await self._stack.enter_async_context(
            httpx.AsyncClient(
                transport=httpx.ASGITransport(built.app),
                base_url="http://control/api/v1",
                headers={"authorization": f"Bearer {ADMIN}"},
            )
        )


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(server(tmp_path))
        fleet = Fleet(stack, redis, tmp_path)
        await schema.migrate(fleet.common["database_url"])
        yield fleet


async def until(api: httpx.AsyncClient, path: str = "/fairshare/live", **expected: Any) -> Any:
    """The first answer that has these fields."""
    async with asyncio.timeout(20):
        while True:
            answer = await api.get(path)
            told = answer.json()
            if all(told.get(name) == value for name, value in expected.items()):
                return told
            await asyncio.sleep(0.02)


async def test_the_clusters_picture_is_every_replicas_together(fleet: Fleet) -> None:
    first, second = await fleet.replica(), await fleet.replica()
    api = await fleet.api()
    await until(api, mode="shared")
    first.send("a", 3)
    await until(api, in_flight=3, replicas_reporting=2)
    second.send("b", 3)
    told = await until(api, in_flight=4, queued=2, scope="cluster", instance=first.name)
    assert (told["source"], told["scope_reason"], told["replicas"]) == ("replica", None, 2)
    assert told["replica_in_flight"] == 3
    assert (told["cluster_in_flight"], told["global_max_in_flight"]) == (4, 4096)
    assert told["state_age_ms"] < 10_000
    (pool,) = told["pools"]
    assert (pool["model"], pool["size"], pool["replica_in_flight"]) == ("model", 4, 3)
    tenants = {one["id"]: one for one in pool["tenants"]}
    assert {id: (one["in_flight"], one["fair_slots"]) for id, one in tenants.items()} == {
        "a": (3, 2.0),
        "b": (1, 2.0),
    }
    assert (tenants["a"]["below_share"], tenants["b"]["below_share"]) == (False, True)
    assert (tenants["a"]["cause"], tenants["b"]["cause"]) == ("idle", "below_share")
    assert tenants["b"]["name"] == f"b {NAME}"
    assert told["replica_ttl_secs"] == 5
    # Views go out as often as heartbeats do, where that is oftener than usual.
    async with shared_redis.client(fleet.redis.url) as redis, asyncio.timeout(20):
        while True:
            view = await redis.get(redis_keys.view(first.name))
            if view is not None:
                break
            await asyncio.sleep(0.02)
    assert live_view.decode(view).interval_ms == 200
    assert [pick["instance"] for pick in pool["next_in_line"]] == [second.name] * 2
    path = f"/fairshare/live?replica={second.name}"
    other = await until(api, path, scope="cluster", in_flight=4, queued=2)
    assert (other["instance"], other["replica_in_flight"]) == (second.name, 1)


async def test_without_an_internal_token_it_answers_from_views_and_says_so(fleet: Fleet) -> None:
    replica = await fleet.replica(token=None)
    replica.send("a", 2)
    api = await fleet.api(token=None)
    told = await until(api, in_flight=2)
    assert (told["source"], told["instance"], told["mode"]) == ("views", replica.name, "local")
    assert "OBLETH_INTERNAL_TOKEN" in told["source_reason"]
    assert told["pools"][0]["tenants"][0]["id"] == "a"
    problem = await api.get("/fairshare/history")
    assert problem.status_code == 503
    assert "OBLETH_INTERNAL_TOKEN" in problem.json()["detail"]
    # The same where the replica has none, or another one.
    for reason, token in (("404", TOKEN), ("404", "another")):
        told = await until(await fleet.api(token=token), source="views", in_flight=2)
        assert reason in told["source_reason"]


async def test_views_of_a_fleet_make_the_clusters_picture(fleet: Fleet) -> None:
    first, second = await fleet.replica(), await fleet.replica()
    api = await fleet.api(token=None)
    await until(api, mode="shared", replicas_reporting=2)
    first.send("a", 1)
    second.send("b", 2)
    told = await until(api, in_flight=3, scope="cluster")
    assert (told["source"], told["instance"], told["cluster_in_flight"]) == (
        "views",
        first.name,
        3,
    )


async def test_replicas_are_listed_with_what_they_do(fleet: Fleet) -> None:
    first, second = await fleet.replica(), await fleet.replica()
    api = await fleet.api()
    await until(api, mode="shared", replicas_reporting=2)
    first.send("a", 2)
    await until(api, in_flight=2)
    async with asyncio.timeout(20):
        while True:
            told = (await api.get("/replicas")).json()
            by_name = {one["instance"]: one for one in told["items"]}
            if by_name.get(first.name, {}).get("in_flight") == 2:
                break
            await asyncio.sleep(0.02)
    assert by_name.keys() == {first.name, second.name}
    one = by_name[first.name]
    assert one.keys() == {
        *("instance", "url", "mode", "heartbeat_age_ms", "in_flight", "queued", "held"),
        *("started_at", "version"),
    }
    assert (one["mode"], one["queued"], one["held"]) == ("shared", 0, 0)
    assert one["url"] == f"http://{first.listener.address}"
    assert 0 <= one["heartbeat_age_ms"] < 10_000
    assert (told["next_cursor"], told["reason"]) == (None, None)


async def test_a_replica_that_was_stopped_is_unknown_long_before_its_time_is_over(
    fleet: Fleet,
) -> None:
    ttl = {"fairshare_replica_ttl_secs": 300}
    first, second = await fleet.replica(**ttl), await fleet.replica(**ttl)
    api = await fleet.api()
    await until(api, mode="shared", replicas_reporting=2)
    assert (await api.get("/fairshare/live?replica=nobody")).status_code == 404
    await second.stop()
    told = await until(api, replicas=1)
    assert told["instance"] == first.name
    for path in ("live", "history"):
        answer = await api.get(f"/fairshare/{path}?replica={second.name}")
        assert answer.status_code == 404
        assert second.name in answer.json()["detail"]
    second.stop = _nothing  # type: ignore[method-assign]


async def test_that_one_of_several_replicas_tells_nothing_is_not_said_of_all(fleet: Fleet) -> None:
    await fleet.replica()
    api = await fleet.api()
    told = await until(api, replicas_reporting=1)
    async with shared_redis.client(fleet.redis.url) as redis:
        seconds, _ = await redis.time()
        record = f"{seconds}000 300000 {redis_keys.LAYOUT} 1"
        await redis.hset(redis_keys.SlotKeys().roster, "silent", record)
    answer = await api.get("/fairshare/live?replica=silent")
    assert answer.status_code == 503
    assert answer.json()["detail"].startswith("silent has published nothing of late; ")
    assert (await api.get(f"/fairshare/live?replica={told['instance']}")).status_code == 200


async def test_with_redis_away_a_known_replica_still_answers_for_itself(fleet: Fleet) -> None:
    first, _ = await fleet.replica(), await fleet.replica()
    api = await fleet.api()
    await until(api, mode="shared", replicas_reporting=2)
    first.send("a", 1)
    await until(api, in_flight=1)
    await fleet.redis.stop()
    told = await until(api, scope="replica", mode="fallback", instance=first.name)
    assert (told["in_flight"], told["source"]) == (1, "replica")
    assert "fallback" in told["scope_reason"]
    listed = (await api.get("/replicas")).json()
    assert len(listed["items"]) == 2
    assert "Redis" in listed["reason"]
    assert [one["heartbeat_age_ms"] for one in listed["items"]] == [None, None]
    # One that knows nobody says why it cannot answer.
    for path in ("/fairshare/live", "/fairshare/history", "/replicas"):
        problem = await (await fleet.api()).get(path)
        assert (problem.status_code, problem.json()["title"]) == (503, "Service Unavailable")
        assert "Redis" in problem.json()["detail"]


async def test_history_is_the_answering_replicas(fleet: Fleet) -> None:
    first, second = await fleet.replica(), await fleet.replica(fairshare_history_secs=0)
    api = await fleet.api()
    await until(api, mode="shared", replicas_reporting=2)
    told = await until(api, "/fairshare/history", instance=first.name)
    assert told["points"][0].keys() == {"ts_ms", "in_flight", "queued", "held", "groups"}
    path = f"/fairshare/history?replica={second.name}"
    off = await until(api, path, instance=second.name)
    assert (off["retention_ms"], off["points"]) == (0, [])
    unknown = await api.get("/fairshare/history?model=never")
    assert unknown.status_code == 404
    assert "model" in unknown.json()["detail"]
    for query in ("since_ms=-1", "since_ms=1e3", "nothing=1", "model="):
        assert (await api.get(f"/fairshare/history?{query}")).status_code == 422


async def test_a_control_plane_without_redis_says_where_replicas_are_found(fleet: Fleet) -> None:
    fleet.common.pop("redis_url")
    api = await fleet.api()
    for path in ("/fairshare/live", "/fairshare/history", "/replicas"):
        problem = await api.get(path)
        assert problem.status_code == 503
        assert "OBLETH_REDIS_URL" in problem.json()["detail"]


async def _nothing() -> None:
    pass
