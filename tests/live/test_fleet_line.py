"""Next in line over replicas is what one scheduler with everybody's requests would do next."""

from __future__ import annotations

import random

import msgspec
import pytest

from dataplane import picture
from dataplane.live.fleet_line import next_over
from dataplane.live.picks import may_be_next, next_in_line
from dataplane.live_view import PickView
from dataplane.scheduler.order import Order
from tests.live.test_picks import ORDERS, SMALL
from tests.simulation.world import World, a_key


def told(picks: list[PickView]) -> list[tuple[object, ...]]:
    return [
        (
            *(pick.tenant_id, pick.key_id, pick.waited_ms, pick.under_share),
            *(pytest.approx(pick.tenant_score), pytest.approx(pick.key_score)),
        )
        for pick in picks
    ]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("seed", range(25))
def test_wherever_they_wait_the_next_are_those_of_one_scheduler(
    order: type[Order], seed: int
) -> None:
    world, choose = World(order()), random.Random(seed)
    weights = (500, 50, 100)
    keys = [
        a_key(
            f"t{tenant}",
            key=f"k{key}",
            group=f"g{tenant % 3}",
            group_weight=weights[tenant % 3],
            weight=choose.choice((1, 100, 300)),
            cap=choose.choice((None, None, 2)),
        )
        for tenant in range(6)
        for key in range(2)
    ]
    for _ in range(40):
        # Costs so different that no two score alike: ties are the books' own affair.
        world.send(choose.choice(keys), pool=SMALL, tokens=choose.randint(1, 10**6))
        world.run(0.01)
    for _ in range(20):
        world.finish(min(world.running))
    lines: dict[str, list[PickView]] = {"r1": [], "r2": [], "r3": []}
    (pool,) = world.core.pools
    for each in next_in_line(world.core, pool, world.now, 100):
        lines[choose.choice(tuple(lines))].append(each)
    (whole,) = picture.pools(world.core, world.now)
    views = {
        name: msgspec.structs.replace(whole, next_in_line=tuple(line), may_be_next=())
        for name, line in lines.items()
    }
    found = list(next_over(whole, views))
    assert told([pick for _, pick in found]) == told(list(whole.next_in_line))
    assert found


@pytest.mark.parametrize("order", ORDERS)
def test_a_replica_tells_of_those_who_come_first_after_what_others_admit(
    order: type[Order],
) -> None:
    here, there = World(order()), World(order())
    for world in (here, there):
        for _ in range(9):
            world.send(a_key("filler"), pool=SMALL, tokens=9_000)
        world.finish(min(world.running))
    for _ in range(5):
        here.send(a_key("small"), pool=SMALL, tokens=1)
    there.send(a_key("small"), pool=SMALL, tokens=50_000)
    here.send(a_key("filler"), pool=SMALL, tokens=30)
    here.run(1)
    there.run(2)
    views = {
        name: one
        for name, world in (("here", here), ("there", there))
        for one in picture.pools(world.core, world.now)
    }
    assert {pick.tenant for pick in views["here"].next_in_line} == {"small"}
    assert [pick.tenant for pick in views["here"].may_be_next] == ["filler"]
    # What waits there has waited for longest, and sets the tenant back by all it costs.
    found = [(name, pick.tenant) for name, pick in next_over(views["here"], views)]
    assert found[:2] == [("there", "small"), ("here", "filler")]


def test_of_a_tenant_that_is_told_already_nobody_else_is_told() -> None:
    world = World()
    for n in range(12):
        world.send(a_key("t", key=f"k{n % 2}"), pool=SMALL)
    (pool,) = world.core.pools
    picks = next_in_line(world.core, pool, world.now)
    assert (len(picks), may_be_next(world.core, pool, world.now, picks)) == (4, ())
