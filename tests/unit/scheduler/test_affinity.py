"""Session affinity within one replica: order in a key, held slots, and what keeps others served."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dataplane.scheduler.events import (
    AffinityRules,
    CeilingChanged,
    ClaimGranted,
    ClaimRefused,
    Closing,
    Finished,
    KeyGone,
    PoolChanged,
    PoolGone,
    PoolPolicy,
    RefusedBy,
    RegimeChanged,
    Woken,
)
from dataplane.scheduler.scheduler import Scheduler
from shared.policy import KeyPolicy
from tests.simulation.world import World, a_key
from tests.unit.scheduler.test_claims import Replica, claims

RULES = AffinityRules(
    warm_secs=120, hold_secs=3, max_jumps=8, max_bypass_secs=30, max_held_percent=100
)
T = a_key("t")


def pool_of(size: int, rules: AffinityRules | None = RULES, **changed: Any) -> PoolPolicy:
    if rules is not None and changed:
        rules = dataclasses.replace(rules, **changed)
    return PoolPolicy("m", "m", size, "configured", affinity=rules)


ONE = pool_of(1)


def held(world: World) -> int:
    return sum(pool.held for pool in world.core.pools)


def a_loop(world: World, pool: PoolPolicy = ONE, session: str = "s", key: KeyPolicy = T) -> int:
    """The running step of a session whose last step finished a moment ago."""
    world.finish(world.send(key, pool=pool, session=session))
    return world.send(key, pool=pool, session=session)


def holding(world: World, pool: PoolPolicy = ONE, session: str = "s", key: KeyPolicy = T) -> None:
    """A slot is held for a session from now on."""
    before = held(world)
    world.finish(a_loop(world, pool, session, key))
    assert held(world) == before + 1


# Order within a key


def test_a_session_with_a_step_running_goes_ahead_of_older_requests_of_its_key() -> None:
    world = World()
    first = world.send(T, pool=ONE, session="s")
    older = world.send(T, pool=ONE)
    warm = world.send(T, pool=ONE, session="s")
    world.send(T, pool=ONE, session="cold")
    world.finish(first)
    assert world.runs([older, warm]) == [False, True]
    assert world.noted == {"warm": 1}


def test_a_session_is_warm_for_as_long_as_it_says_after_its_last_step_and_no_longer() -> None:
    for waits, goes_ahead in ((120, True), (120.5, False)):
        world = World()
        pool = pool_of(1, max_bypass_secs=1000)
        world.finish(world.send(T, pool=pool, session="s"))
        blocker = world.send(a_key("other"), pool=pool)
        older = world.send(T, pool=pool)
        warm = world.send(T, pool=pool, session="s")
        world.run(waits)
        world.finish(blocker)
        assert world.runs([older, warm]) == [not goes_ahead, goes_ahead]


def test_a_session_that_cools_down_while_it_waits_loses_its_place_ahead_without_a_wake_up() -> None:
    world = World()
    pool = pool_of(1, max_bypass_secs=1000, warm_secs=5)
    world.finish(world.send(T, pool=pool, session="s"))
    blocker = world.send(a_key("other"), pool=pool)
    older = world.send(T, pool=pool)
    warm = world.send(T, pool=pool, session="s")
    world.now = 6  # and nobody is told
    world.finish(blocker)
    assert world.runs([older, warm]) == [True, False]


def test_warm_sessions_go_in_order_of_arrival_among_themselves() -> None:
    world = World()
    two = pool_of(2)
    running = [world.send(T, pool=two, session=name) for name in ("a", "b")]
    world.send(T, pool=two)
    second = world.send(T, pool=two, session="b")
    third = world.send(T, pool=two, session="a")
    fourth = world.send(T, pool=two, session="b")
    for request in (*running, second, third):
        world.finish(request)
    assert [grant.request for grant in world.grants[2:5]] == [second, third, fourth]


def test_group_tenant_and_key_are_chosen_as_if_there_were_no_sessions() -> None:
    world = World()
    first = world.send(T, pool=ONE, session="s")
    other = world.send(a_key("u"), pool=ONE)
    older = world.send(T, pool=ONE)
    warm = world.send(T, pool=ONE, session="s")
    world.finish(first)
    assert world.runs([other]) == [True]
    world.send(a_key("u"), pool=ONE)
    world.finish(other)
    assert world.runs([older, warm]) == [False, True]


def test_a_tie_goes_to_the_key_whose_oldest_request_is_older_whoever_goes_next_in_it() -> None:
    world = World()
    first = world.send(T, pool=ONE, session="s")
    world.send(T, pool=ONE)
    world.send(a_key("u"), pool=ONE)
    warm = world.send(T, pool=ONE, session="s")
    world.finish(first)
    assert world.runs([warm]) == [True]


def test_requests_without_a_session_are_scheduled_in_order_of_arrival() -> None:
    world = World()
    first = world.send(T, pool=ONE)
    waiting = [world.send(T, pool=ONE) for _ in range(3)]
    for request in (first, *waiting):
        world.finish(request)
    assert [grant.request for grant in world.grants[1:]] == waiting
    assert world.noted == {}


# Holding


def test_a_step_that_follows_leaves_its_slot_held_and_the_next_step_takes_it_at_once() -> None:
    world = World()
    step = a_loop(world)
    waiting = world.send(a_key("u"), pool=ONE)
    world.finish(step)
    assert (held(world), world.core.in_flight) == (1, 0)
    assert world.runs([waiting]) == [False]
    world.run(2.5)
    next_step = world.send(T, pool=ONE, session="s")
    grant = world.grants[-1]
    assert (grant.request, grant.fast, grant.held, grant.waited) == (next_step, True, True, 0)
    assert (held(world), world.core.in_flight) == (0, 1)
    assert world.noted == {"hold": 1, "redeem": 1}


def test_a_persons_next_message_holds_nothing() -> None:
    world = World()
    world.finish(world.send(T, pool=ONE, session="s"))
    world.run(3.5)
    world.finish(world.send(T, pool=ONE, session="s"))
    assert (held(world), world.noted) == (0, {})


def test_a_held_slot_that_nobody_takes_is_freed_when_its_time_is_up() -> None:
    world = World()
    holding(world)
    waiting = world.send(a_key("u"), pool=ONE)
    assert world.core.wake_at() == 3
    world.run(2.9)
    assert world.runs([waiting]) == [False]
    world.run(0.1)
    assert world.runs([waiting]) == [True]
    assert world.noted == {"hold": 1, "expire": 1}


def test_a_slot_whose_hold_has_run_out_goes_to_who_waits_and_not_to_who_brings_the_time() -> None:
    world = World(ceiling=1)
    holding(world)
    waiting = world.send(a_key("u"), pool=ONE)
    world.now = 4  # and nobody is told
    newest = world.send(a_key("v"), pool=PoolPolicy("other", "other", 1))
    assert world.runs([waiting, newest]) == [True, False]


def test_nobody_is_charged_for_an_idle_hold_and_the_step_that_takes_it_is_charged_as_any() -> None:
    world = World()
    holding(world)
    world.send(T, pool=ONE)  # waits behind the hold, so that the pool keeps its counters
    (pool,) = world.core.pools
    before = pool.tenants["t"].served_tokens
    world.run(1)
    assert pool.tenants["t"].served_tokens == before
    world.send(T, pool=ONE, session="s", tokens=70)
    assert pool.tenants["t"].served_tokens == before + 70


def test_a_step_that_fails_holds_nothing() -> None:
    world = World()
    world.finish(a_loop(world), failed=True)
    assert (held(world), world.noted) == (0, {})


def test_a_step_whose_client_left_before_it_ran_holds_nothing() -> None:
    world = World()
    world.leave(a_loop(world))
    assert (held(world), world.core.in_flight, world.noted) == (0, 0, {})


def test_a_client_that_leaves_while_redeeming_gives_the_slot_to_the_next_uncharged() -> None:
    world = World()
    holding(world)
    waiting = world.send(a_key("u"), pool=ONE)
    world.leave(world.send(T, pool=ONE, session="s", tokens=1000))
    assert world.runs([waiting]) == [True]
    (pool,) = world.core.pools
    assert "t" not in pool.tenants
    assert held(world) == 0


def test_two_steps_of_one_session_at_once_share_one_held_slot() -> None:
    world = World()
    holding(world)
    first = world.send(T, pool=ONE, session="s")
    second = world.send(T, pool=ONE, session="s")
    assert world.runs([first, second]) == [True, False]
    assert [grant.held for grant in world.grants if grant.request == first] == [True]
    assert world.core.held_keys is not None
    assert held(world) == 0


def test_only_the_step_that_came_last_leaves_its_slot_for_the_next() -> None:
    world = World()
    two = pool_of(2)
    world.finish(world.send(T, pool=two, session="s"))
    older, newer = (world.send(T, pool=two, session="s") for _ in range(2))
    world.finish(older)
    assert held(world) == 0
    world.finish(newer)
    assert held(world) == 1


def test_a_step_that_arrives_before_its_hold_is_recorded_and_waits_is_handed_the_slot() -> None:
    world = World()
    step = a_loop(world)
    ahead = world.send(a_key("u"), pool=ONE)
    early = world.send(T, pool=ONE, session="s")
    world.run(1)
    world.finish(step)
    assert world.runs([ahead, early]) == [False, True]
    grant = world.grants[-1]
    assert (grant.fast, grant.held, grant.waited) == (False, True, 1)
    assert world.noted == {"hold": 1, "redeem": 1}
    assert world.core.queued == 1
    world.finish(early)
    assert held(world) == 1, "the step that came early follows too"


def test_a_step_that_arrives_before_its_hold_is_recorded_and_runs_leaves_no_slot_idle() -> None:
    world = World()
    two = pool_of(2)
    step = a_loop(world, two)
    early = world.send(T, pool=two, session="s")
    world.finish(step)
    assert (held(world), world.noted) == (0, {})
    world.finish(early)
    assert held(world) == 1


def test_a_step_that_waited_since_long_before_is_not_handed_the_slot_of_another() -> None:
    world = World()
    step = a_loop(world)
    other = world.send(a_key("u"), pool=ONE)
    early = world.send(T, pool=ONE, session="s")
    world.run(4)
    world.finish(step)
    assert held(world) == 0
    assert world.runs([early, other]) == [False, True]


def test_a_session_id_used_under_two_keys_is_two_sessions() -> None:
    world = World()
    two = pool_of(2)
    mine, theirs = a_key("t", key="mine"), a_key("t", key="theirs")
    holding(world, two, key=mine)
    request = world.send(theirs, pool=two, session="s")
    assert held(world) == 1
    assert not world.grants[-1].held
    world.finish(request)
    assert held(world) == 1, "its first step follows nothing"


def test_hold_time_0_holds_nothing() -> None:
    world = World()
    world.finish(a_loop(world, pool_of(1, hold_secs=0)))
    assert (held(world), world.noted) == (0, {})


def test_a_session_is_in_a_loop_for_the_whole_hold_time_even_if_it_is_warm_for_less() -> None:
    world = World()
    pool = pool_of(1, warm_secs=1, hold_secs=5)
    world.finish(world.send(T, pool=pool, session="s"))
    world.run(4)
    world.finish(world.send(T, pool=pool, session="s"))
    assert held(world) == 1
    world.run(4.5)
    assert held(world) == 1
    world.send(T, pool=pool, session="s")
    assert world.grants[-1].held


# How much may be held


@pytest.mark.parametrize(
    ("percent", "size", "most"),
    [(0, 4, 0), (1, 4, 1), (25, 4, 1), (26, 4, 2), (50, 5, 3), (100, 4, 4), (100, 1, 1)],
)
def test_no_more_than_the_set_share_of_a_pool_is_held_rounded_up(
    percent: int, size: int, most: int
) -> None:
    world = World()
    pool = pool_of(size, max_held_percent=percent)
    steps = [a_loop(world, pool, f"s{n}") for n in range(size)]
    for step in steps:
        world.finish(step)
    assert held(world) == most
    assert world.noted["hold"] == most
    assert world.noted["refused"] == size - most


def test_a_one_slot_pool_alternates_between_a_loop_and_whoever_has_waited_too_long() -> None:
    world = World()
    pool = pool_of(1, max_bypass_secs=10)

    def loop() -> None:
        world.send(T, pool=pool, session="s", secs=1, then=loop)

    loop()
    world.keep_sending(a_key("u"), at_once=1, pool=pool, secs=1)
    world.run(100)
    waits = [grant.waited for grant in world.grants if grant.tenant == "u"]
    assert len(waits) >= 8
    assert max(waits) <= 10 + 1


def test_held_slots_count_against_pool_ceiling_tenant_cap_and_key_cap() -> None:
    for key, ceiling in ((T, 2), (a_key("t", cap=2), 9), (a_key("t", key_cap=2), 9)):
        world = World(ceiling=ceiling)
        pool = pool_of(4)
        holding(world, pool, key=key)
        requests = [world.send(key, pool=pool) for _ in range(2)]
        assert world.runs(requests) == [True, False]
    world = World()
    holding(world, pool_of(2))
    requests = [world.send(a_key(name), pool=pool_of(2)) for name in "uv"]
    assert world.runs(requests) == [True, False]


def test_a_held_slot_counts_as_work_when_shares_are_cut() -> None:
    world = World()
    two = pool_of(2)
    holding(world, two, key=a_key("agent", group="a"))
    batch = a_key("batch", group="b")
    first, second = world.send(batch, pool=two), world.send(batch, pool=two)
    agents = world.send(a_key("agent", group="a"), pool=two)
    assert world.runs([first, second, agents]) == [True, False, False]
    world.run(3)
    assert world.runs([second, agents]) == [False, True]


# Being passed


def test_a_request_is_passed_by_warm_sessions_max_jumps_times_then_goes_next() -> None:
    world = World()
    pool = pool_of(1, max_jumps=3, hold_secs=0)
    running = world.send(T, pool=pool, session="s")
    older = world.send(T, pool=pool)
    for _ in range(3):
        warm = world.send(T, pool=pool, session="s")
        world.finish(running)
        assert world.runs([older, warm]) == [False, True]
        running = warm
    world.send(T, pool=pool, session="s")
    world.finish(running)
    assert world.runs([older]) == [True]
    assert world.noted == {"warm": 3}


def test_a_request_is_passed_by_held_slots_max_jumps_times_then_none_is_held_for_its_key() -> None:
    world = World()
    pool = pool_of(1, max_jumps=3)
    step = a_loop(world, pool)
    older = world.send(T, pool=pool)
    for _ in range(3):
        world.finish(step)
        assert held(world) == 1
        step = world.send(T, pool=pool, session="s")
    world.finish(step)
    assert world.runs([older]) == [True]
    assert world.noted == {"hold": 3, "redeem": 3, "refused": 1}


def test_passes_by_warm_sessions_and_by_held_slots_add_up() -> None:
    world = World()
    pool = pool_of(2, max_jumps=2)
    holding(world, pool)
    running = world.send(T, pool=pool, session="x")
    older = world.send(T, pool=pool)
    passer = world.send(T, pool=pool, session="x")
    world.finish(running)  # the slot goes to the warm session
    assert world.runs([older, passer]) == [False, True]
    step = world.send(T, pool=pool, session="s")  # takes the held slot
    world.send(T, pool=pool, session="s")
    world.finish(step)
    assert world.runs([older]) == [True]


def test_when_a_request_has_been_passed_often_enough_what_is_held_for_its_key_is_freed() -> None:
    world = World()
    three = pool_of(3, max_jumps=1)
    for name in ("a", "b"):
        holding(world, three, name)
    holding(world, three, "c", key=a_key("other"))
    older = world.send(T, pool=three)
    assert world.runs([older]) == [False]
    world.send(T, pool=three, session="a")
    assert world.runs([older]) == [True]
    assert held(world) == 1, "another key's slot is still held"
    assert world.noted["freed_starving"] == 1


def test_with_max_jumps_0_nothing_is_held_or_passed_while_a_request_of_the_key_waits() -> None:
    world = World()
    pool = pool_of(1, max_jumps=0)
    holding(world, pool)
    older = world.send(T, pool=pool)
    assert world.runs([older]) == [True]
    assert world.noted == {"hold": 1, "freed_starving": 1}


def test_each_request_of_a_queue_counts_only_those_that_passed_itself() -> None:
    world = World()
    pool = pool_of(1, max_jumps=2, hold_secs=0)
    running = world.send(T, pool=pool, session="s")
    first = world.send(T, pool=pool)
    passers = [world.send(T, pool=pool, session="s")]
    second = world.send(T, pool=pool)
    world.finish(running)
    passers.append(world.send(T, pool=pool, session="s"))
    world.finish(passers[0])
    last = world.send(T, pool=pool, session="s")
    world.finish(passers[1])
    assert world.runs([first]) == [True], "passed twice"
    world.finish(first)
    assert world.runs([second, last]) == [False, True], "passed only once before"
    world.send(T, pool=pool, session="s")
    world.finish(last)
    assert world.runs([second]) == [True]


def test_passes_are_forgotten_with_the_request_that_was_passed() -> None:
    world = World()
    pool = pool_of(1, max_jumps=1, hold_secs=0)
    running = world.send(T, pool=pool, session="s")
    leaver = world.send(T, pool=pool)
    passer = world.send(T, pool=pool, session="s")
    world.finish(running)
    world.leave(leaver)
    older = world.send(T, pool=pool)
    warm = world.send(T, pool=pool, session="s")
    world.finish(passer)
    assert world.runs([older, warm]) == [False, True]


# Waiting too long


def test_a_request_past_the_bypass_limit_has_its_key_served_in_order_of_arrival() -> None:
    world = World()
    pool = pool_of(1, max_jumps=1000)
    running = world.send(T, pool=pool, session="s")
    older = world.send(T, pool=pool)
    warm = world.send(T, pool=pool, session="s")
    world.run(30)
    world.finish(running)
    assert world.runs([older, warm]) == [True, False]


def test_a_request_past_the_bypass_limit_frees_what_its_pool_holds_when_its_time_comes() -> None:
    world = World()
    pool = pool_of(1, hold_secs=20, max_bypass_secs=30)
    step = a_loop(world, pool)
    waiting = world.send(a_key("u"), pool=pool)
    world.run(15)
    world.finish(step)
    assert (held(world), world.core.wake_at()) == (1, 30)
    world.run(14.9)
    assert world.runs([waiting]) == [False]
    world.run(0.1)
    assert world.runs([waiting]) == [True]
    assert world.noted == {"hold": 1, "freed_starving": 1}


def test_while_a_request_is_past_the_bypass_limit_nothing_is_held_in_its_pool() -> None:
    world = World()
    two = pool_of(2)
    step, other = a_loop(world, two), world.send(T, pool=two)
    late = [world.send(a_key("u"), pool=two) for _ in range(2)]
    world.run(30)
    world.finish(step)
    assert world.runs(late) == [True, False]
    assert world.noted == {"refused": 1}
    world.finish(other)
    assert world.runs(late) == [True, True]


def test_a_request_that_its_cap_keeps_waiting_frees_nothing() -> None:
    for key in (a_key("u", cap=1), a_key("u", key_cap=1)):
        world = World()
        pool = pool_of(2, hold_secs=60)
        runs = world.send(key, pool=pool)
        world.send(key, pool=pool)
        holding(world, pool)
        world.run(50)
        assert held(world) == 1
        world.finish(runs)
        assert held(world) == 1, "its own slot was enough"


def test_a_cap_that_only_a_held_slot_fills_does_not_keep_a_starving_request_out() -> None:
    world = World()
    mine, theirs = (a_key("t", key=name, cap=1) for name in ("mine", "theirs"))
    pool = pool_of(4)
    step = a_loop(world, pool, key=mine)
    waiting = world.send(theirs, pool=pool)
    for _ in range(20):
        world.run(2)
        world.finish(step)
        if not world.runs([waiting])[0]:
            step = world.send(mine, pool=pool, session="s")
    assert world.runs([waiting]) == [True]
    assert world.grants[-1].waited <= 30 + 2


def test_a_loop_does_not_keep_another_pool_from_the_ceiling_for_longer_than_the_limit() -> None:
    world = World(ceiling=1)

    def loop() -> None:
        world.send(T, pool=ONE, session="s", secs=1, then=loop)

    loop()
    world.run(1.5)
    other = PoolPolicy("other", "other", 1, "configured")
    waiting = world.send(a_key("u"), pool=other, secs=1)
    world.run(32)
    assert [grant.waited for grant in world.grants if grant.request == waiting] == [30.5]


def test_whoever_waits_is_passed_no_longer_than_the_bypass_limit_by_sessions_of_other_keys() -> (
    None
):
    world = World()
    four = pool_of(4)

    def loop(n: int) -> None:
        world.send(a_key("t", key=f"k{n}"), pool=four, session="s", secs=1.0, then=lambda: loop(n))

    for n in range(4):
        loop(n)
    world.run(1.5)
    for _ in range(6):
        world.send(a_key("u"), pool=four, secs=1)
    world.run(60)
    waits = [grant.waited for grant in world.grants if grant.tenant == "u"]
    assert len(waits) == 6
    assert 29 < min(waits) <= max(waits) <= 30 + 6


# Policy


def test_affinity_turned_off_frees_what_the_pool_holds_at_once_and_restores_arrival_order() -> None:
    world = World()
    two = pool_of(2)
    holding(world, two)
    running = world.send(T, pool=two, session="x")
    older, warm = world.send(T, pool=two), world.send(T, pool=two, session="x")
    off = pool_of(2, None)
    world.post(PoolChanged(off))
    assert held(world) == 0
    assert world.runs([older, warm]) == [True, False]
    world.finish(running)
    assert world.runs([warm]) == [True]
    world.finish(warm)
    world.finish(a_loop(world, off))
    assert held(world) == 0


def test_affinity_turned_off_by_the_next_request_frees_what_an_otherwise_idle_pool_holds() -> None:
    world = World()
    holding(world)
    request = world.send(T, pool=pool_of(1, None), session="s")
    assert (world.runs([request]), held(world)) == ([True], 0)
    assert not world.grants[-1].held
    world.finish(request)
    assert world.core.in_flight == 0


def test_affinity_turned_on_counts_from_the_next_request_but_lets_nobody_be_passed_for_long() -> (
    None
):
    world = World()
    off, on = pool_of(1, None), pool_of(1, max_jumps=1000)
    running = world.send(T, pool=off, session="s")
    older = world.send(T, pool=off)
    world.run(20)
    world.post(PoolChanged(on))
    not_warm = world.send(T, pool=on, session="s")
    world.finish(running)
    assert world.runs([older, not_warm]) == [True, False]
    world.finish(older)
    world.finish(not_warm)
    step = world.send(T, pool=on, session="s")
    world.finish(step)
    assert held(world) == 1


def test_a_change_of_limits_applies_to_what_is_held_and_waits() -> None:
    world = World()
    pool = pool_of(4, hold_secs=60, max_bypass_secs=1000)
    for n in range(4):
        holding(world, pool, f"s{n}")
    waiting = world.send(a_key("u"), pool=pool)
    world.run(10)
    fewer = pool_of(4, hold_secs=60, max_bypass_secs=1000, max_held_percent=75)
    world.post(PoolChanged(fewer))
    assert (held(world), world.runs([waiting])) == (3, [True])
    waiting = world.send(a_key("u"), pool=fewer)
    world.run(5)
    world.post(PoolChanged(pool_of(4, hold_secs=60, max_bypass_secs=4)))
    assert (held(world), world.runs([waiting])) == (0, [True])


def test_a_pool_that_shrinks_below_what_runs_and_is_held_frees_held_slots_first() -> None:
    world = World()
    pool = pool_of(4)
    runs = [world.send(a_key("u"), pool=pool) for _ in range(2)]
    for name in ("first", "second"):
        holding(world, pool, name)
        world.run(1)
    world.post(PoolChanged(pool_of(3)))
    assert (held(world), world.runs(runs)) == (1, [True, True])
    world.send(T, pool=pool_of(3), session="second")
    assert world.grants[-1].held, "the one that would have ended first was freed"
    world.post(PoolChanged(pool_of(1)))
    assert world.core.in_flight == 3


def test_a_pool_that_shrinks_holds_no_more_than_its_share_of_the_new_size() -> None:
    world = World()
    pool = pool_of(8, max_held_percent=50)
    for n in range(4):
        holding(world, pool, f"s{n}")
    world.post(PoolChanged(pool_of(4, max_held_percent=50)))
    assert held(world) == 2


def test_a_ceiling_that_falls_frees_held_slots() -> None:
    world = World(ceiling=4)
    pool = pool_of(4)
    world.send(a_key("u"), pool=pool)
    for n in range(3):
        holding(world, pool, f"s{n}")
    world.post(CeilingChanged(2))
    assert (held(world), world.core.in_flight) == (1, 1)


def test_a_slot_held_for_a_key_that_is_revoked_is_freed_and_others_are_not() -> None:
    world = World()
    two = pool_of(2)
    gone = a_key("t", key="gone")
    holding(world, two, key=gone)
    holding(world, two)
    assert {key.id for key in world.core.held_keys} == {gone.id, T.id}
    world.post(KeyGone(gone.id))
    assert [key.id for key in world.core.held_keys] == [T.id]


@pytest.mark.parametrize("lowered", [a_key("t", cap=1), a_key("t", key_cap=1)])
def test_held_slots_beyond_a_cap_that_is_lowered_are_freed(lowered: KeyPolicy) -> None:
    world = World()
    pool = pool_of(4)
    for n in range(3):
        holding(world, pool, f"s{n}")
    world.change(lowered)
    assert held(world) == 1
    world.send(lowered, pool=pool)
    assert world.core.in_flight == 0
    world.send(lowered, pool=pool, session="s2")
    assert world.grants[-1].held


def test_a_cap_that_is_lowered_by_the_next_request_frees_held_slots_beyond_it() -> None:
    world = World()
    pool = pool_of(4)
    for n in range(3):
        holding(world, pool, f"s{n}")
    world.send(a_key("t", cap=2), pool=pool, session="s2")
    assert (held(world), world.core.in_flight) == (1, 1)


def test_a_model_that_is_deleted_with_holds_frees_them_and_its_pool_is_dropped() -> None:
    world = World()
    holding(world)
    world.post(PoolGone("m"))
    assert list(world.core.pools) == []
    assert world.core.wake_at() is None


def test_nothing_is_held_for_a_step_that_ends_after_its_model_was_deleted() -> None:
    world = World()
    step = a_loop(world)
    world.post(PoolGone("m"))
    world.finish(step)
    assert list(world.core.pools) == []


def test_draining_frees_what_is_held_and_holds_nothing_more() -> None:
    world = World()
    two = pool_of(2)
    step = a_loop(world, two, "other")
    holding(world, two)
    world.post(Closing())
    assert held(world) == 0
    world.finish(step)
    assert (held(world), world.core.in_flight) == (0, 0)


# While slots belong to the fleet


def test_nothing_is_held_while_slots_are_claimed_from_the_fleet() -> None:
    world = World()
    holding(world)
    world.post(RegimeChanged(claims=True))
    assert held(world) == 0


def test_warm_sessions_claim_first_and_a_refused_claim_passes_nobody() -> None:
    replica = Replica(size=1)
    pool = pool_of(1, max_jumps=1)
    replica.send(T, pool, session="s")
    replica.do(ClaimGranted(1))
    replica.send(T, pool)
    replica.send(T, pool, session="s")
    replica.do(ClaimRefused(3, RefusedBy.NO_HOLD, replica.now))
    assert claims(replica.do(Finished(1))) == [3], "for a held slot alone"
    assert claims(replica.do(ClaimRefused(3, RefusedBy.NO_HOLD, replica.now))) == [3]
    replica.do(ClaimRefused(3, RefusedBy.POOL, replica.now + 1))
    replica.now += 1
    assert claims(replica.do(Woken())) == [3], "not passed yet, so it may be"
    replica.do(ClaimGranted(3))
    replica.send(T, pool, session="s")
    assert claims(replica.do(Finished(3))) == [2]


def test_held_slots_are_divided_with_the_pool_among_replicas_that_do_not_share() -> None:
    world = World()
    pool = pool_of(8, max_held_percent=50)
    for n in range(4):
        holding(world, pool, f"s{n}")
    world.post(RegimeChanged(claims=False, divide_by=2))
    assert held(world) == 2


# Memory


def test_sessions_are_forgotten_when_they_are_not_warm_any_more() -> None:
    world = World()
    pool = pool_of(1, warm_secs=5)
    for n in range(100):
        world.send(T, pool=pool, session=f"s{n}", secs=0.01)
    world.run(10)
    world.finish(world.send(T, pool=pool))
    assert remembered(world.core) == 0


def test_sessions_are_bounded_and_the_longest_finished_are_forgotten_first() -> None:
    world = World()
    for n in range(10_050):
        world.finish(world.send(T, pool=ONE, session=f"s{n}"))
    assert remembered(world.core) == 10_000
    world.finish(world.send(T, pool=ONE, session="s0"))
    assert held(world) == 0
    world.finish(world.send(T, pool=ONE, session="s10049"))
    assert held(world) == 1


def test_an_idle_pool_remembers_its_sessions() -> None:
    world = World()
    world.finish(world.send(T, pool=ONE, session="s"))
    assert not any(pool.has_work for pool in world.core.pools)
    world.finish(world.send(T, pool=ONE, session="s"))
    assert held(world) == 1


def test_whatever_happens_to_its_steps_a_session_leaves_nothing_behind() -> None:
    world = World(timeout=40)
    pool = pool_of(1, warm_secs=1)
    blocker = world.send(a_key("u"), pool=pool)
    world.leave(world.send(T, pool=pool, session="left"))
    world.send(T, pool=pool, session="timed out")
    world.run(41)
    world.finish(blocker)
    world.leave(world.send(T, pool=pool, session="never ran"))
    world.run(5)
    world.finish(world.send(a_key("u"), pool=pool))
    assert remembered(world.core) == 0


def remembered(core: Scheduler) -> int:
    (pool,) = core.pools
    assert pool.affinity is not None
    return pool.affinity.remembered
