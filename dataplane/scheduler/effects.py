"""What the scheduler wants done. It is for the caller to do it, in order."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
    tenant: str
    key: str
    pool_size: int
    ceiling: int
    tenant_cap: int | None
    key_cap: int | None


@dataclass(frozen=True, slots=True)
class Release:
    """A slot is free; where the fleet has it on its books, it is to be given back."""

    request: int
    pool: str
    tenant: str
    key: str


Effect = Admit | Reject | Claim | Release
