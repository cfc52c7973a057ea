from __future__ import annotations

import base64
import json

import pytest

from controlplane.fairshare.source import Fleet, NoReplicas
from shared.live_state import ReplicaState
from tests.controlplane.api import Api, fields

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def _all(api: Api, path: str, limit: int, **params: str | int) -> list[str]:
    seen: list[str] = []
    params["limit"] = limit
    while True:
        page = await api.get(path, params=params)
        assert len(page["items"]) <= limit
        seen += [one.get("name") or one["subject_name"] for one in page["items"]]
        if page["next_cursor"] is None:
            return seen
        params["cursor"] = page["next_cursor"]


async def test_pages_hold_every_item_once_and_in_order(api: Api) -> None:
    names = ["b", "c", "a", "d'", "ö"]
    tenants = [await api.tenant(name) for name in names]
    for name in names:
        await api.key(tenants[0]["id"], name)
        await api.model(name)
    for limit in (1, 2, 4, 5, 6, 500):
        assert await _all(api, "/tenants", limit) == names
        assert await _all(api, "/keys", limit) == names
        assert await _all(api, "/models", limit) == names
        assert await _all(api, "/audit", limit, kind="tenant") == names[::-1]


async def test_groups_come_by_name(api: Api) -> None:
    for name in ("b", "z", "a"):
        await api.group(name)
    assert await _all(api, "/groups", 2) == ["a", "b", "default", "z"]


async def test_a_page_goes_on_though_its_last_item_was_deleted(api: Api) -> None:
    for name in ("a", "b", "c"):
        await api.group(name)
    page = await api.get("/groups", params={"limit": 2})
    await api.delete("/groups/b")
    following = await api.get("/groups", params={"limit": 2, "cursor": page["next_cursor"]})
    assert [one["name"] for one in following["items"]] == ["c", "default"]


async def test_an_exact_page_is_the_last(api: Api) -> None:
    await api.group("a")
    assert (await api.get("/groups", params={"limit": 2}))["next_cursor"] is None


async def test_a_limit_has_its_range(api: Api) -> None:
    for limit in ("0", "-1", "501", "1.5", "x", "", "NaN", "1" + "0" * 400, "true"):
        problem = await api.get("/groups", params={"limit": limit}, expect=422)
        error = problem["errors"][0]
        assert (error["field"], error["in"]) == ("limit", "query")
        assert (error["minimum"], error["maximum"]) == (1, 500)


def _cursor(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


async def test_a_cursor_that_was_never_given_out_is_refused(api: Api) -> None:
    no_key: tuple[object, ...] = ([], "a", [1], [None], [["a"]], ["a\x00"], ["a", "b"], {"a": 1})
    for cursor in ("", "x", "!!!", "é", "\x00", "x" * 3000, *map(_cursor, no_key)):
        problem = await api.get("/groups", params={"cursor": cursor}, expect=422)
        assert fields(problem) == {"cursor"}


async def test_a_cursor_with_an_impossible_value_is_refused(api: Api) -> None:
    for path, value in (
        ("/usage/requests", ["2030-01-01T00:00:00", 5]),
        ("/usage/requests", ["0001-01-01T00:00:00+14:00", "x"]),
        ("/usage/requests", ["tomorrow", "x"]),
        ("/usage/requests", [5, "x"]),
        ("/audit", [2**70, "x"]),
        ("/audit", ["1", "x"]),
    ):
        params = {"cursor": _cursor(value)}
        assert fields(await api.get(path, params=params, expect=422)) == {"cursor"}


async def test_lists_of_named_things_can_be_searched_by_part_of_the_name(api: Api) -> None:
    for name in ("Vision", "re-vision", "100% vis_ion", "Équipe", "other"):
        await api.group(name)
        tenant = await api.tenant(name)
        await api.key(tenant["id"], name)
        await api.model(name)
    for path in ("/groups", "/tenants", "/keys", "/models"):
        found = {one["name"] for one in await api.items(path, search="viSion")}
        assert found == {"Vision", "re-vision"}
        assert {one["name"] for one in await api.items(path, search="éQUI")} == {"Équipe"}
        assert {one["name"] for one in await api.items(path, search="%")} == {"100% vis_ion"}
        assert {one["name"] for one in await api.items(path, search="s_i")} == {"100% vis_ion"}
        for impossible in ("x" * 201, "a\x00", "a\nb"):
            problem = await api.get(path, params={"search": impossible}, expect=422)
            assert "up to 200 characters" in problem["detail"]
        assert len(await api.items(path, search="")) >= 4


class _Replicas(NoReplicas):
    """A fleet of three."""

    async def fleet(self) -> Fleet:
        return Fleet([_replica(name) for name in ("c", "a", "b")], "as Redis last said")


def _replica(name: str) -> ReplicaState:
    return ReplicaState(
        instance=name,
        url=None,
        mode=None,
        heartbeat_age_ms=None,
        in_flight=None,
        queued=None,
        held=None,
        started_at=None,
        version=None,
    )


async def test_replicas_come_in_pages_too(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api.plane.app.state, "live", _Replicas())
    first = await api.get("/replicas", params={"limit": 2})
    assert [one["instance"] for one in first["items"]] == ["a", "b"]
    assert first["reason"] == "as Redis last said"
    rest = await api.get("/replicas", params={"limit": 2, "cursor": first["next_cursor"]})
    assert [one["instance"] for one in rest["items"]] == ["c"]
    assert rest["next_cursor"] is None
    assert len(await api.items("/replicas", limit=3)) == 3
    for query in ({"limit": 0}, {"cursor": "x"}, {"cursor": _cursor([5])}, {"page": 2}):
        assert fields(await api.get("/replicas", params=query, expect=422)) == query.keys()
