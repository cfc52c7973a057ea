"""Who is served, and how much, over long runs in virtual time."""

from __future__ import annotations

import random

import pytest

from dataplane.scheduler.events import PoolPolicy
from dataplane.scheduler.order import Hierarchical, Order, Weighted
from tests.simulation.world import POOL, World, a_key

ORDERS = pytest.mark.parametrize("order", [Hierarchical(), Weighted()], ids=lambda o: o.name)


def pool_of(size: int) -> PoolPolicy:
    return PoolPolicy("m", "m", size, "configured")


def test_groups_of_weight_500_and_50_are_served_seven_to_one_on_eight_slots() -> None:
    world = World()
    world.keep_sending(a_key("chatbot", group="chatbot", group_weight=500), at_once=20)
    world.keep_sending(a_key("batch", group="api", group_weight=50), at_once=20)
    world.run(200)
    served = world.served(since=10)
    assert served["chatbot"] / served["batch"] == pytest.approx(7, rel=0.02)


@ORDERS
@pytest.mark.parametrize("vary", [False, True], ids=["equal requests", "uneven requests"])
def test_tenants_of_equal_weight_are_served_alike_when_there_are_more_of_them_than_slots(
    order: Order, vary: bool
) -> None:
    draw = random.Random(1)
    world = World(order)
    for n in range(64):
        secs = (lambda: draw.uniform(0.5, 1.5)) if vary else 1.0
        world.keep_sending(a_key(f"t{n:02}"), at_once=20, pool=pool_of(32), secs=secs)
    world.run(200)
    served = world.served(since=20)
    assert len(served) == 64
    assert max(served.values()) - min(served.values()) <= 2


@ORDERS
def test_nobody_is_shut_out_when_32_of_weight_2_stand_beside_32_of_weight_1_on_32_slots(
    order: Order,
) -> None:
    world = World(order)
    for n in range(64):
        key = a_key(f"t{n:02}", weight=2 if n < 32 else 1)
        world.keep_sending(key, at_once=20, pool=pool_of(32))
    world.run(400)
    served = world.served(since=60)
    heavy = sum(served[f"t{n:02}"] for n in range(32))
    light = sum(served[f"t{n:02}"] for n in range(32, 64))
    assert heavy / light == pytest.approx(2, rel=0.02)
    assert max(grant.waited for grant in world.grants if grant.at > 60) < 20 * 4


def test_nobody_is_shut_out_when_there_are_more_groups_than_slots() -> None:
    world = World()
    for n in range(12):
        key = a_key(f"t{n:02}", group=f"g{n:02}", group_weight=1000 if n < 6 else 1)
        world.keep_sending(key, at_once=10, pool=pool_of(4), tokens=1000)
    world.run(3_000)
    assert len(world.served(since=1_000)) == 12


@ORDERS
def test_a_newcomer_waits_for_its_turn_only_after_others_ran_for_an_hour_without_queueing(
    order: Order,
) -> None:
    world = World(order)
    world.keep_sending(a_key("old", weight=50), at_once=8)
    world.run(3600)
    world.keep_sending(a_key("old", weight=50), at_once=20)
    start = world.now
    world.keep_sending(a_key("new", weight=500), at_once=20)
    world.run(22)
    served = world.served(since=start + 2)
    assert served["new"] > served["old"] >= 12, "level, not owed an hour"


@ORDERS
def test_a_tenant_that_asked_for_little_gains_no_credit_to_crowd_others_out_later(
    order: Order,
) -> None:
    world = World(order)
    small = pool_of(3)
    for n in range(60):
        world.at(n, lambda: world.send(a_key("a"), pool=small, secs=1) and None)
        world.at(n + 0.5, lambda: world.send(a_key("a"), pool=small, secs=1) and None)
        world.at(n + 0.25, lambda: world.send(a_key("b"), pool=small, secs=1) and None)
    world.run(60)
    world.keep_sending(a_key("a"), at_once=30, pool=small)
    world.keep_sending(a_key("b"), at_once=30, pool=small)
    start = world.now
    for _ in range(6):
        world.run(10)
        served = world.served(since=world.now - 10)
        assert abs(served["a"] - served["b"]) <= 10 + 1, "within one slot over ten seconds"
    whole = world.served(since=start)
    assert abs(whole["a"] - whole["b"]) <= 60 + 3


@ORDERS
def test_a_tenant_held_back_by_its_cap_gains_no_credit_for_when_the_cap_is_lifted(
    order: Order,
) -> None:
    world = World(order)
    world.keep_sending(a_key("capped", cap=1), at_once=40)
    world.keep_sending(a_key("free"), at_once=40)
    world.run(300)
    world.change(a_key("capped"))
    lifted = world.now
    world.run(50)
    served = world.served(since=lifted + 2)
    assert served["free"] == pytest.approx(served["capped"], rel=0.1)


def test_a_weight_that_changes_counts_from_the_next_admission_and_not_for_the_past() -> None:
    world = World(Weighted())
    world.keep_sending(a_key("a"), at_once=40)
    world.keep_sending(a_key("b"), at_once=40)
    world.run(500)
    world.change(a_key("a", weight=300))
    changed = world.now
    world.run(20)
    served = world.served(since=changed)
    assert served["a"] / served["b"] == pytest.approx(3, rel=0.1)


def test_a_lender_gets_its_slots_back_as_the_borrowers_requests_finish() -> None:
    world = World()
    batch = a_key("batch", group="api", group_weight=50)
    world.keep_sending(batch, at_once=20, secs=10)
    world.run(5)
    assert len(world.running) == 8
    world.keep_sending(a_key("chat", group="chat", group_weight=500), at_once=20, secs=10)
    world.run(6)
    assert world.served(since=10)["chat"] == 7
    assert world.served(since=10)["batch"] == 1


def test_keys_of_a_tenant_share_by_key_weight_whatever_each_sends() -> None:
    world = World()
    world.keep_sending(a_key("t", key="busy"), at_once=200)
    world.keep_sending(a_key("t", key="calm", key_weight=300), at_once=20)
    world.run(100)
    by_key = {"busy": 0, "calm": 0}
    for grant in world.grants:
        if grant.at > 10:
            by_key[grant.key.name] += 1
    assert by_key["calm"] / by_key["busy"] == pytest.approx(3, rel=0.03)


def test_use_of_one_model_never_lowers_a_standing_on_another() -> None:
    world = World()
    other = PoolPolicy("n", "n", 8, "configured")
    world.keep_sending(a_key("a"), at_once=50, pool=other)
    world.run(500)
    world.keep_sending(a_key("a"), at_once=50)
    world.keep_sending(a_key("b"), at_once=50)
    start = world.now
    world.run(100)
    served = {"a": 0, "b": 0}
    for grant in world.grants:
        if grant.pool == POOL.id and grant.at > start + 2:
            served[grant.tenant] += 1
    assert served["a"] == pytest.approx(served["b"], rel=0.02)


def test_pools_are_served_in_turn_when_the_ceiling_binds() -> None:
    world = World(ceiling=6)
    pools = [PoolPolicy(f"m{n}", f"m{n}", 100, "configured") for n in range(3)]
    for n, pool in enumerate(pools):
        world.keep_sending(a_key("t"), at_once=10 + 30 * n, pool=pool)
    world.run(100)
    per_pool = {pool.id: 0 for pool in pools}
    for grant in world.grants:
        if grant.at > 5:
            per_pool[grant.pool] += 1
    assert max(per_pool.values()) - min(per_pool.values()) <= 3


def test_order_stays_right_when_counters_pass_what_a_float_can_count() -> None:
    world = World(Weighted())
    huge = 2**60
    world.keep_sending(a_key("a"), at_once=30, tokens=huge)
    world.keep_sending(a_key("b"), at_once=30, tokens=huge + 1)
    world.run(50)
    world.keep_sending(a_key("c"), at_once=30, tokens=3)
    start = world.now
    world.run(20)
    assert world.served(since=start)["c"] > 100, "three tokens are less than 2^60, to the end"
