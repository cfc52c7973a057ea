"""What admission needs of whatever keeps the fleet's slots.

A slot is on the books under the id of its claim. Claiming an id twice, releasing one that is not
there, or asserting one that is, changes nothing: so a call whose answer was lost may be repeated,
and a late one does no harm. Nothing here retries by itself; a call that has no answer in time is
`SlotsUnavailable`, and what it did is found out by the next heartbeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from dataplane.scheduler.holds import NO_TERMS, HoldTerms, StepEnd
from dataplane.scheduler.standing import Charges, Told, Turn


class Answer(StrEnum):
    """What became of a claim. Everything but `GRANTED` leaves the books as they were."""

    GRANTED = "granted"
    NOT_LIVE = "not_live"
    """The replica's own heartbeat has lapsed: it must be heard of again before it may claim."""
    POOL = "pool"
    CEILING = "ceiling"
    TENANT = "tenant"
    KEY = "key"
    NOT_YOUR_TURN = "not_your_turn"
    """There is a slot, and another replica's waiter comes first; that replica has been called."""
    NO_HOLD = "no_hold"
    """It was for the slot held for its session alone, and none is."""


class Freed(StrEnum):
    """What became of a release."""

    GONE = "gone"
    """The slot was not on the books."""
    RELEASED = "released"
    HELD = "held"
    """It is held for the next step of its session, and not this replica's any more."""
    REFUSED = "refused"
    """It was released; it would have been held, but for a limit."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of a claim, and what was learned with it."""

    answer: Answer
    is_more: bool = True
    """If it was granted: whether another slot is free, for this replica as far as is known."""
    is_held: bool = False
    """If it was granted: whether the slot was held for its session."""
    hold_ends: float | None = None
    """If a limit is reached: seconds until the first hold in the pool, or at the ceiling, ends;
    None: nothing is held there."""
    turn_at: Answer | None = None
    """The limit at which it was not its turn, or if it was granted at which there is no other."""
    turn_of: tuple[str, str] | None = None
    """The tenant and key whose turn it is instead, if they wait at this replica."""
    told: Told | None = None


class Exchanged(NamedTuple):
    """What became of each release and each claim, in order."""

    releases: Sequence[Freed]
    claims: Sequence[Reply]


@dataclass(frozen=True, slots=True)
class Claim:
    """One slot, wanted for one request. Limits are as configured, never divided."""

    id: str
    """Unique over all replicas and their restarts."""
    pool: str
    group: str
    tenant: str
    key: str
    pool_size: int
    ceiling: int
    tenant_cap: int | None = None
    key_cap: int | None = None
    turn: Turn | None = None
    """None: it goes by no order, and is granted whatever is free."""
    holds: HoldTerms = NO_TERMS


@dataclass(frozen=True, slots=True)
class Holding:
    """One slot that a replica's request runs in, and everything it counts against."""

    id: str
    pool: str
    group: str
    tenant: str
    key: str
    refund: Charges | None = None
    """If it is released: what its request is given back of its charge."""
    step: StepEnd | None = None
    """If it is released: what session's step has ended in it, where that counts."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What a heartbeat learned."""

    live: tuple[str, ...]
    """The replicas heard of within their time to live, this one included, sorted."""
    reclaimed: int
    """Slots of expired replicas that were taken back."""
    repaired: int
    """Holdings of this replica that the books had lost, and what they had for it that it never
    knew of. What it held without the books before, or does from now on, is no repair."""
    asserted: tuple[str, ...] = ()
    """The live replicas whose holdings are on the books, all of them and at any moment: each takes
    slots by claims only, and asserted what it had when it began to. A replica that is alone is
    never among them, nor one that keeps its books elsewhere."""
    lapsed: bool = False
    """Until this call the books did not know this replica as live: it is new, it had been silent
    for longer than its time to live, or the books were lost."""


class SlotsUnavailable(Exception):
    """The books cannot be reached, or did not answer in time."""


class Slots(Protocol):
    """The fleet's books, as one replica sees them."""

    async def exchange(self, releases: Sequence[Holding], claims: Sequence[Claim]) -> Exchanged:
        """Release, then claim, in one round trip.

        Raises `SlotsUnavailable`; then any part may have been done or not, and the next heartbeat
        puts right what was: it takes back claims that nobody holds, and releases what is not held
        any more. The same goes for a call that is cancelled. So a caller whose own task may be
        cancelled shields the call and looks at the answers in the task that made it; a claim that
        is granted to nobody is released like any other.
        """
        ...

    async def heartbeat(self, holdings: Sequence[Holding], *, complete: bool = True) -> Heard:
        """Say that this replica lives and what it holds; take back what the dead held.

        Whatever the books have for this replica and `holdings` does not name is released, except
        claims made since the last call began. `complete` says that from the moment `holdings` was
        read on, nothing is admitted here without a claim; only then does this replica count as
        asserted, and only then may it claim. One call at a time. Raises `SlotsUnavailable`.
        """
        ...

    async def leave(self, holdings: Sequence[Holding]) -> None:
        """A clean end: nothing of this replica stays on the books. Raises `SlotsUnavailable`."""
        ...
