"""Changes: in force at the next request, in whatever order loads and messages arrive."""

from __future__ import annotations

import asyncio

import pytest

from dataplane.errors import InvalidApiKey
from shared.invalidation import Invalidation, Kind
from shared.policy import KeyPolicy
from tests.policy.world import World, secret


async def started(**options: object) -> World:
    world = World(dict(options))
    await world.cache.poll()
    return world


CHANGES = [
    (Kind.KEY, "a"),
    (Kind.TENANT, "t1"),
    (Kind.GROUP, "g1"),
    (Kind.ALL, ""),
]


@pytest.mark.parametrize(("kind", "id_"), CHANGES)
async def test_a_change_is_in_force_at_the_next_request(kind: Kind, id_: str) -> None:
    world = await started()
    world.put("a", weight=1)
    await world.key("a")
    world.put("a", weight=2)
    assert (await world.key("a")).weight == 1
    world.told(kind, id_)
    assert world.cache.cached_key(secret("a")) is None
    assert (await world.key("a")).weight == 2


@pytest.mark.parametrize(
    ("kind", "id_"), [(Kind.KEY, "b"), (Kind.TENANT, "t2"), (Kind.GROUP, "g2")]
)
async def test_a_change_of_something_else_costs_no_reload(kind: Kind, id_: str) -> None:
    world = await started()
    world.put("a")
    await world.key("a")
    world.told(kind, id_)
    assert world.cache.cached_key(secret("a")) is not None


@pytest.mark.parametrize(("kind", "id_"), CHANGES)
async def test_a_load_under_way_when_a_key_is_revoked_does_not_bring_it_back(
    kind: Kind, id_: str
) -> None:
    world = await started()
    world.put("a")
    world.hold()
    waiting = asyncio.create_task(world.key("a"))
    await world.source.begun.wait()
    world.put("a", disabled=True)
    world.told(kind, id_)
    world.release()
    with pytest.raises(InvalidApiKey):
        await waiting
    with pytest.raises(InvalidApiKey):
        await world.key("a")


async def test_a_revocation_that_was_read_outlives_a_change_that_cannot_be_read() -> None:
    world = await started()
    world.put("a")
    await world.key("a")
    world.put("a", disabled=True)
    world.told(Kind.KEY, "a")
    with pytest.raises(InvalidApiKey):
        await world.key("a")
    world.put("a")
    world.told(Kind.KEY, "a")
    world.source.away = True
    for _ in range(3):
        with pytest.raises(InvalidApiKey):
            await world.key("a")


async def test_a_deleted_key_is_gone_at_the_next_request() -> None:
    world = await started()
    world.put("a")
    await world.key("a")
    world.remove("a")
    world.told(Kind.KEY, "a")
    with pytest.raises(InvalidApiKey):
        await world.key("a")


async def test_a_key_made_while_it_was_being_looked_up_is_found() -> None:
    world = await started()
    world.hold()
    waiting = asyncio.create_task(world.key("a"))
    await world.source.begun.wait()
    stored = world.put("a")
    world.told(Kind.KEY, "a")
    world.release()
    assert await waiting is stored


async def test_changes_that_overtake_every_load_do_not_keep_a_request_for_ever() -> None:
    world = await started()
    world.put("a")

    async def busy_operator() -> None:
        while True:
            world.told(Kind.KEY, "a")
            await asyncio.sleep(0)

    operator = asyncio.create_task(busy_operator())
    assert (await world.key("a")).id == "a"
    operator.cancel()
    await asyncio.gather(operator, return_exceptions=True)


async def test_more_changed_things_than_are_remembered_make_everything_stale(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dataplane.policy.changes.REMEMBERED_MAX", 10)
    world = await started()
    world.put("a")
    await world.key("a")
    for number in range(10):
        world.told(Kind.KEY, f"other {number}")
    assert world.cache.cached_key(secret("a")) is not None
    world.told(Kind.KEY, "one too many")
    assert world.cache.cached_key(secret("a")) is None


# Models


async def test_a_request_after_a_model_was_made_finds_it() -> None:
    world = await started()
    world.put("a")
    await world.key("a")
    made = world.put_model("m2")
    world.told(Kind.MODEL, made.id)
    await world.key("a")
    assert world.cache.model("m2") is made


async def test_models_change_all_at_once() -> None:
    world = await started()
    before = world.cache.models()
    world.put_model("m1", id="model-1", aliases=("moved",))
    world.put_model("m2", aliases=("alias-1",))
    world.told(Kind.ALL)
    assert world.cache.models() is before
    await world.cache.poll()
    moved, renamed = world.cache.model("moved"), world.cache.model("alias-1")
    assert moved is not None
    assert renamed is not None
    assert (moved.name, renamed.name) == ("m1", "m2")


async def test_models_loaded_before_a_change_are_loaded_again() -> None:
    world = await started()
    world.put("a")
    await world.key("a")
    world.hold()
    world.told(Kind.MODEL, "m2")
    await world.source.begun.wait()
    made = world.put_model("m2")
    world.told(Kind.MODEL, made.id)
    world.release()
    await world.key("a")
    assert world.cache.model("m2") is made


# Revisions


async def test_a_change_nobody_told_of_is_noticed_by_the_revision() -> None:
    world = await started()
    world.put("a", weight=1)
    world.told(Kind.KEY, "a")
    await world.key("a")
    world.put("a", weight=2)
    made = world.put_model("m2")
    await world.cache.poll()
    assert (await world.key("a")).weight == 2
    assert world.cache.model("m2") is made


async def test_changes_that_were_told_of_cost_no_reload_at_the_next_look() -> None:
    world = await started()
    world.put("a")
    world.told(Kind.KEY, "a")
    await world.key("a")
    for name in ("b", "c"):
        world.put(name)
        world.told(Kind.KEY, name)
    world.source.asked.clear()
    await world.cache.poll()
    assert world.cache.cached_key(secret("a")) is not None
    assert world.source.asked == {"schema": 1, "revision": 1}


async def test_messages_out_of_order_are_no_gap() -> None:
    world = await started()
    world.put("a")
    world.told(Kind.KEY, "a")
    await world.key("a")
    number = world.source.number
    for revision in (number + 3, number + 1, number + 1, number + 2):
        world.cache.invalidate(Invalidation(Kind.KEY, "x", revision))
    world.source.number += 3
    await world.cache.poll()
    assert world.cache.cached_key(secret("a")) is not None


async def test_a_lost_message_is_noticed_though_a_later_one_arrived() -> None:
    world = await started()
    world.put("a", weight=1)
    world.told(Kind.KEY, "a")
    await world.key("a")
    world.put("a", weight=2)
    world.put("b")
    world.told(Kind.KEY, "b")
    await world.cache.poll()
    assert (await world.key("a")).weight == 2


async def test_a_change_told_of_while_the_revision_is_read_is_no_gap() -> None:
    world = await started()
    world.put("a")
    world.told(Kind.KEY, "a")
    await world.key("a")
    world.hold()
    polling = asyncio.create_task(world.cache.poll())
    await world.source.begun.wait()
    world.put("b")
    world.told(Kind.KEY, "b")
    world.release()
    await polling
    assert world.cache.cached_key(secret("a")) is not None


async def test_a_database_put_back_to_an_earlier_state_is_read_again() -> None:
    world = await started()
    world.put("a", weight=1)
    world.told(Kind.KEY, "a")
    await world.key("a")
    world.put("a", weight=2)
    world.source.number = 1
    await world.cache.poll()
    assert (await world.key("a")).weight == 2


async def test_after_a_lost_subscription_everything_is_read_again() -> None:
    world = await started()
    world.put("a", weight=1)
    await world.cache.poll()
    await world.key("a")
    world.put("a", weight=2)
    world.cache.invalidate(Invalidation(Kind.ALL, "", 0))
    assert (await world.key("a")).weight == 2


# Subscribers


async def test_a_subscriber_that_is_told_finds_the_new_policy() -> None:
    world = await started()
    world.put("a", weight=1)
    admitted = await world.key("a")
    renewed: list[KeyPolicy] = []
    tasks = []

    async def renew() -> None:
        renewed.append(await world.cache.renewed(admitted))

    world.cache.subscribe(lambda change: tasks.append(asyncio.create_task(renew())))
    world.put("a", weight=2)
    world.told(Kind.TENANT, "t1")
    await asyncio.gather(*tasks)
    assert [key.weight for key in renewed] == [2]


async def test_a_waiting_request_of_a_revoked_key_learns_that_it_is() -> None:
    world = await started()
    world.put("a")
    admitted = await world.key("a")
    world.remove("a")
    world.told(Kind.KEY, "a")
    with pytest.raises(InvalidApiKey):
        await world.cache.renewed(admitted)


@pytest.mark.parametrize("kind", [Kind.MODEL, Kind.ALL])
async def test_subscribers_hear_of_models_when_the_new_ones_are_there(kind: Kind) -> None:
    world = await started()
    heard: list[tuple[Kind, bool]] = []
    told = asyncio.Event()

    def callback(change: Invalidation) -> None:
        heard.append((change.kind, world.cache.model("m2") is not None))
        told.set()

    world.cache.subscribe(callback)
    world.put_model("m2")
    world.told(kind, "id of m2")
    assert heard == []
    await asyncio.wait_for(told.wait(), 10)
    assert heard == [(kind, True)]


async def test_subscribers_hear_of_models_changed_while_older_ones_were_loading() -> None:
    world = await started()
    heard: list[str] = []
    told = asyncio.Event()

    def callback(change: Invalidation) -> None:
        heard.append(change.id)
        if len(heard) == 2:
            told.set()

    world.cache.subscribe(callback)
    world.hold()
    world.told(Kind.MODEL, "first")
    await world.source.begun.wait()
    world.put_model("m2")
    world.told(Kind.MODEL, "second")
    world.release()
    await asyncio.wait_for(told.wait(), 10)
    assert heard == ["first", "second"]
    assert world.cache.model("m2") is not None


async def test_subscribers_hear_of_a_change_found_by_the_revision() -> None:
    world = await started()
    heard: list[Kind] = []
    world.cache.subscribe(lambda change: heard.append(change.kind))
    world.put("a")
    await world.cache.poll()
    assert heard == [Kind.ALL]
