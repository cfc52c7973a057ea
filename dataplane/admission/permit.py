"""A slot as a block of code: entered when the slot is there, left when it is given back."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Self

from dataplane.errors import Refusal
from dataplane.scheduler.effects import Admit
from shared.policy import KeyPolicy, ModelPolicy

if TYPE_CHECKING:
    from dataplane.admission.owner import Admission


@dataclass(frozen=True, slots=True)
class Ask:
    """What a request wants admission for."""

    key: KeyPolicy
    model: ModelPolicy | None
    """None: the pool that unregistered names share."""
    tokens: int
    """Its estimate."""
    session: str | None = None


class Permit:
    """The right to one slot, for as long as its block runs.

    `async with admission.admit(ask) as permit:` waits for the slot and raises a `Refusal` if there
    is none to be had; leaving the block gives the slot back, once, on every path out. The task may
    be cancelled at any moment: a request that waits is dropped uncharged, and a slot that was
    granted in the same turn of the loop goes on to the next waiter. A permit is entered once.
    """

    __slots__ = (
        "_ask",
        "_failed",
        "_future",
        "_outcome",
        "_owner",
        "_undone",
        "admission",
        "queue_ms",
        "request",
    )

    def __init__(self, owner: Admission, ask: Ask, request: int) -> None:
        self._owner: Final = owner
        self._ask: Final = ask
        self._future: asyncio.Future[None] | None = None
        self._outcome: Admit | Refusal | None = None
        self._undone = False
        self._failed = False
        self.request: Final = request
        self.admission: Literal["fast", "queued"] = "queued"
        self.queue_ms = 0.0
        """How long it waited, in milliseconds."""

    @property
    def ask(self) -> Ask:
        return self._ask

    @property
    def slot(self) -> Literal["new", "held"]:
        """Whether the slot was free or had been held for the request's session."""
        return "held" if isinstance(self._outcome, Admit) and self._outcome.held else "new"

    def undo(self) -> None:
        """The request is refused after all: what it was charged is taken back with the slot."""
        self._undone = True

    @property
    def has_failed(self) -> bool:
        """Whether its request did not end well."""
        return self._failed

    def fail(self) -> None:
        """The request did not end well: nothing is to be kept for its session."""
        self._failed = True

    def decide(self, outcome: Admit | Refusal) -> None:
        """For the owner alone: the request's outcome, once."""
        assert self._outcome is None, "a request is decided once"
        self._outcome = outcome
        if isinstance(outcome, Admit):
            self.admission = "fast" if outcome.fast else "queued"
            self.queue_ms = outcome.waited * 1000
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def __aenter__(self) -> Self:
        self._owner.arrive(self)
        if self._outcome is None:
            self._future = asyncio.get_running_loop().create_future()
            try:
                await self._future
            except asyncio.CancelledError:
                # The grant may have landed already: whichever it was, the scheduler knows.
                self._owner.leave(self)
                raise
        if isinstance(self._outcome, Refusal):
            raise self._outcome
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._failed = self._failed or error is not None
        if self._undone:
            self._owner.leave(self)
        else:
            self._owner.finish(self)
