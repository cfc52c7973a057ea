"""Why a request of this key to this model would wait now, or be refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from controlplane.fairshare.source import NoReplicas
from dataplane.live import what_if
from dataplane.live.assembly import assemble
from dataplane.live_view import PoolView
from shared.live_state import LiveState, Newcomer, Outlook
from tests.controlplane.api import Api
from tests.live.views import pool, replica, tenant

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Replica(NoReplicas):
    """Answers with these pools."""

    pools: tuple[PoolView, ...] = ()

    async def state(self, replica_: str | None) -> LiveState:
        return assemble(replica(*self.pools))

    def outlook(self, state: LiveState, newcomer: Newcomer) -> Outlook:
        return what_if.outlook(state, newcomer)


@pytest.fixture
def live(api: Api) -> Iterator[Replica]:
    api.plane.app.state.live = replica = Replica()
    yield replica
    api.plane.app.state.live = NoReplicas()


async def explained(api: Api, key: str, model: str, *, expect: int = 200) -> Any:
    return await api.get("/fairshare/explain", params={"key": key, "model": model}, expect=expect)


async def test_a_request_that_finds_a_slot_would_not_wait(api: Api, live: Replica) -> None:
    made = await api.tenant("acme")
    key = await api.key(made["id"])
    await api.model("llama", aliases=["l"], max_in_flight=8)
    told = await explained(api, key["id"], "l")
    assert (told["outcome"], told["cause"], told["model"]) == ("admitted", None, "llama")
    assert "at once" in told["detail"]
    assert (told["tenant"], told["group"], told["scope"]) == ("acme", "default", "replica")
    assert told["outlook"]["size"] == 8


async def test_a_key_is_found_by_how_its_secret_begins(api: Api, live: Replica) -> None:
    key = await api.key((await api.tenant("acme"))["id"])
    await api.model("llama")
    for given in (key["prefix"], key["secret"]):
        assert (await explained(api, given, "llama"))["key_id"] == key["id"]
    problem = await explained(api, f"sk-{'0' * 48}", "llama", expect=404)
    assert "0" * 20 not in str(problem)
    await explained(api, "no-such-key", "llama", expect=404)


async def test_it_is_told_what_it_would_wait_for_with_the_figures(api: Api, live: Replica) -> None:
    made = await api.tenant("acme")
    key = await api.key(made["id"])
    model = await api.model("llama", max_in_flight=8)
    full = pool(8, tenant(made["id"], 1), tenant("b", 7), id=model["id"], model="llama")
    live.pools = (full,)
    told = await explained(api, key["id"], "llama")
    assert (told["outcome"], told["cause"]) == ("waits", "below_share")
    assert "1 of its fair 4.0" in told["detail"]
    assert told["outlook"]["fair_slots"] == 4.0


@pytest.mark.parametrize(
    ("of", "fields", "code"),
    [
        ("keys", {"disabled": True}, "invalid_api_key"),
        ("keys", {"expires_at": "2001-01-01T00:00:00Z"}, "invalid_api_key"),
        ("tenants", {"status": "suspended"}, "tenant_suspended"),
        ("tenants", {"allowed_models": []}, "model_not_allowed"),
        ("models", {"enabled": False}, "model_not_found"),
    ],
)
async def test_what_would_be_refused_does_not_wait(
    api: Api, live: Replica, of: str, fields: dict[str, Any], code: str
) -> None:
    made = await api.tenant("acme")
    key = await api.key(made["id"])
    model = await api.model("llama")
    id = {"keys": key, "tenants": made, "models": model}[of]["id"]
    await api.patch(f"/{of}/{id}", fields)
    told = await explained(api, key["id"], "llama")
    assert (told["outcome"], told["code"], told["cause"]) == ("refused", code, None)
    assert told["outlook"] is None


async def test_a_model_that_is_not_there_would_be_refused(api: Api, live: Replica) -> None:
    key = await api.key((await api.tenant("acme"))["id"])
    told = await explained(api, key["id"], "<b>never</b>")
    assert (told["outcome"], told["code"]) == ("refused", "model_not_found")


async def test_without_a_live_state_it_cannot_be_told(api: Api) -> None:
    key = await api.key((await api.tenant("acme"))["id"])
    await api.model("llama")
    await explained(api, key["id"], "llama", expect=503)
    for query in ("", "?key=x", "?model=x", "?key=x&model=y&more=z"):
        await api.get(f"/fairshare/explain{query}", expect=422)
