"""Changes at the same time: one of two wins, and the other is told."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import QueuePool

from shared.tables import AuditRow
from tests.controlplane.api import Api
from tests.controlplane.conftest import StartApi

pytestmark = pytest.mark.asyncio(loop_scope="module")

AT_ONCE = 8


async def _tag(api: Api, path: str) -> str:
    return str((await api.client.get(path)).headers["etag"])


async def test_a_tag_changes_with_each_write_and_not_without(api: Api) -> None:
    await api.group()
    first = await _tag(api, "/groups/research")
    assert await _tag(api, "/groups/research") == first
    answer = await api.client.patch("/groups/research", json={"weight": 5})
    assert answer.headers["etag"] not in (first, None)
    assert await _tag(api, "/groups/research") == answer.headers["etag"]


async def test_a_change_of_what_was_not_seen_is_412_and_changes_nothing(api: Api) -> None:
    tenant = await api.tenant()
    key = await api.key(tenant["id"])
    model = await api.model()
    endpoint = await api.endpoint(model["id"])
    await api.group()
    seen_by_nobody = {"If-Match": '"999999"'}
    before = await api.everything()
    for path in (
        "/groups/research",
        f"/tenants/{tenant['id']}",
        f"/keys/{key['id']}",
        f"/models/{model['id']}",
        f"/models/{model['id']}/endpoints/{endpoint['id']}",
    ):
        await api.patch(path, {}, expect=412, headers=seen_by_nobody)
        await api.delete(path, expect=412, headers=seen_by_nobody)
    rotate = f"/keys/{key['id']}/rotate"
    await api.post(rotate, expect=412, headers=seen_by_nobody)
    affinity = f"/models/{model['id']}/session-affinity"
    await api.put(affinity, {}, expect=412, headers=seen_by_nobody)
    assert await api.everything() == before


async def test_any_tag_but_the_right_one_is_412(api: Api) -> None:
    await api.group()
    for wrong in (b"", b'""', b"1", b"*x", b'W/"1"', b"a,b", b'"\xff"'):
        header = [(b"If-Match", wrong)]
        answer = await api.client.patch("/groups/research", json={"weight": 5}, headers=header)
        assert answer.status_code == 412, wrong


async def test_one_of_several_tags_or_a_star_is_enough(api: Api) -> None:
    await api.group()
    for header in ("*", f'"x", {await _tag(api, "/groups/research")}'):
        await api.patch("/groups/research", {}, headers={"If-Match": header})


async def test_a_tag_of_something_deleted_does_not_match_what_is_made_anew(api: Api) -> None:
    await api.group()
    old = await _tag(api, "/groups/research")
    await api.delete("/groups/research")
    await api.group()
    await api.patch("/groups/research", {}, headers={"If-Match": old}, expect=412)


async def test_of_many_changes_to_one_tag_exactly_one_is_made(api: Api) -> None:
    tenant = await api.tenant()
    path = f"/tenants/{tenant['id']}"
    seen = {"If-Match": await _tag(api, path)}
    answers = await asyncio.gather(
        *(api.client.patch(path, json={"weight": n}, headers=seen) for n in range(1, AT_ONCE + 1))
    )
    assert Counter(one.status_code for one in answers) == {200: 1, 412: AT_ONCE - 1}
    (winner,) = (one for one in answers if one.status_code == 200)
    assert await api.get(path) == winner.json()
    assert len(await api.items("/audit", kind="tenant")) == 2


@pytest.mark.parametrize("path", ["/groups", "/tenants", "/models"])
async def test_of_many_that_want_one_name_exactly_one_gets_it(api: Api, path: str) -> None:
    answers = await asyncio.gather(
        *(api.client.post(path, json={"name": "x"}) for _ in range(AT_ONCE))
    )
    assert Counter(one.status_code for one in answers) == {201: 1, 409: AT_ONCE - 1}
    assert [one["name"] for one in await api.items(path) if one["name"] == "x"] == ["x"]


async def test_two_control_planes_over_one_database_agree(api: Api, start_api: StartApi) -> None:
    other = await start_api()
    answers = await asyncio.gather(
        *(one.client.post("/groups", json={"name": "x"}) for one in (api, other) * 4)
    )
    assert Counter(one.status_code for one in answers) == {201: 1, 409: 7}
    assert len(await other.items("/audit")) == 1


async def test_a_group_is_not_deleted_under_a_tenant_that_moves_in(api: Api) -> None:
    await api.group()
    answers = await asyncio.gather(
        api.client.delete("/groups/research"),
        *(
            api.client.post("/tenants", json={"name": f"t{i}", "group": "research"})
            for i in range(4)
        ),
    )
    deleted, *created = (one.status_code for one in answers)
    expected = {204: {422}, 409: {201}}
    assert set(created) == expected[deleted]


async def test_every_change_has_a_revision_of_its_own_in_the_order_of_commits(api: Api) -> None:
    await asyncio.gather(*(api.group(f"g{i}") for i in range(AT_ONCE)))
    async with api.plane.database.reading() as session:
        revisions = (await session.scalars(select(AuditRow.revision).order_by(AuditRow.id))).all()
    assert sorted(revisions) == list(range(1, AT_ONCE + 1))
    told = [change.revision for change in api.told.changes]
    assert sorted(told) == sorted(revisions)


async def test_replicas_are_told_only_after_the_commit(api: Api) -> None:
    await api.group()
    await api.patch("/groups/research", {"weight": 9})
    assert [change.revision for change in api.told.changes] == [1, 2]
    assert api.told.committed == [1, 2]


async def test_what_fails_or_changes_nothing_is_told_to_nobody(api: Api) -> None:
    await api.patch("/groups/default", {})
    await api.post("/groups", {"name": "default"}, expect=409)
    await api.post("/groups", {"name": ""}, expect=422)
    await api.patch("/groups/default", {"weight": 5}, headers={"If-Match": "x"}, expect=412)
    assert api.told.changes == []


def _checked_out(engine: AsyncEngine) -> int:
    pool = engine.pool
    assert isinstance(pool, QueuePool)
    return pool.checkedout()


async def test_requests_that_are_cut_off_hand_their_connections_back(api: Api) -> None:
    """Cut at every point of a read and of a write, far more often than there are connections."""
    await api.group()
    for turns in range(60):
        for method, body in (("GET", None), ("PATCH", {"weight": turns + 1})):
            task = asyncio.ensure_future(api.client.request(method, "/groups/research", json=body))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    answers = await asyncio.gather(*(api.client.get("/groups") for _ in range(10)))
    assert [one.status_code for one in answers] == [200] * 10
    assert _checked_out(api.plane.database.engine) == 0
    await api.patch("/groups/research", {"weight": 777})
    assert (await api.items("/audit"))[0]["after"]["weight"] == 777


async def test_refused_requests_hand_their_connections_back(api: Api) -> None:
    for _ in range(20):
        await api.delete("/groups/default", expect=409)
        await api.get("/groups/nobody", expect=404)
    assert _checked_out(api.plane.database.engine) == 0
