"""Which of a model's endpoints is called, and in which order the others follow when it fails.

Endpoints of the lowest priority number come first; a model's load balancing orders those that share
a number. Behind all of them go those at their own cap, and behind these those that are unhealthy:
such a one is called only when every other has failed or is none. No I/O and no clock; what it
remembers is what runs where, and whose turn it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Final

from shared.policy import EndpointPolicy, LoadBalancing

REMEMBERED_MAX: Final = 10_000
"""Endpoints whose turns are remembered; beyond it the turns start anew."""


class EndpointChoice:
    """One for all models. Endpoints are told apart by their id; `is_usable` is their health."""

    def __init__(self, is_usable: Callable[[EndpointPolicy], bool] = lambda endpoint: True) -> None:
        self._is_usable = is_usable
        self._in_flight: Counter[str] = Counter()
        self._turns: dict[str, int] = {}

    def in_flight(self, endpoint_id: str) -> int:
        """Calls under way to an endpoint, from this replica."""
        return self._in_flight[endpoint_id]

    @contextmanager
    def calling(self, endpoint: EndpointPolicy) -> Iterator[None]:
        """Counts a call to an endpoint for as long as the block runs."""
        self._in_flight[endpoint.id] += 1
        try:
            yield
        finally:
            self._in_flight[endpoint.id] -= 1
            if not self._in_flight[endpoint.id]:
                del self._in_flight[endpoint.id]

    def order(
        self, endpoints: Sequence[EndpointPolicy], balancing: LoadBalancing
    ) -> list[EndpointPolicy]:
        """Enabled endpoints, the one to call first, then those to fall back on."""
        enabled = [each for each in endpoints if each.enabled]
        if len(enabled) < 2:
            return enabled
        enabled.sort(key=self._rank)
        kinds = [list(kind) for _, kind in groupby(enabled, key=self._rank)]
        ordered = []
        for index, kind in enumerate(kinds):
            match balancing:
                case LoadBalancing.ROUND_ROBIN if index == 0:
                    kind = self._by_turn(kind)
                case LoadBalancing.LEAST_IN_FLIGHT:
                    kind.sort(key=lambda each: self._in_flight[each.id] / max(each.weight, 1))
            ordered += kind
        return ordered

    def _rank(self, endpoint: EndpointPolicy) -> tuple[bool, bool, int]:
        return (not self._is_usable(endpoint), self._is_full(endpoint), endpoint.priority)

    def _is_full(self, endpoint: EndpointPolicy) -> bool:
        cap = endpoint.max_in_flight
        return cap is not None and self._in_flight[endpoint.id] >= cap

    def _by_turn(self, alike: list[EndpointPolicy]) -> list[EndpointPolicy]:
        """Smooth weighted turns: each gains its weight, whoever has most goes and pays for all.

        Over any run of calls each gets its part by weight, spread out rather than in bursts.
        """
        if len(self._turns) > REMEMBERED_MAX:
            self._turns.clear()
        for each in alike:
            self._turns[each.id] = self._turns.get(each.id, 0) + each.weight
        ordered = sorted(alike, key=lambda each: -self._turns[each.id])
        self._turns[ordered[0].id] -= sum(each.weight for each in alike)
        return ordered
