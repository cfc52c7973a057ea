"""What becomes of a finished request."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from dataplane.metrics import Metrics
from dataplane.observers import CountRequests, LogRequests, RecordUsage
from dataplane.openai_api.ports import Figures, FinishedRequest, Outcome
from dataplane.usage.recorder import UsageRecorder
from shared.policy import UNROUTED
from tests.usage.records import KEY, STARTED, MemoryUsageStore


def finished(**fields: Any) -> FinishedRequest:
    plain: dict[str, Any] = {
        "request_id": "r1",
        "path": "/v1/chat/completions",
        "started_at": STARTED,
        "duration_ms": 1500.0,
        "status": 200,
        "outcome": Outcome.ANSWERED,
        "code": None,
        "key": KEY,
        "model": "m1",
        "admission": "queued",
        "slot": "new",
        "queue_ms": 250.0,
        "ttfb_ms": 500.0,
        "is_stream": True,
        "estimated_tokens": 100,
        "input_tokens": 10,
        "output_tokens": 20,
        "cached_tokens": 5,
        "figures": Figures.REPORTED,
        "session": "hash",
        "session_source": "client",
        "session_was_refused": False,
    }
    return FinishedRequest(**{**plain, **fields})


async def recorded(request: FinishedRequest) -> MemoryUsageStore:
    store = MemoryUsageStore()
    usage = UsageRecorder(store, retention_days=30)
    RecordUsage(usage).request_finished(request)
    await usage.write()
    return store


async def test_a_request_becomes_a_usage_record() -> None:
    (kept,) = (await recorded(finished())).kept.values()
    assert (kept.request_id, kept.started_at, kept.key, kept.model) == ("r1", STARTED, KEY, "m1")
    assert (kept.admission, kept.status, kept.is_partial) == ("queued", 200, False)
    assert (kept.queue_ms, kept.ttfb_ms, kept.duration_ms) == (250.0, 500.0, 1500.0)
    assert (kept.input_tokens, kept.output_tokens, kept.cached_tokens) == (10, 20, 5)
    assert kept.session == "hash"


@pytest.mark.parametrize(
    ("outcome", "is_partial"),
    [
        (Outcome.ANSWERED, False),
        (Outcome.REFUSED, False),
        (Outcome.BROKEN, True),
        (Outcome.CLIENT_LEFT, True),
        (Outcome.CLIENT_STALLED, True),
    ],
)
async def test_an_answer_cut_short_is_marked(outcome: Outcome, is_partial: bool) -> None:
    (kept,) = (await recorded(finished(outcome=outcome))).kept.values()
    assert kept.is_partial is is_partial


@pytest.mark.parametrize("figures", Figures)
async def test_what_was_estimated_is_marked(figures: Figures) -> None:
    (kept,) = (await recorded(finished(figures=figures))).kept.values()
    assert kept.is_estimated is (figures is Figures.ESTIMATED)


async def test_tokens_of_a_request_that_ran_nothing_are_unknown_and_not_zero() -> None:
    nothing = finished(figures=Figures.NONE, input_tokens=0, output_tokens=0, cached_tokens=0)
    (kept,) = (await recorded(nothing)).kept.values()
    assert (kept.input_tokens, kept.output_tokens, kept.cached_tokens) == (None, None, None)


async def test_a_request_without_a_valid_key_is_nobodys_usage() -> None:
    assert (await recorded(finished(key=None, status=401))).kept == {}


async def test_a_request_refused_before_its_model_was_known_counts_as_unrouted() -> None:
    (kept,) = (await recorded(finished(model=None, status=400))).kept.values()
    assert kept.model == UNROUTED


def test_a_request_is_counted_in_base_units() -> None:
    metrics = Metrics(is_registered=lambda name: True, pools=tuple)
    CountRequests(metrics).request_finished(finished())
    CountRequests(metrics).request_finished(finished(ttfb_ms=None))
    value = metrics.registry.get_sample_value
    of_m1 = {"model": "m1"}
    assert value("obleth_requests_total", {**of_m1, "admission": "queued", "status": "200"}) == 2
    assert value("obleth_queue_wait_seconds_sum", of_m1) == 0.5
    assert value("obleth_time_to_first_byte_seconds_sum", of_m1) == 0.5
    assert value("obleth_request_seconds_sum", of_m1) == 3.0
    assert value("obleth_output_tokens_total", of_m1) == 40


@pytest.mark.parametrize("key", [KEY, None])
def test_a_request_is_one_line_with_its_id(key: Any) -> None:
    with capture_logs() as lines:
        LogRequests().request_finished(finished(key=key, ttfb_ms=None))
    (line,) = lines
    assert (line["event"], line["request_id"], line["status"]) == ("request", "r1", 200)
    assert line["tenant"] == (None if key is None else "name of t1")
