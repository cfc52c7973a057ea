"""Slots held for sessions where they belong to the fleet: what goes with a claim and with a
release, and what this replica knows of the holds it made.

The fleet's books decide and keep the holds; one that is made there is not this replica's any more,
and nothing here is decided by it. A replica remembers those it made for the live picture alone:
until it hears that one has ended, or its time is up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from shared.policy import KeyPolicy


@dataclass(frozen=True, slots=True)
class HoldTerms:
    """What a claim says of holds in its pool."""

    session: str | None = None
    """Whose hold it may take; None: none."""
    is_only: bool = False
    """It is for that hold alone: ahead of the queue, and for no other slot."""
    most: int = 0
    """How many of the pool's slots may be held; what is held beyond is freed."""
    is_starving: bool = False
    """A request has waited for too long to be passed: the pool's holds are freed, and none is made
    until such claims have stopped for a second."""


NO_TERMS: Final = HoldTerms()
"""Of a pool in which sessions count for nothing: nothing may be held there."""


@dataclass(frozen=True, slots=True)
class StepEnd:
    """What goes with the release of a step's slot, so that it may be held instead. Times in
    seconds; limits as configured."""

    session: str
    age: float
    """Since the step arrived: whether it followed the one before is for the books to say."""
    hold_secs: float
    life_secs: float
    """How long the books remember that it finished."""
    is_wanted: bool
    """Whether it ended well and no later step has been seen."""
    most: int
    """How many of the pool's slots may be held."""
    max_jumps: int
    """How many may be held for the session in a row while others wait."""
    pool_size: int
    ceiling: int
    tenant_cap: int | None
    key_cap: int | None
    key: KeyPolicy
    """Whose step it was, for whoever looks on."""


class FleetHold(NamedTuple):
    """A slot that the fleet holds since this replica gave it back."""

    ends: float
    key: KeyPolicy
