"""What session affinity does: in every pool it acts on what `affinity.py` decides there.

Slots are held and freed here, and the books are told. Whatever a limit does not allow any more,
after a change of policy or because somebody starves, is freed after the event that made it so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

from dataplane.scheduler.affinity import Affinity
from dataplane.scheduler.books import Books
from dataplane.scheduler.effects import AffinityEvent, Effect
from dataplane.scheduler.events import (
    Arrived,
    ClaimRefused,
    Event,
    HoldAnswered,
    HoldEnded,
    HoldMade,
)
from dataplane.scheduler.fairness import Node
from dataplane.scheduler.fleet_holds import FleetHolds, noted
from dataplane.scheduler.holds import NO_TERMS, HoldTerms, StepEnd
from dataplane.scheduler.state import Key, Pool, Slot, Waiter
from dataplane.scheduler.steps import Hold, Step
from shared.policy import KeyPolicy


class Sessions:
    """Of all pools of one scheduler. `waiting` is everyone who waits, by arrival, and `slots` are
    all that are taken up; both for reading."""

    def __init__(
        self, books: Books, waiting: Mapping[int, Waiter], slots: Mapping[int, Slot]
    ) -> None:
        self._books: Final = books
        self._waiting: Final = waiting
        self._slots: Final = slots
        self.holding: dict[str, Pool] = {}
        """Pools that hold slots."""
        self.may_hold = True
        """Whether slots are held here: not while they belong to the fleet, which holds them."""
        self._fleet_holds: Final = FleetHolds(books)
        self.is_closing = False
        """Nothing is held any more."""
        self.effects: list[Effect] = []
        """Where the event under way puts what it wants done."""

    @property
    def keys(self) -> Iterable[KeyPolicy]:
        """The key of every slot that is held, or may be when a session's step has ended."""
        yield from (hold.key.policy for _, hold in self._holds())
        yield from (slot.key.policy for slot in self._slots.values() if slot.step is not None)
        yield from self._fleet_holds.keys

    def wake_at(self) -> Iterable[float]:
        """When held slots must be looked at: one moment for each pool that has any."""
        for pool in self.holding.values():
            alarm = _of(pool).next_alarm
            if alarm is not None:
                yield alarm
        yield from self._fleet_holds.wake_at()

    def tend(self, now: float, ceiling: int) -> bool:
        """Free what is not to be held any more: its time is up, or a limit does not allow it.
        Whether there was any.

        Of several the one that would end first goes: the longer a step has not come, the less
        likely it is to come in time.
        """
        before = self._books.held
        for pool in list(self.holding.values()):
            affinity = _of(pool)
            affinity.age(now)
            while affinity.holds and affinity.holds[0].ends <= now:
                self._free(pool, affinity.holds[0], now, AffinityEvent.EXPIRE)
            if affinity.holds and affinity.is_starving():
                self._free_all(pool, now, AffinityEvent.FREED_STARVING)
            most = 0
            if self.may_hold and not (pool.gone or self.is_closing):
                most = min(affinity.most_held(pool.size), pool.size - pool.running)
            while affinity.holds and pool.held > most:
                self._free(pool, affinity.holds[0], now)
        while self._books.occupied > ceiling and self.holding:
            _, _, pool = min((_of(p).holds[0].ends, id, p) for id, p in self.holding.items())
            self._free(pool, _of(pool).holds[0], now)
        return self._books.held < before

    def age(self, pool: Pool, now: float) -> None:
        """Have time pass in a pool. To be called before anything is decided in it."""
        if pool.affinity is not None:
            pool.affinity.age(now)

    # Policy

    def follow(self, pool: Pool, now: float) -> None:
        """A pool's policy may have changed."""
        rules, affinity = pool.policy.affinity, pool.affinity
        if affinity is None:
            if rules is None:
                return
            pool.affinity = affinity = Affinity(rules)
        elif rules is None:
            self._free_all(pool, now)
            self.let_fleet_go(pool)
            pool.affinity = None
            return
        elif affinity.rules is rules or affinity.rules == rules:
            return
        affinity.change(rules, (each for each in self._waiting.values() if each.pool is pool))
        for key in affinity.held_keys:
            self._free_of_passed(pool, key, now)

    def follow_caps(self, pool: Pool, policy: KeyPolicy, now: float) -> Key:
        """The node of a key that sends; its caps and its tenant's may have changed.

        Whoever waits behind a cap that was lifted comes before the request that brought the news.
        """
        tenant = pool.tenants.get(policy.tenant.id)
        is_news = tenant is not None and tenant.policy is not policy.tenant
        if tenant is not None and not is_news:
            known = tenant.keys.nodes.get(policy.id)
            is_news = known is not None and known.policy is not policy
        key = self._books.key(pool, policy)
        if not is_news:
            return key
        tenant = key.tenant
        if tenant.held and (_is_over(key) or _is_over(tenant)):
            self.keep_to_caps(now)
        self._books.place(pool, key)
        # As the others move on, a node without work may have been forgotten.
        return self._books.key(pool, policy)

    def key_gone(self, id: str, now: float) -> None:
        """A key may not be used any more: nothing is held for it, nor will be when what it runs has
        ended."""
        for slot in self._slots.values():
            if slot.key.id == id:
                slot.is_last = True
        for pool, hold in self._holds():
            if hold.key.id == id:
                self._free(pool, hold, now)
        self.effects += self._fleet_holds.let_go_of_key(id)

    def let_fleet_go(self, pool: Pool) -> None:
        """A pool's model is gone, or its affinity: the fleet holds nothing for it."""
        self.effects += self._fleet_holds.let_go(pool)

    def keep_to_caps(self, now: float) -> None:
        """Caps may have fallen: held slots beyond them are freed."""
        for pool, hold in self._holds():
            if _is_over(hold.key) or _is_over(hold.key.tenant):
                self._free(pool, hold, now)

    # Requests

    def arrives(self, pool: Pool, key: Key, event: Arrived, now: float) -> Step | None:
        """A request arrives; None if it is of no session that counts."""
        if pool.affinity is None:
            return None
        pool.affinity.age(now)
        if event.session is None:
            return None
        return pool.affinity.arrives(key, event.session, event.request, now)

    def waits(self, waiter: Waiter, now: float) -> None:
        """A request has joined its queue."""
        affinity = waiter.pool.affinity
        if affinity is not None:
            affinity.waits(waiter)
            self._free_of_passed(waiter.pool, waiter.key, now)

    def taken(self, waiter: Waiter, now: float) -> None:
        """A request has been taken out of its queue for a slot."""
        affinity = waiter.pool.affinity
        if affinity is not None:
            waiter.passes = affinity.is_taken(waiter)
            if waiter.passes:
                self._free_of_passed(waiter.pool, waiter.key, now)

    def taken_back(self, waiter: Waiter) -> None:
        """It did not get the slot and is back in its place."""
        affinity = waiter.pool.affinity
        if affinity is not None:
            affinity.is_back(waiter)
        waiter.passes = False

    def admitted(self, waiter: Waiter, slot: Slot) -> None:
        """A request that waited runs now."""
        affinity = waiter.pool.affinity
        if affinity is None:
            return
        affinity.waits_no_more(waiter)
        if waiter.passes:
            self._note(waiter.pool, AffinityEvent.WARM)
        self.starts(slot, waiter.step)

    def withdrawn(self, waiter: Waiter, *, was_claimed: bool) -> None:
        """A request has left its queue for good."""
        affinity = waiter.pool.affinity
        if affinity is None:
            return
        if was_claimed:
            affinity.goes_ahead_no_more(waiter.key, waiter.request)
        else:
            affinity.left_queue(waiter)
        affinity.waits_no_more(waiter)
        if waiter.step is not None and affinity.session_of(waiter) is not None:
            affinity.gives_up(waiter.step)

    def starts(self, slot: Slot, step: Step | None) -> None:
        """A step runs in a slot from now on."""
        if step is not None and step.affinity is slot.pool.affinity:
            slot.step = step
            step.affinity.starts(step, slot.key)

    def ended(self, slot: Slot, now: float, *, ran: bool, failed: bool, ceiling: int) -> bool:
        """A slot is given back. Whether it is held for the next step from now on."""
        pool, key, step = slot.pool, slot.key, slot.step
        if step is None or step.affinity is not pool.affinity:
            return False
        affinity = step.affinity
        affinity.age(now)
        if not ran:
            affinity.never_ran(step, key)
            return False
        affinity.ends(step, now)
        if not self.may_hold or self._has_no_next(slot, failed):
            return False
        if not affinity.wants_hold(step, now):
            return False
        if self._is_refused(pool, key, now, ceiling):
            self._note(pool, AffinityEvent.REFUSED)
            return False
        self._books.count(pool, key, running=-1, held=1)
        affinity.hold(step.session, key, now)
        self.holding[pool.policy.id] = pool
        self._note(pool, AffinityEvent.HOLD)
        return True

    def hand_over(self, slot: Slot, now: float) -> Waiter | None:
        """The next step, if it waits already for a slot that is held since just now: it has it."""
        step = slot.step
        assert step is not None, "the slot is held for a session"
        waiter, hold = step.affinity.successor(step, now), step.session.hold
        if waiter is not None and hold is not None:
            del slot.key.queue[waiter.request]
            self._books.count(slot.pool, slot.key, waiting=-1)
            step.affinity.left_queue(waiter)
            self.redeem(slot.pool, hold, waiter.request, now)
        return waiter

    def redeem(self, pool: Pool, hold: Hold, request: int, now: float) -> None:
        """A step takes the slot that is held for its session, past whoever waits in its key. It is
        in no queue any more. `place` its key afterwards."""
        self._let_go(pool, hold)
        self._books.count(pool, hold.key, held=-1, running=1)
        self._note(pool, AffinityEvent.REDEEM)
        if _of(pool).goes_ahead(hold.key, hold.key.head(), request):
            self._free_of_passed(pool, hold.key, now)

    # Slots that the fleet holds

    def terms(self, waiter: Waiter, *, is_only: bool) -> HoldTerms:
        """What the claim for a request, which counts as running already, says of holds."""
        affinity, step = waiter.pool.affinity, waiter.step
        if affinity is None or affinity.rules.hold_secs <= 0:
            return NO_TERMS
        most = affinity.most_held(waiter.pool.policy.size)
        # Of those at their caps one must ask all the same whether it still is.
        if waiter.is_late or affinity.is_starving(waiter.key):
            return HoldTerms(None, is_only, most, is_starving=True)
        counts = step is not None and step.affinity is affinity
        return HoldTerms(step.session.name[1] if step and counts else None, is_only, most)

    def late_at(self, pool: Pool) -> float:
        """When the next request of a pool will have waited too long, if that changes anything."""
        affinity = pool.affinity
        return math.inf if affinity is None or affinity.is_starving() else affinity.next_late

    def who_asks(self, event: Event) -> Waiter | None:
        """Who asks the fleet, after an event, for the slot held for its session alone: whoever has
        just come, or waits and hears of one."""
        match event:
            case Arrived(request=request):
                return self._waiting.get(request)
            case HoldMade(pool=id, session=session):
                pool = self._books.pools.get(id)
                affinity = None if pool is None else pool.affinity
                waiter = None if affinity is None else affinity.first_step(session)
                if waiter is not None:
                    # If it is asking already, it may have been too early.
                    waiter.asks_again = waiter.request in self._slots
                return waiter
            case ClaimRefused(request=request):
                waiter = self._waiting.get(request)
                if waiter is not None and waiter.asks_again:
                    waiter.asks_again = False
                    return waiter
        return None

    def may_take(self, waiter: Waiter, now: float) -> bool:
        """Whether a request that waits may ask for the slot held for its session alone."""
        affinity = waiter.pool.affinity
        if affinity is None:
            return False
        affinity.age(now)
        return affinity.may_take(waiter)

    def step_end(self, slot: Slot, now: float, *, failed: bool, ceiling: int) -> StepEnd | None:
        """What the fleet is told of a step that ran, before `ended`; `ceiling` as configured."""
        pool, key, step = slot.pool, slot.key, slot.step
        if step is None or step.affinity is not pool.affinity:
            return None
        affinity, rules = step.affinity, step.affinity.rules
        affinity.age(now)
        return StepEnd(
            session=step.session.name[1],
            age=now - step.arrived_at,
            hold_secs=rules.hold_secs,
            life_secs=max(rules.warm_secs, rules.hold_secs),
            is_wanted=affinity.is_newest(step, now) and not self._has_no_next(slot, failed),
            most=affinity.most_held(pool.policy.size) if affinity.may_hold_for(key) else 0,
            max_jumps=rules.max_jumps,
            pool_size=pool.policy.size,
            ceiling=ceiling,
            tenant_cap=key.tenant.configured_cap,
            key_cap=key.configured_cap,
            key=key.policy,
        )

    def next_step(self, slot: Slot, now: float) -> Waiter | None:
        """The step after one that has just ended in a slot, if it waits already."""
        step = slot.step
        return None if step is None else step.affinity.successor(step, now)

    def redeemed(self, waiter: Waiter) -> None:
        """A request has the slot that the fleet held for its session."""
        if waiter.pool.affinity is not None:
            waiter.pool.affinity.takes_held(waiter)
        waiter.passes = False
        self._note(waiter.pool, AffinityEvent.REDEEM)

    def hear(self, event: HoldAnswered | HoldEnded, now: float) -> None:
        """What became of a slot that was given back here."""
        self.effects += self._fleet_holds.hear(event, now)

    def forget_ended(self, now: float) -> None:
        """Slots that the fleet held are held no longer than they were to be."""
        self._fleet_holds.forget_ended(now)

    # Holding and freeing

    def _has_no_next(self, slot: Slot, failed: bool) -> bool:
        """Whether a slot is held for no next step, whatever its session has done."""
        return failed or slot.is_last or slot.pool.gone or self.is_closing

    def _is_refused(self, pool: Pool, key: Key, now: float, ceiling: int) -> bool:
        """Whether a limit forbids to hold the slot of a request that is about to end."""
        affinity, books = _of(pool), self._books
        return (
            pool.held >= affinity.most_held(pool.size)
            or pool.occupied > pool.size
            or books.occupied > ceiling
            or _is_over(key)
            or _is_over(key.tenant)
            or not affinity.may_hold_for(key)
            or (books.occupied == ceiling and self._is_ceiling_starved(affinity, now))
        )

    def _is_ceiling_starved(self, affinity: Affinity, now: float) -> bool:
        """Whether whoever comes first in a pool that only the ceiling stands before has waited too
        long; a hold elsewhere must not keep it out."""
        for pool in self._books.ready.values():
            request = pool.groups.head()
            assert request is not None, "a ready pool has someone who can go"
            if now >= self._waiting[request].arrived_at + affinity.rules.max_bypass_secs:
                return True
        return False

    def _free_of_passed(self, pool: Pool, key: Key, now: float) -> None:
        """Nothing is held for a key whose oldest request has been passed often enough."""
        if key.held and _of(pool).is_passed_enough(key):
            for hold in [each for each in _of(pool).holds if each.key is key]:
                self._free(pool, hold, now, AffinityEvent.FREED_STARVING)

    def _free_all(self, pool: Pool, now: float, why: AffinityEvent | None = None) -> None:
        for hold in list(_of(pool).holds):
            self._free(pool, hold, now, why)

    def _free(self, pool: Pool, hold: Hold, now: float, why: AffinityEvent | None = None) -> None:
        self._let_go(pool, hold)
        self._books.count(pool, hold.key, held=-1)
        self._books.place(pool, hold.key)
        self._books.rest(pool, now)
        if why is not None:
            self._note(pool, why)

    def _let_go(self, pool: Pool, hold: Hold) -> None:
        affinity = _of(pool)
        affinity.let_go(hold)
        if not affinity.holds:
            del self.holding[pool.policy.id]

    def _holds(self) -> list[tuple[Pool, Hold]]:
        return [(pool, hold) for pool in self.holding.values() for hold in _of(pool).holds]

    def _note(self, pool: Pool, event: AffinityEvent) -> None:
        self.effects.append(noted(pool, event))


def _of(pool: Pool) -> Affinity:
    assert pool.affinity is not None, "a pool that holds has affinity"
    return pool.affinity


def _is_over(node: Node) -> bool:
    """Whether it takes up more slots than its cap allows."""
    return node.cap is not None and node.occupied > node.cap
