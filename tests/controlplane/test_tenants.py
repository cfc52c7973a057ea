from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import func, select

from shared import tables
from tests.controlplane.api import NO_SUCH_ID, Api, fields
from tests.controlplane.conftest import StartApi

pytestmark = pytest.mark.asyncio(loop_scope="module")

DEFAULTS: dict[str, Any] = {
    "group": "default",
    "weight": 100,
    "max_in_flight": None,
    "tokens_per_minute": None,
    "budget_tokens": None,
    "budget_period": "month",
    "budget_started_at": None,
    "status": "active",
    "allowed_models": None,
}
OTHERS: dict[str, Any] = {
    "group": "research",
    "weight": 7,
    "max_in_flight": 3,
    "tokens_per_minute": 1_000_000_000_000,
    "budget_tokens": 10**15,
    "budget_period": "term",
    "budget_started_at": "2030-01-31T12:00:00Z",
    "status": "suspended",
    "allowed_models": [],
}


async def test_a_tenant_has_defaults_for_all_but_its_name(api: Api) -> None:
    created = await api.tenant()
    assert created.items() >= DEFAULTS.items()
    assert created["name"] == "acme"
    assert await api.get(f"/tenants/{created['id']}") == created


async def test_a_null_when_creating_means_the_default(api: Api) -> None:
    nulls: dict[str, Any] = dict.fromkeys(DEFAULTS)
    created = await api.post("/tenants", {"name": "acme", **nulls})
    assert created.items() >= DEFAULTS.items()


async def test_every_field_is_stored_and_given_back(api: Api) -> None:
    await api.group()
    created = await api.tenant(**OTHERS)
    assert created.items() >= OTHERS.items()
    assert await api.get(f"/tenants/{created['id']}") == created


async def test_a_patch_sets_one_field_and_null_resets_it(api: Api) -> None:
    await api.group()
    created = await api.tenant()
    path = f"/tenants/{created['id']}"
    for field, other in OTHERS.items():
        changed = await api.patch(path, {field: other})
        assert {name: changed[name] for name in DEFAULTS} == {**DEFAULTS, field: other}
        assert (await api.patch(path, {field: None})).items() >= DEFAULTS.items()


async def test_a_moment_is_kept_in_utc_whatever_zone_it_came_in(api: Api) -> None:
    created = await api.tenant(budget_started_at="2030-01-01T01:30:00.250+02:00")
    assert created["budget_started_at"] == "2029-12-31T23:30:00.250000Z"


async def test_a_name_cannot_be_null(api: Api) -> None:
    tenant = await api.tenant()
    assert fields(await api.post("/tenants", {"name": None}, expect=422)) == {"name"}
    problem = await api.patch(f"/tenants/{tenant['id']}", {"name": None}, expect=422)
    assert fields(problem) == {"name"}


async def test_tenants_have_distinct_names(api: Api) -> None:
    await api.tenant("a")
    other = await api.tenant("b")
    assert fields(await api.post("/tenants", {"name": "a"}, expect=409)) == {"name"}
    problem = await api.patch(f"/tenants/{other['id']}", {"name": "a"}, expect=409)
    assert fields(problem) == {"name"}
    await api.patch(f"/tenants/{other['id']}", {"name": "b"})


async def test_a_group_that_does_not_exist_is_refused_by_name(api: Api) -> None:
    tenant = await api.tenant()
    for problem in (
        await api.post("/tenants", {"name": "x", "group": "nobody"}, expect=422),
        await api.patch(f"/tenants/{tenant['id']}", {"group": "nobody"}, expect=422),
    ):
        assert fields(problem) == {"group"}
        assert "nobody" in problem["detail"]


async def test_allowed_models_are_kept_under_their_own_names(api: Api) -> None:
    await api.model("llama", aliases=["fast", "default"])
    created = await api.tenant(allowed_models=["fast", "llama", "default"])
    assert created["allowed_models"] == ["llama"]


async def test_unknown_models_are_refused_one_by_one(api: Api) -> None:
    await api.model("llama")
    body = {"name": "x", "allowed_models": ["llama", "gone", "lost"]}
    problem = await api.post("/tenants", body, expect=422)
    assert fields(problem) == {"allowed_models.1", "allowed_models.2"}


async def test_with_a_default_upstream_any_model_may_be_allowed(start_api: StartApi) -> None:
    api = await start_api(upstream_base_url="http://10.0.0.1/v1")
    assert (await api.tenant(allowed_models=["elsewhere"]))["allowed_models"] == ["elsewhere"]


async def test_a_model_that_was_allowed_may_stay_allowed_when_it_is_gone(api: Api) -> None:
    model = await api.model("llama")
    tenant = await api.tenant(allowed_models=["llama"])
    await api.delete(f"/models/{model['id']}")
    body = {"weight": 5, "allowed_models": ["llama"]}
    changed = await api.patch(f"/tenants/{tenant['id']}", body)
    assert (changed["weight"], changed["allowed_models"]) == (5, ["llama"])


async def test_deleting_a_tenant_deletes_its_keys_and_what_was_counted(api: Api) -> None:
    tenant, other = await api.tenant("a"), await api.tenant("b")
    key, kept = await api.key(tenant["id"]), await api.key(other["id"])
    async with api.plane.database.transaction() as session:
        for scope, scope_id in (
            ("tenant", tenant["id"]),
            ("key", key["id"]),
            ("tenant", other["id"]),
            ("key", kept["id"]),
        ):
            session.add(_counted(scope, scope_id))
    await api.delete(f"/tenants/{tenant['id']}")
    await api.get(f"/tenants/{tenant['id']}", expect=404)
    await api.get(f"/keys/{key['id']}", expect=404)
    assert [one["id"] for one in await api.items("/keys")] == [kept["id"]]
    async with api.plane.database.reading() as session:
        left = await session.scalar(select(func.count()).select_from(tables.BudgetUsageRow))
    assert left == 2


async def test_a_tenant_that_is_not_there_is_not_found(api: Api) -> None:
    for unknown in (NO_SUCH_ID, "x", "%F0%9F%99%82", "a" * 5000):
        await api.get(f"/tenants/{unknown}", expect=404)
        await api.patch(f"/tenants/{unknown}", {}, expect=404)
        await api.delete(f"/tenants/{unknown}", expect=404)


async def test_tenants_are_listed_by_group(api: Api) -> None:
    await api.group()
    await api.tenant("a")
    await api.tenant("b", group="research")
    assert [one["name"] for one in await api.items("/tenants", group="research")] == ["b"]
    assert [one["name"] for one in await api.items("/tenants")] == ["a", "b"]


async def test_replicas_are_told_of_each_change_to_a_tenant(api: Api) -> None:
    tenant = await api.tenant()
    mine = {("tenant", tenant["id"])}
    assert api.told.taken() == mine
    await api.patch(f"/tenants/{tenant['id']}", {"status": "suspended"})
    assert api.told.taken() == mine
    await api.delete(f"/tenants/{tenant['id']}")
    assert api.told.taken() == mine


def _counted(scope: str, scope_id: str) -> tables.BudgetUsageRow:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    return tables.BudgetUsageRow(
        scope=scope,
        scope_id=scope_id,
        period_started_at=at,
        committed_tokens=5,
        calendar=True,
        updated_at=at,
    )


async def test_tenants_can_be_asked_for_by_their_ids(api: Api) -> None:
    ids = [(await api.tenant(name))["id"] for name in ("a", "b", "c")]
    found = await api.items("/tenants", id=[ids[0], ids[2], NO_SUCH_ID])
    assert [one["name"] for one in found] == ["a", "c"]
    await api.get("/tenants", params={"id": ["x"] * 501}, expect=422)
