"""Agents, batches and chats at a few keys: whoever the naive rules admit, hold for and count is who
the scheduler admits, holds for and counts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from dataplane.scheduler.effects import Admit, Effect, Noted
from dataplane.scheduler.events import (
    AffinityRules,
    Arrived,
    CeilingChanged,
    Event,
    Finished,
    KeyChanged,
    Left,
    PoolChanged,
    PoolPolicy,
    Woken,
)
from dataplane.scheduler.order import Hierarchical, Weighted
from dataplane.scheduler.scheduler import Scheduler
from shared.policy import KeyPolicy
from tests.simulation.oracle import Oracle, Request
from tests.simulation.world import a_key

TIMEOUT = 60.0
STEPS = 150


class Life:
    """One seed's. Times and weights are such that the scheduler's arithmetic is exact."""

    def __init__(self, seed: int) -> None:
        self.draw = draw = random.Random(seed)
        hierarchical, ceiling = draw.random() < 0.7, draw.choice([1, 2, 3, 5, 9])
        order = Hierarchical() if hierarchical else Weighted()
        self.core = Scheduler(order, ceiling=ceiling, timeout=TIMEOUT, pool_idle=600)
        self.oracle = Oracle(hierarchical=hierarchical, ceiling=ceiling)
        self.now, self.number = 0.0, 0
        self.noted: Counter[str] = Counter()
        self.keys = [self.a_key(tenant, key) for tenant in "ab" for key in "xy"]
        self.warm_secs, self.hold_secs = draw.choice([1, 4, 20]), draw.choice([0, 2, 2, 4, 20])
        self.pools = {id: self.a_pool(id) for id in ("m", "n")}

    def a_key(self, tenant: str, key: str) -> KeyPolicy:
        cap, key_cap = (self.draw.choice([None, None, None, 1, 2]) for _ in range(2))
        weight, key_weight = (self.draw.choice([1, 2, 4]) for _ in range(2))
        return a_key(
            tenant,
            key=key,
            group=tenant,
            group_weight={"a": 1, "b": 4}[tenant],
            weight=weight,
            key_weight=key_weight,
            cap=cap,
            key_cap=key_cap,
        )

    def a_pool(self, id: str) -> PoolPolicy:
        """One with affinity, and one without that competes for the ceiling."""
        size = self.draw.choice([0, 1, 1, 2, 3, 4])
        rules = self.rules() if id == "m" else None
        return PoolPolicy(id, id, size, "configured", affinity=rules)

    def rules(self) -> AffinityRules | None:
        """Limits may change at any time; how long things last does not."""
        choice = self.draw.choice
        if self.draw.random() < 0.1:
            return None
        return AffinityRules(
            warm_secs=self.warm_secs,
            hold_secs=self.hold_secs,
            max_jumps=choice([0, 1, 2, 3, 8]),
            max_bypass_secs=choice([4, 8, 30]),
            max_held_percent=choice([0, 25, 50, 100, 100, 100]),
        )

    def live(self) -> None:
        acts = (self.arrive, self.end, self.go_on, self.pass_time, self.leave, self.change)
        for _ in range(STEPS):
            (act,) = self.draw.choices(acts, (6, 4, 6, 3, 0.7, 0.7))
            act()
            self.check_books()

    def arrive(self, like: Request | None = None) -> None:
        self.number += 1
        key, pool, session = self.draw.choice(self.keys), self.draw.choice("mmmn"), None
        if self.draw.random() < 0.7:
            session = self.draw.choice("rst")
        if like is not None and like.session is not None:
            key = next(each for each in self.keys if each.id == like.path[2])
            pool, session = like.pool, like.session[1]
        tokens = self.draw.choice([1, 2, 8, 64])
        event = Arrived(self.number, self.pools[pool], key, tokens, session)
        self.same(event, lambda: self.oracle.arrive(event))

    def end(self, request: Request | None = None) -> None:
        request = request or self.some(running=True)
        if request is not None:
            number, failed = request.number, self.draw.random() < 0.1
            self.same(Finished(number, failed), lambda: self.oracle.finish(number, failed=failed))

    def go_on(self) -> None:
        """A step ends, and its session's next one comes before, after, or a moment later."""
        request = self.some(running=True)
        if request is None or request.session is None:
            return
        if self.draw.random() < 0.2:
            self.arrive(request)
            self.end(request)
            return
        self.end(request)
        if self.draw.random() < 0.5:
            self.now += 0.5
        self.arrive(request)

    def leave(self) -> None:
        request = self.some(running=self.draw.random() < 0.5)
        if request is not None:
            self.same(Left(request.number), lambda: self.oracle.leave(request.number))

    def pass_time(self) -> None:
        """With a wake-up, or unnoticed until something else happens."""
        self.now += self.draw.choice([0.5, 0.5, 1.0, 2.0, 4.0, 10.0])
        if self.draw.random() < 0.5:
            self.same(Woken(), lambda: self.oracle.change_ceiling(self.oracle.ceiling))

    def change(self) -> None:
        match self.draw.randrange(3):
            case 0:
                ceiling = self.draw.choice([1, 2, 3, 5, 9])
                self.same(CeilingChanged(ceiling), lambda: self.oracle.change_ceiling(ceiling))
            case 1:
                at = self.draw.randrange(len(self.keys))
                self.keys[at] = key = self.a_key(self.keys[at].tenant.id, self.keys[at].name)
                for n, each in enumerate(self.keys):
                    if each.tenant.id == key.tenant.id:
                        cap = each.max_in_flight
                        self.keys[n] = KeyPolicy(each.id, each.name, key.tenant, each.weight, cap)
                if self.draw.random() < 0.7:
                    self.same(KeyChanged(key), lambda: self.oracle.change_key(key))
            case _:
                id = self.draw.choice("mn")
                self.pools[id] = pool = self.a_pool(id)
                if self.draw.random() < 0.7:
                    self.same(PoolChanged(pool), lambda: self.oracle.change_pool(pool))

    def some(self, *, running: bool) -> Request | None:
        found = [r for r in self.oracle.requests.values() if r.running is running]
        return self.draw.choice(found) if found else None

    def same(self, event: Event, expected: Callable[[], list[int]]) -> None:
        """The event happens to both."""
        oracle = self.oracle
        oracle.pass_time(self.now, TIMEOUT)
        stays = {r.number for r in oracle.requests.values()}
        gone = isinstance(event, Finished | Left) and event.request not in stays
        early = oracle.early
        admitted = early + ([] if gone else expected())
        effects: list[Effect] = self.core.handle(event, self.now)
        assert [e.request for e in effects if isinstance(e, Admit)] == admitted
        assert [e.request for e in effects if isinstance(e, Admit) and e.held] == oracle.redeemed
        noted = Counter(e.event.value for e in effects if isinstance(e, Noted))
        assert noted == oracle.noted
        self.noted += noted
        oracle.noted.clear()
        oracle.redeemed.clear()

    def check_books(self) -> None:
        for pool in self.core.pools:
            id = pool.policy.id
            found = (pool.running, pool.held, pool.waiting)
            assert found == (
                self.oracle.running(id),
                self.oracle.held(id),
                len(self.oracle.waiting(id)),
            )
            if pool.affinity is not None:
                most = -(-pool.size * pool.affinity.rules.max_held_percent // 100)
                assert pool.held <= min(most, max(0, pool.size - pool.running))
        assert self.core.in_flight + len(self.oracle.holds) == self.oracle.in_all()
        if self.oracle.holds:
            wake_at = self.core.wake_at()
            assert wake_at is not None
            assert wake_at <= min(held.ends for held in self.oracle.holds)


@pytest.mark.parametrize("block", range(5))
def test_whatever_sessions_do_the_scheduler_decides_as_the_naive_rules_do(block: int) -> None:
    noted: Counter[str] = Counter()
    for seed in range(block * 60, block * 60 + 60):
        life = Life(seed)
        try:
            life.live()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, at {life.now}: {error}") from error
        noted += life.noted
    assert all(noted[event] >= 3 for event in ("warm", "hold", "redeem", "expire", "refused"))
    assert noted["freed_starving"] >= 1
