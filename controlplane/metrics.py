"""What Prometheus is told of the control plane: what was asked of its API, and who is below share.

Whether a tenant is below its share is a verdict on the whole fleet. So it is given here, once,
and not by each replica. It is asked for at each scrape.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic
from typing import Final

import prometheus_client
import structlog
from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from controlplane.fairshare.source import LiveSource, NobodyAnswers
from shared.live_state import LiveState

PATH: Final = "/metrics"
_METHODS: Final = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"))
_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

log = structlog.stdlib.get_logger(__name__)


class ControlPlaneMetrics:
    """The process's metrics."""

    def __init__(self) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "obleth_api_requests_total",
            "Requests to the control plane that were answered.",
            ("method", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "obleth_api_request_seconds",
            "From such a request to the head of its answer.",
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._live = _LiveGauges()
        self.registry.register(self._live)
        ProcessCollector(registry=self.registry)

    def answered(self, method: str, status: int, secs: float) -> None:
        """A request was answered."""
        known = method if method in _METHODS else "other"
        self._requests.labels(known, str(status)).inc()
        self._seconds.observe(secs)

    async def exposition(self, source: LiveSource, accept: str) -> tuple[bytes, str]:
        """All of it in the format that suits an `Accept` header, and that format's media type."""
        try:
            self._live.state = await source.state(None)
        except NobodyAnswers as error:
            log.debug("live_state_not_scraped", reason=str(error))
            self._live.state = None
        encode, media_type = choose_encoder(accept)
        return encode(self.registry), media_type


class CountAnswers:
    """ASGI middleware that counts what is answered."""

    def __init__(self, app: ASGIApp, metrics: ControlPlaneMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = monotonic()

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                took = monotonic() - began
                self._metrics.answered(scope["method"], message["status"], took)
            await send(message)

        await self._app(scope, receive, counting)


class _LiveGauges(Collector):
    """Of the live state that was asked for last; None: nobody could tell."""

    state: LiveState | None = None

    def describe(self) -> list[GaugeMetricFamily]:
        """Nothing: there is no state yet."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield GaugeMetricFamily(
            "obleth_live_state_known",
            "1 if a replica, or what replicas publish, told the live state.",
            self.state is not None,
        )
        below = GaugeMetricFamily(
            "obleth_tenants_below_share",
            "Tenants that wait with less than their share while another has a slot more.",
            labels=("model",),
        )
        # A model that was made again has two pools until the old one is empty.
        found: dict[str, int] = {}
        for pool in () if self.state is None else self.state.pools:
            count = sum(tenant.below_share for tenant in pool.tenants)
            found[pool.model] = found.get(pool.model, 0) + count
        for model, count in found.items():
            below.add_metric((model,), count)
        yield below


router = APIRouter(include_in_schema=False)


@router.get(PATH)
async def metrics(request: Request) -> Response:
    """Prometheus' text format, or OpenMetrics where it is asked for."""
    state = request.app.state
    accept = request.headers.get("accept", "")
    body, media_type = await state.metrics.exposition(state.live, accept)
    return Response(body, headers={"content-type": media_type})
