"""Whether every change has been heard of, told by the numbers of the changes."""

from __future__ import annotations

from typing import Final

from shared.invalidation import Invalidation, Kind

AHEAD_MAX: Final = 1_000
"""Invalidations kept that arrived before one of a lower number. Beyond it a gap is assumed."""


class Revisions:
    """The number up to which every change is known. Invalidations may be lost, doubled or late."""

    def __init__(self) -> None:
        self.known: int | None = None
        """None until the stored revision was read once."""
        self._ahead: set[int] = set()

    def heard(self, change: Invalidation) -> None:
        """An invalidation arrived and was acted upon."""
        if self.known is None:
            return
        if change.kind is Kind.ALL:  # covers every change before it
            self._reached(max(self.known, change.revision))
        elif change.revision > self.known and len(self._ahead) < AHEAD_MAX:
            self._ahead.add(change.revision)
            self._reached(self.known)

    def missed(self, stored: int, known_before: int | None) -> bool:
        """Whether the stored revision shows a change nobody told of; if so, from now on it is known
        and the caller forgets everything.

        `known_before` is what was known when the reading of `stored` began: a stored number below
        even that is a database put back to an earlier state.
        """
        if self.known is None:
            self._reached(stored)
            return False
        if known_before is not None and known_before <= stored <= self.known:
            return False
        self._reached(stored)
        return True

    def _reached(self, revision: int) -> None:
        while revision + 1 in self._ahead:
            revision += 1
        self.known = revision
        self._ahead = {one for one in self._ahead if one > revision}
