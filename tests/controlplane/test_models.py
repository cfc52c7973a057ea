from __future__ import annotations

from typing import Any

import pytest

from tests.controlplane.api import NO_SUCH_ID, Api, fields

pytestmark = pytest.mark.asyncio(loop_scope="module")

DEFAULTS: dict[str, Any] = {
    "aliases": [],
    "upstream_model": None,
    "enabled": True,
    "max_in_flight": None,
    "admission_weight": 100,
    "capacity": None,
    "load_balancing": "failover",
    "session_affinity": {},
    "request_timeout_secs": 600,
    "max_retries": 1,
}
OTHERS: dict[str, Any] = {
    "aliases": ["b", "a"],
    "upstream_model": "meta/llama",
    "enabled": False,
    "max_in_flight": 8,
    "admission_weight": 10_000,
    "capacity": {
        "mode": "discovered",
        "source": "endpoints",
        "per_replica_max_in_flight": 4,
        "headroom": 1.5,
    },
    "load_balancing": "least_in_flight",
    "session_affinity": {"enabled": True, "hold_ms": 0},
    "request_timeout_secs": 0.5,
    "max_retries": 0,
}
DISCOVERED = {"mode": "discovered", "per_replica_max_in_flight": 4}
BAD_CAPACITIES: list[tuple[Any, str]] = [
    ({}, "capacity.mode"),
    ({**DISCOVERED, "source": "consul"}, "capacity.source"),
    ({**DISCOVERED, "mode": "guessed", "source": "dns"}, "capacity.mode"),
    ({**DISCOVERED, "source": "dns"}, "capacity.dns_name"),
    ({**DISCOVERED, "source": "dns", "dns_name": "a b"}, "capacity.dns_name"),
    ({**DISCOVERED, "source": "dns", "dns_name": "a..b"}, "capacity.dns_name"),
    ({**DISCOVERED, "source": "kubernetes"}, "capacity.service"),
    ({**DISCOVERED, "source": "kubernetes", "service": "../x"}, "capacity.service"),
    ({**DISCOVERED, "source": "endpoints", "dns_name": "a"}, "capacity.dns_name"),
    ({**DISCOVERED, "source": "endpoints", "headroom": 0}, "capacity.headroom"),
    ({**DISCOVERED, "source": "endpoints", "headroom": "1"}, "capacity.headroom"),
    ({**DISCOVERED, "source": "endpoints", "extra": 1}, "capacity.extra"),
    (
        {"mode": "discovered", "source": "endpoints", "per_replica_max_in_flight": 0},
        "capacity.per_replica_max_in_flight",
    ),
    (7, "capacity"),
]


async def test_a_model_has_defaults_for_all_but_its_name(api: Api) -> None:
    created = await api.model()
    assert created.items() >= DEFAULTS.items()
    assert await api.get(f"/models/{created['id']}") == created


async def test_every_field_of_a_model_is_stored_and_given_back(api: Api) -> None:
    created = await api.model(**OTHERS)
    assert created.items() >= OTHERS.items()
    assert await api.get(f"/models/{created['id']}") == created
    assert await api.items("/models") == [created]


async def test_a_patch_sets_one_field_of_a_model_and_null_resets_it(api: Api) -> None:
    created = await api.model()
    path = f"/models/{created['id']}"
    for field, other in OTHERS.items():
        changed = await api.patch(path, {field: other})
        assert {name: changed[name] for name in DEFAULTS} == {**DEFAULTS, field: other}
        assert (await api.patch(path, {field: None})).items() >= DEFAULTS.items()


async def test_an_object_in_a_patch_replaces_the_one_before(api: Api) -> None:
    created = await api.model(session_affinity={"enabled": True, "hold_ms": 5})
    changed = await api.patch(f"/models/{created['id']}", {"session_affinity": {"hold_ms": 7}})
    assert changed["session_affinity"] == {"hold_ms": 7}


async def test_a_model_that_is_not_there_is_not_found(api: Api) -> None:
    await api.get(f"/models/{NO_SUCH_ID}", expect=404)
    await api.patch(f"/models/{NO_SUCH_ID}", {}, expect=404)
    await api.put(f"/models/{NO_SUCH_ID}/session-affinity", {}, expect=404)
    await api.delete(f"/models/{NO_SUCH_ID}", expect=404)


async def test_no_two_models_answer_to_one_name(api: Api) -> None:
    await api.model("llama", aliases=["fast"])
    other = await api.model("qwen", aliases=["small"])
    path = f"/models/{other['id']}"
    for taken in ("llama", "fast"):
        assert fields(await api.post("/models", {"name": taken}, expect=409)) == {"name"}
        body = {"name": "new", "aliases": ["free", taken]}
        assert fields(await api.post("/models", body, expect=409)) == {"aliases.1"}
        assert fields(await api.patch(path, {"name": taken}, expect=409)) == {"name"}
        assert fields(await api.patch(path, {"aliases": [taken]}, expect=409)) == {"aliases.0"}
    assert await api.get(path) == other


async def test_a_name_is_free_again_when_its_model_lets_go_of_it(api: Api) -> None:
    first = await api.model("llama", aliases=["fast"])
    await api.patch(f"/models/{first['id']}", {"aliases": []})
    second = await api.model("qwen", aliases=["fast"])
    await api.delete(f"/models/{second['id']}")
    await api.model("fast")


async def test_a_model_may_swap_its_name_with_its_alias(api: Api) -> None:
    model = await api.model("old", aliases=["new"])
    changed = await api.patch(f"/models/{model['id']}", {"name": "new", "aliases": ["old"]})
    assert (changed["name"], changed["aliases"]) == ("new", ["old"])


@pytest.mark.parametrize("aliases", [["x", "x"], ["llama"]])
async def test_a_model_has_each_name_once(api: Api, aliases: list[str]) -> None:
    problem = await api.post("/models", {"name": "llama", "aliases": aliases}, expect=422)
    assert fields(problem) == {f"aliases.{len(aliases) - 1}"}
    model = await api.model()
    await api.patch(f"/models/{model['id']}", {"aliases": aliases}, expect=422)


async def test_a_new_name_must_not_be_an_alias_that_is_kept(api: Api) -> None:
    model = await api.model(aliases=["fast"])
    problem = await api.patch(f"/models/{model['id']}", {"name": "fast"}, expect=422)
    assert fields(problem) == {"aliases.0"}


async def test_the_pool_of_unknown_models_lends_its_name_to_nobody(api: Api) -> None:
    assert fields(await api.post("/models", {"name": "(unrouted)"}, expect=422)) == {"name"}
    body = {"name": "x", "aliases": ["(unrouted)"]}
    assert fields(await api.post("/models", body, expect=422)) == {"aliases.0"}


async def test_tenants_follow_a_model_to_its_new_name(api: Api) -> None:
    model = await api.model("old")
    tenant = await api.tenant("a", allowed_models=["old"])
    unrestricted = await api.tenant("b")
    api.told.taken()
    await api.patch(f"/models/{model['id']}", {"name": "new"})
    assert (await api.get(f"/tenants/{tenant['id']}"))["allowed_models"] == ["new"]
    assert await api.get(f"/tenants/{unrestricted['id']}") == unrestricted
    assert api.told.taken() == {("model", model["id"]), ("tenant", tenant["id"])}


async def test_what_tenants_may_use_follows_a_name_that_becomes_an_alias(api: Api) -> None:
    gone = await api.model("fast")
    tenant = await api.tenant(allowed_models=["fast"])
    await api.delete(f"/models/{gone['id']}")
    await api.model("llama", aliases=["fast"])
    assert (await api.get(f"/tenants/{tenant['id']}"))["allowed_models"] == ["llama"]


@pytest.mark.parametrize(
    "capacity",
    [
        {**DISCOVERED, "source": "endpoints", "headroom": 1.0},
        {**DISCOVERED, "source": "dns", "headroom": 0.5, "dns_name": "llm.svc.cluster.local"},
        {**DISCOVERED, "source": "kubernetes", "headroom": 2.0, "service": "llm"},
        {
            **DISCOVERED,
            "source": "kubernetes",
            "headroom": 1.0,
            "service": "llm",
            "namespace": "gpu",
        },
    ],
)
async def test_capacity_can_be_discovered(api: Api, capacity: dict[str, Any]) -> None:
    assert (await api.model(capacity=capacity))["capacity"] == capacity


async def test_headroom_is_one_unless_given(api: Api) -> None:
    model = await api.model(capacity={**DISCOVERED, "source": "endpoints"})
    assert model["capacity"]["headroom"] == 1.0


async def test_capacity_that_makes_no_sense_is_refused(api: Api) -> None:
    for capacity, field in BAD_CAPACITIES:
        problem = await api.post("/models", {"name": "x", "capacity": capacity}, expect=422)
        assert field in fields(problem)
    assert await api.items("/models") == []


async def test_a_patch_changes_of_the_capacity_what_it_names(api: Api) -> None:
    dns = {**DISCOVERED, "source": "dns", "headroom": 0.5, "dns_name": "llm.svc"}
    model = await api.model(capacity=dns)
    kubernetes = {**DISCOVERED, "source": "kubernetes", "headroom": 1.0, "service": "llm"}
    for patch, became in (
        ({}, dns),
        ({"per_replica_max_in_flight": 9}, {**dns, "per_replica_max_in_flight": 9}),
        ({"per_replica_max_in_flight": 4, "headroom": None}, {**dns, "headroom": 1.0}),
        ({"source": "kubernetes", "service": "llm"}, kubernetes),
        ({"namespace": "gpu"}, {**kubernetes, "namespace": "gpu"}),
        ({"namespace": None}, kubernetes),
        (None, None),
        (dns, dns),
    ):
        changed = await api.patch(f"/models/{model['id']}", {"capacity": patch})
        assert changed["capacity"] == became, patch


async def test_a_patch_after_which_a_capacity_makes_no_sense_changes_nothing(api: Api) -> None:
    stored = {**DISCOVERED, "source": "dns", "headroom": 0.5, "dns_name": "llm.svc"}
    model = await api.model(capacity=stored)
    for patch, field in (
        ({"source": "kubernetes"}, "capacity.service"),
        ({"service": "llm"}, "capacity.service"),
        ({"dns_name": None}, "capacity.dns_name"),
        ({"mode": None}, "capacity.mode"),
        ({"headroom": "2"}, "capacity.headroom"),
        ({"extra": 1}, "capacity.extra"),
        (7, "capacity"),
    ):
        problem = await api.patch(f"/models/{model['id']}", {"capacity": patch}, expect=422)
        assert field in fields(problem), patch
    assert (await api.get(f"/models/{model['id']}"))["capacity"] == stored
    bare = await api.model("bare")
    problem = await api.patch(f"/models/{bare['id']}", {"capacity": {"headroom": 2}}, expect=422)
    assert "capacity.mode" in fields(problem)


async def test_replicas_are_told_of_each_change_to_a_model(api: Api) -> None:
    model = await api.model()
    mine = {("model", model["id"])}
    assert api.told.taken() == mine
    await api.patch(f"/models/{model['id']}", {"max_in_flight": 3})
    assert api.told.taken() == mine
    await api.put(f"/models/{model['id']}/session-affinity", {"enabled": True})
    assert api.told.taken() == mine
    await api.delete(f"/models/{model['id']}")
    assert api.told.taken() == mine


async def test_deleting_a_model_deletes_its_endpoints(api: Api) -> None:
    model = await api.model()
    endpoint = await api.endpoint(model["id"])
    await api.delete(f"/models/{model['id']}")
    await api.get(f"/models/{model['id']}", expect=404)
    again = await api.model()
    await api.get(f"/models/{again['id']}/endpoints/{endpoint['id']}", expect=404)
    assert await api.items(f"/models/{again['id']}/endpoints") == []
