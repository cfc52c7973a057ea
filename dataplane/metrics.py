"""What Prometheus is told about this process.

The `model` label only ever takes the names of registered models and `(unrouted)`: whatever clients
ask for, the number of series stays bounded. Counters of a model that is deleted later stay until
the process ends, so that sums never fall. Gauges are not kept but read when they are asked for, so
they cannot drift from what they measure. Each process has its own registry: the sum over all
processes' listeners is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from shared.policy import UNROUTED

MODES: Final = ("shared", "fallback", "split", "local")
REPAIRS: Final = ("reclaimed", "reasserted")
"""Kinds: what a replica held that died, and what the books had lost."""
_WAIT_BUCKETS: Final = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120)
_POOL_GAUGES: Final = (
    ("obleth_in_flight", "Requests running.", "in_flight"),
    ("obleth_queue_depth", "Requests waiting for a slot.", "queued"),
    ("obleth_held_slots", "Free slots kept for a session.", "held"),
    ("obleth_pool_size", "Slots, as enforced now.", "size"),
)
"""Names, documentation and fields of `PoolFigures`."""
_SLOT_CALL_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
_REQUEST_BUCKETS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


@dataclass(frozen=True, slots=True)
class PoolFigures:
    """One pool as the gauges show it."""

    model: str
    """The registered name, or `(unrouted)`."""
    size: int
    in_flight: int
    queued: int
    held: int


@dataclass(frozen=True, slots=True)
class FleetFigures:
    """How this replica shares limits with others."""

    mode: str = "local"
    replicas: int = 1
    heartbeat_age_secs: float | None = None
    """Since a heartbeat was last answered; None: there is no fleet."""


@dataclass(frozen=True, slots=True)
class _Series:
    """The series of one model, looked up once: naming labels costs more than counting."""

    queue_wait: Histogram
    first_byte: Histogram
    request: Histogram
    input_tokens: Counter
    output_tokens: Counter
    requests: dict[tuple[str, int], Counter] = field(default_factory=dict)
    attempts: dict[str, Counter] = field(default_factory=dict)


class Metrics:
    """The process's metrics. `is_registered` says whether a name is a registered model's own;
    `pools`, `fleet` and `endpoints` (how many, by model and health) are called at each scrape.
    """

    def __init__(
        self,
        *,
        is_registered: Callable[[str], bool],
        pools: Callable[[], Iterable[PoolFigures]],
        fleet: Callable[[], FleetFigures] = FleetFigures,
        endpoints: Callable[[], Mapping[tuple[str, str], int]] = dict,
    ) -> None:
        # One more series for each counter, of no use to rates, and switched off only for all.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._is_registered = is_registered
        self._series: dict[str, _Series] = {}
        self._requests = self._counter(
            "obleth_requests_total",
            "Finished requests; status 499: the client left before there was one.",
            *("model", "admission", "status"),
        )
        self._queue_wait = self._histogram(
            "obleth_queue_wait_seconds",
            "From a request's arrival at the scheduler to its slot, or to giving up.",
            _WAIT_BUCKETS,
        )
        self._first_byte = self._histogram(
            "obleth_time_to_first_byte_seconds",
            "From a request's arrival to the first content of its answer.",
            _REQUEST_BUCKETS,
        )
        self._request = self._histogram(
            "obleth_request_seconds", "From a request's arrival to its end.", _REQUEST_BUCKETS
        )
        self._input_tokens = self._counter(
            "obleth_input_tokens_total", "Prompt tokens used.", "model"
        )
        self._output_tokens = self._counter(
            "obleth_output_tokens_total", "Completion tokens used.", "model"
        )
        self._attempts = self._counter(
            "obleth_upstream_attempts_total",
            "Calls to upstreams, first tries and later ones.",
            *("model", "outcome"),
        )
        self._affinity = self._counter(
            "obleth_fairshare_affinity_total",
            "What session affinity did: warm sessions that went ahead, slots held, taken, run out,"
            " not held for a limit, and freed for whoever starved.",
            *("model", "event"),
        )
        self._repairs = self._repair_counter()
        self._slot_calls = self._counter(
            "obleth_slot_calls_total",
            "Calls of the scripts that keep the slots' books in Redis, by whether there was an"
            " answer in time.",
            *("script", "outcome"),
        )
        self._slot_call_seconds = Histogram(
            "obleth_slot_call_seconds",
            "From sending such a call to its answer, or to giving up.",
            ("script",),
            buckets=_SLOT_CALL_BUCKETS,
            registry=self.registry,
        )
        self._usage_dropped = self._counter(
            "obleth_usage_rows_dropped_total", "Usage rows lost because they could not be written."
        )
        self.registry.register(_Gauges(pools, fleet, endpoints))
        ProcessCollector(registry=self.registry)

    def request_finished(
        self,
        model: str | None,
        *,
        admission: str,
        status: int,
        queue_secs: float | None,
        first_byte_secs: float | None,
        duration_secs: float,
        input_tokens: int,
        output_tokens: int,
    ) -> None:
        """A request has ended; `model` None: it was refused before its model was known."""
        label, series = self._of(model)
        requests = series.requests.get((admission, status))
        if requests is None:
            requests = self._requests.labels(label, admission, str(status))
            series.requests[admission, status] = requests
        requests.inc()
        if queue_secs is not None:
            series.queue_wait.observe(queue_secs)
        if first_byte_secs is not None:
            series.first_byte.observe(first_byte_secs)
        series.request.observe(duration_secs)
        series.input_tokens.inc(input_tokens)
        series.output_tokens.inc(output_tokens)

    def upstream_attempted(self, model: str, outcome: str) -> None:
        """An upstream was called."""
        label, series = self._of(model)
        attempts = series.attempts.get(outcome)
        if attempts is None:
            attempts = series.attempts[outcome] = self._attempts.labels(label, outcome)
        attempts.inc()

    def affinity_happened(self, model: str, event: str) -> None:
        """Session affinity did something. `event` is one out of a fixed set."""
        self._affinity.labels(self._label(model), event).inc()

    def repaired(self, kind: str, count: int = 1) -> None:
        """Something was put right, `count` times. `kind` names what, out of a fixed set."""
        self._repairs.labels(kind).inc(count)

    def slots_called(self, script: str, outcome: str, secs: float) -> None:
        """A script was run on the slots' books. Both names are out of fixed sets."""
        self._slot_calls.labels(script, outcome).inc()
        self._slot_call_seconds.labels(script).observe(secs)

    def usage_dropped(self, count: int) -> None:
        """Usage rows were lost."""
        self._usage_dropped.inc(count)

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """All of it in the format that suits an `Accept` header, and that format's media type.

        Call it on the event loop: the gauges read what lives there.
        """
        encode, media_type = choose_encoder(accept)
        return encode(self.registry), media_type

    def _counter(self, name: str, documentation: str, *labels: str) -> Counter:
        return Counter(name, documentation, labels, registry=self.registry)

    def _repair_counter(self) -> Counter:
        """It is there from the start: one that began with the first repair would have no increase
        to alert on."""
        counter = self._counter(
            "obleth_repairs_total", "Counts put right that should not have been wrong.", "kind"
        )
        for kind in REPAIRS:
            counter.labels(kind)
        return counter

    def _histogram(self, name: str, documentation: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(name, documentation, ("model",), buckets=buckets, registry=self.registry)

    def _of(self, model: str | None) -> tuple[str, _Series]:
        label = model if model is not None and model in self._series else self._label(model)
        series = self._series.get(label)
        if series is None:
            series = self._series[label] = _Series(
                self._queue_wait.labels(label),
                self._first_byte.labels(label),
                self._request.labels(label),
                self._input_tokens.labels(label),
                self._output_tokens.labels(label),
            )
        return label, series

    def _label(self, model: str | None) -> str:
        return model if model is not None and self._is_registered(model) else UNROUTED


class _Gauges(Collector):
    """What is so at the moment of the scrape."""

    def __init__(
        self,
        pools: Callable[[], Iterable[PoolFigures]],
        fleet: Callable[[], FleetFigures],
        endpoints: Callable[[], Mapping[tuple[str, str], int]],
    ) -> None:
        self._pools = pools
        self._fleet = fleet
        self._endpoints = endpoints

    def describe(self) -> list[GaugeMetricFamily]:
        """Nothing: registering must not call what may not be there yet."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        pools = list(self._pools())
        for name, documentation, field_ in _POOL_GAUGES:
            family = GaugeMetricFamily(name, documentation, labels=("model",))
            for pool in pools:
                family.add_metric((pool.model,), getattr(pool, field_))
            yield family
        endpoints = GaugeMetricFamily(
            "obleth_endpoints", "Enabled endpoints by health.", labels=("model", "health")
        )
        for labels, count in self._endpoints().items():
            endpoints.add_metric(labels, count)
        yield endpoints
        fleet = self._fleet()
        modes = GaugeMetricFamily(
            "obleth_fairshare_mode", "1 for the mode in force.", labels=("mode",)
        )
        for mode in MODES:
            modes.add_metric((mode,), mode == fleet.mode)
        yield modes
        yield GaugeMetricFamily(
            "obleth_fairshare_replicas", "Live replicas, this one included.", fleet.replicas
        )
        if fleet.heartbeat_age_secs is not None:
            yield GaugeMetricFamily(
                "obleth_heartbeat_age_seconds",
                "Since a heartbeat of this replica was last answered.",
                fleet.heartbeat_age_secs,
            )
