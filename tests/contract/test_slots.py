"""What every keeper of the fleet's slots does: one suite over all of them."""

from __future__ import annotations

from typing import Any, Final

import pytest

from dataplane.admission.slots.port import Answer, Claim, Holding, Slots
from tests.contract.slot_worlds import TTL, World, answers

GRANTED: Final = Answer.GRANTED


def claim(id: str, **changed: Any) -> Claim:
    plain: dict[str, Any] = {
        "pool": "m",
        "group": "g",
        "tenant": "t",
        "key": "k",
        "pool_size": 2,
        "ceiling": 100,
    }
    return Claim(id, **(plain | changed))


def held(id: str, pool: str = "m", tenant: str = "t", key: str = "k") -> Holding:
    return Holding(id, pool, "g", tenant, key)


async def test_a_pool_is_never_larger_than_its_size_whoever_claims(
    pair: tuple[Slots, Slots],
) -> None:
    one, two = pair
    assert await answers(one, [], [claim("a"), claim("b"), claim("c")]) == [
        GRANTED,
        GRANTED,
        Answer.POOL,
    ]
    assert await answers(two, [], [claim("d")]) == [Answer.POOL]


async def test_replicas_that_see_different_sizes_run_no_more_than_the_larger(
    pair: tuple[Slots, Slots],
) -> None:
    one, two = pair
    small, large = {"pool_size": 1}, {"pool_size": 3}
    assert await answers(one, [], [claim("a", **small)]) == [GRANTED]
    assert await answers(two, [], [claim("b", **large), claim("c", **large)]) == [GRANTED] * 2
    assert await answers(one, [], [claim("d", **small)]) == [Answer.POOL]
    assert await answers(two, [], [claim("e", **large)]) == [Answer.POOL]
    assert await answers(two, [held("b"), held("c")], [claim("f", **large)]) == [GRANTED]
    assert await answers(one, [held("a")], [claim("g", **small)]) == [Answer.POOL]
    assert await answers(two, [held("f")], []) == []
    assert await answers(one, [], [claim("h", **small)]) == [GRANTED]
    assert await answers(two, [], [claim("i", pool_size=0)]) == [Answer.POOL]


async def test_a_release_and_a_claim_travel_together_and_the_release_comes_first(
    pair: tuple[Slots, Slots],
) -> None:
    one, _ = pair
    await answers(one, [], [claim("a"), claim("b")])
    assert await answers(one, [held("a")], [claim("c"), claim("d")]) == [GRANTED, Answer.POOL]


@pytest.mark.parametrize(
    ("first", "second", "answer"),
    [
        ({}, {"pool_size": 1, "ceiling": 1, "tenant_cap": 1, "key_cap": 1}, Answer.POOL),
        ({}, {"ceiling": 1, "tenant_cap": 1, "key_cap": 1}, Answer.CEILING),
        ({}, {"tenant_cap": 1, "key_cap": 1}, Answer.TENANT),
        ({}, {"key_cap": 1}, Answer.KEY),
        ({}, {"pool": "other", "pool_size": 1, "ceiling": 1}, Answer.CEILING),
        ({}, {"pool": "other", "tenant_cap": 1, "key_cap": 1}, GRANTED),
        ({}, {"tenant": "other", "key": "other", "tenant_cap": 1, "key_cap": 1}, GRANTED),
        ({}, {"key": "other", "key_cap": 1}, GRANTED),
        ({}, {"pool_size": 0}, Answer.POOL),
        ({}, {"tenant_cap": 0}, Answer.TENANT),
    ],
)
async def test_a_refusal_names_the_first_limit_in_the_way(
    pair: tuple[Slots, Slots], first: dict[str, Any], second: dict[str, Any], answer: Answer
) -> None:
    one, two = pair
    await answers(one, [], [claim("a", **first)])
    assert await answers(two, [], [claim("b", **second)]) == [answer]


async def test_a_refused_claim_leaves_nothing_behind(
    world: World, pair: tuple[Slots, Slots]
) -> None:
    one, _ = pair
    await answers(one, [], [claim("a")])
    before = await world.counts()
    await answers(one, [], [claim("b", key="new", tenant="new", tenant_cap=1, ceiling=1)])
    assert await world.counts() == before


async def test_a_repeated_claim_is_one_slot(world: World, pair: tuple[Slots, Slots]) -> None:
    one, _ = pair
    await answers(one, [], [claim("a", pool_size=1)])
    assert await answers(one, [], [claim("a", pool_size=1)]) == [GRANTED]
    assert (await world.counts())["pool:m"] == 1


async def test_a_repeated_or_unknown_release_changes_nothing(
    world: World, pair: tuple[Slots, Slots]
) -> None:
    one, two = pair
    await answers(one, [], [claim("a"), claim("b")])
    await answers(one, [held("a"), held("a")], [])
    await answers(two, [held("a"), held("never")], [])
    assert (await world.counts())["pool:m"] == 1


async def test_nothing_is_left_on_the_books_when_all_has_ended(
    world: World, pair: tuple[Slots, Slots]
) -> None:
    one, two = pair
    await answers(one, [], [claim("a")])
    await answers(two, [], [claim("b")])
    await answers(one, [held("a")], [])
    await answers(two, [held("b")], [])
    assert await world.counts() == {}


async def test_names_that_look_like_parts_of_others_are_kept_apart(
    pair: tuple[Slots, Slots],
) -> None:
    one, _ = pair
    first = claim("a", pool="a:b", tenant="c", pool_size=1, tenant_cap=1)
    assert await answers(one, [], [first]) == [GRANTED]
    second = claim("b", pool="a", tenant="b:c", pool_size=1, tenant_cap=1)
    assert await answers(one, [], [second]) == [GRANTED]
    third = claim("c", pool="a%3Ab", tenant="c", pool_size=1, tenant_cap=1)
    assert await answers(one, [], [third]) == [GRANTED]


async def test_hundreds_of_claims_in_one_exchange_fill_the_pool_exactly(
    pair: tuple[Slots, Slots],
) -> None:
    one, _ = pair
    claims = [claim(f"c{number}", pool_size=200, ceiling=250) for number in range(300)]
    replies = await answers(one, [], claims)
    assert replies == [GRANTED] * 200 + [Answer.POOL] * 100


async def test_an_unknown_replica_may_not_claim(world: World) -> None:
    assert await answers(world.replica("one"), [], [claim("a")]) == [Answer.NOT_LIVE]


async def test_a_replica_alone_does_not_count_as_asserted(world: World) -> None:
    one = world.replica("one")
    heard = await one.heartbeat([held("a")])
    assert (heard.live, heard.asserted, heard.lapsed) == (("one",), (), True)
    assert await answers(one, [], [claim("b")]) == [Answer.NOT_LIVE]


async def test_the_second_replica_finds_that_the_first_has_yet_to_assert(world: World) -> None:
    one, two = world.replica("one"), world.replica("two")
    await one.heartbeat([held("a")])
    heard = await two.heartbeat([])
    assert (heard.live, heard.asserted) == (("one", "two"), ("two",))
    heard = await one.heartbeat([held("a")])
    assert heard.asserted == ("one", "two")


async def test_a_replica_that_admits_without_claims_is_not_asserted_and_may_not_claim(
    pair: tuple[Slots, Slots],
) -> None:
    one, two = pair
    assert (await one.heartbeat([], complete=False)).asserted == ("two",)
    assert await answers(one, [], [claim("a")]) == [Answer.NOT_LIVE]
    assert (await two.heartbeat([])).asserted == ("two",)
    assert (await one.heartbeat([])).asserted == ("one", "two")


async def test_newcomers_and_what_changes_for_others_is_announced(world: World) -> None:
    one, two = world.replica("one"), world.replica("two")
    await one.heartbeat([])
    assert await world.announced() == [{"replica": "one"}]
    await one.heartbeat([])
    assert await world.announced() == []
    await two.heartbeat([])
    assert await world.announced() == [{"replica": "two"}, {"replica": "two"}]
    await one.heartbeat([])
    assert await world.announced() == [{"replica": "one"}]
    await one.leave([])
    assert await world.announced() == [{"replica": "one"}]


async def test_a_heartbeat_asserts_what_is_held_even_above_the_limits(
    world: World, pair: tuple[Slots, Slots]
) -> None:
    one, two = pair
    holdings = [held(f"h{number}") for number in range(150)]
    heard = await one.heartbeat(holdings)
    assert heard.repaired == 0, "they were admitted without the books"
    assert (await world.counts())["pool:m"] == 150
    assert await answers(two, [], [claim("b", pool_size=150)]) == [Answer.POOL]
    assert (await one.heartbeat(holdings)).repaired == 0


async def test_a_heartbeat_releases_what_is_not_held(
    world: World, pair: tuple[Slots, Slots]
) -> None:
    one, _ = pair
    await answers(one, [], [claim("a"), claim("b")])
    await one.heartbeat([held("a"), held("b")])
    heard = await one.heartbeat([held("b")])
    assert heard.repaired == 0, "from now on it is held without the books"
    assert (await world.counts())["pool:m"] == 1


async def test_a_replica_that_is_alone_for_a_while_has_nothing_repaired(
    world: World, pair: tuple[Slots, Slots]
) -> None:
    one, two = pair
    await answers(one, [], [claim("a"), claim("b")])
    await one.heartbeat([held("a"), held("b")])
    await two.leave([])
    alone = await one.heartbeat([], complete=False)
    assert (alone.live, alone.repaired) == (("one",), 0)
    assert (await world.counts()).get("pool:m", 0) == 0
    await two.heartbeat([])
    joined = await one.heartbeat([held("a"), held("b"), held("c")])
    assert (joined.live, joined.repaired) == (("one", "two"), 0)
    assert (await world.counts())["pool:m"] == 3
    await world.forgets()
    assert (await one.heartbeat([held("a"), held("b"), held("c")])).repaired == 3


async def test_a_heartbeat_leaves_alone_what_was_claimed_since_the_last(
    world: World, pair: tuple[Slots, Slots]
) -> None:
    one, _ = pair
    await answers(one, [], [claim("a")])
    assert (await one.heartbeat([])).repaired == 0
    assert (await world.counts())["pool:m"] == 1


async def test_holdings_stay_on_the_books_however_long_while_the_replica_is_heard_of(
    world: World, pair: tuple[Slots, Slots]
) -> None:
    one, two = pair
    await answers(one, [], [claim("a", pool_size=1)])
    for _ in range(10):
        await world.passes(TTL - 5)
        await one.heartbeat([held("a")])
        await two.heartbeat([])
    assert await answers(two, [], [claim("b", pool_size=1)]) == [Answer.POOL]


async def test_what_the_dead_held_is_taken_back(world: World, pair: tuple[Slots, Slots]) -> None:
    one, two = pair
    await answers(one, [], [claim("a"), claim("b")])
    await world.passes(TTL - 5)
    await two.heartbeat([])
    await world.passes(6)
    heard = await two.heartbeat([])
    assert (heard.live, heard.reclaimed) == (("two",), 2)
    assert await world.counts() == {
        "key:m:k": 2,
        "pool:m": 2,
        "group:m:g": 2,
        "tenant:m:t": 2,
    }
    await world.replica("three").heartbeat([])
    await two.heartbeat([])
    assert await answers(two, [], [claim("c"), claim("d")]) == [GRANTED, GRANTED]


async def test_everything_the_dead_left_goes_away_even_if_nobody_comes(
    world: World, pair: tuple[Slots, Slots]
) -> None:
    one, _ = pair
    await answers(one, [], [claim("a"), claim("b")])
    await world.passes(2 * TTL + 1)
    assert await world.counts() == {}


async def test_a_replica_that_comes_back_frees_nothing_of_others(
    world: World, pair: tuple[Slots, Slots]
) -> None:
    one, two = pair
    third = world.replica("three")
    await third.heartbeat([])
    await answers(one, [], [claim("a"), claim("b")])
    await world.passes(TTL - 5)
    await two.heartbeat([])
    await third.heartbeat([])
    await world.passes(6)
    await two.heartbeat([])
    assert await answers(two, [], [claim("c"), claim("d")]) == [GRANTED, GRANTED]
    assert await answers(one, [held("a")], [claim("e")]) == [Answer.NOT_LIVE]
    heard = await one.heartbeat([held("b")])
    assert heard.lapsed
    assert (await world.counts())["pool:m"] == 3
    assert await answers(one, [held("b")], [claim("f")]) == [Answer.POOL]


async def test_lost_books_let_nobody_claim_who_has_not_asserted_again(
    world: World, pair: tuple[Slots, Slots]
) -> None:
    one, two = pair
    await answers(one, [], [claim("a")])
    await world.forgets()
    assert await answers(one, [], [claim("b")]) == [Answer.NOT_LIVE]
    assert await answers(two, [], [claim("c")]) == [Answer.NOT_LIVE]
    await two.heartbeat([])
    heard = await one.heartbeat([held("a")])
    assert (heard.lapsed, heard.repaired, heard.asserted) == (True, 1, ("one",))
    assert (await two.heartbeat([])).asserted == ("one", "two")
    assert await answers(two, [], [claim("d"), claim("e")]) == [GRANTED, Answer.POOL]


async def test_ends_after_the_books_were_lost_leave_no_count_below_zero(
    world: World, pair: tuple[Slots, Slots]
) -> None:
    one, _ = pair
    await answers(one, [], [claim("a"), claim("b")])
    await world.forgets()
    await answers(one, [held("a"), held("b")], [])
    await world.replica("two").heartbeat([])
    await one.heartbeat([])
    replies = await answers(one, [], [claim("c"), claim("d"), claim("e")])
    assert replies == [GRANTED, GRANTED, Answer.POOL]


async def test_a_pool_made_again_under_another_id_is_not_touched_by_the_old_one(
    world: World, pair: tuple[Slots, Slots]
) -> None:
    one, _ = pair
    await answers(one, [], [claim("old", pool="model-1"), claim("new", pool="model-2")])
    await answers(one, [held("old", pool="model-1")], [])
    assert (await world.counts())["pool:model-2"] == 1


async def test_leaving_takes_everything_off_the_books(
    world: World, pair: tuple[Slots, Slots]
) -> None:
    one, two = pair
    await answers(one, [], [claim("a"), claim("b")])
    await one.leave([held("a")])
    assert await world.counts() == {}
    assert (await two.heartbeat([])).live == ("two",)
    await one.leave([])


async def test_only_a_release_that_somebody_waits_for_is_announced_and_once(
    world: World, pair: tuple[Slots, Slots]
) -> None:
    one, two = pair
    await answers(one, [], [claim("a"), claim("b")])
    await answers(one, [held("a")], [claim("c")])
    assert await world.announced() == []
    await answers(two, [], [claim("d")])
    await answers(one, [held("b"), held("c")], [])
    assert await world.announced() == [{"pool": "m", "ceiling": False}]


async def test_a_mark_is_forgotten_when_nobody_tries_again(
    world: World, pair: tuple[Slots, Slots]
) -> None:
    one, two = pair
    await answers(one, [], [claim("a", pool_size=1)])
    await answers(two, [], [claim("b", pool_size=1)])
    await world.passes(9)
    await answers(one, [held("a")], [])
    assert await world.announced() == []


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        ({"ceiling": 1, "pool": "other"}, {"pool": "m", "ceiling": True}),
        ({"tenant_cap": 1}, {"pool": "m", "ceiling": False}),
        ({"key_cap": 1}, {"pool": "m", "ceiling": False}),
    ],
)
async def test_ceiling_and_caps_are_waited_for_too(
    world: World,
    pair: tuple[Slots, Slots],
    refused: dict[str, Any],
    message: dict[str, object],
) -> None:
    one, two = pair
    await answers(one, [], [claim("a"), claim("x", tenant="x", key="x", pool="x")])
    await answers(
        two, [], [claim("b", **({"ceiling": 2} if "ceiling" in refused else {}) | refused)]
    )
    await answers(one, [held("a")], [])
    assert await world.announced() == [message]
