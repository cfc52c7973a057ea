"""Which of a model's endpoints is called, and in which order the others follow when it fails.

Endpoints of the lowest priority number come first; a model's load balancing orders those that share
a number. An endpoint at its own cap goes behind the others of its kind. No I/O and no clock; what
it remembers is what runs where, and whose turn it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Final

from shared.policy import EndpointPolicy, LoadBalancing

REMEMBERED_MAX: Final = 10_000
"""Endpoints whose turns are remembered; beyond it the turns start anew."""


class EndpointChoice:
    """One for all models. Endpoints are told apart by their id."""

    def __init__(self) -> None:
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
        enabled.sort(key=lambda each: each.priority)
        tiers = [list(tier) for _, tier in groupby(enabled, key=lambda each: each.priority)]
        ordered = []
        for index, tier in enumerate(tiers):
            match balancing:
                case LoadBalancing.ROUND_ROBIN if index == 0:
                    tier = self._by_turn(tier)
                case LoadBalancing.LEAST_IN_FLIGHT:
                    tier.sort(key=lambda each: self._in_flight[each.id] / max(each.weight, 1))
            tier.sort(key=self._is_full)
            ordered += tier
        return ordered

    def _is_full(self, endpoint: EndpointPolicy) -> bool:
        cap = endpoint.max_in_flight
        return cap is not None and self._in_flight[endpoint.id] >= cap

    def _by_turn(self, tier: list[EndpointPolicy]) -> list[EndpointPolicy]:
        """Smooth weighted turns: each gains its weight, whoever has most goes and pays for all.

        Over any run of calls each gets its part by weight, spread out rather than in bursts.
        """
        if len(self._turns) > REMEMBERED_MAX:
            self._turns.clear()
        for each in tier:
            self._turns[each.id] = self._turns.get(each.id, 0) + each.weight
        ordered = sorted(tier, key=lambda each: -self._turns[each.id])
        self._turns[ordered[0].id] -= sum(each.weight for each in tier)
        return ordered
