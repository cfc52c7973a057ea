"""What a replica answers on its operations listener."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import httpx
import pytest

from dataplane.live.history import History
from dataplane.live.replica import Live
from dataplane.metrics import Metrics, PoolFigures
from dataplane.ops import app as ops
from dataplane.ops.readiness import assess
from tests.live.views import pool as a_pool
from tests.live.views import replica as a_replica
from tests.live.views import tenant as a_tenant

TOKEN = "internal-token"
AUTHORIZED = {"authorization": f"Bearer {TOKEN}"}
LIVE = "/internal/fairshare/live"
HISTORY = "/internal/fairshare/history"


@dataclass
class Replica:
    loaded: bool = True
    schema_problem: str | None = None
    is_draining: bool = False
    mode: str = "local"
    token: str | None = TOKEN
    history: History = field(default_factory=lambda: History(60))


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
        live=Live(
            "r1",
            view=lambda: a_replica(a_pool(8, a_tenant("t", 1))),
            members=None,
            samples=replica.history,
            model_name=lambda name: {"m": "m", "alias": "m"}.get(name),
        ),
        internal_token=replica.token,
    )
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://replica") as client:
        yield client


async def test_health_depends_on_nothing(replica: Replica, client: httpx.AsyncClient) -> None:
    replica.loaded, replica.is_draining = False, True
    answer = await client.get("/healthz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
    for path in ("/healthz", "/metrics"):
        assert (await client.head(path)).status_code == 200


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


async def test_the_live_state_is_told_to_whoever_has_the_internal_token(
    client: httpx.AsyncClient,
) -> None:
    answer = await client.get(LIVE, headers=AUTHORIZED)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    told = answer.json()
    assert (told["instance"], told["scope"], told["pools"][0]["in_flight"]) == ("r1", "replica", 1)


async def test_the_scheme_may_be_written_in_any_case(client: httpx.AsyncClient) -> None:
    headers = {"authorization": f"bearer {TOKEN}"}
    assert (await client.get(LIVE, headers=headers)).status_code == 200


@pytest.mark.parametrize("path", [LIVE, HISTORY])
@pytest.mark.parametrize(
    "given", [None, "", TOKEN, "Bearer", "Bearer ", f"Bearer {TOKEN} ", "Bearer \xff", "Basic x"]
)
async def test_nobody_else_is_told_anything(
    client: httpx.AsyncClient, path: str, given: str | None
) -> None:
    headers = {} if given is None else {"authorization": given.encode("latin-1")}
    answer = await client.get(path, headers=headers)  # type: ignore[arg-type]
    assert answer.status_code == 401
    assert "pools" not in answer.text


class TestWithoutAnInternalToken:
    @pytest.fixture
    def replica(self) -> Replica:
        return Replica(token=None)

    @pytest.mark.parametrize("path", [LIVE, HISTORY])
    async def test_the_live_routes_are_off_and_say_what_turns_them_on(
        self, client: httpx.AsyncClient, path: str
    ) -> None:
        for headers in ({}, AUTHORIZED, {"authorization": "Bearer None"}):
            answer = await client.get(path, headers=headers)
            assert answer.status_code == 404
            assert "OBLETH_INTERNAL_TOKEN" in answer.text


async def test_history_is_told_by_name_alias_or_for_all(
    replica: Replica, client: httpx.AsyncClient
) -> None:
    replica.history.add([a_pool(8, a_tenant("t", 3))], 2000)
    replica.history.add([], 4000)
    for query, points in (
        ("model=m", [3, 0]),
        ("model=alias", [3, 0]),
        ("", [3, 0]),
        ("model=m&since_ms=4000", [0]),
    ):
        told = (await client.get(f"{HISTORY}?{query}", headers=AUTHORIZED)).json()
        assert [point["in_flight"] for point in told["points"]] == points
        assert (told["instance"], told["interval_ms"], told["retention_ms"]) == ("r1", 2000, 60_000)
        assert told["oldest_ts_ms"] == 2000


@pytest.mark.parametrize(
    ("query", "status"),
    [("model=never", 404), ("since_ms=-1", 422), ("since_ms=x", 422), ("model=", 404)],
)
async def test_history_of_what_is_not_there_is_not_told(
    client: httpx.AsyncClient, query: str, status: int
) -> None:
    assert (await client.get(f"{HISTORY}?{query}", headers=AUTHORIZED)).status_code == status
