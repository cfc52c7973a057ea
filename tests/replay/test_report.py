"""Shares, quantiles and what is printed, worked out from calls written by hand."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from obleth.replay import (
    Call,
    Played,
    Quantiles,
    ReplayOptions,
    Report,
    SessionRun,
    TenantKey,
    Trace,
    TraceKind,
    measure,
    render,
)
from obleth.replay.shares import Service, Stretches, parts, while_all_wait

OPTIONS = ReplayOptions(
    trace=Path("t"),
    url="http://gateway",
    tenants=(TenantKey("gold", "k1", 300), TenantKey("iron", "k2", 100)),
    model="m",
)


def call(tenant: str, sent: float, wait: float, service: float, **fields: Any) -> Call:
    made = Call(
        tenant,
        None,
        sent,
        first_byte=sent + wait,
        ended=sent + wait + service,
        status=200,
        queue_ms=wait * 1000,
        counted=True,
    )
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def reported(*calls: Call, **fields: Any) -> Report:
    played = Played(words="in turns", began=0.0, ended=100.0, calls=list(calls), **fields)
    return measure(Trace("t.csv", TraceKind.AZURE, ()), OPTIONS, "m", played)


def printed(report: Report, width: int = 80) -> str:
    console = Console(file=StringIO(), width=width)
    console.print(render(report))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_shares_count_only_while_every_tenant_has_a_request_waiting() -> None:
    waits = [("a", (0.0, 10.0)), ("b", (4.0, 6.0)), ("b", (5.0, 8.0)), ("a", (12.0, 14.0))]
    stretches = while_all_wait(waits, ["a", "b"])
    assert stretches.total == 4.0
    assert stretches.inside((0.0, 5.0)) == 1.0
    assert stretches.inside((9.0, 20.0)) == 0.0


def test_several_stretches_add_up() -> None:
    stretches = Stretches([(1.0, 2.0), (5.0, 8.0)])
    assert stretches.total == 4.0
    assert stretches.inside((1.5, 6.0)) == 1.5
    assert stretches.inside((-10.0, 100.0)) == 4.0


def test_one_tenant_that_never_waits_leaves_no_stretch() -> None:
    assert while_all_wait([("a", (0.0, 10.0))], ["a", "b"]).total == 0.0


def test_a_request_partly_inside_counts_by_that_part() -> None:
    services = [Service("a", (0.0, 10.0), 100), Service("b", (8.0, 12.0), 40)]
    found = parts(services, ["a", "b"], Stretches([(5.0, 10.0)]))
    assert found["a"].tokens == pytest.approx(50 / 70)
    assert found["a"].slots == pytest.approx(5 / 7)


def test_a_backlogged_run_shows_the_shares_that_were_served() -> None:
    """Gold has three slots and iron one for as long as both wait; gold's waiting then ends."""
    calls = [call("gold", 0, 40, 0.001), call("iron", 0, 60, 0.001)]
    for start in range(0, 40, 10):
        calls += [call("gold", start, 0, 10, prompt_tokens=10, output_tokens=10)] * 3
        calls += [call("iron", start, 0, 10, prompt_tokens=10, output_tokens=10)]
    calls += [call("iron", 41, 0, 50, prompt_tokens=10_000)]
    report = reported(*calls)
    gold, iron = report.tenants
    assert report.contended_secs == 40.0
    assert (gold.weight_share, gold.token_share, gold.slot_share) == (0.75, 0.75, 0.75)
    assert iron.tokens == 80 + 10_000


def test_without_a_common_wait_shares_are_of_the_whole_run_and_it_says_so() -> None:
    report = reported(
        call("gold", 0, 0, 1, output_tokens=30), call("iron", 0, 0, 1, output_tokens=10)
    )
    assert report.contended_secs == 0
    assert report.tenants[0].token_share == 0.75
    assert any("shares are of the whole run" in note for note in report.notes)


def test_a_wait_is_the_gateways_own_figure_or_else_the_time_to_the_first_byte() -> None:
    told = call("gold", 0, 3, 1, first_byte=3.5)
    untold = call("iron", 0, 3, 1, first_byte=3.5, queue_ms=None)
    report = reported(told, untold)
    assert [tenant.wait.p50 for tenant in report.tenants] == [3.0, 3.5]
    assert any("does not tell waits" in note for note in report.notes)


def test_errors_are_counted_by_kind_and_kept_out_of_the_waits() -> None:
    failed = call("gold", 0, 60, 0, status=503, error="503 admission_timeout")
    report = reported(failed, failed, call("gold", 0, 1, 1))
    gold = report.tenants[0]
    assert (gold.requests, gold.errors, gold.wait.p99) == (3, 2, 1.0)
    assert gold.error_kinds == {"503 admission_timeout": 2}
    assert "2 × 503 admission_timeout" in printed(report)


def test_a_run_in_which_nothing_was_answered_ends_with_an_error_code() -> None:
    assert reported(call("gold", 0, 0, 0, error="timeout")).exit_code == 1
    assert reported(call("gold", 0, 0, 0)).exit_code == 0


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([], Quantiles(None, None, None)),
        ([4.0], Quantiles(4.0, 4.0, 4.0)),
        ([float(number) for number in range(1, 101)], Quantiles(50.0, 95.0, 99.0)),
    ],
)
def test_quantiles_are_values_that_were_measured(values: list[float], found: Quantiles) -> None:
    assert Quantiles.of(reversed(values)) == found


def test_sessions_that_came_to_their_end_are_timed_with_and_without_pauses() -> None:
    runs = [
        SessionRun("gold", began=0, ended=10, busy_secs=4, steps=3, whole=True),
        SessionRun("gold", began=0, ended=99, busy_secs=99, steps=1, whole=False),
    ]
    step = call("gold", 0, 0, 1, prompt_tokens=100, cached_tokens=80)
    report = reported(step, sessions=runs)
    gold = report.tenants[0]
    assert (gold.sessions, gold.session_time.p95, gold.session_busy.p95) == (1, 10, 4)
    assert gold.cached_share == 0.8
    assert "without pauses" in printed(report)


def test_what_was_noticed_is_told() -> None:
    report = reported(call("gold", 0, 0, 1, counted=False), latest_secs=2.5, interrupted=True)
    text = "\n".join(report.notes)
    assert "Interrupted" in text
    assert "1 answers had no usage" in text
    assert "up to 2.5 s after their time" in text


def test_the_report_is_json_without_keys() -> None:
    text = json.dumps(reported(call("gold", 0, 1, 1, output_tokens=5)).as_json())
    found = json.loads(text)
    assert found["tenants"][0]["wait"] == {"p50": 1.0, "p95": 1.0, "p99": 1.0}
    assert found["total"]["tokens"] == 5
    assert "k1" not in text


def test_the_table_fits_a_terminal_of_eighty_columns() -> None:
    text = printed(reported(call("gold", 0, 12.3, 1, output_tokens=1_234_567)))
    assert "1.23 M" in text
    assert "12.3 s" in text
    assert "…" not in text
