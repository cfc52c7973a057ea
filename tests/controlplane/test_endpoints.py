from __future__ import annotations

import pytest
from cryptography.fernet import Fernet
from sqlalchemy import select

from shared.secrets import unseal
from shared.tables import EndpointRow
from tests.controlplane.api import NO_SUCH_ID, Api, fields
from tests.controlplane.conftest import StartApi

pytestmark = pytest.mark.asyncio(loop_scope="module")

URL = "http://10.0.0.1:8000/v1"
BAD_URLS: list[object] = [
    "",
    "llm",
    "llm:8000/v1",
    "ftp://llm/v1",
    "file:///etc/passwd",
    "http://",
    "http://user:password@llm/v1",
    "http://llm/v1?key=1",
    "http://llm/v1#x",
    "http://llm:99999/v1",
    "http://llm/ v1",
    "http://llm\r\nx/v1",
    "http://169.254.169.254/latest",
    "http://[fe80::1]/v1",
    "http://metadata.google.internal/v1",
    "http://" + "x" * 2048,
    5,
    ["http://llm"],
]


async def _stored(api: Api) -> EndpointRow:
    async with api.plane.database.reading() as session:
        return (await session.scalars(select(EndpointRow))).one()


async def test_an_endpoint_has_defaults_for_all_but_its_url(api: Api) -> None:
    model = await api.model()
    created = await api.endpoint(model["id"], URL)
    expected = {
        "model_id": model["id"],
        "url": URL,
        "has_api_key": False,
        "weight": 100,
        "priority": 0,
        "enabled": True,
        "max_in_flight": None,
        "health": "unknown",
    }
    assert created.items() >= expected.items()
    assert await api.get(f"/models/{model['id']}/endpoints/{created['id']}") == created
    assert await api.items(f"/models/{model['id']}/endpoints") == [created]


async def test_every_field_of_an_endpoint_can_be_set_and_reset(api: Api) -> None:
    model = await api.model()
    created = await api.endpoint(model["id"])
    path = f"/models/{model['id']}/endpoints/{created['id']}"
    others = {"weight": 3, "priority": 2, "enabled": False, "max_in_flight": 5}
    assert (await api.patch(path, others)).items() >= others.items()
    reset = await api.patch(path, dict.fromkeys(others))
    assert {name: reset[name] for name in others} == {name: created[name] for name in others}


async def test_a_url_is_kept_without_a_slash_at_its_end(api: Api) -> None:
    model = await api.model()
    created = await api.endpoint(model["id"], "HTTPS://LLM.Example:8443/Base/v1/")
    assert created["url"] == "https://llm.example:8443/Base/v1"


async def test_a_model_has_each_url_once(api: Api) -> None:
    model, other = await api.model("a"), await api.model("b")
    await api.endpoint(model["id"], URL)
    await api.endpoint(other["id"], URL)
    second = await api.endpoint(model["id"], "http://10.0.0.2/v1")
    path = f"/models/{model['id']}/endpoints"
    assert fields(await api.post(path, {"url": f"{URL}/"}, expect=409)) == {"url"}
    problem = await api.patch(f"{path}/{second['id']}", {"url": URL}, expect=409)
    assert fields(problem) == {"url"}


async def test_an_api_key_is_encrypted_and_never_comes_back(start_api: StartApi) -> None:
    old, new = Fernet.generate_key().decode(), Fernet.generate_key().decode()
    api = await start_api(encryption_key=f"{new},{old}")
    model = await api.model()
    created = await api.endpoint(model["id"], api_key="very-secret")
    assert created["has_api_key"] is True
    sealed = (await _stored(api)).sealed_api_key or ""
    assert "very-secret" not in sealed
    assert unseal(sealed, [new]) == "very-secret"
    listed = await api.items(f"/models/{model['id']}/endpoints")
    assert "very-secret" not in str([created, listed, await api.everything()])


async def test_an_api_key_stays_until_it_is_replaced_or_taken_away(api: Api) -> None:
    model = await api.model()
    created = await api.endpoint(model["id"], api_key="first")
    path = f"/models/{model['id']}/endpoints/{created['id']}"
    assert (await api.patch(path, {"weight": 5}))["has_api_key"] is True
    await api.patch(path, {"api_key": "second"})
    assert unseal((await _stored(api)).sealed_api_key or "", []) == "second"
    assert (await api.patch(path, {"api_key": None}))["has_api_key"] is False
    assert (await _stored(api)).sealed_api_key is None
    revision = (await _stored(api)).revision
    await api.patch(path, {"api_key": None})
    assert (await _stored(api)).revision == revision


async def test_the_audit_log_says_that_an_api_key_was_replaced_and_not_which(api: Api) -> None:
    model = await api.model()
    created = await api.endpoint(model["id"], api_key="first-secret")
    path = f"/models/{model['id']}/endpoints/{created['id']}"
    await api.patch(path, {"api_key": "second-secret"})
    entries = await api.items("/audit", kind="endpoint")
    assert entries[0]["after"]["api_key_replaced"] is True
    assert "-secret" not in str(entries)


async def test_an_api_key_must_fit_a_header(api: Api) -> None:
    model = await api.model()
    for wrong in ("", "a b", "a\r\nx: y", "ключ", "x" * 4097, 5, True, ["x"]):
        body = {"url": URL, "api_key": wrong}
        problem = await api.post(f"/models/{model['id']}/endpoints", body, expect=422)
        assert fields(problem) == {"api_key"}


async def test_a_url_that_cannot_be_is_refused_on_every_way_in(api: Api) -> None:
    model = await api.model()
    kept = await api.endpoint(model["id"], URL)
    path = f"/models/{model['id']}/endpoints"
    mine = f"{path}/{kept['id']}"
    for wrong in BAD_URLS:
        assert fields(await api.post(path, {"url": wrong}, expect=422)) == {"url"}
        assert fields(await api.patch(mine, {"url": wrong}, expect=422)) == {"url"}
    assert await api.items(path) == [kept]


async def test_private_networks_can_be_blocked_less_exceptions(start_api: StartApi) -> None:
    api = await start_api(block_private_networks=True, allowed_private_cidrs="10.1.0.0/16")
    model = await api.model()
    await api.endpoint(model["id"], "http://10.1.2.3/v1")
    await api.endpoint(model["id"], "https://8.8.8.8/v1")
    for private in ("http://10.2.0.1/v1", "http://localhost/v1", "http://[::1]/v1"):
        path = f"/models/{model['id']}/endpoints"
        problem = await api.post(path, {"url": private}, expect=422)
        assert "OBLETH_BLOCK_PRIVATE_NETWORKS" in problem["detail"]


async def test_an_endpoint_belongs_to_its_model(api: Api) -> None:
    model, other = await api.model("a"), await api.model("b")
    endpoint = await api.endpoint(model["id"])
    for path in (
        f"/models/{other['id']}/endpoints/{endpoint['id']}",
        f"/models/{model['id']}/endpoints/{NO_SUCH_ID}",
        f"/models/{NO_SUCH_ID}/endpoints/{endpoint['id']}",
    ):
        await api.get(path, expect=404)
        await api.patch(path, {}, expect=404)
        await api.delete(path, expect=404)
    await api.get(f"/models/{NO_SUCH_ID}/endpoints", expect=404)
    await api.post(f"/models/{NO_SUCH_ID}/endpoints", {"url": URL}, expect=404)


async def test_replicas_are_told_of_the_model_when_an_endpoint_changes(api: Api) -> None:
    model = await api.model()
    mine = {("model", model["id"])}
    api.told.taken()
    endpoint = await api.endpoint(model["id"])
    assert api.told.taken() == mine
    path = f"/models/{model['id']}/endpoints/{endpoint['id']}"
    await api.patch(path, {"enabled": False})
    assert api.told.taken() == mine
    await api.delete(path)
    assert api.told.taken() == mine
    await api.get(path, expect=404)
