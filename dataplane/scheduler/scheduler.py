"""The scheduler: events and the time in, effects out. `handle` is the one door; nothing else
changes anything.

Where a fleet shares its slots, a request that is next is not admitted but *claims*: it leaves its
queue, takes up a slot and is charged, as if it ran, until the fleet has answered. A grant admits
it. A refusal puts it back where it was, as if nothing had happened, and whoever was refused (the
pool, everybody under the ceiling, the tenant, the key) claims nothing more until a slot is said to
be free, one of the replica's own is freed, or a moment has passed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from dataplane.scheduler.blocks import Blocks
from dataplane.scheduler.books import Books
from dataplane.scheduler.effects import Admit, Effect, Reject, RejectReason, Release
from dataplane.scheduler.events import (
    Arrived,
    CeilingChanged,
    ClaimGranted,
    ClaimRefused,
    Closing,
    Event,
    Finished,
    FleetSeen,
    HoldAnswered,
    HoldEnded,
    HoldMade,
    KeyChanged,
    KeyGone,
    Left,
    OtherCalled,
    OtherCame,
    PoolChanged,
    PoolGone,
    RefusedBy,
    RegimeChanged,
    SlotsFreed,
    TurnCome,
    Woken,
)
from dataplane.scheduler.limits import part
from dataplane.scheduler.order import Order
from dataplane.scheduler.sessions import Sessions
from dataplane.scheduler.state import Key, Pool, Slot, Waiter
from dataplane.scheduler.turns import Turns, claim_of, release_of
from shared.policy import KeyPolicy


class Scheduler:
    """Every pool, queue and count of one replica.

    `ceiling` is the limit over all pools, `timeout` how long a request waits at most, `pool_idle`
    after how long an unused pool is dropped; both in seconds. With `has_fleet` every slot that is
    freed is said to be, so that it can be taken off the fleet's books.
    """

    def __init__(
        self,
        order: Order,
        *,
        ceiling: int,
        timeout: float,
        pool_idle: float,
        has_fleet: bool = False,
        fleet_order: bool = False,
    ) -> None:
        self._books: Final = Books(order)
        self._turns: Final = Turns(order, self._books)
        self._blocks: Final = Blocks(self._books, self._turns)
        self._configured_ceiling = ceiling
        self._timeout: Final = timeout
        self._pool_idle: Final = pool_idle
        self._has_fleet: Final = has_fleet
        self._fleet_order: Final = fleet_order
        self._claims = self._is_paused = False
        self._waiting: OrderedDict[int, Waiter] = OrderedDict()
        """Everyone who waits, oldest first. All may wait equally long, so the first times out
        first. Who claims still waits."""
        self._slots: dict[int, Slot] = {}
        """Every slot taken up, claimed ones included."""
        self._sessions: Final = Sessions(self._books, self._waiting, self._slots)
        self._arriving: Waiter | None = None
        self._effects: list[Effect] = []

    # Reading

    @property
    def _is_in_order(self) -> bool:
        """Whether whose turn it is, is for the fleet to say."""
        return self._claims and self._fleet_order

    @property
    def ceiling(self) -> int:
        """The limit over all pools, as enforced here now."""
        return part(self._configured_ceiling, self._books.divide_by)

    @property
    def configured_ceiling(self) -> int:
        return self._configured_ceiling

    @property
    def in_flight(self) -> int:
        """Requests that run, or claim to, over all pools."""
        return self._books.occupied - self._books.held

    @property
    def session_keys(self) -> Iterable[KeyPolicy]:
        """The keys that slots are held for, or may be when a session's step has ended."""
        return self._sessions.keys

    @property
    def queued(self) -> int:
        """Requests that wait, over all pools."""
        return len(self._waiting)

    @property
    def pools(self) -> Iterable[Pool]:
        """For reading only."""
        return self._books.pools.values()

    def running(self) -> Iterable[Release]:
        """Every request that runs, as its slot will be given back."""
        return (release_of(n, slot) for n, slot in self._slots.items() if slot.claimed_by is None)

    def wake_at(self) -> float | None:
        """When `Woken` is due if nothing happens before; None: never."""
        times = [*self._sessions.wake_at(), *self._blocks.wake_at()]
        if self._waiting:
            times.append(next(iter(self._waiting.values())).arrived_at + self._timeout)
        if self._books.idle:
            times.append(next(iter(self._books.idle.values())) + self._pool_idle)
        return min(times, default=None)

    # The one door

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take in one event; the effects are to be carried out in order. `now` never goes back."""
        self._effects = self._sessions.effects = []
        self._arriving = None
        self._pass_time(now)
        match event:
            case Finished(request, failed):
                self._free(request, now, failed=failed)
            case Arrived():
                self._arrived(event, now)
            case Left(request):
                if request in self._waiting:
                    self._withdraw(self._waiting[request], now)
                else:
                    self._free(request, now, undo=True)
            case ClaimGranted():
                self._granted(event, now)
            case ClaimRefused():
                self._refused(event, now)
            case HoldAnswered() | HoldEnded():
                self._sessions.hear(event, now)
            case SlotsFreed(pool):
                self._blocks.slots_freed(pool)
            case TurnCome():
                self._blocks.turn_come(event)
            case OtherCalled():
                self._blocks.other_called(event)
            case OtherCame():
                self._blocks.other_came(event)
            case FleetSeen():
                if self._claims:
                    self._books.see(event)
                    self._name_anew(*self._books.pools.values())
            case PoolChanged(policy):
                if policy.id in self._books.pools:
                    self._sessions.follow(self._books.pool(policy), now)
            case PoolGone(id):
                self._pool_gone(id, now)
            case KeyChanged(policy):
                self._books.key_changed(policy)
                self._sessions.keep_to_caps(now)
            case KeyGone(id, but):
                gone = (w for n, w in self._waiting.items() if w.key.id == id and n not in but)
                self._reject_all(gone, now, RejectReason.KEY_GONE)
                self._sessions.key_gone(id, now)
            case CeilingChanged(ceiling):
                self._configured_ceiling = ceiling
            case RegimeChanged():
                self._regime_changed(event, now)
            case Closing():
                self._sessions.is_closing = True
            case HoldMade() | Woken():
                pass
        self._serve(now)
        if self._sessions.holding and self._sessions.tend(now, self.ceiling):
            self._serve(now)
        if (waiter := self._sessions.who_asks(event)) is not None:
            self._claim_hold(waiter, now)
        return self._effects

    # Arriving and leaving

    def _arrived(self, event: Arrived, now: float) -> None:
        books = self._books
        pool = books.pool(event.pool)
        self._sessions.follow(pool, now)
        key = self._sessions.follow_caps(pool, event.key, now)
        books.begin(pool)
        books.join(key)
        step = self._sessions.arrives(pool, key, event, now)
        hold = None if step is None else step.session.hold
        if hold is not None or (
            not self._claims
            and not self._is_paused
            and not pool.groups.contenders
            and books.has_room(pool, key, self.ceiling)
        ):
            if hold is None:
                books.count(pool, key, running=1)
            else:
                self._sessions.redeem(pool, hold, event.request, now)
            slot = self._occupy(event.request, pool, key, event.tokens)
            self._sessions.starts(slot, step)
            self._effects.append(Admit(event.request, fast=True, waited=0.0, held=hold is not None))
            return
        self._arriving = waiter = Waiter(event, now, pool, key, step)
        self._waiting[event.request] = key.queue[event.request] = waiter
        books.count(pool, key, waiting=1)
        self._sessions.waits(waiter, now)
        books.place(pool, key)
        self._name_anew(pool)

    def _name_anew(self, *pools: Pool) -> None:
        """Where somebody comes first whom the fleet was not told of, it is told anew."""
        for pool in pools if self._is_in_order else ():
            if self._turns.is_first_unnamed(pool, self._books.slots(pool, self.ceiling)):
                self._blocks.ask_again(pool)

    def _withdraw(self, waiter: Waiter, now: float) -> None:
        """A request waits no longer, and is not charged."""
        del self._waiting[waiter.request]
        slot = self._slots.get(waiter.request)
        if slot is not None:
            slot.is_abandoned = True
            slot.decided()
            slot.refund()
            self._sessions.withdrawn(waiter, was_claimed=True)
            self._books.place(slot.pool, slot.key)
            return
        del waiter.key.queue[waiter.request]
        self._sessions.withdrawn(waiter, was_claimed=False)
        self._books.place(waiter.pool, waiter.key)
        self._books.count(waiter.pool, waiter.key, waiting=-1)
        self._books.rest(waiter.pool, now)

    def _reject(self, waiter: Waiter, reason: RejectReason, now: float) -> None:
        self._withdraw(waiter, now)
        self._effects.append(Reject(waiter.request, reason, now - waiter.arrived_at))

    def _free(self, request: int, now: float, *, undo: bool = False, failed: bool = False) -> None:
        """End a slot. One that ended before, or never was, changes nothing; nor does one that is
        still claimed, for nobody any more: the answer to its claim ends it."""
        slot = self._slots.get(request)
        if slot is None or slot.claimed_by is not None:
            return
        del self._slots[request]
        if undo:
            slot.refund()
        end = None
        if self._claims and not undo:
            ceiling = self._configured_ceiling
            end = self._sessions.step_end(slot, now, failed=failed, ceiling=ceiling)
        if self._has_fleet:
            is_undone = self._fleet_order and (undo or slot.is_abandoned)
            self._effects.append(release_of(request, slot, end, undo=is_undone))
        if slot.step is not None and self._sessions.ended(
            slot, now, ran=not undo, failed=failed, ceiling=self.ceiling
        ):
            waiter = self._sessions.hand_over(slot, now)
            if waiter is not None:
                self._occupy(waiter.request, waiter.pool, waiter.key, waiter.tokens)
                self._admit(waiter, now, held=True)
            return
        self._vacate(slot, now)
        if self._has_fleet:
            self._blocks.own_slot_freed(slot, self.ceiling, in_order=self._fleet_order)
        if end is not None and (waiter := self._sessions.next_step(slot, now)) is not None:
            self._claim_hold(waiter, now)

    def _vacate(self, slot: Slot, now: float) -> None:
        self._books.count(slot.pool, slot.key, running=-1)
        self._books.place(slot.pool, slot.key)
        self._books.rest(slot.pool, now)

    def _pass_time(self, now: float) -> None:
        """Everything that is due by now."""
        while self._waiting:
            waiter = next(iter(self._waiting.values()))
            if now < waiter.arrived_at + self._timeout:
                break
            self._reject(waiter, RejectReason.TIMED_OUT, now)
        self._blocks.lift_due(now)
        self._sessions.forget_ended(now)
        if self._sessions.holding and self._sessions.tend(now, self.ceiling):
            self._serve(now)  # those who wait come before whoever arrives now
        self._books.drop_idle(now, self._pool_idle)

    # Policy

    def _pool_gone(self, id: str, now: float) -> None:
        pool = self._books.pools.get(id)
        if pool is not None:
            pool.gone = True
            self._sessions.let_fleet_go(pool)
            waiters = (each for each in self._waiting.values() if each.pool is pool)
            self._reject_all(waiters, now, RejectReason.MODEL_GONE)
            self._books.rest(pool, now)

    def _reject_all(self, waiters: Iterable[Waiter], now: float, reason: RejectReason) -> None:
        for waiter in list(waiters):
            self._reject(waiter, reason, now)

    def _regime_changed(self, event: RegimeChanged, now: float) -> None:
        if event.claims != self._claims:
            self._books.change_order(fleet=event.claims and self._fleet_order)
        self._claims, self._is_paused = event.claims, event.paused
        self._blocks.lift_all()
        self._books.divide(event.divide_by)
        self._sessions.may_hold = not (event.claims or event.paused)
        self._sessions.keep_to_caps(now)

    # Serving

    def _serve(self, now: float) -> None:
        """Give out slots until none is free or nobody can go: one a pool, then the next pool's
        turn."""
        ready = self._books.ready
        if self._is_paused:
            return
        while ready and self._books.occupied < self.ceiling and not self._blocks.is_everybody:
            _, pool = ready.popitem(last=False)
            self._sessions.age(pool, now)
            slots = self._books.slots(pool, self.ceiling)
            waiter = self._turns.next(pool, slots)
            assert waiter is not None, "a ready pool has someone who can go"
            pool.turn_of = None
            if self._claims:
                self._claim(waiter, now)
            else:
                self._take(waiter, now)
                self._occupy(waiter.request, pool, waiter.key, waiter.tokens)
                self._admit(waiter, now)

    def _take(self, waiter: Waiter, now: float) -> None:
        """A request leaves its queue for a slot."""
        del waiter.key.queue[waiter.request]
        self._sessions.taken(waiter, now)
        self._books.count(waiter.pool, waiter.key, waiting=-1, running=1)

    def _occupy(
        self, request: int, pool: Pool, key: Key, tokens: int, claimed_by: Waiter | None = None
    ) -> Slot:
        tenant, group = key.tenant, key.tenant.group
        # A request that uses no tokens counts for one: whoever is admitted moves back a place.
        tokens = max(1, tokens)
        charged = tuple((node, node.level.charge(node, tokens)) for node in (group, tenant, key))
        self._slots[request] = slot = Slot(pool, key, tokens, charged, claimed_by)
        self._books.place(pool, key)
        return slot

    def _admit(self, waiter: Waiter, now: float, *, held: bool = False) -> None:
        del self._waiting[waiter.request]
        self._sessions.admitted(waiter, self._slots[waiter.request])
        waited = now - waiter.arrived_at
        self._effects.append(Admit(waiter.request, fast=waiter.at_once, waited=waited, held=held))

    # Claiming

    def _claim_hold(self, waiter: Waiter, now: float) -> None:
        """Ask for the slot that the fleet may hold for a request's session, ahead of the queue."""
        may_claim = self._claims and not self._is_paused and waiter.request not in self._slots
        if may_claim and self._sessions.may_take(waiter, now):
            self._claim(waiter, now, is_hold_only=True)

    def _claim(self, waiter: Waiter, now: float, *, is_hold_only: bool = False) -> None:
        pool, key = waiter.pool, waiter.key
        room = self._books.room(pool, self.ceiling)
        standing = self._turns.standing(waiter, room, now) if self._is_in_order else None
        self._take(waiter, now)
        waiter.at_once = waiter is self._arriving and not is_hold_only
        pool.claiming += not is_hold_only
        slot = self._occupy(waiter.request, pool, key, waiter.tokens, claimed_by=waiter)
        slot.is_hold_only = is_hold_only
        for node, amount in slot.charged:
            node.pending += amount
        turn = None if standing is None else self._turns.turn(slot, standing, room, now)
        terms = self._sessions.terms(waiter, is_only=is_hold_only)
        self._effects.append(claim_of(waiter.request, slot, self._configured_ceiling, turn, terms))

    def _granted(self, event: ClaimGranted, now: float) -> None:
        slot = self._slots[event.request]
        pool, waiter = slot.pool, slot.claimed_by
        assert waiter is not None, "a claim is answered once"
        pool.claiming -= not slot.is_hold_only
        slot.claimed_by = None
        if slot.is_abandoned:
            self._free(event.request, now)
            return
        slot.decided()
        self._blocks.granted(slot)
        if event.told is not None and self._claims:
            self._turns.learn(slot, event.told)
        if event.held:
            self._sessions.redeemed(waiter)
        self._admit(waiter, now, held=event.held)
        if slot.is_hold_only:
            return
        pool.was_redirected = False
        if not pool.waiting:
            pool.was_refused = False
        elif event.more_at is not None:
            self._blocks.put(slot, event.more_by, event.more_at)
        self._books.refresh(pool)

    def _refused(self, event: ClaimRefused, now: float) -> None:
        slot = self._slots.pop(event.request)
        waiter, pool, key = slot.claimed_by, slot.pool, slot.key
        assert waiter is not None, "a claim is answered once"
        pool.claiming -= not slot.is_hold_only
        if slot.is_abandoned:
            self._vacate(slot, now)
        else:
            waiter.at_once = False
            slot.decided()
            slot.refund()
            pool.named.add(key)
            key.take_back(waiter)
            self._sessions.taken_back(waiter)
            self._books.count(pool, key, waiting=1, running=-1)
            self._books.place(pool, key)
            if event.told is not None and self._claims:
                self._turns.learn(slot, event.told)
        if event.by is RefusedBy.NO_HOLD:
            return
        turn_of = None if pool.was_redirected else event.turn_of
        pool.was_redirected = turn_of is not None
        if self._claims and turn_of is not None:
            self._blocks.redirect(pool, turn_of)
        elif self._claims:
            # Whoever has then waited too long says so at once, so that what is held is freed.
            self._blocks.put(slot, event.by, min(event.retry_at, self._sessions.late_at(pool)))
