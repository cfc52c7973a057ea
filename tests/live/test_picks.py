"""Who is next in line is what the scheduler then does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.live.picks import next_in_line
from dataplane.live_view import PickView
from dataplane.scheduler.effects import Admit
from dataplane.scheduler.events import FleetSeen, PoolPolicy, RegimeChanged
from dataplane.scheduler.order import Hierarchical, Order, Weighted
from dataplane.scheduler.standing import PoolElsewhere
from tests.simulation.world import World, a_key
from tests.unit.scheduler.test_claims import Replica

ORDERS: tuple[type[Order], ...] = (Hierarchical, Weighted)
SMALL = PoolPolicy("m", "m", 8, "configured")


def predicted(world: World) -> tuple[PickView, ...]:
    (pool,) = world.core.pools
    return next_in_line(world.core, pool, world.now)


def pause(world: World, paused: bool) -> list[int]:
    """Hold everybody up, or let them go; who went."""
    effects = world.post(RegimeChanged(claims=False, paused=paused))
    return [effect.request for effect in effects if isinstance(effect, Admit)]


def test_shares_in_the_line_are_of_what_the_ceiling_leaves_over_the_whole_fleet() -> None:
    replica = Replica(size=4, ceiling=4, fleet_order=True)
    heavy, light = a_key("h", group="z", group_weight=300), a_key("l", group="x")
    for key in (heavy, light):
        replica.send(key)
    replica.send(heavy, PoolPolicy("n", "n", 4, "configured"))
    for request in (1, 2, 3):
        replica.refuse(request)
    # Three of the other pool's run on other replicas, and leave one slot.
    replica.do(FleetSeen(3, {"n": PoolElsewhere(3)}))
    (pool,) = (each for each in replica.core.pools if each.policy.id == "m")
    picks = next_in_line(replica.core, pool, replica.now)
    assert {pick.tenant_id: pick.shares for pick in picks} == {"h": (1, 1), "l": (0, 0)}


Senders = st.lists(
    st.builds(
        lambda t, k, weight, cap, key_cap: a_key(
            f"t{t}",
            key=f"k{k}",
            group=f"g{t % 3}",
            group_weight=(500, 50, 100)[t % 3],
            weight=weight,
            cap=cap,
            key_cap=key_cap,
        ),
        st.integers(0, 5),
        st.integers(0, 1),
        st.sampled_from((1, 100, 300)),
        st.sampled_from((None, None, 1, 2)),
        st.sampled_from((None, None, 1)),
    ),
    min_size=1,
    max_size=40,
)


@pytest.mark.parametrize("order", ORDERS)
@given(
    senders=Senders,
    tokens=st.lists(st.integers(0, 900), min_size=40, max_size=40),
    free=st.integers(1, 5),
    ceiling=st.sampled_from((4096, 6)),
)
def test_the_next_picks_are_those_the_scheduler_makes(
    order: type[Order], senders: list[object], tokens: list[int], free: int, ceiling: int
) -> None:
    world = World(order(), ceiling=ceiling)
    sent = {}
    for sender, cost in zip(senders, tokens, strict=False):
        sent[world.send(sender, pool=SMALL, tokens=cost)] = sender  # type: ignore[arg-type]
    pause(world, True)
    for request in sorted(world.running)[:free]:
        world.finish(request)
    if not any(True for _ in world.core.pools):
        return
    before = predicted(world)
    admitted = pause(world, False)
    told = [(pick.tenant_id, pick.key_id) for pick in before]
    did = [(sent[n].tenant.id, sent[n].id) for n in admitted]  # type: ignore[attr-defined]
    assert told[: len(did)] == did[:5]


def test_a_pick_tells_the_scores_that_decided_it() -> None:
    world = World()
    for _ in range(8):
        world.send(a_key("busy", group="a"), tokens=100)
    world.run(1)
    for _ in range(2):
        world.send(a_key("busy", group="a"), tokens=100)
        world.send(a_key("new", group="b", weight=50), tokens=70)
    world.run(2)
    picks = predicted(world)
    assert [pick.tenant for pick in picks] == ["new", "new", "busy", "busy"]
    first, second, third, _ = picks
    assert (first.under_share, first.waited_ms, first.tokens) == (True, 2000, 70)
    assert (first.group, first.key) == ("b", "key")
    # The first pick is charged before the second is made.
    assert second.tenant_score == pytest.approx(first.tenant_score + 70 / 50)
    assert second.group_score == pytest.approx(first.group_score + 70 / 100)
    assert third.under_share is False


def test_shares_are_cut_from_what_the_limit_over_all_pools_leaves() -> None:
    world = World(ceiling=2)
    for _ in range(2):
        world.send(a_key("a", group="a"))
        world.send(a_key("b", group="b"))
    assert [pick.under_share for pick in predicted(world)] == [False, False]
    world = World()
    for _ in range(5):
        world.send(a_key("a", group="a"), pool=PoolPolicy("m", "m", 4))
    world.send(a_key("b", group="b"), pool=PoolPolicy("m", "m", 4))
    assert [pick.under_share for pick in predicted(world)] == [True, False]


def test_picks_so_far_count_as_running_for_the_next() -> None:
    world = World()
    pool = PoolPolicy("m", "m", 4)
    for _ in range(7):
        world.send(a_key("x", group="a"), pool=pool, tokens=1)
    for _ in range(3):
        world.send(a_key("y", group="b"), pool=pool, tokens=10_000)
    picks = predicted(world)
    # Two of four slots are b's share; the third goes to whoever comes first by score.
    assert [pick.tenant for pick in picks][:3] == ["y", "y", "x"]


def test_whoever_is_at_its_cap_is_not_in_line() -> None:
    world = World()
    for _ in range(4):
        world.send(a_key("capped", cap=2))
    for _ in range(7):
        world.send(a_key("free"))
    assert [pick.tenant for pick in predicted(world)] == ["free"]


def test_without_groups_there_is_no_share_to_be_under() -> None:
    world = World(Weighted())
    for _ in range(9):
        world.send(a_key("t", group="g"))
    (pick,) = predicted(world)
    assert (pick.group, pick.under_share) == ("g", None)


def test_looking_changes_nothing() -> None:
    twins = [World(), World()]
    for world in twins:
        for n in range(30):
            world.send(a_key(f"t{n % 4}", group=f"g{n % 2}"), tokens=n)
    for _ in range(20):
        predicted(twins[0])
        for world in twins:
            world.finish(min(world.running))
        assert twins[0].grants == twins[1].grants


def test_five_of_ten_thousand_are_found_without_looking_at_all() -> None:
    world = World()
    for n in range(10_000):
        world.send(a_key(f"t{n}", group=f"g{n % 10}"))
    (pool,) = world.core.pools
    looked = 0

    class Counting(list):  # type: ignore[type-arg]
        def __iter__(self):  # type: ignore[no-untyped-def]
            nonlocal looked
            for each in list.__iter__(self):
                looked += 1
                yield each

    for group in pool.groups.nodes.values():
        group.tenants.contenders = Counting(group.tenants.contenders)  # type: ignore[assignment]
    assert len(predicted(world)) == 5
    assert looked < 200
