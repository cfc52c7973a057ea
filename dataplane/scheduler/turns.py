"""Who goes next in a pool, and what the fleet is told so that it can say whose turn it is."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from dataplane.scheduler.books import Books, Room
from dataplane.scheduler.effects import Claim, Release
from dataplane.scheduler.fairness import SCORE_UNIT
from dataplane.scheduler.holds import HoldTerms, StepEnd
from dataplane.scheduler.order import Order
from dataplane.scheduler.standing import Cuts, Rank, Standing, Told, Turn
from dataplane.scheduler.state import Key, Pool, Slot, Tenant, Waiter

KEYS_MAX: Final = 4
"""Keys of a tenant that a replica tells of."""
BLOCKED_MAX: Final = 4
"""Tenants and keys that the fleet said are at their caps, of whom it tells."""


class Turns:
    """The choice in a pool, by the order or by what the fleet has said."""

    def __init__(self, order: Order, books: Books) -> None:
        self._order: Final = order
        self._books: Final = books

    def next(self, pool: Pool, slots: int) -> Waiter | None:
        """Who goes next in a pool with `slots` to share, if anybody can."""
        called = None if pool.turn_of is None else _called(pool, *pool.turn_of)
        if called is not None:
            return called
        tenant = self._order.next(pool.groups, slots)
        return None if tenant is None else _first_of(pool, tenant)

    def is_first_unnamed(self, pool: Pool, slots: int) -> bool:
        """Whether the fleet has refused a pool and was not told of who comes first there now, or
        does if that one is at a cap."""
        if not pool.was_refused or not pool.groups.contenders:
            return False
        first = self.next(pool, slots)
        assert first is not None, "where somebody contends, somebody can go"
        if first.key.configured_cap is None and first.key.tenant.configured_cap is None:
            return first.key not in pool.named
        return not pool.named.issuperset(self._may_be_first(pool, slots))

    def is_named(self, tenant: Tenant, pool: Pool) -> bool:
        """Whether the fleet was told of a tenant, if it waits; not of one at its cap here."""
        return not tenant.waiting or any(key.tenant is tenant for key in pool.named)

    def standing(self, waiter: Waiter, room: Room, now: float) -> Standing:
        """Where a waiter stands in a pool with this room: for its key, which is chosen by who has
        waited there for longest, whoever of it goes then."""
        key, tenant, group = waiter.key, waiter.key.tenant, waiter.key.tenant.group
        oldest = key.head() or waiter
        group_share, tenant_share = self._order.shares(tenant, room.slots) or (None, None)
        return Standing(
            Rank(group.id, group.floor / SCORE_UNIT, group_share),
            Rank(tenant.id, tenant.floor / SCORE_UNIT, tenant_share, tenant.configured_cap),
            Rank(key.id, key.floor / SCORE_UNIT, None, key.configured_cap),
            now - min(oldest.arrived_at, waiter.arrived_at),
            self._cuts(tenant, waiter.pool, room),
        )

    def _cuts(self, tenant: Tenant, pool: Pool, room: Room) -> Cuts | None:
        shares = [self._order.shares(tenant, slots) for slots in room.to_come or ()]
        known = [each for each in shares if each is not None]
        if room.to_come is None or not known:
            return None
        group, own = zip(*known, strict=True)
        return Cuts(room.to_come.start, pool.policy.size, room.ceiling, group, own)

    def turn(self, slot: Slot, standing: Standing, room: Room, now: float) -> Turn:
        """What goes with the claim for a slot. Those who may come first after it stand in the same
        measure, with the same `room`; they include those at their caps, since for how long they
        are is for the fleet to say."""
        pool = slot.pool
        named = dict.fromkeys(self._may_be_first(pool, room.slots))
        named |= dict.fromkeys(islice(pool.blocked_nodes.values(), BLOCKED_MAX))
        pool.named = set(named)
        heads = (pool.head(key) for key in named)
        others = tuple(self.standing(each, room, now) for each in heads if each is not None)
        return Turn(standing, slot.charges, others)

    def _may_be_first(self, pool: Pool, slots: int) -> Iterator[Key]:
        tenants = self._order.candidates(pool.groups, slots)
        return (key for tenant in tenants for key in _up_to_uncapped(tenant))

    def learn(self, slot: Slot, told: Told) -> None:
        """The books have said what they know of a slot's nodes."""
        for (node, _), score in zip(slot.charged, told.scores, strict=True):
            node.level.learn(node, score)
        for (node, _), taken in zip(slot.charged, told.taken, strict=False):
            node.level.count_elsewhere(node, taken)
        self._books.place(slot.pool, slot.key)


def _called(pool: Pool, tenant_id: str, key_id: str) -> Waiter | None:
    """The next of a key, if it and its tenant can go."""
    tenant = pool.tenants.get(tenant_id)
    key = None if tenant is None or tenant.entry is None else tenant.keys.nodes.get(key_id)
    return None if key is None or key.entry is None else pool.head(key)


def _up_to_uncapped(tenant: Tenant) -> Iterator[Key]:
    """The keys of a tenant of which one comes first: those before the first that has no cap may be
    at theirs."""
    for key in islice(tenant.keys.in_order(), KEYS_MAX):
        yield key
        if key.configured_cap is None:
            return


def _first_of(pool: Pool, tenant: Tenant) -> Waiter:
    key = tenant.keys.first()
    assert key is not None, "a tenant that contends has a key that does"
    waiter = pool.head(key)
    assert waiter is not None, "a key that contends has a request"
    return waiter


def claim_of(request: int, slot: Slot, ceiling: int, turn: Turn | None, holds: HoldTerms) -> Claim:
    """What the fleet is asked for a slot; `ceiling` as configured, as the other limits are."""
    key, size = slot.key, slot.pool.policy.size
    names = (slot.pool.policy.id, slot.group, key.tenant.id, key.id)
    caps = (key.tenant.configured_cap, key.configured_cap)
    return Claim(request, *names, size, ceiling, *caps, turn, holds)


def release_of(
    request: int, slot: Slot, step: StepEnd | None = None, *, undo: bool = False
) -> Release:
    """What the fleet is told of a slot that is free."""
    names = (slot.pool.policy.id, slot.group, slot.key.tenant.id, slot.key.id)
    return Release(request, *names, slot.charges if undo else None, step)
