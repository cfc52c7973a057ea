"""What the public surface needs from the rest of the data plane, and what it tells."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Protocol

from dataplane.admission.permit import Ask
from shared.policy import KeyPolicy, ModelPolicy


class PolicyLookup(Protocol):
    """Policy as this replica knows it."""

    def cached_key(self, secret: str) -> KeyPolicy | None:
        """The valid key of this secret, if that can be told without waiting."""

    async def key(self, secret: str) -> KeyPolicy:
        """The valid key of this secret. Raises `InvalidApiKey` and `PolicyUnavailable`."""

    def model(self, name: str) -> ModelPolicy | None:
        """The enabled model of this name or alias."""

    def models(self) -> Sequence[ModelPolicy]:
        """The enabled models."""


class Slot(Protocol):
    """An admitted request's right to run, while its block runs."""

    @property
    def admission(self) -> Literal["fast", "queued"]: ...

    @property
    def queue_ms(self) -> float: ...

    @property
    def slot(self) -> Literal["new", "held"]: ...

    def undo(self) -> None:
        """The request is refused after all: what it was charged is taken back with the slot."""

    def fail(self) -> None:
        """The request did not end well: nothing is kept for its session."""


class Admitting(Protocol):
    """Decides who runs next."""

    def admit(self, ask: Ask) -> AbstractAsyncContextManager[Slot]:
        """The slot as a block: entering waits for it and raises a `Refusal` when there is none."""


class Outcome(StrEnum):
    """How a request ended. Every request has exactly one end."""

    ANSWERED = "answered"
    """The upstream's answer was passed on whole, whatever its status."""
    REFUSED = "refused"
    """The gateway answered itself: 4xx, or 5xx without an upstream's answer."""
    BROKEN = "broken"
    """The answer broke off on the upstream's or the gateway's side, and the client was told."""
    CLIENT_LEFT = "client_left"
    CLIENT_STALLED = "client_stalled"
    """The client did not read and was cut off."""


class Figures(StrEnum):
    """Where a request's token figures come from."""

    NONE = "none"
    """Nothing ran, or nothing came."""
    REPORTED = "reported"
    CLAMPED = "clamped"
    """Reported, but absurd, and cut down."""
    ESTIMATED = "estimated"


CLIENT_LEFT_STATUS = 499
"""Recorded where a client left before there was a status to send it."""


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """All that is recorded of one request. No text, no secret."""

    request_id: str
    """As the client may have chosen it: not unique."""
    path: str
    started_at: float
    """Unix seconds."""
    duration_ms: float
    status: int
    """As sent; `CLIENT_LEFT_STATUS` where nothing was."""
    outcome: Outcome
    code: str | None
    """Of the refusal, where there was one."""
    key: KeyPolicy | None
    """None: no valid key."""
    model: str | None
    """A registered name or the unrouted pool's, so that there are few; None: refused before."""
    admission: Literal["fast", "queued", "rejected"]
    slot: Literal["new", "held"] | None
    queue_ms: float | None
    """To its slot, or to giving up; None: it never asked for one."""
    ttfb_ms: float | None
    """From the request's arrival to the first content of its answer."""
    is_stream: bool
    estimated_tokens: int
    """What was charged at admission; 0 where it did not come to that."""
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    figures: Figures
    session: str | None
    """A keyed hash."""
    session_source: Literal["client", "derived", "none"]
    session_was_refused: bool
    """Whether the client gave a session id that could not be used."""
    traceparent: str | None = None
    """The trace the client says it belongs to."""


class Observer(Protocol):
    """Told once about each forwarded request, after it has given back what it held.

    Called on the event loop: neither blocks nor raises.
    """

    def request_finished(self, request: FinishedRequest) -> None: ...
