"""Whatever happens, the scheduler admits whom the naive rules admit, and its books balance."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dataplane.scheduler.effects import Admit, Effect, Noted, Reject, RejectReason
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
from shared.policy import GroupPolicy, KeyPolicy, TenantPolicy
from tests.simulation.oracle import Oracle, Request

TIMEOUT = 60.0
WEIGHTS = st.sampled_from([1, 2, 4, 16])
"""Powers of two, so that the scheduler's integer scores are exact and ties are real ties."""
CAPS = st.sampled_from([None, None, None, 1, 2])
RULES = st.builds(
    AffinityRules,
    warm_secs=st.sampled_from([1, 20]),
    hold_secs=st.sampled_from([0, 2, 2, 20]),
    max_jumps=st.integers(0, 3),
    max_bypass_secs=st.sampled_from([4, 30]),
    max_held_percent=st.sampled_from([0, 25, 50, 100, 100]),
)
AFFINITY = st.none() | RULES
SESSIONS = st.sampled_from([None, "s", "s", "r"])
GROUPS, TENANTS, KEYS, POOLS = ("g0", "g1", "g2"), range(5), range(2), ("m0", "m1")


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(hierarchical=st.booleans(), ceiling=st.integers(1, 9), data=st.data())
    def begin(self, hierarchical: bool, ceiling: int, data: st.DataObject) -> None:
        self.now = 0.0
        self.number = 0
        order = Hierarchical() if hierarchical else Weighted()
        self.core = Scheduler(order, ceiling=ceiling, timeout=TIMEOUT, pool_idle=600)
        self.oracle = Oracle(hierarchical=hierarchical, ceiling=ceiling)
        self.groups = {name: GroupPolicy(name, data.draw(WEIGHTS)) for name in GROUPS}
        self.tenants = {
            n: TenantPolicy(
                id=f"t{n}",
                name=f"tenant {n}",
                group=self.groups[data.draw(st.sampled_from(GROUPS))],
                weight=data.draw(WEIGHTS),
                max_in_flight=data.draw(CAPS),
            )
            for n in TENANTS
        }
        self.keys = {(t, k): (data.draw(WEIGHTS), data.draw(CAPS)) for t in TENANTS for k in KEYS}
        rules = data.draw(AFFINITY)
        self.pools = {
            id: PoolPolicy(
                id,
                id,
                data.draw(st.integers(0, 6)),
                "configured",
                100,
                rules if id == "m0" else None,
            )
            for id in POOLS
        }

    def key(self, t: int, k: int) -> KeyPolicy:
        weight, cap = self.keys[t, k]
        return KeyPolicy(f"t{t}k{k}", f"key {k}", self.tenants[t], weight, cap)

    def step(self, event: Event) -> list[Effect]:
        late = self.oracle.pass_time(self.now, TIMEOUT)
        effects = self.core.handle(event, self.now)
        rejected = [e for e in effects if isinstance(e, Reject)]
        assert [e.request for e in rejected] == late
        assert all(e.reason is RejectReason.TIMED_OUT for e in rejected)
        return effects

    def check(self, effects: list[Effect], admitted: list[int]) -> None:
        assert [e.request for e in effects if isinstance(e, Admit)] == self.oracle.early + admitted
        self.oracle.early = []
        held = [e.request for e in effects if isinstance(e, Admit) and e.held]
        assert Counter(e.event.value for e in effects if isinstance(e, Noted)) == self.oracle.noted
        assert held == self.oracle.redeemed
        self.oracle.noted.clear()
        self.oracle.redeemed.clear()

    @rule(
        t=st.sampled_from(TENANTS),
        k=st.sampled_from(KEYS),
        pool=st.sampled_from(POOLS),
        tokens=st.integers(1, 64),
        times=st.integers(1, 4),
        session=SESSIONS,
    )
    def arrive(
        self, t: int, k: int, pool: str, tokens: int, times: int, session: str | None
    ) -> None:
        for _ in range(times):
            self.number += 1
            event = Arrived(self.number, self.pools[pool], self.key(t, k), tokens, session)
            effects = self.step(event)
            assert all(
                not e.fast or e.request == self.number for e in effects if isinstance(e, Admit)
            )
            self.check(effects, self.oracle.arrive(event))

    def some(self, data: st.DataObject, *, running: bool) -> Request | None:
        found = [r for r in self.oracle.requests.values() if r.running is running]
        return data.draw(st.sampled_from(found)) if found else None

    @rule(data=st.data(), times=st.integers(1, 3), failed=st.sampled_from([False, False, True]))
    def finish(self, data: st.DataObject, times: int, failed: bool) -> None:
        for _ in range(times):
            request = self.some(data, running=True)
            if request is not None:
                effects = self.step(Finished(request.number, failed))
                self.check(effects, self.oracle.finish(request.number, failed=failed))
                assert self.step(Finished(request.number)) == []

    @rule(data=st.data(), steps=st.integers(2, 6))
    def loop(self, data: st.DataObject, steps: int) -> None:
        """A session goes on: a step ends, and the next one comes."""
        request = self.some(data, running=True)
        for _ in range(steps):
            if request is None or request.session is None or not request.running:
                return
            effects = self.step(Finished(request.number))
            self.check(effects, self.oracle.finish(request.number, failed=False))
            self.number += 1
            t, k = int(request.path[1][1:]), int(request.path[2][-1])
            event = Arrived(
                self.number, self.pools[request.pool], self.key(t, k), 8, request.session[1]
            )
            self.check(self.step(event), self.oracle.arrive(event))
            request = self.oracle.requests.get(self.number)

    @rule(data=st.data(), running=st.booleans())
    def leave(self, data: st.DataObject, running: bool) -> None:
        request = self.some(data, running=running)
        if request is not None:
            effects = self.step(Left(request.number))
            self.check(effects, self.oracle.leave(request.number))
            assert self.step(Left(request.number)) == []

    @rule(pool=st.sampled_from(POOLS), size=st.integers(0, 6))
    def resize(self, pool: str, size: int) -> None:
        self.pools[pool] = replace(self.pools[pool], size=size)
        effects = self.step(PoolChanged(self.pools[pool]))
        self.check(effects, self.oracle.change_pool(self.pools[pool]))

    @rule(rules=AFFINITY, is_told=st.booleans())
    def change_affinity(self, rules: AffinityRules | None, is_told: bool) -> None:
        """Limits change, or it goes off and on; told at once, or by the next request."""
        before = self.pools["m0"].affinity
        if before is not None and rules is not None:
            rules = replace(rules, warm_secs=before.warm_secs, hold_secs=before.hold_secs)
        self.pools["m0"] = pool = replace(self.pools["m0"], affinity=rules)
        if is_told:
            self.check(self.step(PoolChanged(pool)), self.oracle.change_pool(pool))

    @rule(ceiling=st.integers(1, 9))
    def change_ceiling(self, ceiling: int) -> None:
        effects = self.step(CeilingChanged(ceiling))
        self.check(effects, self.oracle.change_ceiling(ceiling))

    @rule(t=st.sampled_from(TENANTS), k=st.sampled_from(KEYS), cap=CAPS, key_cap=CAPS)
    def change_caps(self, t: int, k: int, cap: int | None, key_cap: int | None) -> None:
        old = self.tenants[t]
        self.tenants[t] = TenantPolicy(old.id, old.name, old.group, old.weight, cap)
        self.keys[t, k] = (self.keys[t, k][0], key_cap)
        key = self.key(t, k)
        effects = self.step(KeyChanged(key))
        self.check(effects, self.oracle.change_key(key))

    @rule(data=st.data(), running=st.booleans(), by=st.integers(1, 2), is_told=st.booleans())
    def move(self, data: st.DataObject, running: bool, by: int, is_told: bool) -> None:
        """A tenant changes groups; told at once, or by its next request."""
        request = self.some(data, running=running)
        if request is None:
            return
        t, k = int(request.path[1][1:]), int(request.path[2][-1])
        old = self.tenants[t]
        group = GROUPS[(GROUPS.index(old.group.name) + by) % len(GROUPS)]
        self.tenants[t] = replace(old, group=self.groups[group])
        if is_told:
            key = self.key(t, k)
            self.check(self.step(KeyChanged(key)), self.oracle.change_key(key))

    @rule(seconds=st.sampled_from([0.5, 1.5, 3.0, 10.0, 59.0, 61.0]), is_told=st.booleans())
    def pass_time(self, seconds: float, is_told: bool) -> None:
        """With a wake-up, or unnoticed until something else happens."""
        self.now += seconds
        if is_told:
            effects = self.step(Woken())
            self.check(effects, self.oracle.change_ceiling(self.oracle.ceiling))

    @invariant()
    @precondition(lambda self: hasattr(self, "core"))
    def the_books_balance(self) -> None:
        oracle = self.oracle
        running = sum(1 for r in oracle.requests.values() if r.running)
        assert self.core.in_flight == running
        wake_at = self.core.wake_at()
        if oracle.holds:
            assert wake_at is not None
            assert wake_at <= min(held.ends for held in oracle.holds)
        assert self.core.queued == len(oracle.requests) - running
        for pool in self.core.pools:
            id = pool.policy.id
            assert (pool.running, pool.waiting) == (oracle.running(id), len(oracle.waiting(id)))
            assert pool.held == oracle.held(id)
            for group in pool.groups.nodes.values():
                for tenant in group.tenants.nodes.values():
                    path = (group.id, tenant.id)
                    assert tenant.running == oracle.running(id, path)
                    assert tenant.held == oracle.held(id, path)
                    assert tenant.waiting == len(oracle.waiting(id, path))
                    # One may be remembered without work in a group that its tenant has left.
                    assert tenant.has_work == (pool.tenants.get(tenant.id) is tenant)


SchedulerMachine.TestCase.settings = settings(
    max_examples=400, stateful_step_count=40, deadline=None
)
TestSchedulerAgainstOracle = SchedulerMachine.TestCase
