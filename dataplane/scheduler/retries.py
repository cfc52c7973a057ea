"""When whoever the fleet refused may claim again if nothing is heard before."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Final

from dataplane.scheduler.fairness import Node
from dataplane.scheduler.state import Pool

Whose = tuple[Pool | None, Node | None]
"""A pool's tenant or key, a pool, or everybody."""


class Retries:
    """One moment for each of them: tries that were due before and came to nothing do not add up."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Whose]] = []
        self._at: dict[Whose, float] = {}
        """The moment that is meant; others in the heap are not any more."""
        self._ticks: Final = itertools.count()

    @property
    def next(self) -> float | None:
        """When the first one is due, or one that is not meant any more was."""
        return self._heap[0][0] if self._heap else None

    def put(self, whose: Whose, at: float) -> None:
        """These may claim again at this moment, and not before."""
        self._at[whose] = at
        heappush(self._heap, (at, next(self._ticks), whose))

    def hurry(self, whose: Whose, at: float) -> None:
        """If these wait for their moment, it is this one at the latest."""
        if self._at.get(whose, at) > at:
            self.put(whose, at)

    def drop(self, whose: Whose) -> None:
        """These may claim again already."""
        self._at.pop(whose, None)

    def clear(self) -> None:
        """Everybody may."""
        self._heap.clear()
        self._at.clear()

    def due(self, now: float) -> Iterator[Whose]:
        """Those who may claim again by now."""
        while self._heap and self._heap[0][0] <= now:
            at, _, whose = heappop(self._heap)
            if self._at.get(whose) == at:
                yield whose
