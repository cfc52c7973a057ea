"""Slots that the fleet holds for sessions since this replica gave them back.

The fleet's books decide and keep them, and nothing here is decided by them: they are seen, so that
the live picture has them, and let go where policy says that nothing is to be held any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dataplane.scheduler.books import Books
from dataplane.scheduler.effects import AffinityEvent, Effect, Noted, Unhold
from dataplane.scheduler.events import HoldAnswered, HoldEnded
from dataplane.scheduler.holds import FleetHold
from dataplane.scheduler.state import Pool
from shared.policy import KeyPolicy


class FleetHolds:
    """Of all pools of one scheduler. Each is seen until the fleet says that it has ended, or its
    time is up."""

    def __init__(self, books: Books) -> None:
        self._books: Final = books
        self._holding: dict[str, Pool] = {}
        """Pools that the fleet holds slots of."""

    @property
    def keys(self) -> Iterable[KeyPolicy]:
        """The key of each."""
        for pool in self._holding.values():
            yield from (hold.key for hold in pool.fleet_holds.values())

    def wake_at(self) -> Iterable[float]:
        """When they must be looked at: one moment for each pool that has any."""
        for pool in self._holding.values():
            yield min(hold.ends for hold in pool.fleet_holds.values())

    def hear(self, event: HoldAnswered | HoldEnded, now: float) -> list[Effect]:
        """What became of a slot that was given back here, in a pool that may be gone."""
        pool = self._books.pools.get(event.pool)
        is_over = pool is None or pool.gone or pool.affinity is None
        if isinstance(event, HoldAnswered) and event.held_secs is not None and is_over:
            return [self._let_go(event.pool, event.key, event.session)]
        if pool is None:
            return []
        if isinstance(event, HoldEnded):
            return self._ended(pool, event)
        if event.held_secs is None:
            return [noted(pool, AffinityEvent.REFUSED)]
        pool.fleet_holds[event.session] = FleetHold(now + event.held_secs, event.key)
        self._holding[pool.policy.id] = pool
        return [noted(pool, AffinityEvent.HOLD)]

    def let_go_of_key(self, id: str) -> list[Effect]:
        """The fleet is to hold nothing for a key."""
        return [each for pool in self._holding.values() for each in self.let_go(pool, id)]

    def let_go(self, pool: Pool, key: str | None = None) -> list[Effect]:
        """The fleet is to hold nothing in a pool, for one key or at all."""
        return [
            self._let_go(pool.policy.id, hold.key, session)
            for session, hold in pool.fleet_holds.items()
            if key is None or hold.key.id == key
        ]

    def forget_ended(self, now: float) -> None:
        """None is held for longer than it was to be."""
        for pool in list(self._holding.values()):
            for session in [name for name, hold in pool.fleet_holds.items() if hold.ends <= now]:
                del pool.fleet_holds[session]
            self._rest(pool)

    def _ended(self, pool: Pool, event: HoldEnded) -> list[Effect]:
        pool.fleet_holds.pop(event.session, None)
        self._rest(pool)
        is_told = event.why in (AffinityEvent.EXPIRE, AffinityEvent.FREED_STARVING)
        return [noted(pool, AffinityEvent(event.why))] if is_told else []

    def _rest(self, pool: Pool) -> None:
        if not pool.fleet_holds:
            self._holding.pop(pool.policy.id, None)

    def _let_go(self, pool: str, key: KeyPolicy, session: tuple[str, str]) -> Effect:
        group = self._books.group_of(key.tenant)
        return Unhold(pool, group.name, key.tenant.id, key.id, session[1])


def noted(pool: Pool, event: AffinityEvent) -> Noted:
    """Count what sessions have come to in a pool, and have it told."""
    pool.affinity_events[event] += 1
    return Noted(pool.policy.model, event)
