"""With the database away: what is known is served for a while, nothing unknown is let in."""

from __future__ import annotations

import asyncio

import pytest

from dataplane.errors import InvalidApiKey, PolicyUnavailable
from dataplane.policy.cache import RETRY_SECS, UNKNOWN_SECS
from dataplane.policy.source import SourceUnavailable
from shared.invalidation import Kind
from tests.policy.world import World, secret


async def started(**options: object) -> World:
    world = World({"stale_secs": 100.0, **options})
    await world.cache.poll()
    world.put("a", weight=1)
    world.told(Kind.KEY, "a")
    await world.key("a")
    return world


async def goes_away(world: World) -> None:
    world.source.away = True
    await world.cache.poll()


async def test_a_known_key_is_served_while_the_database_is_away() -> None:
    world = await started()
    await goes_away(world)
    world.passes(99.9)
    assert world.cache.cached_key(secret("a")) is not None
    assert world.cache.model("m1") is not None


async def test_after_too_long_nothing_is_served_until_the_database_is_back() -> None:
    world = await started()
    await goes_away(world)
    world.passes(100)
    assert world.cache.cached_key(secret("a")) is None
    with pytest.raises(PolicyUnavailable):
        await world.key("a")
    world.source.away = False
    await world.cache.poll()
    assert world.cache.cached_key(secret("a")) is not None


async def test_a_request_finds_the_database_back_without_waiting_for_the_next_look() -> None:
    world = await started()
    await goes_away(world)
    world.passes(100)
    world.source.away = False
    assert (await world.key("a")).id == "a"


async def test_the_time_counts_from_when_the_database_went_away() -> None:
    world = await started()
    world.passes(10_000)
    await world.cache.poll()
    await goes_away(world)
    world.passes(99)
    assert world.cache.cached_key(secret("a")) is not None


async def test_a_key_never_seen_gets_503_and_not_401() -> None:
    world = await started()
    await goes_away(world)
    with pytest.raises(PolicyUnavailable) as caught:
        await world.key("new")
    assert (caught.value.status, caught.value.retry_after_secs) == (503, 1)


async def test_a_key_that_was_unknown_shortly_before_is_still_refused_as_unknown() -> None:
    world = await started()
    with pytest.raises(InvalidApiKey):
        await world.key("x")
    await goes_away(world)
    with pytest.raises(InvalidApiKey):
        await world.key("x")
    world.passes(UNKNOWN_SECS)
    with pytest.raises(PolicyUnavailable):
        await world.key("x")


async def test_a_changed_key_that_cannot_be_reloaded_is_served_as_it_was_for_a_while() -> None:
    world = await started()
    world.put("a", weight=2)
    await goes_away(world)
    world.told(Kind.KEY, "a")
    assert (await world.key("a")).weight == 1
    world.passes(99)
    assert (await world.key("a")).weight == 1
    world.passes(1)
    with pytest.raises(PolicyUnavailable):
        await world.key("a")


async def test_a_changed_key_is_reloaded_as_soon_as_the_database_is_back() -> None:
    world = await started()
    world.put("a", weight=2)
    await goes_away(world)
    world.told(Kind.KEY, "a")
    await world.key("a")
    world.source.away = False
    world.passes(RETRY_SECS)
    assert (await world.key("a")).weight == 2


async def test_a_key_known_as_revoked_stays_revoked() -> None:
    world = await started()
    world.put("a", disabled=True)
    world.told(Kind.KEY, "a")
    with pytest.raises(InvalidApiKey):
        await world.key("a")
    await goes_away(world)
    world.told(Kind.ALL)
    with pytest.raises(InvalidApiKey):
        await world.key("a")
    world.passes(1000)
    with pytest.raises(InvalidApiKey):
        await world.key("a")


async def test_a_deleted_key_does_not_come_back_with_an_outage() -> None:
    world = await started()
    world.remove("a")
    world.told(Kind.KEY, "a")
    with pytest.raises(InvalidApiKey):
        await world.key("a")
    await goes_away(world)
    world.passes(UNKNOWN_SECS)
    with pytest.raises(PolicyUnavailable):
        await world.key("a")


async def test_an_end_is_kept_while_the_database_is_away() -> None:
    world = await started()
    world.put("b", expires_at=world.wall + 10)
    await world.key("b")
    await goes_away(world)
    world.passes(10)
    with pytest.raises(InvalidApiKey):
        await world.key("b")


async def test_one_request_waits_for_a_database_that_hangs_and_the_others_do_not() -> None:
    world = await started()
    await goes_away(world)
    world.source.asked.clear()
    world.passes(RETRY_SECS)
    world.hold()
    probe = asyncio.create_task(world.key("new"))
    await world.source.begun.wait()
    for number in range(20):
        with pytest.raises(PolicyUnavailable):
            await world.key(f"other {number}")
    assert world.source.asked["key"] == 1
    world.release()
    with pytest.raises(PolicyUnavailable):
        await probe


async def test_a_database_that_does_not_answer_is_away() -> None:
    world = await started(answer_secs=0.01)
    world.hold()
    with pytest.raises(PolicyUnavailable):
        await world.key("new")
    world.put("a", weight=2)
    world.told(Kind.KEY, "a")
    assert (await world.key("a")).weight == 1


async def test_keys_in_line_behind_a_database_that_hangs_fail_with_the_first() -> None:
    world = await started(answer_secs=0.01)
    world.source.asked.clear()
    world.hold()
    outcomes = await asyncio.gather(
        *(world.key(f"n{n}") for n in range(50)), return_exceptions=True
    )
    assert all(isinstance(one, PolicyUnavailable) for one in outcomes)
    assert world.source.asked["key"] == 3


async def test_it_starts_without_a_database_and_refuses_until_policy_is_there() -> None:
    world = World()
    world.put("a")
    world.source.away = True
    world.source.problem = "too new"
    await world.cache.start()
    assert not world.cache.loaded
    assert world.cache.cached_key(secret("a")) is None
    with pytest.raises(PolicyUnavailable):
        await world.key("a")
    world.source.away = False
    await world.cache.poll()
    assert world.cache.loaded
    assert world.cache.schema_problem == "too new"
    assert (await world.key("a")).id == "a"
    await world.cache.stop()


async def test_models_that_changed_are_served_as_they_were_for_a_while() -> None:
    world = await started()
    await goes_away(world)
    world.told(Kind.MODEL, "model-1")
    assert (await world.key("a")).id == "a"
    assert world.cache.model("m1") is not None
    world.passes(100)
    with pytest.raises(PolicyUnavailable):
        await world.key("a")


async def test_subscribers_hear_of_a_model_once_it_could_be_loaded() -> None:
    world = await started()
    heard: list[str] = []
    world.cache.subscribe(lambda change: heard.append(change.id))
    await goes_away(world)
    made = world.put_model("m2")
    world.told(Kind.MODEL, made.id)
    await world.cache.poll()
    assert heard == []
    world.source.away = False
    await world.cache.poll()
    assert heard == [made.id]


async def test_the_look_for_changes_survives_an_unexpected_fault_and_counts_it_as_an_outage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await started(poll_secs=0.001)
    failed, told = asyncio.Event(), asyncio.Event()
    world.cache.subscribe(lambda change: told.set())

    async def broken() -> int:
        failed.set()
        raise ZeroDivisionError

    whole = world.source.revision
    await world.cache.start()
    monkeypatch.setattr(world.source, "revision", broken)
    await asyncio.wait_for(failed.wait(), 10)
    await asyncio.sleep(0)
    with pytest.raises(PolicyUnavailable):
        await world.key("new")
    monkeypatch.setattr(world.source, "revision", whole)
    world.put("a", weight=2)
    await asyncio.wait_for(told.wait(), 10)
    assert (await world.key("a")).weight == 2
    await world.cache.stop()


async def test_stopping_ends_loads_under_way() -> None:
    world = await started()
    world.hold()
    waiting = asyncio.create_task(world.key("new"))
    await world.source.begun.wait()
    await world.cache.stop()
    with pytest.raises((asyncio.CancelledError, SourceUnavailable)):
        await waiting
    assert world.source.at_once == 0
