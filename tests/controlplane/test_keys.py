from __future__ import annotations

import re

import pytest
from sqlalchemy import select

from shared.secrets import key_digest
from shared.tables import KeyRow
from tests.controlplane.api import NO_SUCH_ID, Api, fields
from tests.controlplane.conftest import StartApi

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def _stored(api: Api, key_id: str) -> KeyRow:
    async with api.plane.database.reading() as session:
        return (await session.scalars(select(KeyRow).where(KeyRow.id == key_id))).one()


async def test_a_key_is_shown_once_and_only_its_digest_is_kept(start_api: StartApi) -> None:
    api = await start_api(api_key_pepper="pepper")
    tenant = await api.tenant()
    answer = await api.client.post(f"/tenants/{tenant['id']}/keys", json={"name": "laptop"})
    created = answer.json()
    assert re.fullmatch(r"sk-[0-9a-f]{48}", created["secret"])
    assert created["secret"].startswith(created["prefix"])
    assert answer.headers["cache-control"] == "no-store"
    assert (await _stored(api, created["id"])).digest == key_digest(created["secret"], "pepper")
    read = await api.get(f"/keys/{created['id']}")
    assert read == {name: value for name, value in created.items() if name != "secret"}


async def test_no_secret_is_in_the_audit_log_or_any_other_answer(api: Api) -> None:
    tenant = await api.tenant()
    key = await api.key(tenant["id"])
    again = await api.post(f"/keys/{key['id']}/rotate", expect=200)
    await api.delete(f"/keys/{key['id']}")
    text = str(await api.everything())
    assert key["secret"] not in text
    assert again["secret"] not in text
    assert key["prefix"] in text


async def test_a_key_has_defaults_for_all_but_its_name(api: Api) -> None:
    tenant = await api.tenant()
    key = await api.key(tenant["id"])
    assert (key["weight"], key["max_in_flight"], key["budget_tokens"]) == (100, None, None)
    assert (key["budget_period"], key["disabled"], key["expires_at"]) == ("month", False, None)
    assert (key["tenant_id"], key["last_used_at"]) == (tenant["id"], None)


async def test_every_field_of_a_key_can_be_set_and_reset(api: Api) -> None:
    fields = {
        "weight": 5,
        "max_in_flight": 2,
        "budget_tokens": 1000,
        "budget_period": "lifetime",
        "disabled": True,
        "expires_at": "2031-01-01T00:00:00Z",
    }
    tenant = await api.tenant()
    key = await api.key(tenant["id"])
    path = f"/keys/{key['id']}"
    assert (await api.patch(path, {"name": "desk", **fields})).items() >= fields.items()
    reset = await api.patch(path, dict.fromkeys(fields))
    assert {name: reset[name] for name in fields} == {name: key[name] for name in fields}
    assert reset["name"] == "desk"


async def test_two_keys_of_a_tenant_may_have_one_name(api: Api) -> None:
    tenant = await api.tenant()
    first, second = await api.key(tenant["id"]), await api.key(tenant["id"])
    assert first["secret"] != second["secret"]


async def test_rotating_replaces_the_secret_and_keeps_the_key(api: Api) -> None:
    tenant = await api.tenant()
    key = await api.key(tenant["id"], weight=9)
    api.told.taken()
    again = await api.post(f"/keys/{key['id']}/rotate", expect=200)
    assert again["secret"] != key["secret"]
    assert (again["id"], again["weight"]) == (key["id"], 9)
    assert (await _stored(api, key["id"])).digest == key_digest(again["secret"], "")
    assert api.told.taken() == {("key", key["id"])}


async def test_rotating_takes_no_fields(api: Api) -> None:
    tenant = await api.tenant()
    path = f"/keys/{(await api.key(tenant['id']))['id']}"
    before = await api.everything()
    for body, expected in ({"grace_secs": 60}, 422), (b"[]", 422), (b"{", 400):
        await api.post(f"{path}/rotate", body, expect=expected)
    assert await api.everything() == before
    await api.post(f"{path}/rotate", {}, expect=200)


async def test_a_key_needs_a_tenant(api: Api) -> None:
    await api.post(f"/tenants/{NO_SUCH_ID}/keys", {"name": "x"}, expect=404)


async def test_keys_are_listed_by_tenant(api: Api) -> None:
    first, second = await api.tenant("a"), await api.tenant("b")
    mine = await api.key(first["id"])
    await api.key(second["id"])
    listed = await api.items("/keys", tenant_id=first["id"])
    assert [one["id"] for one in listed] == [mine["id"]]
    assert await api.items("/keys", tenant_id=NO_SUCH_ID) == []
    assert len(await api.items("/keys")) == 2


@pytest.mark.parametrize("unknown", [NO_SUCH_ID, "sk-"])
async def test_a_key_that_is_not_there_is_not_found(api: Api, unknown: str) -> None:
    await api.get(f"/keys/{unknown}", expect=404)
    await api.patch(f"/keys/{unknown}", {}, expect=404)
    await api.post(f"/keys/{unknown}/rotate", expect=404)
    await api.delete(f"/keys/{unknown}", expect=404)


async def test_what_only_the_gateway_sets_is_refused(api: Api) -> None:
    tenant = await api.tenant()
    body = {"name": "x", "secret": "sk-mine", "prefix": "sk-", "tenant_id": tenant["id"]}
    problem = await api.post(f"/tenants/{tenant['id']}/keys", body, expect=422)
    assert fields(problem) == {"secret", "prefix", "tenant_id"}


async def test_deleting_a_key_is_told_of(api: Api) -> None:
    tenant = await api.tenant()
    key = await api.key(tenant["id"])
    api.told.taken()
    await api.delete(f"/keys/{key['id']}")
    assert api.told.taken() == {("key", key["id"])}
    await api.get(f"/keys/{key['id']}", expect=404)
