"""Who got how much while everybody wanted more.

A share says something about fairness only while every tenant has a request waiting: one that has
none gets less because it asks for less. So shares are counted over exactly those stretches of time.
A request that lies partly inside counts by the part of its service that does.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Service:
    """What one request took: from its slot to its last byte, and its tokens."""

    tenant: str
    interval: Interval
    tokens: int


@dataclass(frozen=True, slots=True)
class Part:
    """One tenant's part of what was served inside the stretches, as fractions of 1."""

    tokens: float
    slots: float
    """Of slot time."""


class Stretches:
    """Disjoint stretches of time, in order."""

    def __init__(self, intervals: Sequence[Interval]) -> None:
        self._starts = [start for start, _ in intervals]
        self._ends = [end for _, end in intervals]
        lengths = (end - start for start, end in intervals)
        self._before = [0.0, *accumulate(lengths)]

    @property
    def total(self) -> float:
        """Seconds in all."""
        return self._before[-1]

    def inside(self, interval: Interval) -> float:
        """How many seconds of an interval lie inside."""
        return self._until(interval[1]) - self._until(interval[0])

    def _until(self, moment: float) -> float:
        index = bisect_right(self._starts, moment)
        if not index:
            return 0.0
        return (
            self._before[index - 1] + min(moment, self._ends[index - 1]) - self._starts[index - 1]
        )


def while_all_wait(waits: Iterable[tuple[str, Interval]], tenants: Sequence[str]) -> Stretches:
    """The stretches in which each of the tenants had at least one request waiting."""
    edges = []
    for tenant, (start, end) in waits:
        if end > start:
            edges += [(start, 1, tenant), (end, -1, tenant)]
    edges.sort()
    waiting = dict.fromkeys(tenants, 0)
    found: list[Interval] = []
    began: float | None = None
    for moment, change, tenant in edges:
        waiting[tenant] += change
        everyone = all(waiting.values())
        if everyone and began is None:
            began = moment
        elif not everyone and began is not None:
            if moment > began:
                found.append((began, moment))
            began = None
    return Stretches(found)


def parts(
    services: Iterable[Service], tenants: Sequence[str], stretches: Stretches
) -> dict[str, Part]:
    """Each tenant's part of the tokens and of the slot time inside the stretches."""
    tokens = dict.fromkeys(tenants, 0.0)
    slots = dict.fromkeys(tenants, 0.0)
    for service in services:
        seconds = stretches.inside(service.interval)
        if seconds > 0:
            start, end = service.interval
            slots[service.tenant] += seconds
            tokens[service.tenant] += service.tokens * seconds / (end - start)
    all_tokens = sum(tokens.values()) or 1.0
    all_slots = sum(slots.values()) or 1.0
    return {
        tenant: Part(tokens[tenant] / all_tokens, slots[tenant] / all_slots) for tenant in tenants
    }
