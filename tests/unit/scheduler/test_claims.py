"""Slots that a fleet shares: claims, grants, refusals, and what stops whom from claiming again."""

from __future__ import annotations

import itertools

import pytest

from dataplane.scheduler.effects import Admit, Claim, Effect, Reject, Release
from dataplane.scheduler.events import (
    Arrived,
    ClaimGranted,
    ClaimRefused,
    Event,
    Finished,
    KeyGone,
    Left,
    PoolChanged,
    PoolPolicy,
    RefusedBy,
    RegimeChanged,
    SlotsFreed,
    Woken,
)
from dataplane.scheduler.order import Hierarchical, Weighted
from dataplane.scheduler.scheduler import Scheduler
from shared.policy import KeyPolicy
from tests.simulation.world import a_key

T, U = a_key("t"), a_key("u")


class Replica:
    """A scheduler whose fleet is the test."""

    def __init__(
        self,
        size: int = 4,
        *,
        ceiling: int = 100,
        weighted: bool = False,
        fleet_order: bool = False,
    ) -> None:
        self.core = Scheduler(
            Weighted() if weighted else Hierarchical(),
            ceiling=ceiling,
            timeout=60,
            pool_idle=600,
            has_fleet=True,
            fleet_order=fleet_order,
        )
        self.pool = PoolPolicy("m", "m", size, "configured")
        self.now = 0.0
        self.number = 0
        self.do(RegimeChanged(claims=True))

    def do(self, event: Event) -> list[Effect]:
        return self.core.handle(event, self.now)

    def send(
        self,
        key: KeyPolicy = T,
        pool: PoolPolicy | None = None,
        tokens: int = 100,
        session: str | None = None,
    ) -> list[Effect]:
        self.number += 1
        return self.do(Arrived(self.number, pool or self.pool, key, tokens, session))

    def refuse(
        self,
        request: int,
        by: RefusedBy = RefusedBy.POOL,
        turn_of: tuple[str, str] | None = None,
    ) -> list[Effect]:
        return self.do(ClaimRefused(request, by, self.now + 0.2, turn_of=turn_of))


def claims(effects: list[Effect]) -> list[int]:
    return [effect.request for effect in effects if isinstance(effect, Claim)]


def test_a_request_that_is_next_claims_with_configured_limits_and_is_admitted_when_granted() -> (
    None
):
    replica = Replica(size=4, ceiling=50)
    key = a_key("t", cap=3, key_cap=2)
    assert replica.send(key) == [Claim(1, "m", "default", "t", key.id, 4, 50, 3, 2)]
    assert replica.do(ClaimGranted(1)) == [Admit(1, fast=True, waited=0.0)]
    assert replica.do(Finished(1)) == [Release(1, "m", "default", "t", key.id)]


def test_claims_go_side_by_side_until_one_is_refused_then_one_at_a_time() -> None:
    replica = Replica(size=4)
    assert [claims(replica.send()) for _ in range(6)] == [[1], [2], [3], [4], [], []]
    replica.refuse(3)
    assert claims(replica.do(SlotsFreed("m"))) == []
    replica.do(ClaimGranted(1))
    replica.do(ClaimGranted(2))
    assert claims(replica.do(ClaimGranted(4))) == [3]
    assert claims(replica.do(Finished(1))) == []
    assert claims(replica.do(ClaimGranted(3))) == [5]


def test_a_refused_request_goes_back_to_its_place_as_if_nothing_had_happened() -> None:
    replica = Replica(size=1)
    replica.send(T)
    replica.send(T)
    replica.send(U)
    (pool,) = replica.core.pools
    assert pool.tenants["t"].served_tokens == 100
    replica.refuse(1)
    assert pool.tenants["t"].served_tokens == 0
    assert (replica.core.queued, replica.core.in_flight) == (3, 0)
    replica.now = 0.2
    assert claims(replica.do(Woken())) == [1]
    assert replica.do(ClaimGranted(1)) == [Admit(1, fast=False, waited=0.2)]


def test_claims_refused_out_of_order_leave_the_queue_in_order() -> None:
    replica = Replica(size=3)
    for _ in range(4):
        replica.send()
    for request in (2, 3, 1):
        replica.refuse(request)
    order = []
    for _ in range(4):
        (request,) = claims(replica.do(SlotsFreed("m"))) or claims(replica.do(Woken())) or [0]
        if request:
            replica.do(ClaimGranted(request))
            order.append(request)
            replica.do(Finished(request))
    assert order == sorted(order)
    assert order[0] == 1


def test_a_refusal_by_a_pool_stops_that_pool_alone() -> None:
    replica = Replica()
    replica.send()
    replica.refuse(1)
    assert claims(replica.send()) == []
    assert claims(replica.send(pool=PoolPolicy("n", "n", 4))) == [3]


def test_a_refusal_by_a_tenant_stops_that_tenant_alone() -> None:
    replica = Replica()
    replica.send(T)
    replica.refuse(1, RefusedBy.TENANT)
    assert claims(replica.send(a_key("t", key="other"))) == []
    assert claims(replica.send(U)) == [3]


def test_a_refusal_by_a_key_leaves_the_tenants_other_keys_alone() -> None:
    replica = Replica()
    replica.send(T)
    replica.refuse(1, RefusedBy.KEY)
    assert claims(replica.send(T)) == []
    assert claims(replica.send(a_key("t", key="other"))) == [3]


@pytest.mark.parametrize("by", [RefusedBy.CEILING, RefusedBy.NOBODY])
def test_a_refusal_by_the_ceiling_or_by_nobody_stops_every_pool(by: RefusedBy) -> None:
    replica = Replica()
    replica.send()
    replica.refuse(1, by)
    assert claims(replica.send(pool=PoolPolicy("n", "n", 4))) == []
    assert sorted(claims(replica.do(SlotsFreed(None)))) == [1, 2]


@pytest.mark.parametrize("by", [by for by in RefusedBy if by is not RefusedBy.NO_HOLD])
def test_whoever_was_refused_asks_again_when_the_moment_has_passed(by: RefusedBy) -> None:
    replica = Replica()
    replica.send()
    replica.refuse(1, by)
    assert replica.core.wake_at() == 0.2
    replica.now = 0.2
    assert claims(replica.do(Woken())) == [1]


def test_a_ceiling_refusal_is_lifted_in_time_though_the_pool_was_refused_before() -> None:
    replica = Replica()
    replica.send()
    replica.send()
    replica.refuse(1, RefusedBy.POOL)
    replica.now = 0.1
    replica.refuse(2, RefusedBy.CEILING)
    replica.now = 0.2
    assert claims(replica.do(Woken())) == []
    replica.now = 0.31
    assert claims(replica.do(Woken())) == [1]


def test_a_try_that_comes_early_takes_the_place_of_the_one_that_was_due() -> None:
    replica = Replica()
    replica.send()
    replica.refuse(1)
    replica.now = 0.1
    assert claims(replica.do(SlotsFreed("m"))) == [1]
    replica.refuse(1)
    replica.now = 0.2
    assert claims(replica.do(Woken())) == []
    replica.now = 0.31
    assert claims(replica.do(Woken())) == [1]


def test_pools_that_wait_for_the_ceiling_do_not_set_each_other_off() -> None:
    replica = Replica()
    delays = itertools.cycle((0.1, 0.13, 0.17, 0.25))
    tries = [claims(replica.send(pool=PoolPolicy(name, name, 4)))[0] for name in "mno"]
    tried = 0
    for _ in range(2000):
        for request in tries:
            replica.do(ClaimRefused(request, RefusedBy.CEILING, replica.now + next(delays)))
        replica.now += 0.01
        tries = claims(replica.do(Woken()))
        tried += len(tries)
    assert 20 / 0.25 <= tried <= 3 * 20 / 0.1


def test_a_slot_of_ones_own_that_is_freed_is_released_before_the_next_claim() -> None:
    replica = Replica(size=1)
    replica.send()
    replica.do(ClaimGranted(1))
    replica.send()
    assert replica.do(Finished(1)) == [
        Release(1, "m", "default", "t", T.id),
        Claim(2, "m", "default", "t", T.id, 1, 100, None, None),
    ]


def test_a_client_that_leaves_while_its_slot_is_claimed_gives_the_grant_straight_back() -> None:
    replica = Replica(size=1)
    replica.send()
    assert replica.do(Left(1)) == []
    assert (replica.core.queued, replica.core.in_flight) == (0, 1)
    assert replica.do(ClaimGranted(1)) == [Release(1, "m", "default", "t", T.id)]
    assert replica.core.in_flight == 0


def test_a_client_that_leaves_while_its_slot_is_claimed_leaves_nothing_after_a_refusal() -> None:
    replica = Replica(size=1)
    replica.send()
    replica.do(Left(1))
    assert replica.refuse(1) == []
    assert (replica.core.queued, replica.core.in_flight) == (0, 0)
    (pool,) = replica.core.pools
    assert not pool.groups.nodes


def test_a_request_whose_time_is_up_while_it_claims_is_rejected_once() -> None:
    replica = Replica()
    replica.send()
    replica.now = 60
    assert [type(effect) for effect in replica.do(Woken())] == [Reject]
    assert replica.do(ClaimGranted(1)) == [Release(1, "m", "default", "t", T.id)]


@pytest.mark.parametrize("granted", [True, False])
def test_one_who_is_rejected_and_leaves_before_its_claim_is_answered_still_gets_the_answer(
    granted: bool,
) -> None:
    replica = Replica()
    replica.send()
    assert [type(each) for each in replica.do(KeyGone(T.id))] == [Reject]
    assert replica.do(Left(1)) == []
    assert replica.do(Left(1)) == []
    assert replica.core.in_flight == 1
    if granted:
        assert replica.do(ClaimGranted(1)) == [Release(1, "m", "default", "t", T.id)]
    else:
        assert replica.refuse(1) == []
    assert replica.core.in_flight == 0


def test_a_refused_claim_costs_a_tenant_nothing_of_its_standing() -> None:
    replica = Replica(size=1, weighted=True)
    replica.send(U, tokens=10)
    replica.do(ClaimGranted(1))
    for _ in range(2):
        replica.send(T, tokens=500)
    replica.send(U, tokens=10)
    (pool,) = replica.core.pools
    claimed = claims(replica.do(Finished(1)))
    for _ in range(5):
        (request,) = claimed
        replica.refuse(request)
        scores = {id: tenant.score for id, tenant in pool.tenants.items()}
        claimed = claims(replica.do(SlotsFreed("m")))
        replica.refuse(claimed[0])
        assert {id: tenant.score for id, tenant in pool.tenants.items()} == scores
        claimed = claims(replica.do(SlotsFreed("m")))
        assert claimed == [request]


def test_without_a_fleet_limits_are_divided_and_nothing_running_is_cut() -> None:
    replica = Replica(size=32, ceiling=64)
    key = a_key("t", cap=30)
    for n in range(20):
        replica.send(U if n % 2 else T)
    for n in range(20):
        replica.do(ClaimGranted(n + 1))
    replica.do(RegimeChanged(claims=False, divide_by=3))
    (pool,) = replica.core.pools
    assert (pool.size, pool.running, replica.core.ceiling) == (11, 20, 22)
    assert replica.send(key) == []
    assert pool.tenants["t"].cap == 10
    for n in range(9):
        assert [type(e) for e in replica.do(Finished(n + 1))] == [Release]
    replica.do(PoolChanged(PoolPolicy("m", "m", 33, "configured")))
    assert pool.size == 11
    assert [type(e) for e in replica.do(Finished(10))] == [Release, Admit]


def test_what_waited_for_the_fleet_is_admitted_by_the_replicas_own_part_when_it_is_lost() -> None:
    replica = Replica(size=4)
    for _ in range(3):
        replica.send()
    replica.do(ClaimGranted(1))
    assert replica.do(RegimeChanged(claims=False, divide_by=2)) == []
    assert replica.refuse(2, RefusedBy.NOBODY) == []
    assert replica.refuse(3, RefusedBy.NOBODY) == [Admit(2, fast=False, waited=0.0)]
    assert replica.core.wake_at() == 60


def test_a_limit_divided_among_more_replicas_than_slots_leaves_one_to_each() -> None:
    replica = Replica(size=1)
    replica.do(RegimeChanged(claims=False, divide_by=3))
    replica.send()
    (pool,) = replica.core.pools
    assert pool.size == 1
    replica.do(PoolChanged(PoolPolicy("m", "m", 0)))
    assert pool.size == 0


def test_nobody_is_admitted_while_admission_is_paused() -> None:
    replica = Replica(size=4)
    replica.do(RegimeChanged(claims=False, paused=True))
    assert replica.send() == []
    assert replica.do(Woken()) == []
    assert replica.do(RegimeChanged(claims=False)) == [Admit(1, fast=False, waited=0.0)]
