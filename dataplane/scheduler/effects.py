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


Effect = Admit | Reject
