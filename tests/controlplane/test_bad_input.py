from __future__ import annotations

import json
from typing import Any

import pytest

from controlplane.routes import LONGEST_BODY
from tests.controlplane.api import Api, fields, nested, raw

pytestmark = pytest.mark.asyncio(loop_scope="module")

NOT_WHOLE = [
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "-1e999",
    "1" + "0" * 400,
    "-1" + "0" * 400,
    "9" * 5000,
    "1.5",
    "1e2",
    '"5"',
    '""',
    "true",
    "false",
    "[]",
    "[5]",
    "{}",
    "-1",
]
BAD_NAMES = [
    '""',
    '" "',
    '"\\u0000"',
    '"a\\u0000b"',
    '"a\\r\\nset-cookie: x=1"',
    '"\\u001b[31m"',
    '"\\u007f"',
    '"\\u0085"',
    '"\\u2028"',
    '"\\ud800"',
    '"a\\udfffb"',
    json.dumps("x" * 201),
    json.dumps("x" * 10_000),
    "5",
    "true",
    "null",
    '["x"]',
]
NOT_JSON = [
    b"",
    b"{",
    b"not json",
    b"{'name': 'x'}",
    b'{"name": "x",}',
    b'{"name": "x"} {}',
    b'{"name": "\xff"}',
    b"\xff\xfe{\x00}\x00",
    b"\xef\xbb\xbf{}",
    b'{"name": "x", "name": "y"}',
    b'{"name": "a\nb"}',
    nested(10_000),
    b'{"name": ' + nested(100_000) + b"}",
    b"name=x",
]
WHOLE_NUMBERS = {
    "/groups": {"weight": (1, 1_000_000)},
    "/tenants": {
        "weight": (1, 1_000_000),
        "max_in_flight": (1, 100_000),
        "tokens_per_minute": (1, 10**15),
        "budget_tokens": (1, 10**15),
    },
    "/models": {
        "max_in_flight": (1, 100_000),
        "admission_weight": (1, 10_000),
        "max_retries": (0, 10),
    },
}


@pytest.mark.parametrize(
    ("path", "field"),
    [(path, field) for path, numbers in WHOLE_NUMBERS.items() for field in numbers],
)
async def test_a_number_out_of_range_or_no_number_is_refused_and_nothing_stored(
    api: Api, path: str, field: str
) -> None:
    least, most = WHOLE_NUMBERS[path][field]
    before = await api.everything()
    for wrong in [*NOT_WHOLE, str(least - 1), str(most + 1)]:
        problem = await api.post(path, raw(name='"x"', **{field: wrong}), expect=422)
        (error,) = problem["errors"]
        assert (error["field"], error["in"]) == (field, "body")
        assert (error["minimum"], error["maximum"]) == (least, most)
        assert f"{least:,} to {most:,}" in error["detail"]
    assert await api.everything() == before
    for i, fine in enumerate((least, most)):
        assert (await api.post(path, {"name": f"x{i}", field: fine}))[field] == fine


async def test_numbers_of_keys_and_endpoints_have_the_same_ranges(api: Api) -> None:
    tenant, model = await api.tenant(), await api.model()
    keys, endpoints = f"/tenants/{tenant['id']}/keys", f"/models/{model['id']}/endpoints"
    before = await api.everything()
    for wrong in [*NOT_WHOLE, "0", "1000000000000001"]:
        for field in ("weight", "max_in_flight", "budget_tokens"):
            problem = await api.post(keys, raw(name='"x"', **{field: wrong}), expect=422)
            assert fields(problem) == {field}
        for field in ("weight", "max_in_flight"):
            body = raw(url='"http://10.0.0.1/v1"', **{field: wrong})
            assert fields(await api.post(endpoints, body, expect=422)) == {field}
    assert await api.everything() == before


async def test_a_patch_is_held_to_the_same_ranges(api: Api) -> None:
    await api.group(weight=5)
    before = await api.everything()
    for wrong in [*NOT_WHOLE, "0", "1000001"]:
        problem = await api.patch("/groups/research", raw(weight=wrong), expect=422)
        assert fields(problem) == {"weight"}
    assert await api.everything() == before


async def test_a_request_timeout_is_a_finite_number_above_zero(api: Api) -> None:
    for wrong in ("NaN", "Infinity", "1e999", "1" + "0" * 400, '"5"', "true", "0", "-1", "86400.1"):
        problem = await api.post("/models", raw(name='"x"', request_timeout_secs=wrong), expect=422)
        assert fields(problem) == {"request_timeout_secs"}
    assert await api.items("/models") == []
    assert (await api.model(request_timeout_secs=1.5))["request_timeout_secs"] == 1.5


@pytest.mark.parametrize("path", ["/groups", "/tenants", "/models"])
async def test_a_name_is_plain_text_of_bounded_length(api: Api, path: str) -> None:
    before = await api.everything()
    for wrong in BAD_NAMES:
        assert fields(await api.post(path, raw(name=wrong), expect=422)) == {"name"}
    assert fields(await api.post(path, {}, expect=422)) == {"name"}
    assert await api.everything() == before
    assert (await api.post(path, {"name": "é" * 200}))["name"] == "é" * 200


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("budget_period", ["week", "", 5, True, [], {}]),
        ("status", ["deleted", "ACTIVE", 0, False]),
        (
            "budget_started_at",
            [
                "",
                "now",
                "2030-01-31",
                "2030-01-31T12:00:00",
                "2030-13-31T12:00:00Z",
                "0001-01-01T00:00:00+14:00",
                "9999-12-31T23:59:59-14:00",
                1_900_000_000,
                True,
                [],
            ],
        ),
        ("allowed_models", ["llama", {}, 5, True]),
        ("group", ["", 5, [], "a\x00b"]),
    ],
)
async def test_fields_of_a_tenant_take_only_what_they_mean(
    api: Api, field: str, wrong: list[Any]
) -> None:
    for value in wrong:
        problem = await api.post("/tenants", {"name": "x", field: value}, expect=422)
        assert fields(problem) == {field}
    assert await api.items("/tenants") == []


async def test_an_element_of_a_list_is_named_by_its_place(api: Api) -> None:
    body = {"name": "x", "allowed_models": ["llama", 5, "a\x00"]}
    problem = await api.post("/tenants", body, expect=422)
    assert fields(problem) == {"allowed_models.1", "allowed_models.2"}
    problem = await api.post("/models", {"name": "x", "aliases": ["y"] * 31}, expect=422)
    assert fields(problem) == {"aliases"}


async def test_a_body_that_is_not_json_is_400(api: Api) -> None:
    before = await api.everything()
    for body in NOT_JSON:
        problem = await api.post("/groups", body, expect=400)
        assert problem["type"] == "urn:obleth:problem:invalid-json"
    assert await api.everything() == before


async def test_a_body_that_is_no_object_is_refused(api: Api) -> None:
    for body in (b"[]", b"null", b"5", b'"x"', b"true", b"NaN", nested(900)):
        for method, path in (("POST", "/groups"), ("PATCH", "/groups/default")):
            problem = await api.call(method, path, body, expect=422)
            assert problem["errors"][0]["in"] == "body"


@pytest.mark.parametrize(
    "label", ["application/x-www-form-urlencoded", "text/plain", "application/merge-patch+json"]
)
async def test_a_body_is_json_whatever_it_is_labelled(api: Api, label: str) -> None:
    headers = {"Content-Type": label}
    await api.post("/groups", b'{"name": "x"}', headers=headers)
    await api.patch("/groups/x", b'{"weight": 5}', headers=headers)
    await api.patch("/groups/x", b"weight=5", headers=headers, expect=400)


@pytest.mark.parametrize("path", ["/groups", "/tenants", "/models"])
async def test_unknown_fields_are_refused_all_at_once(api: Api, path: str) -> None:
    body = {"name": "x", "wieght": 5, "__proto__": {}, "created_at": None, "id": None}
    problem = await api.post(path, body, expect=422)
    assert fields(problem) == {"wieght", "__proto__", "created_at", "id"}


async def test_a_field_named_with_a_lone_surrogate_still_gets_an_answer(api: Api) -> None:
    await api.post("/groups", b'{"name": "x", "\\ud800": 1}', expect=422)
    await api.post("/groups", b'{"name": "x", "\\u0000": 1}', expect=422)
    await api.post("/groups", b'{"name": "x", "\\ud83d\\ude00": 1}', expect=422)


async def test_a_body_over_the_limit_is_413(api: Api) -> None:
    body = b'{"name": "' + b"x" * LONGEST_BODY + b'"}'
    problem = await api.post("/groups", body, expect=413)
    assert problem["type"] == "urn:obleth:problem:body-too-large"

    async def pieces() -> Any:
        for _ in range(LONGEST_BODY // 65_536 + 2):
            yield b" " * 65_536

    answer = await api.client.post("/groups", content=pieces())
    assert answer.status_code == 413


@pytest.mark.parametrize("name", ["%00", "a%0D%0Ab", "%7F", "%C2%85"])
async def test_no_path_with_control_characters_leads_anywhere(api: Api, name: str) -> None:
    for path in (f"/groups/{name}", f"/tenants/{name}", f"/keys/{name}", f"/models/{name}"):
        await api.get(path, expect=404)
        await api.patch(path, {}, expect=404)
        await api.delete(path, expect=404)


async def test_markup_in_a_name_is_text(api: Api) -> None:
    name = "\"><img src=x onerror=alert(1)>'); DROP TABLE tenants; --"
    tenant = await api.tenant(name)
    assert (await api.get(f"/tenants/{tenant['id']}"))["name"] == name
