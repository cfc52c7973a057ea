"""Session affinity: order within a key, and how often and for how long others are passed."""

from __future__ import annotations

from dataplane.scheduler.events import PoolPolicy
from tests.simulation.world import World, a_key
from tests.unit.scheduler.agents import ONE, T, a_loop, held, holding, pool_of

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


def test_a_session_that_waits_is_warm_from_the_moment_one_of_its_steps_runs() -> None:
    world = World()
    blocker = world.send(T, pool=ONE)
    first = world.send(T, pool=ONE, session="s")
    older = world.send(T, pool=ONE)
    second = world.send(T, pool=ONE, session="s")
    world.finish(blocker)
    world.finish(first)
    assert world.runs([older, second]) == [False, True]


def test_a_session_that_goes_on_does_not_keep_another_warm() -> None:
    world = World()
    pool = pool_of(1, max_bypass_secs=1000)
    world.finish(world.send(T, pool=pool, session="goes on"))
    world.finish(world.send(T, pool=pool, session="s"))
    world.run(100)
    world.finish(world.send(T, pool=pool, session="goes on"))
    blocker = world.send(a_key("other"), pool=pool)
    older, cold = world.send(T, pool=pool), world.send(T, pool=pool, session="s")
    world.run(20.5)
    world.finish(blocker)
    assert world.runs([older, cold]) == [True, False]


def test_a_session_whose_step_left_before_it_ran_is_not_warm() -> None:
    world = World()
    first = world.send(T, pool=ONE, session="s")
    older, second = world.send(T, pool=ONE), world.send(T, pool=ONE, session="s")
    world.leave(first)
    assert world.runs([older, second]) == [True, False]


def test_a_step_of_a_warm_session_that_leaves_the_queue_is_nobody_to_wait_for() -> None:
    world = World()
    running = world.send(T, pool=ONE, session="s")
    older, warm = world.send(T, pool=ONE), world.send(T, pool=ONE, session="s")
    world.leave(warm)
    world.finish(running)
    assert world.runs([older]) == [True]


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


def test_a_warm_session_that_passes_for_the_last_time_frees_what_is_held_for_the_key() -> None:
    world = World()
    pool = pool_of(2, max_jumps=1)
    holding(world, pool)
    running = world.send(T, pool=pool, session="x")
    older = world.send(T, pool=pool)
    passer = world.send(T, pool=pool, session="x")
    world.finish(running)
    assert world.runs([passer, older]) == [True, True]
    assert (held(world), world.noted["freed_starving"]) == (0, 1)


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


def test_a_request_that_was_served_in_time_or_left_frees_nothing_later() -> None:
    for leaves in (True, False):
        world = World()
        pool = pool_of(2, hold_secs=60)
        blockers = [world.send(a_key("v"), pool=pool) for _ in range(2)]
        waiting = world.send(a_key("u"), pool=pool)
        world.run(29)
        for blocker in blockers:
            world.finish(blocker)
        if leaves:
            world.leave(waiting)
        holding(world, pool)
        world.run(5)
        assert held(world) == 1


def test_once_a_request_past_the_bypass_limit_has_been_served_slots_are_held_again() -> None:
    world = World()
    running = world.send(T, pool=ONE)
    late = [world.send(a_key("u"), pool=ONE) for _ in range(2)]
    world.run(30)
    for request in (running, *late):
        world.finish(request)
    holding(world)


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
    assert world.noted["freed_starving"] == 0, "none was held in vain"


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
