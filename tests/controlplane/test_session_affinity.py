from __future__ import annotations

import json
from typing import Any

import pytest

from tests.controlplane.api import Api, fields
from tests.controlplane.conftest import StartApi

pytestmark = pytest.mark.asyncio(loop_scope="module")

GATEWAY = {"enabled": False, "hold_ms": 3000, "max_held_percent": 25, "max_bypass_secs": 30}
ALL = {"enabled": True, "hold_ms": 5000, "max_held_percent": 50, "max_bypass_secs": 120}


@pytest.mark.parametrize("stored", [{}, ALL, {"enabled": True}, {"hold_ms": 0}])
async def test_what_a_model_leaves_out_follows_the_gateway(
    api: Api, stored: dict[str, Any]
) -> None:
    model = await api.model()
    answer = await api.put(f"/models/{model['id']}/session-affinity", stored)
    assert answer == {"session_affinity": stored, "effective": {**GATEWAY, **stored}}
    read = await api.get(f"/models/{model['id']}")
    assert read["session_affinity"] == stored
    assert read["session_affinity_effective"] == {**GATEWAY, **stored}


async def test_the_gateways_own_values_apply_also_while_it_is_off(start_api: StartApi) -> None:
    api = await start_api(
        fairshare_session_affinity_hold_ms=1, fairshare_session_affinity_max_held_percent=2
    )
    model = await api.model(session_affinity={"enabled": True})
    assert model["session_affinity_effective"] == {
        "enabled": True,
        "hold_ms": 1,
        "max_held_percent": 2,
        "max_bypass_secs": 30,
    }


async def test_an_empty_object_follows_the_gateway_in_everything_again(api: Api) -> None:
    model = await api.model(session_affinity=ALL)
    answer = await api.put(f"/models/{model['id']}/session-affinity", {})
    assert answer == {"session_affinity": {}, "effective": GATEWAY}


async def test_null_follows_the_gateway(api: Api) -> None:
    model = await api.model(session_affinity=ALL)
    answer = await api.put(f"/models/{model['id']}/session-affinity", {**ALL, "hold_ms": None})
    assert answer["session_affinity"] == {n: v for n, v in ALL.items() if n != "hold_ms"}


@pytest.mark.parametrize(
    ("field", "least", "most"),
    [("hold_ms", 0, 60_000), ("max_held_percent", 0, 100), ("max_bypass_secs", 1, 3600)],
)
async def test_each_value_has_its_range(api: Api, field: str, least: int, most: int) -> None:
    model = await api.model()
    path = f"/models/{model['id']}/session-affinity"
    for fine in (least, most):
        assert (await api.put(path, {field: fine}))["effective"][field] == fine
    wrong: Any
    for wrong in (least - 1, most + 1, 1.5, "5", True, [], {}):
        problem = await api.put(path, {field: wrong}, expect=422)
        error = problem["errors"][0]
        assert (error["field"], error["minimum"], error["maximum"]) == (field, least, most)
        problem = await api.patch(
            f"/models/{model['id']}", {"session_affinity": {field: wrong}}, expect=422
        )
        assert fields(problem) == {f"session_affinity.{field}"}
    assert (await api.get(f"/models/{model['id']}"))["session_affinity"] == {field: most}


async def test_enabled_is_true_or_false(api: Api) -> None:
    model = await api.model()
    wrong: Any
    for wrong in (1, 0, "true", "on", []):
        problem = await api.put(
            f"/models/{model['id']}/session-affinity", {"enabled": wrong}, expect=422
        )
        assert fields(problem) == {"enabled"}


async def test_its_tag_is_the_models(api: Api) -> None:
    model = await api.model()
    path = f"/models/{model['id']}/session-affinity"
    old = {"If-Match": f'"{model["revision"]}"'}
    answer = await api.client.put(path, json=ALL, headers=old)
    assert (await api.client.get(f"/models/{model['id']}")).headers["etag"] == answer.headers[
        "etag"
    ]
    await api.put(path, {}, expect=412, headers=old)


@pytest.mark.parametrize(
    "body",
    [
        {"holdms": 1},
        {"enabled": True, "warm_secs": 3},
        {"enabled": True, "hold_ms": 5, "effective": {}},
        b"null",
        b"[]",
        b'"on"',
        b"1",
        b"",
        b"{",
        b'{"hold_ms": NaN}',
        b'{"hold_ms": 1e9999}',
        b'{"hold_ms": 1, "hold_ms": 70000}',
    ],
)
async def test_a_body_that_is_not_an_object_of_known_fields_changes_nothing(
    api: Api, body: Any
) -> None:
    model = await api.model(session_affinity=ALL)
    path = f"/models/{model['id']}/session-affinity"
    answer = await api.client.put(
        path,
        content=body if isinstance(body, bytes) else json.dumps(body),
        headers={"content-type": "application/json"},
    )
    assert answer.status_code in (400, 422)
    assert answer.headers["content-type"] == "application/problem+json"
    assert (await api.get(f"/models/{model['id']}"))["session_affinity"] == ALL


async def test_a_model_that_does_not_exist_has_none(api: Api) -> None:
    for id in ("00000000-0000-7000-8000-000000000000", "no-id"):
        await api.put(f"/models/{id}/session-affinity", {}, expect=404)


async def test_it_survives_export_and_import_in_part_and_whole(api: Api) -> None:
    for name, stored in (("a", {}), ("b", ALL), ("c", {"enabled": False}), ("d", {"hold_ms": 0})):
        await api.model(name, session_affinity=stored)
    exported = await api.get("/models/export")
    for model in await api.items("/models"):
        await api.put(f"/models/{model['id']}/session-affinity", {"max_held_percent": 7})
    await api.post("/models/import", exported, expect=200)
    again = await api.get("/models/export")
    assert again["models"] == exported["models"]
    found = {each["name"]: each["session_affinity"] for each in await api.items("/models")}
    assert found == {"a": {}, "b": ALL, "c": {"enabled": False}, "d": {"hold_ms": 0}}
