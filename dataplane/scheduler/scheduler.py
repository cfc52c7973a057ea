"""The scheduler: events and the time in, effects out. `handle` is the one door; nothing else
changes anything."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from dataplane.scheduler.effects import Admit, Effect, Reject, RejectReason
from dataplane.scheduler.events import (
    Arrived,
    CeilingChanged,
    Event,
    Finished,
    KeyChanged,
    KeyGone,
    Left,
    PoolChanged,
    PoolGone,
    PoolPolicy,
    Woken,
)
from dataplane.scheduler.fairness import Node
from dataplane.scheduler.order import Order
from dataplane.scheduler.state import Group, Key, Pool, Slot, Tenant, Waiter
from shared.policy import GroupPolicy, KeyPolicy, TenantPolicy, effective_weight


class Scheduler:
    """Every pool, queue and count of one replica.

    `ceiling` is the limit over all pools, `timeout` how long a request waits at most, `pool_idle`
    after how long an unused pool is dropped; both in seconds.
    """

    def __init__(self, order: Order, *, ceiling: int, timeout: float, pool_idle: float) -> None:
        self._order: Final = order
        self._ceiling = ceiling
        self._timeout: Final = timeout
        self._pool_idle: Final = pool_idle
        self._pools: dict[str, Pool] = {}
        self._occupied = 0
        self._waiting: OrderedDict[int, Waiter] = OrderedDict()
        """Everyone who waits, oldest first. All may wait equally long, so the first times out
        first."""
        self._slots: dict[int, Slot] = {}
        self._ready: OrderedDict[str, Pool] = OrderedDict()
        """Pools with a slot and a waiter for it, in the order of their turns. Empty after each
        event, unless the ceiling binds."""
        self._idle: OrderedDict[str, float] = OrderedDict()
        """When each unused pool was last used, longest ago first."""
        self._effects: list[Effect] = []

    # Reading

    @property
    def ceiling(self) -> int:
        return self._ceiling

    @property
    def in_flight(self) -> int:
        """Slots occupied over all pools."""
        return self._occupied

    @property
    def queued(self) -> int:
        """Requests that wait, over all pools."""
        return len(self._waiting)

    @property
    def pools(self) -> Iterable[Pool]:
        """For reading only."""
        return self._pools.values()

    def wake_at(self) -> float | None:
        """When `Woken` is due if nothing else happens before; None: never."""
        times = []
        if self._waiting:
            times.append(next(iter(self._waiting.values())).arrived_at + self._timeout)
        if self._idle:
            times.append(next(iter(self._idle.values())) + self._pool_idle)
        return min(times, default=None)

    # The one door

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take in one event; the effects are to be carried out in order. `now` never goes back."""
        self._effects = []
        self._expire(now)
        match event:
            case Finished(request):
                self._free(request, now, undo=False)
            case Arrived():
                self._arrived(event, now)
            case Left(request):
                if request in self._waiting:
                    self._withdraw(self._waiting[request], now)
                else:
                    self._free(request, now, undo=True)
            case PoolChanged(policy):
                self._pool_changed(policy)
            case PoolGone(id):
                self._pool_gone(id, now)
            case KeyChanged(policy):
                self._key_changed(policy)
            case KeyGone(id):
                self._key_gone(id, now)
            case CeilingChanged(ceiling):
                self._ceiling = ceiling
            case Woken():
                self._drop_idle_pools(now)
        self._serve(now)
        return self._effects

    # Events

    def _arrived(self, event: Arrived, now: float) -> None:
        pool = self._pool(event.pool)
        self._idle.pop(pool.policy.id, None)
        key = self._key(pool, event.key)
        tenant = key.tenant
        if (
            not pool.groups.contenders
            and pool.running + pool.held < pool.size
            and self._occupied < self._ceiling
            and not key.capped
            and not tenant.capped
        ):
            self._count(pool, key, running=1)
            self._occupy(event.request, pool, key, event.tokens)
            self._effects.append(Admit(event.request, fast=True, waited=0.0))
            return
        waiter = Waiter(event, now, pool, key)
        self._waiting[event.request] = key.queue[event.request] = waiter
        self._count(pool, key, waiting=1)
        self._place(pool, key)

    def _withdraw(self, waiter: Waiter, now: float) -> None:
        """Take a request out of its queue, uncharged."""
        pool, key = waiter.pool, waiter.key
        del self._waiting[waiter.request]
        del key.queue[waiter.request]
        self._place(pool, key)
        self._count(pool, key, waiting=-1)
        self._rest(pool, now)

    def _reject(self, waiter: Waiter, reason: RejectReason, now: float) -> None:
        self._withdraw(waiter, now)
        self._effects.append(Reject(waiter.request, reason, now - waiter.arrived_at))

    def _free(self, request: int, now: float, *, undo: bool) -> None:
        """End a slot. One that ended before, or never was, changes nothing."""
        slot = self._slots.pop(request, None)
        if slot is None:
            return
        pool, key = slot.pool, slot.key
        if undo:
            for node, amount in slot.charged:
                node.level.refund(node, amount)
        self._occupied -= 1
        self._count(pool, key, running=-1)
        self._place(pool, key)
        self._rest(pool, now)

    def _pool_changed(self, policy: PoolPolicy) -> None:
        if policy.id in self._pools:
            self._pool(policy)

    def _pool_gone(self, id: str, now: float) -> None:
        pool = self._pools.get(id)
        if pool is None:
            return
        pool.gone = True
        for waiter in [each for each in self._waiting.values() if each.pool is pool]:
            self._reject(waiter, RejectReason.MODEL_GONE, now)
        self._rest(pool, now)

    def _key_changed(self, policy: KeyPolicy) -> None:
        for pool in self._pools.values():
            if policy.tenant.id in pool.tenants:
                key = self._key(pool, policy)
                self._place(pool, key)
                if not key.has_work and not key.resting:
                    del key.level.nodes[key.id]

    def _key_gone(self, id: str, now: float) -> None:
        for waiter in [each for each in self._waiting.values() if each.key.id == id]:
            self._reject(waiter, RejectReason.KEY_GONE, now)

    def _expire(self, now: float) -> None:
        while self._waiting:
            waiter = next(iter(self._waiting.values()))
            if now < waiter.arrived_at + self._timeout:
                return
            self._reject(waiter, RejectReason.TIMED_OUT, now)

    def _drop_idle_pools(self, now: float) -> None:
        while self._idle:
            id, since = next(iter(self._idle.items()))
            if now < since + self._pool_idle:
                return
            del self._idle[id], self._pools[id]

    # Serving

    def _serve(self, now: float) -> None:
        """Give out slots until none is free or nobody can go: one a pool, then the next pool's
        turn."""
        while self._ready and self._occupied < self._ceiling:
            _, pool = self._ready.popitem(last=False)
            left = self._ceiling - self._occupied
            slots = max(1, min(pool.size, pool.occupied + left))
            tenant = self._order.next(pool.groups, slots)
            assert tenant is not None, "a ready pool has someone who can go"
            key = tenant.keys.first()
            assert key is not None, "a tenant that contends has a key that does"
            self._admit_head(key, now)

    def _admit_head(self, key: Key, now: float) -> None:
        waiter = key.head()
        assert waiter is not None, "a key that contends has a request"
        del self._waiting[waiter.request]
        del key.queue[waiter.request]
        pool = waiter.pool
        self._count(pool, key, waiting=-1, running=1)
        self._occupy(waiter.request, pool, key, waiter.tokens)
        self._effects.append(Admit(waiter.request, fast=False, waited=now - waiter.arrived_at))

    def _occupy(self, request: int, pool: Pool, key: Key, tokens: int) -> None:
        tenant, group = key.tenant, key.tenant.group
        # A request that uses no tokens counts for one: whoever is admitted moves back a place.
        tokens = max(1, tokens)
        charged = tuple((node, node.level.charge(node, tokens)) for node in (group, tenant, key))
        self._slots[request] = Slot(pool, key, tokens, charged)
        self._occupied += 1
        self._place(pool, key)

    # Keeping the books

    def _count(self, pool: Pool, key: Key, *, waiting: int = 0, running: int = 0) -> None:
        tenant, group = key.tenant, key.tenant.group
        for node in (key, tenant, group):
            had_work = node.has_work
            node.waiting += waiting
            node.running += running
            assert node.waiting >= 0, "a count never goes below zero"
            assert node.running >= 0, "a count never goes below zero"
            if node.has_work == had_work:
                continue
            if had_work:
                node.level.end_work(node)
            else:
                node.level.begin_work(node)
        pool.waiting += waiting
        pool.running += running
        if tenant.has_work:
            pool.tenants[tenant.id] = tenant
        else:
            pool.tenants.pop(tenant.id, None)

    def _place(self, pool: Pool, key: Key) -> None:
        """Put a key, its tenant and its group where they stand after a change, and the pool among
        those ready."""
        tenant, group = key.tenant, key.tenant.group
        waiter = None if key.capped else key.head()
        key.level.place(key, None if waiter is None else waiter.request)
        tenant.level.place(tenant, None if tenant.capped else tenant.keys.head())
        group.level.place(group, group.tenants.head())
        self._refresh_ready(pool)

    def _rest(self, pool: Pool, now: float) -> None:
        """A pool that has nothing left to do forgets its counters; one that is gone is dropped."""
        if pool.has_work:
            return
        pool.forget()
        if pool.gone:
            self._idle.pop(pool.policy.id, None)
            self._pools.pop(pool.policy.id, None)
        else:
            self._idle[pool.policy.id] = now
            self._idle.move_to_end(pool.policy.id)

    def _pool(self, policy: PoolPolicy) -> Pool:
        pool = self._pools.get(policy.id)
        if pool is None:
            pool = self._pools[policy.id] = Pool(policy, policy.size)
            return pool
        pool.gone = False
        if pool.policy != policy:
            rescale = pool.policy.admission_weight != policy.admission_weight
            pool.policy, pool.size = policy, policy.size
            if rescale:
                for tenant in pool.tenants.values():
                    self._reweigh_tenant(pool, tenant, tenant.name, tenant.own_weight)
            self._refresh_ready(pool)
        return pool

    def _key(self, pool: Pool, policy: KeyPolicy) -> Key:
        """The key's node, its tenant's and its group's, made where they are missing and brought up
        to date."""
        group = self._group(pool, self._order.group_of(policy.tenant))
        tenant = self._tenant(pool, group, policy.tenant)
        key = tenant.keys.nodes.get(policy.id)
        name = f"{policy.name}\0{policy.id}"
        if key is None:
            key = Key(policy.id, name, policy.weight, tenant)
            tenant.keys.nodes[policy.id] = key
        elif key.weight != policy.weight or key.name != name:
            key.level.rename(key, name, policy.weight)
        key.cap = policy.max_in_flight
        return key

    def _group(self, pool: Pool, policy: GroupPolicy) -> Group:
        group = pool.groups.nodes.get(policy.name)
        if group is None:
            group = Group(policy.name, policy.weight, pool.groups)
            pool.groups.nodes[policy.name] = group
        elif group.weight != policy.weight:
            group.level.rename(group, group.name, policy.weight)
        return group

    def _tenant(self, pool: Pool, group: Group, policy: TenantPolicy) -> Tenant:
        tenant = pool.tenants.get(policy.id)
        if tenant is None:
            tenant = group.tenants.nodes.get(policy.id)
        if tenant is None:
            tenant = Tenant(policy.id, policy.name, group)
            group.tenants.nodes[policy.id] = tenant
        elif tenant.group is not group:
            self._move(tenant, group)
        self._reweigh_tenant(pool, tenant, f"{policy.name}\0{policy.id}", policy.weight)
        tenant.cap = policy.max_in_flight
        return tenant

    def _reweigh_tenant(self, pool: Pool, tenant: Tenant, name: str, own_weight: int) -> None:
        weight = effective_weight(own_weight, pool.policy.admission_weight)
        tenant.own_weight = own_weight
        if tenant.weight != weight or tenant.name != name:
            tenant.level.rename(tenant, name, weight)

    def _move(self, tenant: Tenant, group: Group) -> None:
        """A tenant changes groups with all it runs and all that waits."""
        old = tenant.group
        old.tenants.take_out(tenant)
        group.tenants.take_in(tenant)
        tenant.group = group
        self._transfer(old, tenant, -1)
        self._transfer(group, tenant, 1)
        old.level.place(old, old.tenants.head())

    @staticmethod
    def _transfer(group: Group, tenant: Node, sign: int) -> None:
        had_work = group.has_work
        group.running += sign * tenant.running
        group.held += sign * tenant.held
        group.waiting += sign * tenant.waiting
        if group.has_work and not had_work:
            group.level.begin_work(group)
        elif had_work and not group.has_work:
            group.level.end_work(group)

    def _refresh_ready(self, pool: Pool) -> None:
        if not pool.ready:
            self._ready.pop(pool.policy.id, None)
        elif pool.policy.id not in self._ready:
            self._ready[pool.policy.id] = pool
