"""The scheduler's rules one at a time."""

from __future__ import annotations

from collections import Counter

import pytest

from dataplane.scheduler.effects import Reject, RejectReason
from dataplane.scheduler.events import (
    CeilingChanged,
    KeyGone,
    PoolChanged,
    PoolGone,
    PoolPolicy,
    Woken,
)
from dataplane.scheduler.order import Weighted
from shared.policy import KeyPolicy
from tests.simulation.world import World, a_key


def pool_of(size: int, id: str = "m", admission_weight: int = 100) -> PoolPolicy:
    return PoolPolicy(id, id, size, "configured", admission_weight)


def tenants_of(world: World) -> list[str]:
    return [grant.tenant for grant in world.grants]


# The fast path


def test_a_request_that_finds_room_is_admitted_as_it_arrives() -> None:
    world = World()
    world.send(a_key("t"))
    assert [(g.fast, g.waited) for g in world.grants] == [(True, 0.0)]


def test_a_request_that_waited_is_not_fast() -> None:
    world = World()
    first = world.send(a_key("t"), pool=pool_of(1))
    world.send(a_key("t"), pool=pool_of(1))
    world.run(3)
    world.finish(first)
    assert [(g.fast, g.waited) for g in world.grants] == [(True, 0.0), (False, 3.0)]


def test_waiters_at_their_cap_do_not_keep_others_from_the_fast_path() -> None:
    world = World()
    for _ in range(3):
        world.send(a_key("capped", cap=1))
    world.send(a_key("free"))
    assert tenants_of(world) == ["capped", "free"]
    assert world.grants[-1].fast


def test_a_full_pool_with_waiters_delays_no_other() -> None:
    world = World()
    for _ in range(3):
        world.send(a_key("t"), pool=pool_of(1, "full"))
    world.send(a_key("t"), pool=pool_of(1, "free"))
    assert [grant.fast for grant in world.grants] == [True, True]


# Order


def test_a_tie_goes_to_the_older_request() -> None:
    world = World(Weighted())
    busy = [world.send(a_key("x"), pool=pool_of(2)) for _ in range(2)]
    for tenant in ("c", "a", "b"):
        world.send(a_key(tenant), pool=pool_of(2))
    for request in busy:
        world.finish(request)
    assert tenants_of(world)[2:] == ["c", "a"]


def test_requests_of_one_key_go_first_in_first_out() -> None:
    world = World()
    first, *rest = [world.send(a_key("t"), pool=pool_of(1)) for _ in range(5)]
    for request in [first, *rest[:-1]]:
        world.finish(request)
    assert [g.request for g in world.grants] == [first, *rest]


def test_the_tenant_charged_least_for_its_weight_goes_next() -> None:
    world = World(Weighted())
    one = pool_of(1)
    world.send(a_key("x"), pool=one)
    for tenant, weight in (("a", 100), ("b", 400), ("a", 100), ("b", 400), ("b", 400)):
        world.send(a_key(tenant, weight=weight), pool=one, tokens=400)
    for _ in range(5):
        world.finish(next(iter(world.running)))
    assert tenants_of(world) == ["x", "a", "b", "b", "b", "a"]


def test_a_tenant_under_its_share_goes_before_one_with_a_lower_score() -> None:
    world = World()
    two = pool_of(2)
    cheap = [world.send(a_key("cheap"), pool=two, tokens=1) for _ in range(3)]
    world.send(a_key("dear"), pool=two, tokens=1)
    world.finish(cheap[0])
    assert tenants_of(world) == ["cheap", "cheap", "dear"]


def test_a_tenant_under_its_share_waits_while_its_group_is_above_its_own() -> None:
    world = World()
    four = pool_of(4)
    lent = [world.send(a_key("a1", group="a"), pool=four, tokens=1) for _ in range(4)]
    older = world.send(a_key("a2", group="a"), pool=four, tokens=1)
    other = world.send(a_key("b1", group="b"), pool=four, tokens=1)
    world.finish(lent[0])
    assert world.runs([older, other]) == [False, True], "a's part is two, and it runs three"


def test_a_slot_nobody_is_entitled_to_is_lent_to_the_first_by_score() -> None:
    world = World()
    four = pool_of(4)
    for _ in range(2):
        world.send(a_key("quiet"), pool=four)
    for _ in range(2):
        world.send(a_key("busy"), pool=four)
    waiting = [world.send(a_key("busy"), pool=four) for _ in range(2)]
    world.finish(world.grants[0].request)
    assert world.runs(waiting) == [True, False], "quiet's share is two, but it has nothing waiting"


# Caps


def test_a_tenant_at_its_cap_is_passed_over_and_stops_nobody_else() -> None:
    world = World()
    two = pool_of(2)
    capped = [world.send(a_key("capped", cap=1), pool=two) for _ in range(2)]
    other = world.send(a_key("other"), pool=two)
    late = world.send(a_key("late"), pool=two)
    assert world.runs([*capped, other, late]) == [True, False, True, False]
    world.finish(other)
    assert world.runs([capped[1], late]) == [False, True]


def test_a_key_at_its_cap_is_passed_over_for_another_key_of_its_tenant() -> None:
    world = World()
    capped = [world.send(a_key("t", key="a", key_cap=1)) for _ in range(2)]
    other = world.send(a_key("t", key="b"))
    assert world.runs([*capped, other]) == [True, False, True]


def test_caps_count_in_each_pool_alone() -> None:
    world = World()
    here = [world.send(a_key("t", cap=1)) for _ in range(2)]
    there = world.send(a_key("t", cap=1), pool=pool_of(8, "n"))
    assert world.runs([*here, there]) == [True, False, True]


def test_a_cap_that_is_lifted_lets_waiters_go_at_once() -> None:
    world = World()
    for _ in range(4):
        world.send(a_key("t", cap=1))
    world.change(a_key("t"))
    assert len(world.running) == 4


@pytest.mark.parametrize("capped", [a_key("t", cap=1), a_key("t", key_cap=1)])
def test_a_cap_that_the_next_request_lifts_lets_older_waiters_go_before_it(
    capped: KeyPolicy,
) -> None:
    world = World()
    three = pool_of(3)
    runs, older, old = (world.send(capped, pool=three) for _ in range(3))
    newest = world.send(a_key("t"), pool=three)
    assert world.runs([runs, older, old, newest]) == [True, True, True, False]


def test_a_key_whose_cap_falls_keeps_what_runs_and_gets_nothing_more() -> None:
    world = World()
    running = [world.send(a_key("t")) for _ in range(4)]
    world.change(a_key("t", cap=2))
    world.send(a_key("t"))
    world.finish(running[0])
    world.finish(running[1])
    assert len(world.running) == 2
    world.finish(running[2])
    assert len(world.running) == 2


def test_a_tenant_that_waits_behind_its_cap_gets_all_that_the_cap_allows() -> None:
    world = World(Weighted())
    world.keep_sending(a_key("capped", cap=1), at_once=4, pool=pool_of(2))
    world.keep_sending(a_key("other", weight=1), at_once=20, pool=pool_of(2))
    world.run(500)
    assert world.served(since=100)["capped"] == world.served(since=100)["other"]


def test_a_tenant_at_its_cap_does_not_let_newcomers_join_below_those_who_are_served() -> None:
    world = World(Weighted())
    world.keep_sending(a_key("capped", cap=1), at_once=4, tokens=1)
    world.keep_sending(a_key("served"), at_once=20, tokens=1000)
    world.run(500)
    world.keep_sending(a_key("new"), at_once=20, tokens=1000)
    start = world.now
    world.run(20)
    assert world.served(since=start)["served"] > 50


def backlog(world: World, *keys: KeyPolicy) -> None:
    for _ in range(200):
        for key in keys:
            world.send(key, pool=pool_of(8))


def finish_in_order(world: World, times: int, but: frozenset[int] = frozenset()) -> Counter[str]:
    """Requests end in the order in which they began; whose requests were admitted meanwhile."""
    before = len(world.grants)
    for _ in range(times):
        ran = (grant.request for grant in world.grants)
        world.finish(next(n for n in ran if n in world.running and n not in but))
    return Counter(tenants_of(world)[before:])


@pytest.mark.parametrize("capped", [a_key("t", cap=1), a_key("t", key_cap=1)])
def test_whoever_waited_behind_a_cap_starts_level_when_the_cap_is_lifted(
    capped: KeyPolicy,
) -> None:
    world = World(Weighted())
    backlog(world, capped, a_key("u"), a_key("v"))
    finish_in_order(world, 200)
    world.change(a_key("t"))
    turns = finish_in_order(world, 60)
    assert all(18 <= turns[each] <= 22 for each in "tuv"), turns


def test_a_tenant_saves_no_credit_behind_the_cap_of_one_of_its_keys() -> None:
    world = World(Weighted())
    backlog(world, a_key("t", key="capped", key_cap=1), a_key("u"), a_key("v"))
    finish_in_order(world, 200)
    for _ in range(200):
        world.send(a_key("t", key="other"), pool=pool_of(8))
    turns = finish_in_order(world, 60)
    assert all(18 <= turns[each] <= 22 for each in "tuv"), turns


def test_a_group_saves_no_credit_behind_the_cap_of_one_of_its_tenants() -> None:
    world = World()
    backlog(world, a_key("t", group="a", cap=1), a_key("u", group="b"), a_key("v", cap=1))
    finish_in_order(world, 200)
    for _ in range(200):
        world.send(a_key("other", group="a"), pool=pool_of(8))
    turns = finish_in_order(world, 80)
    assert abs(turns["u"] - turns["t"] - turns["other"]) <= 2, "the slot that is lent is for both"


# Limits


def test_no_pool_runs_more_than_its_size_and_no_more_run_than_the_ceiling() -> None:
    world = World(ceiling=5)
    for _ in range(6):
        world.send(a_key("t"), pool=pool_of(3, "a"))
        world.send(a_key("t"), pool=pool_of(3, "b"))
    assert len(world.running) == 5
    assert {pool.policy.id: pool.running for pool in world.core.pools} == {"a": 3, "b": 2}


def test_a_pool_that_grows_admits_waiters_at_once() -> None:
    world = World()
    for _ in range(6):
        world.send(a_key("t"), pool=pool_of(2))
    world.post(PoolChanged(pool_of(5)))
    assert len(world.running) == 5


def test_a_pool_that_shrinks_cuts_nothing_and_grants_nothing_until_it_is_below_its_size() -> None:
    world = World()
    running = [world.send(a_key("t"), pool=pool_of(4)) for _ in range(4)]
    world.post(PoolChanged(pool_of(2)))
    waiting = world.send(a_key("t"), pool=pool_of(2))
    assert len(world.running) == 4
    world.finish(running[0])
    world.finish(running[1])
    assert world.runs([waiting]) == [False]
    world.finish(running[2])
    assert world.runs([waiting]) == [True]


def test_a_pool_of_size_zero_queues() -> None:
    world = World()
    request = world.send(a_key("t"), pool=pool_of(0))
    assert world.runs([request]) == [False]
    world.post(PoolChanged(pool_of(1)))
    assert world.runs([request]) == [True]


def test_a_ceiling_that_rises_admits_waiters_of_every_pool() -> None:
    world = World(ceiling=1)
    for id in ("a", "b", "c"):
        world.send(a_key("t"), pool=pool_of(4, id))
    world.post(CeilingChanged(3))
    assert len(world.running) == 3


# Leaving


def test_a_request_whose_client_left_the_queue_never_gets_a_slot_and_is_not_charged() -> None:
    world = World(Weighted())
    one = pool_of(1)
    first = world.send(a_key("x"), pool=one)
    gone = [world.send(a_key("a"), pool=one, tokens=10_000) for _ in range(3)]
    stays = world.send(a_key("a"), pool=one)
    world.send(a_key("b"), pool=one)
    for request in gone:
        world.leave(request)
    world.finish(first)
    assert world.runs([*gone, stays]) == [False, False, False, True]
    assert world.core.queued == 1


def test_a_grant_that_is_not_taken_goes_to_the_next_and_its_charge_is_undone() -> None:
    world = World(Weighted())
    one = pool_of(1)
    first = world.send(a_key("x"), pool=one)
    leaver = world.send(a_key("a"), pool=one, tokens=50)
    world.send(a_key("b"), pool=one, tokens=50)
    world.send(a_key("a"), pool=one, tokens=50)
    world.finish(first)
    assert world.runs([leaver]) == [True]
    world.leave(leaver)
    assert tenants_of(world) == ["x", "a", "b"]
    world.finish(world.grants[-1].request)
    world.finish(world.grants[-1].request)
    assert tenants_of(world) == ["x", "a", "b", "a"]


def test_a_slot_is_freed_once_however_often_its_end_is_told() -> None:
    world = World()
    one = pool_of(1)
    first = world.send(a_key("t"), pool=one)
    waiting = [world.send(a_key("t"), pool=one) for _ in range(3)]
    for _ in range(3):
        world.finish(first)
        world.leave(first)
    assert world.runs(waiting) == [True, False, False]
    assert world.core.in_flight == 1


# Time


def test_a_request_that_waits_too_long_is_rejected_uncharged_and_in_order_of_arrival() -> None:
    world = World(timeout=60)
    one = pool_of(1)
    world.send(a_key("x"), pool=one)
    early = world.send(a_key("t"), pool=one)
    world.run(1)
    late = world.send(a_key("t"), pool=one)
    world.run(58.5)
    assert world.rejected == {}
    world.run(0.5)
    assert world.rejected == {early: RejectReason.TIMED_OUT}
    world.run(1)
    assert world.rejected == dict.fromkeys([early, late], RejectReason.TIMED_OUT)
    assert world.core.queued == 0


def test_the_scheduler_says_when_it_wants_to_be_woken() -> None:
    world = World(timeout=60, pool_idle=600)
    assert world.core.wake_at() is None
    request = world.send(a_key("t"), pool=pool_of(1))
    assert world.core.wake_at() is None
    world.run(5)
    world.send(a_key("t"), pool=pool_of(1))
    assert world.core.wake_at() == 65
    world.run(61)
    world.finish(request)
    assert world.core.wake_at() == 66 + 600


def test_an_unused_pool_is_dropped_but_never_while_anything_runs() -> None:
    world = World(pool_idle=600)
    used = world.send(a_key("t"), pool=pool_of(1, "used"))
    unused = world.send(a_key("t"), pool=pool_of(1, "unused"))
    world.finish(unused)
    world.run(10_000)
    assert [pool.policy.id for pool in world.core.pools] == ["used"]
    world.finish(used)
    world.run(601)
    assert list(world.core.pools) == []


def test_a_pool_that_was_used_again_is_not_dropped_for_the_time_before() -> None:
    world = World(pool_idle=600)
    world.finish(world.send(a_key("t")))
    world.run(599)
    world.finish(world.send(a_key("t")))
    world.run(599)
    assert len(list(world.core.pools)) == 1


# Policy


def test_waiters_of_a_model_that_is_gone_are_rejected_and_what_runs_finishes() -> None:
    world = World()
    runs = world.send(a_key("t"), pool=pool_of(1))
    waits = world.send(a_key("t"), pool=pool_of(1))
    assert world.post(PoolGone("m")) == [Reject(waits, RejectReason.MODEL_GONE, 0.0)]
    assert world.core.in_flight == 1
    world.finish(runs)
    assert list(world.core.pools) == []


def test_a_model_made_again_under_its_name_has_a_pool_of_its_own() -> None:
    world = World()
    old = world.send(a_key("t"), pool=PoolPolicy("id-1", "name", 1))
    world.post(PoolGone("id-1"))
    new = PoolPolicy("id-2", "name", 1)
    first, second = world.send(a_key("t"), pool=new), world.send(a_key("t"), pool=new)
    world.finish(old)
    assert world.runs([first, second]) == [True, False]
    assert [(pool.policy.id, pool.running) for pool in world.core.pools] == [("id-2", 1)]


def test_a_model_that_comes_back_while_its_last_request_runs_keeps_its_pool() -> None:
    world = World()
    first = world.send(a_key("t"), pool=pool_of(1))
    world.post(PoolGone("m"))
    second = world.send(a_key("t"), pool=pool_of(1))
    assert world.runs([first, second]) == [True, False]
    world.finish(first)
    assert world.runs([second]) == [True]


def test_what_waits_under_a_key_that_is_gone_is_rejected_in_every_pool() -> None:
    world = World()
    gone = a_key("t", key="gone")
    running = world.send(gone, pool=pool_of(1, "a"))
    waiting = [world.send(gone, pool=pool_of(1, "a"))]
    world.send(a_key("u"), pool=pool_of(1, "b"))
    waiting.append(world.send(gone, pool=pool_of(1, "b")))
    other = world.send(a_key("t"), pool=pool_of(1, "b"))
    world.post(KeyGone(gone.id))
    assert world.rejected == dict.fromkeys(waiting, RejectReason.KEY_GONE)
    assert world.runs([running, other]) == [True, False]
    assert world.core.queued == 1


def test_a_tenant_takes_what_it_runs_and_what_waits_along_to_another_group() -> None:
    world = World()
    four = pool_of(4)
    for _ in range(5):
        world.send(a_key("mover", group="a"), pool=four)
    for _ in range(3):
        world.send(a_key("stays", group="a"), pool=four)
    world.change(a_key("mover", group="b"))
    (pool,) = world.core.pools
    books = {g.id: (g.running, g.waiting) for g in pool.groups.nodes.values()}
    assert books == {"a": (0, 3), "b": (4, 1)}
    for request in list(world.running):
        world.finish(request)
    assert [(g.tenant, g.fast) for g in world.grants[4:]] == [
        ("stays", False),
        ("stays", False),
        ("mover", False),
        ("stays", False),
    ]
    for request in list(world.running):
        world.finish(request)
    assert not pool.groups.nodes


@pytest.mark.parametrize("runs_one", [False, True], ids=["new group", "group that only runs"])
def test_a_group_in_which_nobody_waited_starts_level_when_waiters_move_into_it(
    runs_one: bool,
) -> None:
    world = World()
    long = (
        frozenset({world.send(a_key("long", group="b"), pool=pool_of(2))})
        if runs_one
        else frozenset()
    )
    for _ in range(200):
        for tenant, group in (("mover", "a"), ("stays", "a"), ("other", "c")):
            world.send(a_key(tenant, group=group), pool=pool_of(2))
    finish_in_order(world, 200, but=long)
    world.change(a_key("mover", group="b"))
    turns = finish_in_order(world, 60)
    assert all(18 <= turns[each] <= 22 for each in ("mover", "stays", "other")), turns


def test_a_charge_that_is_undone_counts_at_once_for_the_group_that_its_tenant_has_left() -> None:
    world = World()
    one = pool_of(1)
    first = world.send(a_key("stays", group="b"), pool=one)
    undone = world.send(a_key("mover", group="a"), pool=one)
    world.finish(first)
    in_b = world.send(a_key("stays", group="b"), pool=one)
    in_a = world.send(a_key("other", group="a"), pool=one)
    world.change(a_key("mover", group="b"))
    world.leave(undone)
    assert world.runs([in_a, in_b]) == [True, False], "nothing was served of a"


@pytest.mark.parametrize(
    ("weight", "admission_weight", "effective"),
    [(100, 100, 100), (100, 1, 1), (10, 1, 1), (150, 1, 2), (500, 250, 1250), (3, 50, 2)],
)
def test_a_tenants_weight_is_scaled_by_the_models_admission_weight(
    weight: int, admission_weight: int, effective: int
) -> None:
    world = World()
    world.send(a_key("t", weight=weight), pool=pool_of(8, "m", admission_weight))
    (pool,) = world.core.pools
    assert pool.tenants["t"].weight == effective


def test_a_new_admission_weight_counts_for_tenants_that_have_work_already() -> None:
    world = World()
    world.send(a_key("t", weight=500))
    world.post(PoolChanged(pool_of(8, "m", 20)))
    (pool,) = world.core.pools
    assert pool.tenants["t"].weight == 100


def test_an_idle_pool_forgets_its_counters() -> None:
    world = World()
    world.finish(world.send(a_key("t"), tokens=5000))
    (pool,) = world.core.pools
    assert not pool.groups.nodes
    world.send(a_key("t"), tokens=100)
    assert pool.tenants["t"].served_tokens == 100


def test_nodes_without_work_are_forgotten_once_the_others_have_caught_up() -> None:
    world = World(Weighted())
    one = pool_of(1)
    world.keep_sending(a_key("steady"), at_once=3, pool=one)
    for n in range(500):
        world.send(a_key(f"passing {n}"), pool=one, secs=1)
    world.run(2000)
    (pool,) = world.core.pools
    (everyone,) = pool.groups.nodes.values()
    assert len(everyone.tenants.nodes) <= 2


def test_events_about_what_nobody_uses_change_nothing() -> None:
    world = World()
    assert world.post(PoolChanged(pool_of(3))) == []
    assert world.post(PoolGone("m")) == []
    assert world.post(KeyGone("nobody")) == []
    world.leave(99)
    world.finish(99)
    assert world.post(Woken()) == []
    assert list(world.core.pools) == []


def test_a_grant_says_how_long_its_request_waited() -> None:
    world = World()
    world.send(a_key("t"), pool=pool_of(1), secs=2)
    world.send(a_key("t"), pool=pool_of(1))
    world.run(2.5)
    assert [round(grant.waited, 6) for grant in world.grants] == [0.0, 2.0]
