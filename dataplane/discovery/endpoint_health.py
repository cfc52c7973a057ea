"""The health of every endpoint, as this replica sees it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import structlog

from dataplane.discovery.health import Health, Record, Sign, after
from shared.policy import EndpointPolicy, ModelPolicy

log = structlog.stdlib.get_logger(__name__)

FAILED_STATUSES: Final = frozenset({502, 503, 504})
"""Answers to a call by which an endpoint says that nobody is there to do it. Not 500, which a
client's request may have brought about, nor 429 and 529: who is busy is well."""
_FAILED_OUTCOMES: Final = frozenset({"unreachable", "timed_out", "broken"})

_UNKNOWN: Final = Record()


class EndpointHealth:
    """Keeps a record for each endpoint of a model. Lives on one event loop.

    `changed` is called when an endpoint becomes healthy or unhealthy. `clock`: seconds, from any
    beginning.
    """

    def __init__(
        self,
        models: Callable[[], Iterable[ModelPolicy]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._models: Final = models
        self._clock: Final = clock
        self._records: dict[str, tuple[EndpointPolicy, Record]] = {}
        self._listeners: list[Callable[[], None]] = []

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever an endpoint becomes healthy or unhealthy."""
        self._listeners.append(changed)

    def of(self, endpoint: EndpointPolicy) -> Health:
        """How an endpoint is; one at a new address is unknown again."""
        known = self._records.get(endpoint.id)
        if known is None or not _is_same_place(known[0], endpoint):
            return Health.UNKNOWN
        return known[1].health

    def is_usable(self, endpoint: EndpointPolicy) -> bool:
        """Whether calls go to an endpoint in its turn; others are called when no such one is."""
        return self.of(endpoint) is not Health.UNHEALTHY

    def attempted(self, endpoint: EndpointPolicy, outcome: str, status: int | None) -> None:
        """A client's request was sent to an endpoint; see `forward.Attempted` for the outcome."""
        if outcome in _FAILED_OUTCOMES or status in FAILED_STATUSES:
            self.see(endpoint, Sign.CALL_FAILED)
        elif outcome == "answered":
            self.see(endpoint, Sign.CALL_ANSWERED)

    def see(self, endpoint: EndpointPolicy, sign: Sign, detail: str = "") -> None:
        """Note a sign. `detail` tells operators more about it."""
        known = self._records.get(endpoint.id)
        before = known[1] if known is not None and _is_same_place(known[0], endpoint) else _UNKNOWN
        record = after(before, sign, self._clock())
        self._records[endpoint.id] = (endpoint, record)
        if record.health is not before.health:
            self._tell(endpoint, record.health, detail or sign.value)

    def policy_changed(self) -> None:
        """Models or endpoints were changed: forget those that are gone."""
        current = {each.id for model in self._models() for each in model.endpoints}
        self._records = {id: known for id, known in self._records.items() if id in current}

    def shown(self) -> Mapping[str, Health]:
        """The health of every endpoint that is in use and known, by its id."""
        found = {}
        for model in self._models():
            for endpoint in model.endpoints:
                if endpoint.enabled and (health := self.of(endpoint)) is not Health.UNKNOWN:
                    found[endpoint.id] = health
        return found

    def _tell(self, endpoint: EndpointPolicy, health: Health, reason: str) -> None:
        tell = log.warning if health is Health.UNHEALTHY else log.info
        tell(f"endpoint_{health}", endpoint_id=endpoint.id, url=endpoint.url, because=reason)
        for model in self._models():
            mine = [each for each in model.endpoints if each.enabled]
            if endpoint.id in (each.id for each in mine) and not any(map(self.is_usable, mine)):
                log.warning("no_healthy_endpoint", model=model.name, consequence="all are tried")
        for changed in self._listeners:
            changed()


def _is_same_place(one: EndpointPolicy, other: EndpointPolicy) -> bool:
    return one is other or (one.url, one.api_key) == (other.url, other.api_key)
