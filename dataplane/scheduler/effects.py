"""What the scheduler wants done. It is for the caller to do it, in order."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dataplane.scheduler.holds import NO_TERMS, HoldTerms, StepEnd
from dataplane.scheduler.standing import Charges, Turn


class RejectReason(StrEnum):
    """Why a request that waited will never run."""

    TIMED_OUT = "timed_out"
    MODEL_GONE = "model_gone"
    KEY_GONE = "key_gone"


@dataclass(frozen=True, slots=True)
class Admit:
    """The request has a slot now, until `Finished` or `Left` says otherwise."""

    request: int
    fast: bool
    """Whether it was admitted as it arrived, ahead of nobody."""
    waited: float
    """Seconds since it arrived."""
    held: bool = False
    """Whether it took the slot that was held for its session."""


@dataclass(frozen=True, slots=True)
class Reject:
    """The request is out of its queue, uncharged."""

    request: int
    reason: RejectReason
    waited: float
    """Seconds since it arrived."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Ask the fleet for a slot; answered by `ClaimGranted` or `ClaimRefused`, whatever happens."""

    request: int
    pool: str
    group: str
    tenant: str
    key: str
    pool_size: int
    ceiling: int
    tenant_cap: int | None
    key_cap: int | None
    turn: Turn | None = None
    """None where the fleet goes by no order."""
    holds: HoldTerms = NO_TERMS


@dataclass(frozen=True, slots=True)
class Release:
    """A slot is free; where the fleet has it on its books, it is to be given back."""

    request: int
    pool: str
    group: str
    tenant: str
    key: str
    refund: Charges | None = None
    """What its request is given back of what it was charged: it never ran."""
    step: StepEnd | None = None
    """What session's step has ended in it, where the fleet may hold it for the next."""


@dataclass(frozen=True, slots=True)
class Unhold:
    """A slot that the fleet holds since this replica gave it back is to be held no more."""

    pool: str
    group: str
    tenant: str
    key: str
    session: str


class AffinityEvent(StrEnum):
    """What session affinity did."""

    WARM = "warm"
    """A warm session's request went ahead of an older one of its key."""
    HOLD = "hold"
    """A slot was held for a session's next step."""
    REDEEM = "redeem"
    """That step took it."""
    EXPIRE = "expire"
    """No step came in time."""
    REFUSED = "refused"
    """A slot would have been held, but for a limit."""
    FREED_STARVING = "freed_starving"
    """A held slot was freed for a request that had been passed for too long or too often."""


@dataclass(frozen=True, slots=True)
class Noted:
    """To be counted, and nothing more."""

    model: str
    event: AffinityEvent


Effect = Admit | Reject | Claim | Release | Unhold | Noted
