from __future__ import annotations

from urllib.parse import quote

import pytest

from tests.controlplane.api import Api, fields

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_the_default_group_is_there_from_the_start(api: Api) -> None:
    assert (await api.get("/groups/default"))["weight"] == 100


async def test_a_group_is_created_with_the_default_weight(api: Api) -> None:
    created = await api.post("/groups", {"name": "research"})
    assert created["weight"] == 100
    assert await api.get("/groups/research") == created


async def test_a_weight_is_changed_and_null_brings_the_default_back(api: Api) -> None:
    await api.group(weight=500)
    assert (await api.patch("/groups/research", {"weight": 50}))["weight"] == 50
    assert (await api.patch("/groups/research", {"weight": None}))["weight"] == 100


async def test_a_patch_without_fields_changes_nothing_and_writes_nothing(api: Api) -> None:
    await api.group(weight=500)
    before = await api.everything()
    await api.patch("/groups/research", {})
    await api.patch("/groups/research", {"weight": 500})
    assert await api.everything() == before


@pytest.mark.parametrize("name", ["a/b", "a b", "größe", "数学", "🙂", "a%2Fb", "'; --", "x" * 200])
async def test_a_group_can_have_any_plain_name(api: Api, name: str) -> None:
    await api.group(name)
    path = f"/groups/{quote(name, safe='')}"
    assert (await api.get(path))["name"] == name
    assert (await api.patch(path, {"weight": 7}))["weight"] == 7
    await api.delete(path)


async def test_renaming_a_group_takes_its_tenants_along(api: Api) -> None:
    await api.group("old")
    tenant = await api.tenant(group="old")
    await api.patch("/groups/old", {"name": "new"})
    await api.get("/groups/old", expect=404)
    moved = await api.get(f"/tenants/{tenant['id']}")
    assert moved["group"] == "new"
    assert moved["revision"] > tenant["revision"]


async def test_a_renamed_group_is_told_of_under_both_names(api: Api) -> None:
    await api.group("old")
    api.told.taken()
    await api.patch("/groups/old", {"name": "new"})
    assert api.told.taken() == {("group", "old"), ("group", "new")}


async def test_a_taken_name_is_a_conflict(api: Api) -> None:
    await api.group()
    assert fields(await api.post("/groups", {"name": "research"}, expect=409)) == {"name"}
    await api.group("other")
    assert fields(await api.patch("/groups/other", {"name": "research"}, expect=409)) == {"name"}


async def test_the_default_group_is_neither_renamed_nor_deleted(api: Api) -> None:
    await api.patch("/groups/default", {"name": "x"}, expect=409)
    await api.delete("/groups/default", expect=409)
    assert (await api.patch("/groups/default", {"weight": 9}))["weight"] == 9


async def test_a_group_in_use_is_not_deleted(api: Api) -> None:
    await api.group()
    tenant = await api.tenant(group="research")
    problem = await api.delete("/groups/research", expect=409)
    assert "1 tenant" in problem["detail"]
    await api.delete(f"/tenants/{tenant['id']}")
    await api.delete("/groups/research")
    await api.get("/groups/research", expect=404)


async def test_a_group_that_is_not_there_is_not_found(api: Api) -> None:
    await api.get("/groups/nobody", expect=404)
    await api.patch("/groups/nobody", {"weight": 1}, expect=404)
    await api.delete("/groups/nobody", expect=404)


@pytest.mark.parametrize("name", [".", ".."])
async def test_a_name_that_no_path_can_hold_is_refused(api: Api, name: str) -> None:
    assert fields(await api.post("/groups", {"name": name}, expect=422)) == {"name"}
