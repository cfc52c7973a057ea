"""Whom the fleet has refused: they claim nothing until they are called, until a slot of the
replica's own is free, or until a moment has passed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dataplane.scheduler.books import Books
from dataplane.scheduler.events import OtherCalled, OtherCame, RefusedBy, TurnCome
from dataplane.scheduler.fairness import Node
from dataplane.scheduler.moments import Moments
from dataplane.scheduler.state import Pool, Slot
from dataplane.scheduler.turns import Turns

Whose = tuple[Pool | None, Node | None]
"""A pool's tenant or key, a pool, or everybody."""


class Blocks:
    """A pool's tenants and keys, pools, and everybody under the ceiling."""

    def __init__(self, books: Books, turns: Turns) -> None:
        self._books: Final = books
        self._turns: Final = turns
        self.is_everybody = False
        """The fleet is at its ceiling, or cannot be asked: nobody claims for a moment."""
        self._retries: Final = Moments[Whose]()
        self._looks: Final = Moments[tuple[str, str]]()
        """Pools, and the replicas that were called there."""

    def wake_at(self) -> Iterator[float]:
        """When something may be due."""
        for moments in (self._retries, self._looks):
            if moments.next is not None:
                yield moments.next

    def put(self, slot: Slot, by: RefusedBy, retry_at: float) -> None:
        """Whoever was refused claims nothing more for now."""
        pool = slot.pool
        pool.was_refused = True
        pool.own_slots.answered(granted=False)
        if pool.was_called and by not in (RefusedBy.CEILING, RefusedBy.NOBODY):
            # It was called after the refusal, for all that is known.
            pool.was_called = False
            return
        whose: Whose = (pool, None)
        match by:
            case RefusedBy.POOL | RefusedBy.TURN:
                pool.blocked = True
                pool.takes_turns = by is RefusedBy.TURN
            case RefusedBy.TENANT | RefusedBy.KEY:
                node = slot.key.tenant if by is RefusedBy.TENANT else slot.key
                node.blocked = node.at_cap = True
                pool.blocked_nodes[node] = slot.key
                self._books.place(pool, slot.key)
                whose = (pool, node)
            case RefusedBy.CEILING | RefusedBy.NOBODY:
                self.is_everybody = True
                whose = (None, None)
        self._retries.put(whose, retry_at)
        self._books.refresh(pool)

    def granted(self, slot: Slot) -> None:
        """Nobody that a granted slot counts against was at a cap."""
        if not slot.is_hold_only:
            slot.pool.own_slots.answered(granted=True)
        slot.key.at_cap = slot.key.tenant.at_cap = False

    def lift(self, pool: Pool | None, node: Node | None = None) -> None:
        """These may claim again."""
        self._retries.drop((pool, node))
        if pool is None:
            self.is_everybody = False
        elif node is None:
            pool.blocked = pool.takes_turns = False
            self._books.refresh(pool)
        elif node in pool.blocked_nodes:
            node.blocked = False
            self._books.place(pool, pool.blocked_nodes.pop(node))

    def lift_pool(self, pool: Pool) -> None:
        """All of this pool may."""
        for node in list(pool.blocked_nodes):
            self.lift(pool, node)
        self.lift(pool)

    def ask_again(self, pool: Pool) -> None:
        """Something has changed for a pool, which an answer that is under way may not know of."""
        pool.ask_again()
        self.lift(pool)

    def lift_due(self, now: float) -> None:
        """Those who may by now."""
        for pool, node in self._retries.due(now):
            self.lift(pool, node)
        for id, _ in self._looks.due(now):
            self.lift(None)
            for pool in self._books.pools.values():
                if pool.policy.id == id or pool.takes_turns:
                    self.lift(pool)

    def lift_all(self) -> None:
        """Everybody may, whatever was refused before."""
        self._retries.clear()
        self._looks.clear()
        self.is_everybody = False
        for pool in self._books.pools.values():
            pool.was_refused = False
            self.lift_pool(pool)
            for tenant in pool.tenants.values():
                for node in (tenant, *tenant.keys.nodes.values()):
                    node.at_cap = False

    def own_slot_freed(self, slot: Slot, ceiling: int, *, in_order: bool) -> None:
        """A slot of the replica's own is free: whoever it stood against may ask again. Where the
        fleet goes by one order, who comes first is called, if the fleet knows of all who may."""
        pool = slot.pool
        self.lift(None)
        if not in_order:
            self.lift_pool(pool)
            return
        for node in (slot.key, slot.key.tenant):
            self.lift(pool, node)
        slots = self._books.slots(pool, ceiling)
        is_known = self._turns.is_named(slot.key.tenant, pool) and not (
            self._turns.is_first_unnamed(pool, slots)
        )
        if not (pool.blocked and is_known and (pool.takes_turns or pool.own_slots.lets_pass())):
            self.lift(pool)

    def slots_freed(self, id: str | None) -> None:
        """Another replica gave back a slot of this pool; None: one that counted at the ceiling."""
        pool = None if id is None else self._books.pools.get(id)
        if id is None:
            self.lift(None)
        elif pool is not None:
            self.ask_again(pool)
            self.lift_pool(pool)

    def other_called(self, event: OtherCalled) -> None:
        """The fleet calls somebody else."""
        self._looks.put((event.pool, event.replica), event.look_at)

    def other_came(self, event: OtherCame) -> None:
        """Whom the fleet called has come."""
        self._looks.drop((event.pool, event.replica))

    def turn_come(self, event: TurnCome) -> None:
        """The fleet calls a tenant that waits here."""
        pool = self._books.pools.get(event.pool)
        if pool is None:
            return
        self.redirect(pool, event.turn_of)
        self.lift(None)
        self.ask_again(pool)

    def redirect(self, pool: Pool, turn_of: tuple[str, str]) -> None:
        """It is the turn of this tenant and key, who are at no cap then, whatever was said."""
        pool.turn_of = turn_of
        tenant = pool.tenants.get(turn_of[0])
        if tenant is not None:
            for node in (tenant, *tenant.keys.nodes.values()):
                self.lift(pool, node)
        self._books.refresh(pool)
