"""Whatever happens, the scheduler admits whom the naive rules admit, and its books balance."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dataplane.scheduler.effects import Admit, Effect, Reject, RejectReason
from dataplane.scheduler.events import (
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
        self.pools = {
            id: PoolPolicy(id, id, data.draw(st.integers(0, 6)), "configured", 100) for id in POOLS
        }

    def key(self, t: int, k: int) -> KeyPolicy:
        weight, cap = self.keys[t, k]
        return KeyPolicy(f"t{t}k{k}", f"key {k}", self.tenants[t], weight, cap)

    def step(self, event: Event) -> list[Effect]:
        return self.core.handle(event, self.now)

    def check(self, effects: list[Effect], admitted: list[int]) -> None:
        assert [e.request for e in effects if isinstance(e, Admit)] == admitted

    @rule(
        t=st.sampled_from(TENANTS),
        k=st.sampled_from(KEYS),
        pool=st.sampled_from(POOLS),
        tokens=st.integers(1, 64),
        times=st.integers(1, 4),
    )
    def arrive(self, t: int, k: int, pool: str, tokens: int, times: int) -> None:
        for _ in range(times):
            self.number += 1
            event = Arrived(self.number, self.pools[pool], self.key(t, k), tokens)
            effects = self.step(event)
            assert all(
                not e.fast or e.request == self.number for e in effects if isinstance(e, Admit)
            )
            self.check(effects, self.oracle.arrive(event, self.now))

    def some(self, data: st.DataObject, *, running: bool) -> Request | None:
        found = [r for r in self.oracle.requests.values() if r.running is running]
        return data.draw(st.sampled_from(found)) if found else None

    @rule(data=st.data(), times=st.integers(1, 3))
    def finish(self, data: st.DataObject, times: int) -> None:
        for _ in range(times):
            request = self.some(data, running=True)
            if request is not None:
                effects = self.step(Finished(request.number))
                self.check(effects, self.oracle.finish(request.number))
                assert self.step(Finished(request.number)) == []

    @rule(data=st.data(), running=st.booleans())
    def leave(self, data: st.DataObject, running: bool) -> None:
        request = self.some(data, running=running)
        if request is not None:
            self.check(self.step(Left(request.number)), self.oracle.leave(request.number))
            assert self.step(Left(request.number)) == []

    @rule(pool=st.sampled_from(POOLS), size=st.integers(0, 6))
    def resize(self, pool: str, size: int) -> None:
        self.pools[pool] = PoolPolicy(pool, pool, size, "configured", 100)
        effects = self.step(PoolChanged(self.pools[pool]))
        self.check(effects, self.oracle.change_pool(self.pools[pool]))

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
        self.check(self.step(KeyChanged(key)), self.oracle.change_key(key))

    @rule(seconds=st.sampled_from([0.5, 10.0, 59.0, 61.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        late = self.oracle.expire(self.now, TIMEOUT)
        effects = self.step(Woken())
        rejected = [e for e in effects if isinstance(e, Reject)]
        assert [e.request for e in rejected] == late
        assert all(e.reason is RejectReason.TIMED_OUT for e in rejected)
        self.check(effects, self.oracle.change_ceiling(self.oracle.ceiling))

    @invariant()
    @precondition(lambda self: hasattr(self, "core"))
    def the_books_balance(self) -> None:
        oracle = self.oracle
        running = sum(1 for r in oracle.requests.values() if r.running)
        assert self.core.in_flight == running
        assert self.core.queued == len(oracle.requests) - running
        for pool in self.core.pools:
            id = pool.policy.id
            assert (pool.running, pool.waiting) == (oracle.running(id), len(oracle.waiting(id)))
            for group in pool.groups.nodes.values():
                for tenant in group.tenants.nodes.values():
                    path = (group.id, tenant.id)
                    assert tenant.running == oracle.running(id, path)
                    assert tenant.waiting == len(oracle.waiting(id, path))
                    assert tenant.has_work == (tenant.id in pool.tenants)


SchedulerMachine.TestCase.settings = settings(
    max_examples=400, stateful_step_count=40, deadline=None
)
TestSchedulerAgainstOracle = SchedulerMachine.TestCase
