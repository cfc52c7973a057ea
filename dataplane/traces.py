"""OpenTelemetry traces: a span a request, made when it has ended, sent from a thread of its own.

The packages are an extra and imported only here, once an endpoint is set. The libraries read their
own variables (`OTEL_*`): names, headers, sampling, limits. A request that comes with a
`traceparent` belongs to that trace; the header goes on to the upstream as it came, so that its
spans stand beside ours.
"""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

import structlog

from dataplane.openai_api.ports import FinishedRequest, Outcome

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider

_NANOSECONDS: Final = 1_000_000_000
_FAILED: Final = (Outcome.BROKEN, Outcome.CLIENT_STALLED)

log = structlog.stdlib.get_logger(__name__)


class TraceRequests:
    """See `dataplane.openai_api.ports.Observer`."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider: Final = provider
        self._tracer: Final = provider.get_tracer("obleth", version("obleth"))

    def request_finished(self, request: FinishedRequest) -> None:
        """See `Observer.request_finished`."""
        from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context

        began = _nanoseconds(request.started_at)
        ended = began + _nanoseconds(request.duration_ms / 1000)
        span = self._tracer.start_span(
            f"POST {request.path}" if request.path else "POST",
            context=_parent(request.traceparent),
            kind=SpanKind.SERVER,
            start_time=began,
            attributes=_attributes(request),
        )
        if request.status >= 500 or request.outcome in _FAILED:
            span.set_status(StatusCode.ERROR, request.code or str(request.outcome))
        if request.slot is not None and request.queue_ms:
            # Before it asks for its slot a request takes next to no time.
            waiting = self._tracer.start_span(
                "wait for a slot", context=set_span_in_context(span), start_time=began
            )
            waiting.end(began + _nanoseconds(request.queue_ms / 1000))
        if request.ttfb_ms is not None:
            span.add_event("first content", timestamp=began + _nanoseconds(request.ttfb_ms / 1000))
        span.end(ended)

    async def stop(self) -> None:
        """Send what has not been sent yet, as long as the libraries take for it."""
        await asyncio.to_thread(self._provider.shutdown)


def tracing(endpoint: str | None) -> TraceRequests | None:
    """What makes the spans; None: no endpoint is set, or the packages are not installed."""
    if endpoint is None:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        log.warning(
            "OTEL_EXPORTER_OTLP_ENDPOINT is set, but no traces are sent:"
            " install them with pip install 'obleth[otel]'",
            missing=error.name,
        )
        return None
    # OTEL_SERVICE_NAME, where it is set, goes before this name.
    resource = Resource({SERVICE_NAME: "obleth"}).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=Resource.create().merge(resource), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return TraceRequests(provider)


def _parent(traceparent: str | None) -> Context | None:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if traceparent is None:
        return None
    return TraceContextTextMapPropagator().extract({"traceparent": traceparent})


def _attributes(request: FinishedRequest) -> dict[str, str | int | float | bool]:
    """No text and no secret. What is not known is left out."""
    found = {
        "obleth.request_id": request.request_id,
        "obleth.outcome": str(request.outcome),
        "obleth.code": request.code,
        "obleth.admission": request.admission,
        "obleth.slot": request.slot,
        "obleth.queue_ms": request.queue_ms,
        "obleth.session": request.session_source,
        "obleth.stream": request.is_stream,
        "obleth.tenant": None if request.key is None else request.key.tenant.name,
        "obleth.group": None if request.key is None else request.key.tenant.group.name,
        "obleth.key_id": None if request.key is None else request.key.id,
        "http.request.method": "POST",
        "http.response.status_code": request.status,
        "url.path": request.path or None,
        "gen_ai.request.model": request.model,
        "gen_ai.usage.input_tokens": request.input_tokens,
        "gen_ai.usage.output_tokens": request.output_tokens,
    }
    return {name: value for name, value in found.items() if value is not None}


def _nanoseconds(secs: float) -> int:
    return round(secs * _NANOSECONDS)
