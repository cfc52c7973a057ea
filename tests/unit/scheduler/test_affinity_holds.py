"""Session affinity: when a slot is held, who takes it, and how many are held."""

from __future__ import annotations

import pytest

from dataplane.scheduler.events import PoolPolicy
from tests.simulation.world import World, a_key
from tests.unit.scheduler.agents import ONE, T, a_loop, held, holding, pool_of

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


@pytest.mark.parametrize(("gap", "number"), [(3.0, 1), (3.5, 0)])
def test_a_persons_next_message_holds_nothing(gap: float, number: int) -> None:
    world = World()
    world.finish(world.send(T, pool=ONE, session="s"))
    world.run(gap)
    world.finish(world.send(T, pool=ONE, session="s"))
    assert (held(world), world.noted.total()) == (number, number)


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


def test_a_step_that_was_handed_the_slot_waits_no_more() -> None:
    world = World()
    step = a_loop(world)
    older = world.send(T, pool=ONE)
    early = world.send(T, pool=ONE, session="s")
    world.finish(step)
    (pool,) = world.core.pools
    assert (pool.waiting, pool.tenants["t"].waiting) == (1, 1)
    world.finish(early, failed=True)
    assert world.runs([older]) == [True]


def test_a_step_that_arrives_before_its_hold_is_recorded_and_runs_leaves_no_slot_idle() -> None:
    world = World()
    two = pool_of(2)
    step = a_loop(world, two)
    early = world.send(T, pool=two, session="s")
    world.finish(step)
    assert (held(world), world.noted) == (0, {})
    world.finish(early)
    assert held(world) == 1


@pytest.mark.parametrize(("early", "number"), [(3.0, 1), (3.5, 0)])
def test_a_step_that_came_while_the_one_before_it_was_about_to_end_follows_it(
    early: float, number: int
) -> None:
    world = World()
    two = pool_of(2)
    first = world.send(T, pool=two, session="s")
    world.run(20)
    second = world.send(T, pool=two, session="s")
    world.run(early)
    world.finish(first)
    assert held(world) == 0
    world.run(20)
    world.finish(second)
    assert held(world) == number


@pytest.mark.parametrize(("waited", "is_handed"), [(3.0, True), (3.5, False)])
def test_a_step_that_waited_since_long_before_is_not_handed_the_slot_of_another(
    waited: float, is_handed: bool
) -> None:
    world = World()
    step = a_loop(world)
    other = world.send(a_key("u"), pool=ONE)
    early = world.send(T, pool=ONE, session="s")
    world.run(waited)
    world.finish(step)
    assert world.noted == ({"hold": 1, "redeem": 1} if is_handed else {})
    assert world.runs([early, other]) == [is_handed, not is_handed]


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
