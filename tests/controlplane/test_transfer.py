from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from shared.tables import EndpointRow
from tests.controlplane.api import Api, fields

pytestmark = pytest.mark.asyncio(loop_scope="module")

URL = "http://10.0.0.1:8000/v1"
OTHER_URL = "http://10.0.0.2:8000/v1"
BAD_IMPORTS: list[tuple[list[Any], int, str]] = [
    ([{"name": "new"}, {"name": "new"}], 422, "models.1.name"),
    ([{"name": "new", "aliases": ["x"]}, {"name": "x"}], 422, "models.1.name"),
    ([{"name": "new", "aliases": ["x", "x"]}], 422, "models.0.aliases.1"),
    ([{"name": "new"}, {"name": "fast"}], 409, "models.1.name"),
    ([{"name": "new", "aliases": ["llama"]}], 409, "models.0.aliases.0"),
    ([{"name": "new"}, {"name": "x", "weight": 1}], 422, "models.1.weight"),
    ([{"name": "new"}, {"name": "x", "max_retries": -1}], 422, "models.1.max_retries"),
    (
        [{"name": "new", "endpoints": [{"url": "http://169.254.169.254/"}]}],
        422,
        "models.0.endpoints.0.url",
    ),
    (
        [{"name": "new", "endpoints": [{"url": URL}, {"url": f"{URL}/"}]}],
        422,
        "models.0.endpoints.1.url",
    ),
    (
        [{"name": "new", "endpoints": [{"url": URL, "weight": 0}]}],
        422,
        "models.0.endpoints.0.weight",
    ),
    ([{"name": "new", "id": "mine"}], 422, "models.0.id"),
    ([7], 422, "models.0"),
]


async def _import(api: Api, *models: dict[str, Any], expect: int = 200) -> Any:
    return await api.post("/models/import", {"models": list(models)}, expect=expect)


async def _sealed(api: Api) -> dict[str, str | None]:
    async with api.plane.database.reading() as session:
        rows = await session.scalars(select(EndpointRow))
        return {row.url: row.sealed_api_key for row in rows}


async def test_what_is_exported_can_be_imported_and_changes_nothing(api: Api) -> None:
    model = await api.model(
        aliases=["b", "a"],
        capacity={"mode": "discovered", "source": "endpoints", "per_replica_max_in_flight": 4},
        session_affinity={"enabled": True},
    )
    await api.endpoint(model["id"], URL, api_key="k", priority=3)
    await api.model("qwen", enabled=False)
    exported = await api.get("/models/export")
    before = await api.everything()
    result = await api.post("/models/import", exported, expect=200)
    assert result == {"created": [], "updated": [], "unchanged": ["llama", "qwen"]}
    assert await api.everything() == before


async def test_an_export_recreates_the_models_elsewhere(api: Api) -> None:
    model = await api.model(aliases=["a"], max_in_flight=3)
    await api.endpoint(model["id"], URL, weight=7)
    exported = await api.get("/models/export")
    await api.delete(f"/models/{model['id']}")
    result = await api.post("/models/import", exported, expect=200)
    assert result == {"created": ["llama"], "updated": [], "unchanged": []}
    assert await api.get("/models/export") == exported


async def test_an_export_holds_no_api_key(api: Api) -> None:
    model = await api.model()
    await api.endpoint(model["id"], URL, api_key="very-secret")
    assert "very-secret" not in str(await api.get("/models/export"))


async def test_an_import_replaces_what_it_names_and_leaves_the_rest(api: Api) -> None:
    model = await api.model("llama", max_in_flight=3, aliases=["fast"])
    kept = await api.model("qwen")
    result = await _import(api, {"name": "llama", "max_retries": 2})
    assert result["updated"] == ["llama"]
    now = await api.get(f"/models/{model['id']}")
    assert (now["max_in_flight"], now["aliases"], now["max_retries"]) == (None, [], 2)
    assert await api.get(f"/models/{kept['id']}") == kept


async def test_endpoints_stay_when_they_are_left_out_and_go_when_they_are_not_listed(
    api: Api,
) -> None:
    model = await api.model()
    await api.endpoint(model["id"], URL)
    await _import(api, {"name": "llama"})
    assert await _sealed(api) == {URL: None}
    result = await _import(api, {"name": "llama", "endpoints": [{"url": OTHER_URL}]})
    assert result["updated"] == ["llama"]
    assert await _sealed(api) == {OTHER_URL: None}
    await _import(api, {"name": "llama", "endpoints": []})
    assert await _sealed(api) == {}


async def test_an_endpoint_that_stays_keeps_its_api_key_unless_given_another(api: Api) -> None:
    model = await api.model()
    await api.endpoint(model["id"], URL, api_key="old")
    before = (await api.items(f"/models/{model['id']}/endpoints"))[0]
    await _import(api, {"name": "llama", "endpoints": [{"url": f"{URL}/", "weight": 3}]})
    after = (await api.items(f"/models/{model['id']}/endpoints"))[0]
    assert (after["id"], after["weight"], after["has_api_key"]) == (before["id"], 3, True)
    assert await _sealed(api) == {URL: "plain:old"}
    await _import(api, {"name": "llama", "endpoints": [{"url": URL, "api_key": "new"}]})
    assert await _sealed(api) == {URL: "plain:new"}
    await _import(api, {"name": "llama", "endpoints": [{"url": URL, "api_key": None}]})
    assert await _sealed(api) == {URL: None}


async def test_an_alias_can_move_between_models_in_one_import(api: Api) -> None:
    await api.model("a", aliases=["fast"])
    await api.model("b")
    await _import(api, {"name": "b", "aliases": ["fast"]}, {"name": "a"})
    exported = {m["name"]: m["aliases"] for m in (await api.get("/models/export"))["models"]}
    assert exported == {"a": [], "b": ["fast"]}


async def test_an_import_that_is_wrong_anywhere_changes_nothing(api: Api) -> None:
    await api.model("llama", aliases=["fast"])
    before = await api.everything()
    for models, status, field in BAD_IMPORTS:
        assert fields(await _import(api, *models, expect=status)) == {field}
    assert await api.everything() == before


async def test_an_import_of_nothing_does_nothing(api: Api) -> None:
    assert await _import(api) == {"created": [], "updated": [], "unchanged": []}
    assert fields(await api.post("/models/import", {}, expect=422)) == {"models"}
    assert fields(await api.post("/models/import", {"models": None}, expect=422)) == {"models"}


async def test_tenants_follow_when_an_import_turns_a_name_into_an_alias(api: Api) -> None:
    gone = await api.model("fast")
    tenant = await api.tenant(allowed_models=["fast"])
    await api.delete(f"/models/{gone['id']}")
    await _import(api, {"name": "llama", "aliases": ["fast"]})
    assert (await api.get(f"/tenants/{tenant['id']}"))["allowed_models"] == ["llama"]


async def test_each_imported_model_is_in_the_audit_log_and_told_of(api: Api) -> None:
    model = await api.model("a")
    api.told.taken()
    await _import(api, {"name": "a", "max_retries": 3}, {"name": "b"})
    entries = await api.items("/audit", kind="model", limit=2)
    assert {(one["action"], one["subject_name"]) for one in entries} == {
        ("update", "a"),
        ("create", "b"),
    }
    assert len(api.told.taken() - {("model", model["id"])}) == 1
