"""Session affinity: what a change of policy or mode does, and what is remembered."""

from __future__ import annotations

import pytest

from dataplane.scheduler.events import (
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
from shared.policy import KeyPolicy
from tests.simulation.world import World, a_key
from tests.unit.scheduler.agents import ONE, RULES, T, a_loop, held, holding, pool_of, remembered
from tests.unit.scheduler.test_claims import Replica, claims

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


def test_a_limit_of_passes_that_is_lowered_frees_what_is_held_for_a_key_passed_so_often() -> None:
    world = World()
    pool = pool_of(2)
    holding(world, pool)
    running = world.send(T, pool=pool, session="x")
    older = world.send(T, pool=pool)
    world.send(T, pool=pool, session="x")
    world.finish(running)
    world.post(PoolChanged(pool_of(2, max_jumps=1)))
    assert (held(world), world.runs([older])) == (0, [True])


def test_a_bypass_limit_that_is_raised_counts_for_those_who_were_past_the_old_one() -> None:
    world = World()
    pool, longer = pool_of(1, max_bypass_secs=5), pool_of(1, max_bypass_secs=1000)
    step = a_loop(world, pool)
    waiting = [world.send(T, pool=pool), world.send(a_key("u"), pool=pool)]
    world.run(6)
    world.leave(world.send(a_key("v"), pool=pool))  # so that it is seen who is late
    world.post(PoolChanged(longer))
    world.finish(step)
    assert held(world) == 1
    world.finish(world.send(T, pool=longer, session="s"))
    world.run(3)
    for request in waiting:
        world.finish(request)
    assert world.core.queued == 0


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


def test_a_ceiling_that_falls_frees_what_would_end_first_in_whichever_pool() -> None:
    world = World(ceiling=2)
    other = PoolPolicy("a", "a", 1, "configured", affinity=RULES)
    holding(world, ONE)
    world.run(1)
    holding(world, other)
    world.post(CeilingChanged(1))
    assert {pool.policy.id: pool.held for pool in world.core.pools} == {"m": 0, "a": 1}


def test_a_slot_held_for_a_key_that_is_revoked_is_freed_and_others_are_not() -> None:
    world = World()
    two = pool_of(2)
    gone = a_key("t", key="gone")
    holding(world, two, key=gone)
    holding(world, two)
    assert {key.id for key in world.core.session_keys} == {gone.id, T.id}
    world.post(KeyGone(gone.id))
    assert [key.id for key in world.core.session_keys] == [T.id]


def test_a_key_that_is_revoked_while_its_step_runs_leaves_no_slot_held_when_that_ends() -> None:
    world = World()
    step = a_loop(world)
    assert [key.id for key in world.core.session_keys] == [T.id], "so that its end is heard of here"
    world.post(KeyGone(T.id))
    world.finish(step)
    assert (held(world), world.noted) == (0, {})


def test_a_key_that_is_revoked_while_its_next_step_waits_hands_that_no_slot() -> None:
    world = World()
    step = a_loop(world)
    early = world.send(T, pool=ONE, session="s")
    world.post(KeyGone(T.id))
    world.finish(step)
    assert (world.runs([early]), held(world), world.core.in_flight) == ([False], 0, 0)


def test_a_key_that_is_revoked_after_its_step_took_a_held_slot_leaves_none_held() -> None:
    world = World()
    holding(world)
    taker = world.send(T, pool=ONE, session="s")
    world.post(KeyGone(T.id))
    world.finish(taker)
    assert (held(world), world.noted) == (0, {"hold": 1, "redeem": 1})


def test_a_key_that_may_be_used_again_has_slots_held_for_the_steps_that_come_then() -> None:
    world = World()
    two = pool_of(2)
    before = a_loop(world, two)
    world.post(KeyGone(T.id))
    world.finish(before)
    world.finish(world.send(T, pool=two, session="s"))
    assert held(world) == 1


def test_a_cap_that_is_lowered_below_what_runs_leaves_no_slot_held_when_a_step_ends() -> None:
    world = World()
    pool = pool_of(4)
    steps = [a_loop(world, pool, f"s{n}") for n in range(2)]
    world.change(a_key("t", cap=1))
    world.finish(steps[0])
    assert (held(world), world.noted) == (0, {"refused": 1})
    world.finish(steps[1])
    assert held(world) == 1


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
    assert (list(world.core.pools), world.noted) == ([], {})


def test_draining_frees_what_is_held_and_holds_nothing_more() -> None:
    world = World()
    two = pool_of(2)
    step = a_loop(world, two, "other")
    holding(world, two)
    world.post(Closing())
    assert held(world) == 0
    world.finish(step)
    assert (held(world), world.core.in_flight, world.noted) == (0, 0, {"hold": 1})


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


def test_a_session_is_forgotten_with_its_hold_where_that_lasts_longer_than_it_is_warm() -> None:
    world = World()
    pool = pool_of(1, warm_secs=1)
    holding(world, pool)
    world.now = 10  # and nobody is told
    world.finish(world.send(a_key("u"), pool=pool))
    assert remembered(world.core) == 0


def test_sessions_are_forgotten_by_their_last_finish_where_they_are_warm_for_less() -> None:
    world = World()
    pool = pool_of(1, warm_secs=1, hold_secs=5)
    world.finish(world.send(T, pool=pool, session="goes on"))
    world.run(0.5)
    world.finish(world.send(T, pool=pool, session="s"))
    world.run(2)
    world.send(T, pool=pool, session="goes on", secs=0.1)
    world.run(1.5)
    world.send(a_key("u"), pool=pool, secs=0.1)
    world.run(2)
    world.send(a_key("u"), pool=pool, secs=0.1)
    assert remembered(world.core) == 1


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
