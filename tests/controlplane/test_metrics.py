"""What Prometheus is told of the control plane."""

from __future__ import annotations

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from controlplane.fairshare.source import NobodyAnswers, NoReplicas
from dataplane.live.assembly import assemble
from shared.live_state import LiveState
from tests.controlplane.api import ADMIN, VIEWER, Api
from tests.live.views import pool, replica, tenant

pytestmark = pytest.mark.asyncio(loop_scope="module")


class OneReplica(NoReplicas):
    """Answers with what it is given; None: it does not."""

    def __init__(self, state: LiveState | None) -> None:
        self.answer = state

    async def state(self, replica: str | None) -> LiveState:
        if self.answer is None:
            raise NobodyAnswers("gone")
        return self.answer


async def scraped(api: Api, token: str | None = ADMIN) -> httpx.Response:
    headers = {"authorization": "" if token is None else f"Bearer {token}"}
    return await api.client.get("http://gateway/metrics", headers=headers)


async def samples(api: Api) -> dict[tuple[str, ...], float]:
    """Each sample by its name and the values of its labels."""
    text = (await scraped(api)).text
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.parametrize(
    ("token", "status"), [(ADMIN, 200), (VIEWER, 200), (None, 401), ("wrong", 401)]
)
async def test_either_token_opens_it_and_nothing_else(
    api: Api, token: str | None, status: int
) -> None:
    answer = await scraped(api, token)
    assert answer.status_code == status
    assert ("process_resident_memory_bytes" in answer.text) is (status == 200)


async def test_answers_are_counted_by_method_and_status(api: Api) -> None:
    before = await samples(api)
    await api.get("/groups")
    await api.get("/nothing", expect=404)
    for _ in range(50):
        await api.client.request("BREW", "/groups")
    after = await samples(api)

    def more(*labels: str) -> float:
        name = ("obleth_api_requests_total", *labels)
        return after.get(name, 0) - before.get(name, 0)

    assert more("GET", "404") == 1
    assert more("other", "405") == 50
    assert more("GET", "200") == 2  # one of them the scrape before
    assert not any("BREW" in labels for labels in after)


async def test_tenants_below_their_share_are_counted_by_model(api: Api) -> None:
    busy = pool(8, tenant("a", 2, 5), tenant("b", 6, 1), id="1", model="busy")
    calm = pool(8, tenant("a", 2), id="2", model="calm")
    api.plane.app.state.live = OneReplica(assemble(replica(busy, calm)))
    try:
        found = await samples(api)
        assert found["obleth_tenants_below_share", "busy"] == 1
        assert found["obleth_tenants_below_share", "calm"] == 0
        assert found[("obleth_live_state_known",)] == 1
    finally:
        api.plane.app.state.live = NoReplicas()


async def test_where_nobody_answers_the_rest_is_told_all_the_same(api: Api) -> None:
    found = await samples(api)
    assert found[("obleth_live_state_known",)] == 0
    assert not any(name == "obleth_tenants_below_share" for name, *_ in found)
