from __future__ import annotations

import pytest

from controlplane.admin_auth import CLIENT_MAX
from tests.controlplane.api import Api, fields
from tests.controlplane.conftest import StartApi

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_every_write_is_kept_with_what_was_before_and_after(api: Api) -> None:
    group = await api.group("research", weight=5)
    changed = await api.patch("/groups/research", {"weight": 7})
    await api.delete("/groups/research")
    entries = await api.items("/audit")
    assert [(one["action"], one["before"], one["after"]) for one in entries] == [
        ("delete", changed, None),
        ("update", group, changed),
        ("create", None, group),
    ]
    assert {(one["kind"], one["subject_id"], one["actor"]) for one in entries} == {
        ("group", "research", "admin")
    }
    assert [one["revision"] for one in entries] == [3, 2, 1]


async def test_an_entry_says_from_where_the_change_was_asked_for(api: Api) -> None:
    await api.group()
    assert (await api.items("/audit"))[0]["client"] == "127.0.0.1"


async def test_whatever_a_proxy_passes_on_as_an_address_a_change_is_made(
    start_api: StartApi,
) -> None:
    api = await start_api(admin_trusted_proxies="127.0.0.1/32")
    for number, said in enumerate(("203.0.113.9", "x" * 1000, "\xff" * 100, "unknown")):
        await api.post(
            "/groups", {"name": f"g{number}"}, headers={"x-forwarded-for": said.encode("latin-1")}
        )
        assert (await api.items("/audit"))[0]["client"] == said[:CLIENT_MAX]


async def test_a_deleted_tenants_keys_are_named_in_its_entry(api: Api) -> None:
    tenant = await api.tenant()
    key = await api.key(tenant["id"], "laptop")
    await api.delete(f"/tenants/{tenant['id']}")
    assert (await api.items("/audit"))[0]["before"]["keys"] == [
        f"{key['id']} {key['prefix']} laptop"
    ]


async def test_a_deleted_models_endpoints_have_entries_of_their_own(api: Api) -> None:
    model = await api.model()
    urls = ["http://10.0.0.1/v1", "http://10.0.0.2/v1"]
    made = [await api.endpoint(model["id"], url, api_key="sk-canary") for url in urls]
    await api.delete(f"/models/{model['id']}")
    for endpoint in made:
        last = (await api.items("/audit", kind="endpoint", subject_id=endpoint["id"]))[0]
        assert (last["action"], last["subject_name"]) == ("delete", endpoint["url"])
        assert last["before"] == {key: endpoint[key] for key in endpoint if key != "health"}
        assert last["after"] is None
    assert "sk-canary" not in str(await api.items("/audit"))


async def test_a_request_that_fails_leaves_no_entry(api: Api) -> None:
    await api.delete("/groups/default", expect=409)
    await api.post("/groups", {"name": "default"}, expect=409)
    await api.post("/groups", {"name": ""}, expect=422)
    assert await api.items("/audit") == []


async def test_entries_can_be_narrowed_down(api: Api) -> None:
    tenant = await api.tenant()
    await api.key(tenant["id"])
    await api.group()
    assert [one["kind"] for one in await api.items("/audit", kind="key")] == ["key"]
    mine = await api.items("/audit", kind="tenant", subject_id=tenant["id"])
    assert [one["subject_name"] for one in mine] == ["acme"]
    assert await api.items("/audit", kind="nothing") == []


async def test_a_filter_that_does_not_exist_is_refused(api: Api) -> None:
    problem = await api.get("/audit", params={"subject": "x"}, expect=422)
    assert fields(problem) == {"subject"}
    assert problem["errors"][0]["in"] == "query"
