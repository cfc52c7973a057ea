"""Traces, as a collector receives them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from structlog.testing import capture_logs

from dataplane import traces
from tests.embedded.conftest import Starting
from tests.listeners import application

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
SECRET = "a prompt that nobody may read"


class Collector:
    """Keeps every span it is sent, by name."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.services: set[str] = set()

    async def receive(self, request: web.Request) -> web.Response:
        body = await request.read()
        assert SECRET.encode() not in body
        assert b"sk-" not in body
        sent = ExportTraceServiceRequest.FromString(body)
        for resource in sent.resource_spans:
            named = {each.key: each.value.string_value for each in resource.resource.attributes}
            self.services.add(named["service.name"])
            for scope in resource.scope_spans:
                self.spans += scope.spans
        return web.Response()

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]


@pytest.fixture
async def collector(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Collector]:
    collector = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", collector.receive)
    async with application(app) as port:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        yield collector


def attributes(span: Any) -> dict[str, Any]:
    return {
        each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes
    }


async def test_each_request_is_a_span_with_its_wait_in_the_callers_trace(
    starting: Starting, collector: Collector
) -> None:
    async with starting() as product:
        await product.model("m", max_in_flight=1)
        _, key = await product.tenant("t")
        slow = {"x-sim-token-ms": "100"}
        first = asyncio.create_task(product.ask(key, "m", max_tokens=3, headers=slow))
        await product.backend.until(lambda: product.backend.running("m") == 1)
        header = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
        second = asyncio.create_task(
            product.ask(key, "m", headers=header, messages=[{"role": "user", "content": SECRET}])
        )
        await product.queued(1)
        assert {(await one).status_code for one in (first, second)} == {200}
        assert (await product.ask("sk-" + "0" * 48, "m")).status_code == 401
    # Stopping has sent what was left.
    spans = {
        attributes(span)["obleth.admission"]: span
        for span in collector.named("POST /v1/chat/completions")
    }
    assert spans.keys() == {"fast", "queued", "rejected"}
    queued = spans["queued"]
    assert (queued.trace_id.hex(), queued.parent_span_id.hex()) == (TRACE, PARENT)
    assert spans["fast"].trace_id.hex() != TRACE
    (waited,) = collector.named("wait for a slot")
    assert waited.parent_span_id == queued.span_id
    assert queued.start_time_unix_nano == waited.start_time_unix_nano
    assert waited.end_time_unix_nano < queued.end_time_unix_nano
    told = attributes(queued)
    assert (told["obleth.tenant"], told["gen_ai.request.model"]) == ("t", "m")
    assert told["http.response.status_code"] == 200
    assert attributes(spans["rejected"])["obleth.code"] == "invalid_api_key"
    assert collector.services == {"obleth"}


async def test_a_service_name_of_the_operators_is_kept(
    starting: Starting, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "gateway-eu")
    async with starting() as product:
        assert (await product.ask("sk-" + "0" * 48, "m")).status_code == 401
    assert collector.services == {"gateway-eu"}


async def test_a_traceparent_that_is_none_starts_a_trace_of_its_own(
    starting: Starting, collector: Collector
) -> None:
    async with starting() as product:
        for odd in ("", "00-zz-zz-01", "x" * 5_000, f"00-{'0' * 32}-{'0' * 16}-01"):
            await product.ask("sk-" + "0" * 48, "m", headers={"traceparent": odd})
    assert len({span.trace_id for span in collector.spans}) == 4
    assert {span.parent_span_id for span in collector.spans} == {b""}


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("opentelemetry.exporter")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)


@pytest.mark.usefixtures("not_installed")
def test_without_the_packages_one_line_says_how_to_have_them() -> None:
    with capture_logs() as logs:
        assert traces.tracing("http://127.0.0.1:4318") is None
    (line,) = logs
    assert "pip install 'obleth[otel]'" in line["event"]


def test_without_an_endpoint_nothing_is_imported() -> None:
    assert traces.tracing(None) is None
