"""Whom the fleet has refused: they claim nothing until they are called, until a slot of the
replica's own is free, or until a moment has passed."""

from __future__ import annotations

from typing import Final

from dataplane.scheduler.books import Books
from dataplane.scheduler.events import OtherCalled, RefusedBy, TurnCome
from dataplane.scheduler.fairness import Node
from dataplane.scheduler.retries import Retries, Whose
from dataplane.scheduler.state import Pool, Slot


class Blocks:
    """A pool's tenants and keys, pools, and everybody under the ceiling."""

    def __init__(self, books: Books) -> None:
        self._books: Final = books
        self.is_everybody = False
        """The fleet is at its ceiling, or cannot be asked: nobody claims for a moment."""
        self.retries: Final = Retries()

    def put(self, slot: Slot, by: RefusedBy, retry_at: float) -> None:
        """Whoever was refused claims nothing more for now."""
        pool = slot.pool
        pool.was_refused = True
        whose: Whose = (pool, None)
        match by:
            case RefusedBy.POOL:
                if pool.was_called:
                    pool.was_called = False
                    return
                pool.blocked = True
            case RefusedBy.TENANT | RefusedBy.KEY:
                node = slot.key.tenant if by is RefusedBy.TENANT else slot.key
                node.blocked = node.at_cap = True
                pool.blocked_nodes[node] = slot.key
                self._books.place(pool, slot.key)
                whose = (pool, node)
            case RefusedBy.CEILING | RefusedBy.NOBODY:
                self.is_everybody = True
                whose = (None, None)
        self.retries.put(whose, retry_at)
        self._books.refresh(pool)

    def granted(self, slot: Slot) -> None:
        """Nobody that a granted slot counts against was at a cap."""
        slot.key.at_cap = slot.key.tenant.at_cap = False

    def lift(self, pool: Pool | None, node: Node | None = None) -> None:
        """These may claim again."""
        self.retries.drop((pool, node))
        if pool is None:
            self.is_everybody = False
        elif node is None:
            pool.blocked = False
            self._books.refresh(pool)
        elif node in pool.blocked_nodes:
            node.blocked = False
            self._books.place(pool, pool.blocked_nodes.pop(node))

    def lift_pool(self, pool: Pool) -> None:
        """All of this pool may."""
        for node in list(pool.blocked_nodes):
            self.lift(pool, node)
        self.lift(pool)

    def lift_due(self, now: float) -> None:
        """Those who may by now."""
        for pool, node in self.retries.due(now):
            self.lift(pool, node)

    def lift_all(self) -> None:
        """Everybody may, whatever was refused before."""
        self.retries.clear()
        self.is_everybody = False
        for pool in self._books.pools.values():
            pool.was_refused = False
            self.lift_pool(pool)
            for tenant in pool.tenants.values():
                for node in (tenant, *tenant.keys.nodes.values()):
                    node.at_cap = False

    def own_slot_freed(self, slot: Slot, *, in_order: bool) -> None:
        """A slot of the replica's own is free: whoever it stood against may ask again. Where the
        fleet goes by one order the others are called when it is their turn."""
        self.lift(None)
        if not in_order:
            self.lift_pool(slot.pool)
            return
        for node in (slot.key, slot.key.tenant):
            self.lift(slot.pool, node)
        self.lift(slot.pool)

    def slots_freed(self, id: str | None) -> None:
        """Another replica gave back a slot of this pool; None: one that counted at the ceiling."""
        pool = None if id is None else self._books.pools.get(id)
        if id is None:
            self.lift(None)
        elif pool is not None:
            pool.was_called = pool.claiming > 0
            self.lift_pool(pool)

    def other_called(self, event: OtherCalled) -> None:
        """The fleet calls somebody else."""
        pool = self._books.pools.get(event.pool)
        if pool is not None and pool.waiting:
            self.retries.hurry((pool, None), event.retry_at)
            self.retries.hurry((None, None), event.retry_at)

    def turn_come(self, event: TurnCome) -> None:
        """The fleet calls a tenant that waits here."""
        pool = self._books.pools.get(event.pool)
        if pool is None:
            return
        pool.was_called = pool.claiming > 0
        pool.turn_of = event.turn_of
        tenant = pool.tenants.get(event.turn_of[0])
        if tenant is not None:
            for node in (tenant, *tenant.keys.nodes.values()):
                self.lift(pool, node)
        self.lift(None)
        self.lift(pool)
