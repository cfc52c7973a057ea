"""What becomes of a finished request: figures for Prometheus, a usage row, a line in the log."""

from __future__ import annotations

import structlog

from dataplane.metrics import Metrics
from dataplane.openai_api.ports import Figures, FinishedRequest, Outcome
from dataplane.usage.record import UsageRecord
from dataplane.usage.recorder import UsageRecorder
from shared.policy import UNROUTED

log = structlog.stdlib.get_logger(__name__)

_CUT_SHORT = (Outcome.BROKEN, Outcome.CLIENT_LEFT, Outcome.CLIENT_STALLED)


class CountRequests:
    """Keeps the metrics."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def request_finished(self, request: FinishedRequest) -> None:
        """See `Observer.request_finished`."""
        self._metrics.request_finished(
            request.model,
            admission=request.admission,
            status=request.status,
            queue_secs=None if request.queue_ms is None else request.queue_ms / 1000,
            first_byte_secs=None if request.ttfb_ms is None else request.ttfb_ms / 1000,
            duration_secs=request.duration_ms / 1000,
            input_tokens=request.input_tokens,
            output_tokens=request.output_tokens,
        )


class RecordUsage:
    """Writes a usage row for each request that came with a valid key."""

    def __init__(self, usage: UsageRecorder) -> None:
        self._usage = usage

    def request_finished(self, request: FinishedRequest) -> None:
        """See `Observer.request_finished`."""
        if request.key is None:
            return
        has_figures = request.figures is not Figures.NONE
        self._usage.record(
            UsageRecord(
                request_id=request.request_id,
                started_at=request.started_at,
                key=request.key,
                model=UNROUTED if request.model is None else request.model,
                admission=request.admission,
                status=request.status,
                is_partial=request.outcome in _CUT_SHORT,
                queue_ms=request.queue_ms or 0.0,
                ttfb_ms=request.ttfb_ms,
                duration_ms=request.duration_ms,
                input_tokens=request.input_tokens if has_figures else None,
                output_tokens=request.output_tokens if has_figures else None,
                cached_tokens=request.cached_tokens if has_figures else None,
                is_estimated=request.figures is Figures.ESTIMATED,
                session=request.session,
            )
        )


class LogRequests:
    """Writes one line at the end of each request."""

    def request_finished(self, request: FinishedRequest) -> None:
        """See `Observer.request_finished`."""
        key = request.key
        log.info(
            "request",
            request_id=request.request_id,
            path=request.path,
            status=request.status,
            outcome=str(request.outcome),
            code=request.code,
            tenant=None if key is None else key.tenant.name,
            key_id=None if key is None else key.id,
            model=request.model,
            admission=request.admission,
            slot=request.slot,
            stream=request.is_stream,
            queue_ms=round(request.queue_ms or 0.0, 1),
            ttfb_ms=None if request.ttfb_ms is None else round(request.ttfb_ms, 1),
            duration_ms=round(request.duration_ms, 1),
            estimate=request.estimated_tokens,
            input=request.input_tokens,
            output=request.output_tokens,
            cached=request.cached_tokens,
            figures=str(request.figures),
            session=request.session_source,
        )
