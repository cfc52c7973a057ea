"""Keys in the cache: found without a query, loaded once, bounded."""

from __future__ import annotations

import asyncio

import pytest

from dataplane.errors import InvalidApiKey
from dataplane.policy.cache import KEY_LOADS_MAX, UNKNOWN_KEYS_MAX, UNKNOWN_SECS
from shared.invalidation import Kind
from tests.policy.world import World, secret


async def started(**options: object) -> World:
    world = World(dict(options))
    await world.cache.poll()
    return world


async def test_a_key_is_loaded_once_and_then_at_hand_without_a_query() -> None:
    world = await started()
    stored = world.put("a")
    assert world.cache.cached_key(secret("a")) is None
    assert await world.cache.key(secret("a")) is stored
    assert world.cache.cached_key(secret("a")) is stored
    assert await world.cache.key(secret("a")) is stored
    assert world.source.asked["key"] == 1


async def test_a_hundred_requests_of_a_new_key_cost_one_query() -> None:
    world = await started()
    stored = world.put("a")
    assert await asyncio.gather(*(world.key("a") for _ in range(100))) == [stored] * 100
    assert world.source.asked["key"] == 1


async def test_a_hundred_requests_of_an_unknown_key_cost_one_query() -> None:
    world = await started()
    outcomes = await asyncio.gather(*(world.key("x") for _ in range(100)), return_exceptions=True)
    assert all(isinstance(one, InvalidApiKey) for one in outcomes)
    assert world.source.asked["key"] == 1


async def test_a_client_that_leaves_does_not_cut_the_load_others_wait_for() -> None:
    world = await started()
    stored = world.put("a")
    world.hold()
    leaving = asyncio.create_task(world.key("a"))
    staying = asyncio.create_task(world.key("a"))
    await world.source.begun.wait()
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    world.release()
    assert await staying is stored
    assert leaving.cancelled()
    assert world.source.asked["key"] == 1


async def test_two_hundred_requests_cut_while_loading_leave_nothing_behind() -> None:
    world = await started()
    for number in range(200):
        world.put(f"k{number}")
    world.hold()
    tasks = [asyncio.create_task(world.key(f"k{number}")) for number in range(200)]
    await world.source.begun.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    world.release()
    assert [(await world.key(f"k{number}")).id for number in range(10)] == [
        f"k{number}" for number in range(10)
    ]


async def test_a_flood_of_new_keys_leaves_connections_for_others() -> None:
    world = await started()
    await asyncio.gather(*(world.key(f"x{n}") for n in range(50)), return_exceptions=True)
    assert world.source.at_once_max == KEY_LOADS_MAX


async def test_unknown_disabled_and_expired_keys_are_refused_alike() -> None:
    world = await started()
    world.put("disabled", disabled=True)
    world.put("expired", expires_at=world.wall)
    messages = set()
    for name in ("unknown", "disabled", "expired"):
        for _ in range(2):
            with pytest.raises(InvalidApiKey) as caught:
                await world.key(name)
            messages.add(caught.value.message)
    assert len(messages) == 1


async def test_a_disabled_key_costs_no_query_once_it_is_known() -> None:
    world = await started()
    world.put("a", disabled=True)
    for _ in range(5):
        with pytest.raises(InvalidApiKey):
            await world.key("a")
    assert world.source.asked["key"] == 1


async def test_an_end_is_looked_at_on_every_use() -> None:
    world = await started()
    world.put("a", expires_at=world.wall + 10)
    await world.key("a")
    world.passes(9.9)
    assert world.cache.cached_key(secret("a")) is not None
    world.passes(0.1)
    assert world.cache.cached_key(secret("a")) is None
    with pytest.raises(InvalidApiKey):
        await world.key("a")


@pytest.mark.parametrize("odd", ["", "\ud800", "sk-\x00", "\U0001f511" * 100, "x" * 100_000])
async def test_any_text_a_client_sends_as_a_key_is_just_unknown(odd: str) -> None:
    world = await started()
    with pytest.raises(InvalidApiKey):
        await world.cache.key(odd)


async def test_an_answer_for_another_digest_lets_nobody_in() -> None:
    world = await started()
    world.put("a", digest="0" * 64)
    with pytest.raises(InvalidApiKey):
        await world.key("a")


async def test_the_least_recently_used_key_makes_room_for_a_new_one() -> None:
    world = await started(capacity=3)
    for name in ("a", "b", "c"):
        world.put(name)
        await world.key(name)
    await world.key("a")
    world.put("d")
    await world.key("d")
    assert [name for name in "abcd" if world.cache.cached_key(secret(name))] == ["a", "c", "d"]


async def test_an_unknown_key_is_looked_up_again_after_a_while() -> None:
    world = await started()
    for _ in range(3):
        with pytest.raises(InvalidApiKey):
            await world.key("x")
    assert world.source.asked["key"] == 1
    world.passes(UNKNOWN_SECS)
    world.put("x")
    await world.key("x")
    assert world.source.asked["key"] == 2


async def test_a_key_that_was_unknown_works_at_once_when_it_is_made() -> None:
    world = await started()
    with pytest.raises(InvalidApiKey):
        await world.key("a")
    stored = world.put("a")
    world.told(Kind.KEY, "a")
    assert await world.key("a") is stored


async def test_a_flood_of_unknown_keys_takes_bounded_memory_and_displaces_no_known_one() -> None:
    world = await started(capacity=10)
    world.put("a")
    await world.key("a")
    for number in range(UNKNOWN_KEYS_MAX + 50):
        with pytest.raises(InvalidApiKey):
            await world.cache.key(f"junk {number}")
    assert world.cache.cached_key(secret("a")) is not None
    assert world.cache.remembered == (1, UNKNOWN_KEYS_MAX)


async def test_a_model_is_found_by_name_and_by_alias_and_only_while_enabled() -> None:
    world = await started()
    off = world.put_model("off", enabled=False, aliases=("off-alias",))
    world.told(Kind.MODEL, off.id)
    await world.cache.poll()
    found = world.cache.model("m1")
    assert found is not None
    assert world.cache.model("alias-1") is found
    assert [world.cache.model(name) for name in ("off", "off-alias", "M1", "")] == [None] * 4
    assert list(world.cache.models()) == [found]
