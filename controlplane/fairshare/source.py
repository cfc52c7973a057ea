"""Where the live picture comes from. The data plane's side of it is put in by whoever composes the
process; this plane only asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from shared.live_state import History, LiveState, Newcomer, Outlook, ReplicaState


class UnknownReplica(Exception):
    """No live replica has that name."""


class UnknownModel(Exception):
    """The replica that was asked knows no model of that name."""


class NobodyAnswers(Exception):
    """There is nothing to answer from; the message says why."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The live replicas, in name order."""

    replicas: Sequence[ReplicaState]
    reason: str | None = None
    """Why this may not be all there is to know."""


class LiveSource(Protocol):
    """What answers for the data plane."""

    async def state(self, replica: str | None) -> LiveState:
        """Now, as that replica sees it, or one of them.

        Raises `UnknownReplica`, `NobodyAnswers`.
        """
        ...

    async def history(self, replica: str | None, model: str | None, since_ms: int) -> History:
        """Raises `UnknownReplica`, `UnknownModel`, `NobodyAnswers`."""
        ...

    async def fleet(self) -> Fleet:
        """Raises `NobodyAnswers`."""
        ...

    def outlook(self, state: LiveState, newcomer: Newcomer) -> Outlook:
        """What would become of a request, as things stand."""
        ...

    async def stop(self) -> None:
        """Close what is connected."""
        ...


class NoReplicas:
    """For a control plane that cannot find any."""

    _REASON = "replicas are found through Redis: set OBLETH_REDIS_URL, the same as theirs"

    async def state(self, replica: str | None) -> LiveState:
        raise NobodyAnswers(self._REASON)

    async def history(self, replica: str | None, model: str | None, since_ms: int) -> History:
        raise NobodyAnswers(self._REASON)

    async def fleet(self) -> Fleet:
        raise NobodyAnswers(self._REASON)

    def outlook(self, state: LiveState, newcomer: Newcomer) -> Outlook:
        raise NobodyAnswers(self._REASON)

    async def stop(self) -> None:
        pass
