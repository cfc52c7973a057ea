"""Whose turn it is when a slot is free: what every keeper of the fleet's slots says."""

from __future__ import annotations

from typing import Final

import pytest

from dataplane.admission.slots.port import Answer, Claim, Holding, Slots
from dataplane.scheduler.standing import Charges, Cuts, Rank, Standing, Turn
from tests.contract.slot_worlds import World, answers

CEILING: Final = 5
X: Final = Cuts(1, 4, CEILING, group=(1, 1, 2, 3), tenant=(1, 1, 2, 3))
Y: Final = Cuts(1, 4, CEILING, group=(1, 1, 1, 1), tenant=(1, 1, 1, 1))


def standing(name: str, cuts: Cuts) -> Standing:
    """One tenant of a group, where `cuts` alone say what its share is."""
    rank = Rank(name, 0.0, share=0)
    return Standing(rank, rank, Rank(name, 0.0), 0.0, cuts)


def claim(id: str, name: str, charge: float = 1.0, *, pool: str = "m", others: str = "") -> Claim:
    turn = Turn(
        standing(name, X if name == "x" else Y),
        Charges(charge, charge, charge),
        tuple(standing(other, X if other == "x" else Y) for other in others),
    )
    return Claim(id, pool, name, name, name, pool_size=4, ceiling=CEILING, turn=turn)


@pytest.mark.parametrize(
    ("freed", "charged", "called"),
    [
        # Four slots are left to the pool, of which the one that had more may have another.
        (Holding("o1", "o", "y", "y", "y"), {"x": 9.0, "y": 1.0}, "x"),
        # Three are left, and it has its part of those.
        (Holding("m3", "m", "y", "y", "y"), {"x": 1.0, "y": 9.0}, "y"),
    ],
)
async def test_shares_are_of_what_the_ceiling_leaves_at_the_moment_a_slot_is_free(
    world: World,
    pair: tuple[Slots, Slots],
    freed: Holding,
    charged: dict[str, float],
    called: str,
) -> None:
    one, two = pair
    names = {"m1": "x", "m2": "x", "m3": "y"}
    running = [claim(id, name, charged[name]) for id, name in names.items()]
    elsewhere = [claim(id, "y", pool="o") for id in ("o1", "o2")]
    granted = [Answer.GRANTED] * 5
    assert await answers(one, [], [*running, *elsewhere]) == granted
    assert await answers(two, [], [claim("m4", "x", others="y")]) == [Answer.CEILING]
    await world.announced()
    await answers(one, [freed], [])
    assert [each["tenant"] for each in await world.announced()] == [called]


async def called(world: World) -> list[object]:
    """The pools whose waiters were called since the last look."""
    return [each["pool"] for each in await world.announced() if "turn" in each]


async def test_a_pool_that_nobody_waited_for_takes_its_turn_after_those_that_wait(
    world: World, pair: tuple[Slots, Slots]
) -> None:
    one, two = pair
    running = [claim(f"{pool}{n}", "x", pool=pool) for n, pool in enumerate("nmmmo")]
    assert await answers(one, [], running) == [Answer.GRANTED] * 5
    assert await answers(two, [], [claim("m4", "x")]) == [Answer.CEILING]
    assert await answers(one, [], [claim("n2", "x", pool="n")]) == [Answer.CEILING]
    await world.announced()
    await answers(one, [Holding("n0", "n", "x", "x", "x")], [])
    assert await called(world) == ["m"]
    assert await answers(two, [], [claim("m4", "x")]) == [Answer.GRANTED]


async def test_a_pool_that_was_full_takes_its_turn_after_those_that_waited_meanwhile(
    world: World, pair: tuple[Slots, Slots]
) -> None:
    one, two = pair
    running = [claim(id, "x") for id in ("m1", "m2", "m3", "m4")]
    assert await answers(one, [], [*running, claim("n1", "x", pool="n")]) == [Answer.GRANTED] * 5
    assert await answers(two, [], [claim("n2", "x", pool="n")]) == [Answer.CEILING]
    assert await answers(two, [], [claim("m5", "x")]) == [Answer.POOL]
    await world.announced()
    await answers(one, [Holding("m1", "m", "x", "x", "x")], [])
    assert await called(world) == ["n"]
    assert await answers(two, [], [claim("n3", "x", pool="n")]) == [Answer.GRANTED]
    await world.announced()
    await answers(one, [Holding("n1", "n", "x", "x", "x")], [])
    assert await called(world) == ["m"]


async def test_a_pool_told_that_it_is_anothers_turn_is_called_when_its_own_has_come(
    world: World, pair: tuple[Slots, Slots]
) -> None:
    one, two = pair
    running = [claim(f"m{n}", "x", pool=pool) for n, pool in enumerate("mmnno")]
    assert await answers(one, [], running) == [Answer.GRANTED] * 5
    assert await answers(two, [], [claim("m5", "x")]) == [Answer.CEILING]
    await answers(one, [Holding("m4", "o", "x", "x", "x")], [])
    late = claim("n5", "x", pool="n")
    assert await answers(one, [], [late]) == [Answer.NOT_YOUR_TURN]
    assert await answers(two, [], [claim("m5", "x")]) == [Answer.GRANTED]
    await world.announced()
    await answers(two, [Holding("m0", "m", "x", "x", "x")], [])
    assert await called(world) == ["n"]


async def test_a_replica_that_comes_too_late_is_called_again_soon(
    world: World, pair: tuple[Slots, Slots]
) -> None:
    one, two = pair
    running = [claim(f"m{n}", "y") for n in range(4)]
    assert await answers(one, [], running) == [Answer.GRANTED] * 4
    assert await answers(one, [], [claim("m4", "y", others="y")]) == [Answer.POOL]
    assert await answers(two, [], [claim("m5", "x", others="x")]) == [Answer.POOL]
    for number, wait in enumerate((0.0, 0.26)):
        await world.passes(wait)
        await world.announced()
        await answers(one, [Holding(f"m{number}", "m", "y", "y", "y")], [])
        assert [each["turn"] for each in await world.announced()] == ["two"]
        await world.passes(0.113)
        late = claim(f"m{6 + number}", "x", others="x")
        assert await answers(two, [], [late]) == [Answer.GRANTED]
