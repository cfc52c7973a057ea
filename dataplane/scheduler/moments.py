"""Moments at which something is to be done unless it is done, or off the table, before."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator
from heapq import heappop, heappush
from typing import Final, Generic, TypeVar

What = TypeVar("What", bound=Hashable)


class Moments(Generic[What]):
    """One for each thing: moments that were put before and came to nothing do not add up."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, What]] = []
        self._at: dict[What, float] = {}
        """The moment that is meant; others in the heap are not any more."""
        self._ticks: Final = itertools.count()

    @property
    def next(self) -> float | None:
        """When the first one is due."""
        while self._heap and self._at.get(self._heap[0][2]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def put(self, what: What, at: float) -> None:
        """This is due at this moment, and not before."""
        self._at[what] = at
        heappush(self._heap, (at, next(self._ticks), what))

    def drop(self, what: What) -> None:
        """This is not due any more."""
        self._at.pop(what, None)

    def clear(self) -> None:
        """Nothing is."""
        self._heap.clear()
        self._at.clear()

    def due(self, now: float) -> Iterator[What]:
        """What is due by now, each once."""
        while self._heap and self._heap[0][0] <= now:
            at, _, what = heappop(self._heap)
            if self._at.get(what) == at:
                del self._at[what]
                yield what
