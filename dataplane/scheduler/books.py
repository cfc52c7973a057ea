"""The books: which pools there are, who has work in them, how much, and where everybody stands.

Counts are kept at every level as they change and never recomputed. `Books` decides nothing: it is
told what happened, and keeps every node in its place among its siblings and every pool among those
that are ready.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final, NamedTuple

from dataplane.scheduler.events import FleetSeen, PoolPolicy
from dataplane.scheduler.fairness import Level, Node
from dataplane.scheduler.limits import part, part_of_cap
from dataplane.scheduler.order import Order
from dataplane.scheduler.standing import LevelElsewhere, PoolElsewhere, Served
from dataplane.scheduler.state import Group, Key, Pool, Tenant, order_name
from shared.policy import GroupPolicy, KeyPolicy, TenantPolicy, effective_weight

SLOTS_AROUND: Final = 8
"""By so much more or less, what other pools take up may change until the fleet decides."""


class Room(NamedTuple):
    """The slots of a pool that shares are cut from."""

    slots: int
    ceiling: int
    to_come: range | None = None
    """How many it may be when its next waiters are chosen; None where no other pool's slots count,
    since the ceiling is not near."""


class Books:
    """Pools and nodes, and the counts in them."""

    def __init__(self, order: Order) -> None:
        self._order: Final = order
        self.divide_by = 1
        """The replicas that each take an equal part of every limit."""
        self.pools: dict[str, Pool] = {}
        self._elsewhere = FleetSeen()
        """What the other replicas have, kept for pools that are not in use here yet."""
        self.occupied = 0
        """Slots taken up over all pools, held ones included."""
        self.held = 0
        """Slots held over all pools."""
        self.ready: OrderedDict[str, Pool] = OrderedDict()
        """Pools with a slot and a waiter for it, in the order of their turns. Empty after each
        event, unless the ceiling stands in the way."""
        self.idle: OrderedDict[str, float] = OrderedDict()
        """When each unused pool was last used, longest ago first."""

    def begin(self, pool: Pool) -> None:
        """A request comes to a pool. One that had no work starts level with the other replicas."""
        self.idle.pop(pool.policy.id, None)
        if not pool.has_work:
            self._see(pool)

    def slots(self, pool: Pool, ceiling: int) -> int:
        """The slots of a pool that shares are cut from: as many as it has, or as the ceiling leaves
        it, which is what the other pools do not take up."""
        left = ceiling - self._taken_by_others(pool)
        return max(1, min(pool.size, max(pool.occupied, left)))

    def _taken_by_others(self, pool: Pool) -> int:
        """Slots that the other pools take up over the whole fleet, as far as is known here."""
        return self.occupied - pool.occupied + self._elsewhere.taken - pool.elsewhere.taken

    def room(self, pool: Pool, ceiling: int) -> Room:
        """The slots that shares are cut from now, and when the fleet decides."""
        slots = self.slots(pool, ceiling)
        if ceiling - self._taken_by_others(pool) >= 2 * pool.size:
            return Room(slots, ceiling)
        first, last = max(1, slots - SLOTS_AROUND), min(pool.size, slots + SLOTS_AROUND)
        return Room(slots, ceiling, range(first, last + 1))

    def has_room(self, pool: Pool, key: Key, ceiling: int) -> bool:
        """Whether no limit stands against one more request of a key."""
        is_full = pool.occupied >= pool.size or self.occupied >= ceiling
        return not (is_full or key.capped or key.tenant.capped)

    def join(self, key: Key) -> None:
        """A request of a key arrives: whoever had nobody waiting, or only such as were at their
        caps, comes back, level again."""
        tenant, group = key.tenant, key.tenant.group
        can_go = not (key.capped or tenant.capped)
        for node in (key, tenant, group):
            if not node.waiting:
                node.at_cap = False
                node.level.join(node)
            elif can_go and node.entry is None:
                node.level.join(node)

    def count(
        self, pool: Pool, key: Key, *, waiting: int = 0, running: int = 0, held: int = 0
    ) -> None:
        """Requests of a key began or ceased to wait or run, slots to be held for it. `place` the
        key afterwards."""
        tenant, group = key.tenant, key.tenant.group
        for node in (key, tenant, group):
            had_work = node.has_work
            node.waiting += waiting
            node.running += running
            node.held += held
            assert node.waiting >= 0, "a count never goes below zero"
            assert node.running >= 0, "a count never goes below zero"
            assert node.held >= 0, "a count never goes below zero"
            if node.has_work == had_work:
                continue
            if had_work:
                node.level.end_work(node)
            else:
                node.level.begin_work(node)
        pool.waiting += waiting
        pool.running += running
        pool.held += held
        self.occupied += running + held
        self.held += held
        if tenant.has_work:
            pool.tenants[tenant.id] = tenant
        else:
            pool.tenants.pop(tenant.id, None)

    def place(self, pool: Pool, key: Key) -> None:
        """Put a key, its tenant and its group where they stand after a change, and the pool among
        those ready."""
        tenant, group = key.tenant, key.tenant.group
        waiter = None if key.capped else key.head()
        key.level.place(key, None if waiter is None else waiter.request)
        head = None if tenant.capped else tenant.keys.head()
        tenant.level.place(tenant, head)
        group.level.place(group, group.tenants.head())
        self.refresh(pool)

    def refresh(self, pool: Pool) -> None:
        """Put a pool among those ready, or not; one that is there keeps its turn."""
        if not pool.ready:
            self.ready.pop(pool.policy.id, None)
        elif pool.policy.id not in self.ready:
            self.ready[pool.policy.id] = pool

    def rest(self, pool: Pool, now: float) -> None:
        """A pool that has nothing left to do forgets its counters; one that is gone is dropped."""
        if pool.has_work:
            return
        pool.forget()
        if pool.gone:
            self.idle.pop(pool.policy.id, None)
            self.pools.pop(pool.policy.id, None)
        else:
            self.idle[pool.policy.id] = now
            self.idle.move_to_end(pool.policy.id)

    def drop_idle(self, now: float, after: float) -> None:
        """Drop the pools that have been idle for `after` seconds."""
        while self.idle:
            id, since = next(iter(self.idle.items()))
            if now < since + after:
                return
            del self.idle[id], self.pools[id]

    def divide(self, replicas: int) -> None:
        """From now on `replicas` take an equal part of every limit; nothing is cut."""
        self.divide_by = replicas
        for pool in self.pools.values():
            pool.size = part(pool.policy.size, replicas)
            for tenant in list(pool.tenants.values()):
                tenant.cap = part_of_cap(tenant.configured_cap, replicas)
                for key in list(tenant.keys.nodes.values()):
                    key.cap = part_of_cap(key.configured_cap, replicas)
                    self.place(pool, key)
            self.refresh(pool)

    # The other replicas, where all go by one order

    def change_order(self, *, fleet: bool) -> None:
        """From now on the order is the fleet's, or this replica's own again."""
        self.see(FleetSeen())
        for pool in self.pools.values() if fleet else ():
            pool.is_aligned = False
            for level in _levels(pool):
                level.restart()
            for tenant in list(pool.tenants.values()):
                for key in list(tenant.keys.nodes.values()):
                    self.place(pool, key)

    def see(self, event: FleetSeen) -> None:
        """What the other replicas have now."""
        self._elsewhere = event
        for pool in self.pools.values():
            if pool.has_work:
                self._see(pool)

    def _see(self, pool: Pool) -> None:
        elsewhere = self._elsewhere.pools.get(pool.policy.id, PoolElsewhere())
        served = self._elsewhere.served.get(pool.policy.id, Served())
        pool.elsewhere = elsewhere
        pool.groups.see(elsewhere.groups)
        for group in list(pool.groups.nodes.values()):
            self._see_inside_group(pool, group)
        if not pool.is_aligned and self._elsewhere.pools:
            pool.is_aligned = True
            self._align(pool, served)
        else:
            self._learn(pool, served)

    def _see_inside_group(self, pool: Pool, group: Group) -> None:
        group.tenants.see(pool.elsewhere.tenants.get(group.id, LevelElsewhere()))
        for tenant in list(group.tenants.nodes.values()):
            tenant.keys.see(pool.elsewhere.keys.get(tenant.id, LevelElsewhere()))

    def _align(self, pool: Pool, served: Served) -> None:
        pool.groups.align(served.groups)
        for group in list(pool.groups.nodes.values()):
            group.tenants.align(served.tenants)
            for tenant in list(group.tenants.nodes.values()):
                tenant.keys.align(served.keys)
        for tenant in list(pool.tenants.values()):
            for key in list(tenant.keys.nodes.values()):
                self.place(pool, key)

    def _learn(self, pool: Pool, served: Served) -> None:
        for id, score in served.groups.items():
            if (group := pool.groups.nodes.get(id)) is not None:
                pool.groups.learn(group, score)
                group.level.place(group, group.tenants.head())
        for id, score in served.tenants.items():
            if (tenant := pool.tenants.get(id)) is not None:
                tenant.level.learn(tenant, score)
                for key in list(tenant.keys.nodes.values()):
                    if key.id in served.keys:
                        key.level.learn(key, served.keys[key.id])
                    self.place(pool, key)

    # Nodes

    def group_of(self, tenant: TenantPolicy) -> GroupPolicy:
        """The group a tenant shares in."""
        return self._order.group_of(tenant)

    def pool(self, policy: PoolPolicy) -> Pool:
        """The pool, made where it is missing and brought up to date."""
        pool = self.pools.get(policy.id)
        if pool is None:
            pool = self.pools[policy.id] = Pool(policy, part(policy.size, self.divide_by))
            return pool
        pool.gone = False
        if pool.policy is not policy and pool.policy != policy:
            if policy.size > pool.policy.size:
                pool.ask_again()
            rescale = pool.policy.admission_weight != policy.admission_weight
            pool.policy, pool.size = policy, part(policy.size, self.divide_by)
            if rescale:
                for tenant in pool.tenants.values():
                    _reweigh(pool, tenant)
            self.refresh(pool)
        return pool

    def key(self, pool: Pool, policy: KeyPolicy) -> Key:
        """The key's node, its tenant's and its group's, made where they are missing and brought up
        to date."""
        tenant = pool.tenants.get(policy.tenant.id)
        group_policy = self.group_of(policy.tenant)
        if (
            tenant is None
            or tenant.policy is not policy.tenant
            or (tenant.group.policy is not group_policy)
        ):
            tenant = self._tenant(pool, self._group(pool, group_policy), policy.tenant)
        key = tenant.keys.nodes.get(policy.id)
        if key is None:
            key = tenant.keys.nodes[policy.id] = Key(policy, tenant)
        elif key.policy is not policy:
            key.level.rename(key, order_name(policy), policy.weight)
            key.policy = policy
        self._cap(key, policy.max_in_flight)
        return key

    def key_changed(self, policy: KeyPolicy) -> None:
        """A key, its tenant or its group is another, wherever they have work."""
        for pool in self.pools.values():
            if policy.tenant.id in pool.tenants:
                key = self.key(pool, policy)
                self.place(pool, key)
                if not key.has_work and not key.resting:
                    del key.level.nodes[key.id]

    def _cap(self, node: Key | Tenant, cap: int | None) -> None:
        before = node.configured_cap
        if before is not None and (cap is None or cap > before):
            for each in _upward(node):
                if each is node or each.entry is None:
                    each.level.catch_up(each)
            node.blocked = node.at_cap = False
        node.configured_cap = cap
        node.cap = part_of_cap(cap, self.divide_by)

    def _group(self, pool: Pool, policy: GroupPolicy) -> Group:
        group = pool.groups.nodes.get(policy.name)
        if group is None:
            group = pool.groups.nodes[policy.name] = Group(policy, pool.groups)
            self._see_inside_group(pool, group)
        elif group.policy is not policy:
            group.level.rename(group, policy.name, policy.weight)
            group.policy = policy
        return group

    def _tenant(self, pool: Pool, group: Group, policy: TenantPolicy) -> Tenant:
        tenant = pool.tenants.get(policy.id)
        if tenant is None:
            tenant = group.tenants.nodes.get(policy.id)
        if tenant is None:
            tenant = group.tenants.nodes[policy.id] = Tenant(policy, group)
            tenant.keys.see(pool.elsewhere.keys.get(tenant.id, LevelElsewhere()))
        elif tenant.group is not group:
            self._move(tenant, group)
        tenant.policy = policy
        self._cap(tenant, policy.max_in_flight)
        _reweigh(pool, tenant)
        return tenant

    def _move(self, tenant: Tenant, group: Group) -> None:
        """A tenant changes groups with all it runs, and all that waits or, while it claims, may
        wait again. A group in which nobody waited comes back with it, level again."""
        old = tenant.group
        old.tenants.take_out(tenant)
        _transfer(old, tenant, -1)
        old.level.place(old, old.tenants.head())
        if not group.waiting:
            group.level.join(group)
        group.tenants.take_in(tenant)
        tenant.group = group
        _transfer(group, tenant, 1)


def _levels(pool: Pool) -> list[Level[Any]]:
    groups = list(pool.groups.nodes.values())
    tenants = [tenant for group in groups for tenant in group.tenants.nodes.values()]
    return [pool.groups, *(group.tenants for group in groups), *(each.keys for each in tenants)]


def _upward(node: Key | Tenant) -> tuple[Node, ...]:
    if isinstance(node, Key):
        return node, node.tenant, node.tenant.group
    return node, node.group


def _reweigh(pool: Pool, tenant: Tenant) -> None:
    weight = effective_weight(tenant.policy.weight, pool.policy.admission_weight)
    tenant.level.rename(tenant, order_name(tenant.policy), weight)


def _transfer(group: Group, tenant: Tenant, sign: int) -> None:
    had_work = group.has_work
    group.running += sign * tenant.running
    group.held += sign * tenant.held
    group.waiting += sign * tenant.waiting
    if group.has_work and not had_work:
        group.level.begin_work(group)
    elif had_work and not group.has_work:
        group.level.end_work(group)
