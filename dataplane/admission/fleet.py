"""Carries claims and releases between the scheduler and the fleet's books.

Whatever the scheduler wants claimed and released in one turn of the loop travels together, in one
round trip. A round trip is a task of its own: a request that is cancelled does not cancel it, so
every claim is answered, and a grant that nobody waits for any more is given back like any other.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from dataplane.admission.slots import wire
from dataplane.admission.slots.port import (
    Answer,
    Freed,
    Holding,
    Reply,
    Slots,
    SlotsUnavailable,
)
from dataplane.admission.slots.port import Claim as SlotClaim
from dataplane.scheduler.effects import Claim, Release, Unhold
from dataplane.scheduler.events import ClaimGranted, ClaimRefused, HoldAnswered, RefusedBy

log = structlog.stdlib.get_logger(__name__)

RETRY_SECS: Final = (0.1, 0.25)
"""A refused claim is tried again after a random time in this range, if nothing is heard before."""
REFRESH_SECS: Final = (3.0, 5.0)
"""The same for one that stands in line and will be called: so that its place stays good, and a call
that was lost is not waited for long."""
LOOK_SECS: Final = (0.101, 0.15)
"""Whoever waits tries so long after another was called that does not come: for 100 ms the books
wait for that one."""
ENDED_SECS: Final = (0.001, 0.01)
"""One that waits for a hold to end tries so soon after."""

_REFUSED_BY: Final = {
    Answer.POOL: RefusedBy.POOL,
    Answer.CEILING: RefusedBy.CEILING,
    Answer.TENANT: RefusedBy.TENANT,
    Answer.KEY: RefusedBy.KEY,
    Answer.NOT_LIVE: RefusedBy.NOBODY,
    Answer.NO_HOLD: RefusedBy.NO_HOLD,
}


class Fleet:
    """One replica's dealings with the books. Lives on the loop of its `Admission`.

    `instance` names this run of this replica; no other run of any replica has the same name.
    `post` takes an answer back to the scheduler. `unavailable` is called when the books did not
    answer, `lapsed` when they say that this replica is not live: before the claims are refused.
    """

    def __init__(
        self,
        slots: Slots,
        instance: str,
        *,
        post: Callable[[ClaimGranted | ClaimRefused | HoldAnswered], None],
        unavailable: Callable[[], None],
        lapsed: Callable[[], None],
        draw: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._slots: Final = slots
        self._instance: Final = instance
        self._post: Final = post
        self._unavailable: Final = unavailable
        self._lapsed: Final = lapsed
        self._draw: Final = draw
        self._claims: list[Claim] = []
        self._releases: list[Release | Unhold] = []
        self._booked: set[int] = set()
        """Requests that may be on the books: claimed, or told of in a heartbeat."""
        self._trips: set[asyncio.Task[None]] = set()
        self._is_due = False
        self.is_listening = False
        """Whether announcements arrive here. Without them nobody can be called."""

    def claim(self, effect: Claim) -> None:
        """Claim a slot, with whatever else this turn of the loop brings."""
        self._claims.append(effect)
        self._booked.add(effect.request)
        self._make_due()

    def release(self, effect: Release) -> None:
        """Give back a slot, if it can be on the books at all."""
        if effect.request in self._booked:
            self._booked.discard(effect.request)
            self._releases.append(effect)
            self._make_due()

    def unhold(self, effect: Unhold) -> None:
        """Have a slot held no more."""
        self._releases.append(effect)
        self._make_due()

    def holdings(self, running: Iterable[Release]) -> list[Holding]:
        """What a heartbeat is to tell; from then on all of it may be on the books."""
        told = list(running)
        self._booked.update(each.request for each in told)
        return [self._holding(each) for each in told]

    async def settled(self) -> None:
        """Returns when everything handed over so far has been carried."""
        while self._trips or self._is_due:
            await asyncio.sleep(0)
            await asyncio.gather(*self._trips, return_exceptions=True)

    def _make_due(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._depart)

    def _depart(self) -> None:
        self._is_due = False
        releases, self._releases = self._releases, []
        claims, self._claims = self._claims, []
        trip = asyncio.get_running_loop().create_task(self._carry(releases, claims))
        self._trips.add(trip)
        trip.add_done_callback(self._trips.discard)

    async def _carry(self, releases: list[Release | Unhold], claims: list[Claim]) -> None:
        try:
            freed, replies = await self._slots.exchange(
                [self._holding(each) for each in releases], [self._slot_claim(c) for c in claims]
            )
        except Exception as error:
            if not isinstance(error, SlotsUnavailable):
                # A fault of ours: as good as no answer, which every claim must have.
                log.exception("slot_calls_failed")
            # What was to be released goes with the next heartbeat, which does not tell of it.
            freed, replies = (), [Reply(Answer.NOT_LIVE)] * len(claims)
            self._unavailable()
        else:
            if any(reply.answer is Answer.NOT_LIVE for reply in replies):
                self._lapsed()
        for release, outcome in zip(releases, freed, strict=False):
            if isinstance(release, Unhold) or release.step is None:
                continue
            if outcome in (Freed.HELD, Freed.REFUSED):
                session = (release.key, release.step.session)
                secs = release.step.hold_secs if outcome is Freed.HELD else None
                self._post(HoldAnswered(release.pool, session, secs, release.step.key))
        for claim, reply in zip(claims, replies, strict=True):
            self._post(self._event(claim, reply))

    def _event(self, claim: Claim, reply: Reply) -> ClaimGranted | ClaimRefused:
        request = claim.request
        now = asyncio.get_running_loop().time()
        if reply.answer is Answer.GRANTED:
            more_at = None if reply.is_more else now + self._pause(reply)
            more_by = self._limit(reply, reply.turn_at or Answer.POOL)
            return ClaimGranted(request, reply.told, more_at, more_by, reply.is_held)
        self._booked.discard(request)
        if reply.turn_at is not None:
            pause = self._draw(*RETRY_SECS) if reply.turn_of else self._pause(reply)
            retry_at = now + pause
            by = self._limit(reply, reply.turn_at)
            return ClaimRefused(request, by, retry_at, reply.told, reply.turn_of)
        pause = self._pause(reply)
        if claim.holds.is_starving:
            # That the pool starves is forgotten unless it is said every second.
            pause = self._draw(*RETRY_SECS)
        if reply.hold_ends is not None:
            pause = min(pause, reply.hold_ends + self._draw(*ENDED_SECS))
        by = self._limit(reply, reply.answer)
        return ClaimRefused(request, by, now + pause, reply.told)

    def _limit(self, reply: Reply, answer: Answer) -> RefusedBy:
        """What stands against a claim. One that goes by the order waits in its pool's line whatever
        the limit was."""
        by = _REFUSED_BY[answer]
        if by is RefusedBy.CEILING and reply.told is not None:
            return RefusedBy.TURN if self.is_listening else RefusedBy.POOL
        return by

    def looks_at(self) -> float:
        """When to look whether a replica that is called just now has come; not all at once."""
        return asyncio.get_running_loop().time() + self._draw(*LOOK_SECS)

    def _pause(self, reply: Reply) -> float:
        stands_in_line = reply.told is not None and self.is_listening
        return self._draw(*(REFRESH_SECS if stands_in_line else RETRY_SECS))

    def _id(self, request: int) -> str:
        return f"{self._instance}:{request}"

    def _holding(self, slot: Release | Unhold) -> Holding:
        if isinstance(slot, Unhold):
            id = wire.hold(slot.pool, slot.key, slot.session)
            return Holding(id, slot.pool, slot.group, slot.tenant, slot.key)
        return Holding(
            self._id(slot.request),
            slot.pool,
            slot.group,
            slot.tenant,
            slot.key,
            slot.refund,
            slot.step,
        )

    def _slot_claim(self, claim: Claim) -> SlotClaim:
        return SlotClaim(
            self._id(claim.request),
            claim.pool,
            claim.group,
            claim.tenant,
            claim.key,
            claim.pool_size,
            claim.ceiling,
            claim.tenant_cap,
            claim.key_cap,
            claim.turn,
            claim.holds,
        )
