"""What every keeper of the fleet's slots does about slots that are held for sessions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dataplane.admission.slots.port import Answer, Claim, Freed, Slots
from dataplane.scheduler.holds import HoldTerms, StepEnd
from tests.contract.slot_worlds import World, answers
from tests.contract.test_slots import GRANTED, claim, held
from tests.simulation.world import a_key

Pair = tuple[Slots, Slots]
HOLD = "hold:m:k:s"
STEP = StepEnd("s", 0.1, 3.0, 120.0, True, 2, 8, 100, 100, None, None, a_key("t"))


def of(id: str, session: str | None = "s", *, only: bool = False, **changed: Any) -> Claim:
    """A claim of a session."""
    terms = HoldTerms(session, only, changed.pop("most", 2), changed.pop("is_starving", False))
    return replace(claim(id, **changed), holds=terms)


async def end(slots: Slots, id: str, **changed: Any) -> Freed:
    """End a session's step."""
    step = replace(held(id), step=replace(STEP, **changed))
    (freed,) = (await slots.exchange([step], [])).releases
    return freed


async def a_hold(slots: Slots, session: str = "s", **changed: Any) -> Freed:
    """Two steps of a session, one after the other: the second leaves its slot to the third."""
    for number in (1, 2):
        id = f"{session}{number}"
        assert await answers(slots, [], [of(id, session, pool_size=9)]) == [GRANTED]
        changes = changed if number == 2 else {}
        freed = await end(slots, id, session=session, **changes)
    return freed


async def test_a_first_step_is_released_and_one_that_follows_is_held(
    world: World, pair: Pair
) -> None:
    one, _ = pair
    await answers(one, [], [of("a")])
    assert await end(one, "a") is Freed.RELEASED
    await answers(one, [], [of("b")])
    assert await end(one, "b") is Freed.HELD
    assert await world.counts() == {
        **{"all": 1, "pool:m": 1, "group:m:g": 1, "tenant:m:t": 1, "key:m:k": 1},
        **{"holds": 1, "holds:m": 1, "hold_notes": 1},
    }
    assert await end(one, "b") is Freed.GONE, "a release that is repeated changes nothing"


async def test_a_step_that_lands_on_another_replica_takes_the_held_slot_past_every_limit(
    world: World, pair: Pair
) -> None:
    one, two = pair
    assert await a_hold(one) is Freed.HELD
    await world.announced()
    full = {"pool_size": 1, "ceiling": 1, "tenant_cap": 1, "key_cap": 1}
    assert await answers(two, [], [of("x", "other", **full)]) == [Answer.POOL]
    (reply,) = (await two.exchange([], [of("b", **full)])).claims
    assert (reply.answer, reply.is_held) == (GRANTED, True)
    assert await world.announced() == [{"hold": HOLD, "replica": "one", "why": "redeem"}]
    counts = await world.counts()
    assert (counts["all"], counts["pool:m"], counts.get("holds")) == (1, 1, None)
    assert await answers(one, [], [of("c", only=True)]) == [Answer.NO_HOLD], "one step has it"


async def test_a_claim_for_a_hold_alone_changes_nothing_where_there_is_none(
    world: World, pair: Pair
) -> None:
    one, _ = pair
    assert await answers(one, [], [of("a", only=True)]) == [Answer.NO_HOLD]
    assert await world.counts() == {}


async def test_a_step_that_arrives_before_its_hold_is_recorded_takes_it_when_it_asks_again(
    pair: Pair,
) -> None:
    one, two = pair
    await answers(one, [], [of("a")])
    await end(one, "a")
    await answers(one, [], [of("b", pool_size=1)])
    assert await answers(two, [], [of("c", pool_size=1)]) == [Answer.POOL]
    assert await end(one, "b") is Freed.HELD
    (reply,) = (await two.exchange([], [of("c", pool_size=1)])).claims
    assert reply.is_held


async def test_that_a_slot_is_held_is_told_so_that_a_step_that_waits_elsewhere_asks_for_it(
    world: World, pair: Pair
) -> None:
    one, two = pair
    await answers(one, [], [of("a")])
    await end(one, "a")
    await answers(one, [], [of("b", pool_size=1)])
    assert await answers(two, [], [of("c", pool_size=1, only=True)]) == [Answer.NO_HOLD]
    await world.announced()
    assert await end(one, "b") is Freed.HELD
    assert await world.announced() == [{"held": HOLD}]
    assert await answers(two, [], [of("c", pool_size=1, only=True)]) == [GRANTED]


async def test_a_full_pool_says_when_a_slot_of_it_is_held_no_more(pair: Pair) -> None:
    one, two = pair
    await a_hold(one)
    (reply,) = (await two.exchange([], [of("x", "other", pool_size=1)])).claims
    assert reply.hold_ends is not None
    assert 0 < reply.hold_ends <= 3.0


@pytest.mark.parametrize("late", [3.2, 10.0])
async def test_a_step_that_arrived_later_than_slots_are_held_is_not_followed_by_a_hold(
    world: World, pair: Pair, late: float
) -> None:
    one, _ = pair
    await answers(one, [], [of("a")])
    await end(one, "a")
    await world.passes(late)
    await answers(one, [], [of("b")])
    assert await end(one, "b", age=0.0) is Freed.RELEASED


@pytest.mark.parametrize(("age", "freed"), [(10.0, Freed.HELD), (6.0, Freed.RELEASED)])
async def test_when_a_step_arrived_counts_and_not_how_long_it_ran(
    world: World, pair: Pair, age: float, freed: Freed
) -> None:
    one, _ = pair
    await answers(one, [], [of("a")])
    await end(one, "a")
    await world.passes(1.0)
    await answers(one, [], [of("b")])
    await world.passes(10.0)
    assert await end(one, "b", age=age) is freed


@pytest.mark.parametrize(
    ("changed", "freed"),
    [
        ({"most": 0}, Freed.REFUSED),
        ({"pool_size": 0}, Freed.REFUSED),
        ({"ceiling": 0}, Freed.REFUSED),
        ({"tenant_cap": 0}, Freed.REFUSED),
        ({"key_cap": 0}, Freed.REFUSED),
        ({"is_wanted": False}, Freed.RELEASED),
        ({"hold_secs": 0.0}, Freed.RELEASED),
    ],
)
async def test_no_slot_is_held_beyond_a_limit_nor_unasked(
    world: World, pair: Pair, changed: dict[str, Any], freed: Freed
) -> None:
    one, _ = pair
    assert await a_hold(one, **changed) is freed
    assert await world.counts() == {}


async def test_no_more_slots_of_a_pool_are_held_than_may_be(pair: Pair) -> None:
    one, two = pair
    assert [await a_hold(slots, s) for slots, s in ((one, "s"), (two, "u"))] == [Freed.HELD] * 2
    await answers(one, [], [of("v1", "v", pool_size=9), of("v2", "v", pool_size=9)])
    await end(one, "v1", session="v")
    assert await end(one, "v2", session="v") is Freed.REFUSED


@pytest.mark.parametrize("by", ["claim", "release", "heartbeat"])
async def test_an_untaken_hold_is_freed_by_whatever_comes_next(
    world: World, pair: Pair, by: str
) -> None:
    one, two = pair
    await a_hold(one)
    await world.passes(3.1)
    await world.announced()
    if by == "claim":
        assert await answers(two, [], [of("x", "other", pool="n", only=True)]) == [Answer.NO_HOLD]
    elif by == "release":
        await answers(two, [held("never", pool="n")], [])
    else:
        assert (await two.heartbeat([])).reclaimed == 0
    assert await world.counts() == {}
    assert await world.announced() == [{"hold": HOLD, "replica": "one", "why": "expire"}]


async def test_a_hold_that_would_last_too_long_since_a_clock_was_set_back_is_freed(
    world: World, pair: Pair
) -> None:
    one, two = pair
    await a_hold(one)
    await world.passes(-300)
    await two.exchange([held("never", pool="n")], [])
    assert (await world.counts()).get("holds", 0) == 0


async def test_a_hold_that_has_lapsed_is_not_taken(world: World, pair: Pair) -> None:
    one, two = pair
    await a_hold(one)
    await world.passes(3.1)
    assert await answers(two, [], [of("b", only=True)]) == [Answer.NO_HOLD]


async def test_a_slot_that_is_held_no_more_goes_to_whoever_waits(world: World, pair: Pair) -> None:
    one, two = pair
    await a_hold(one)
    await answers(two, [], [of("x", "other", pool_size=1)])
    await world.passes(3.1)
    await world.announced()
    await one.heartbeat([])
    assert {"pool": "m", "ceiling": False} in await world.announced()


async def test_a_clean_shutdown_frees_the_holds_of_its_replica_and_no_others(
    world: World, pair: Pair
) -> None:
    one, two = pair
    await a_hold(one)
    await a_hold(two, "u")
    await one.leave([])
    assert (await world.counts())["holds:m"] == 1
    assert await answers(two, [], [of("b", only=True), of("c", "u", only=True)]) == [
        Answer.NO_HOLD,
        GRANTED,
    ]


async def test_a_hold_that_is_to_be_no_more_is_freed_by_its_id_for_whoever_waits(
    world: World, pair: Pair
) -> None:
    one, two = pair
    await a_hold(one)
    await answers(two, [], [of("x", "other", pool_size=1)])
    await world.announced()
    for freed in (Freed.RELEASED, Freed.GONE):
        assert (await one.exchange([held(HOLD)], [])).releases == [freed]
    assert await world.counts() == {}
    assert await world.announced() == [
        {"hold": HOLD, "replica": "one", "why": "freed"},
        {"pool": "m", "ceiling": False},
    ]


async def test_the_holds_of_a_replica_that_was_killed_can_be_taken_and_lapse(
    world: World, pair: Pair
) -> None:
    one, two = pair
    await a_hold(one, hold_secs=60.0)
    for _ in range(3):
        await world.passes(10)
        await two.heartbeat([])
    counts = await world.counts()
    still = [counts.get(name) for name in ("holds", "hold_notes", "all", "pool:m", "key:m:k")]
    assert still == [1] * 5, "longer than the replica's own life"
    await world.passes(31)
    await two.heartbeat([])
    assert await world.counts() == {}


async def test_holds_are_gone_with_lost_books_and_steps_go_on(world: World, pair: Pair) -> None:
    one, two = pair
    await a_hold(one)
    await answers(one, [], [of("c")])
    await world.forgets()
    assert await end(one, "c") is Freed.GONE
    for slots in (one, two, one):
        await slots.heartbeat([])
    assert await answers(two, [], [of("d")]) == [GRANTED]
    assert await end(two, "d") is Freed.RELEASED


async def test_a_starving_claim_frees_the_pools_holds_and_none_is_held_for_a_second(
    world: World, pair: Pair
) -> None:
    one, two = pair
    await a_hold(one)
    await world.announced()
    starving = of("x", None, pool_size=1, is_starving=True)
    assert await answers(two, [], [starving]) == [GRANTED]
    assert (await world.announced())[0]["why"] == "freed_starving"
    await world.passes(0.8)
    assert await a_hold(one, "u") is Freed.REFUSED
    await world.passes(0.3)
    assert await a_hold(one, "v") is Freed.HELD


@pytest.mark.parametrize("cap", ["tenant_cap", "key_cap"])
async def test_a_starving_claim_frees_nothing_while_its_tenant_or_key_runs_all_it_may(
    world: World, pair: Pair, cap: str
) -> None:
    one, two = pair
    await a_hold(one, "other", hold_secs=60.0)
    large: dict[str, Any] = {"pool_size": 9, "tenant": "u", "key": "l"}
    await answers(one, [], [of("r", None, **large)])
    starving = of("x", None, is_starving=True, **large, **{cap: 1})
    limit = Answer.TENANT if cap == "tenant_cap" else Answer.KEY
    assert await answers(two, [], [starving]) == [limit]
    assert (await world.counts())["holds:m"] == 1
    assert await a_hold(one, "s") is Freed.HELD, "nor is the pool one that starves"
    await answers(one, [held("r", tenant="u", key="l")], [])
    assert await answers(two, [], [starving]) == [GRANTED]
    assert (await world.counts()).get("holds:m", 0) == 0


@pytest.mark.parametrize("cap", ["tenant_cap", "key_cap"])
async def test_a_starving_claim_has_the_slot_that_fills_its_cap_without_running(
    world: World, pair: Pair, cap: str
) -> None:
    one, two = pair
    await a_hold(one)
    assert await answers(two, [], [of("x", None, **{cap: 1})]) != [GRANTED]
    assert await answers(two, [], [of("x", None, is_starving=True, **{cap: 1})]) == [GRANTED]


async def test_a_pool_that_shrinks_below_what_runs_and_is_held_frees_held_slots_first(
    world: World, pair: Pair
) -> None:
    one, two = pair
    await answers(one, [], [of("r", None)])
    await a_hold(one, hold_secs=3.0)
    await a_hold(two, "u", hold_secs=2.0)
    assert await answers(two, [], [of("x", None, pool_size=2)]) == [Answer.POOL]
    assert (await world.counts())["pool:m"] == 2
    assert await answers(two, [], [of("y", "u", only=True)]) == [Answer.NO_HOLD], "it ended first"
    assert await answers(two, [], [of("x", None, pool_size=1)]) == [Answer.POOL]
    assert (await world.counts())["pool:m"] == 1


@pytest.mark.parametrize("limit", ["pool_size", "ceiling", "tenant_cap", "key_cap"])
async def test_a_limit_lowered_while_a_slot_is_held_frees_it_when_its_step_comes(
    world: World, pair: Pair, limit: str
) -> None:
    one, two = pair
    await answers(one, [], [of("r", None)])
    await a_hold(one)
    lowered = {limit: 1}
    assert await answers(two, [], [of("b", **lowered)]) == [Answer(limit.partition("_")[0])]
    counts = await world.counts()
    assert (counts["all"], counts["pool:m"], counts.get("holds")) == (1, 1, None)
    await a_hold(one)
    assert await answers(two, [], [of("b", **{limit: 2})]) == [GRANTED], "as many as it may have"


@pytest.mark.parametrize("most", [0, 1])
async def test_a_claim_frees_what_is_held_beyond_what_may_be(
    world: World, pair: Pair, most: int
) -> None:
    one, two = pair
    await a_hold(one)
    await a_hold(one, "u")
    await answers(two, [], [of("x", None, pool_size=9, most=most)])
    assert (await world.counts()).get("holds:m", 0) == most


async def test_after_so_many_holds_in_a_row_while_another_waits_a_slot_is_released(
    pair: Pair,
) -> None:
    one, two = pair
    await answers(one, [], [of("a", pool_size=1)])
    await answers(two, [], [of("x", "other", pool_size=1)])
    await end(one, "a")
    freed = []
    for number in range(6):
        await answers(one, [], [of(f"b{number}", pool_size=1)])
        await answers(two, [], [of("x", "other", pool_size=1)])
        freed.append(await end(one, f"b{number}", max_jumps=2))
    kept, gone = Freed.HELD, Freed.REFUSED
    assert freed == [kept, kept, gone, kept, kept, gone]


async def test_holds_while_nobody_waits_are_not_counted(pair: Pair) -> None:
    one, two = pair
    await answers(one, [], [of("a", pool_size=1)])
    await end(one, "a")
    freed = []
    for number in range(7):
        await answers(one, [], [of(f"b{number}", pool_size=1)])
        if number >= 4:
            await answers(two, [], [of("x", "other", pool_size=1)])
        freed.append(await end(one, f"b{number}", max_jumps=2))
    assert freed == [Freed.HELD] * 6 + [Freed.REFUSED]


async def test_sessions_of_two_keys_or_pools_that_look_alike_are_kept_apart(pair: Pair) -> None:
    one, two = pair
    await a_hold(one)
    others = [of("x", only=True, key="other"), of("y", only=True, pool="n")]
    assert await answers(two, [], others) == [Answer.NO_HOLD] * 2


async def test_a_heartbeat_leaves_the_hold_of_its_replica_alone(world: World, pair: Pair) -> None:
    one, _ = pair
    await a_hold(one)
    assert (await one.heartbeat([])).repaired == 0
    assert (await one.heartbeat([])).repaired == 0
    assert (await world.counts())["holds:m"] == 1
