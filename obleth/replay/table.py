"""A report as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from obleth.replay.report import Quantiles, Report, TenantReport


def render(report: Report) -> RenderableType:
    """The whole report: who got what and waited how long, sessions, errors, remarks."""
    contended = "of the whole run"
    if report.contended_secs:
        contended = f"over the {_seconds(report.contended_secs)} in which all were waiting"
    parts: list[RenderableType] = [
        Text(f"{report.trace} ({report.kind}) → {report.url}, model {report.model}"),
        Text(f"{report.how}; took {_seconds(report.wall_secs)}. Shares {contended}."),
        _tenants(report),
        _waits(report),
    ]
    if report.total.sessions:
        parts.append(_sessions(report))
    for row in report.tenants:
        parts += [
            Text(f"{row.name}: {number} × {kind}", style="red")
            for kind, number in row.error_kinds.items()
        ]
    parts += [Text(note, style="yellow") for note in report.notes]
    return Group(*parts)


def _tenants(report: Report) -> Table:
    headings = ("weight", "due", "of tokens", "of slots", "requests", "errors", "tokens", "cached")
    table = _table("tenant", headings)
    for row in _rows(report):
        table.add_row(
            Text(row.name),
            str(row.weight),
            _percent(row.weight_share),
            _percent(row.token_share),
            _percent(row.slot_share),
            f"{row.requests:,}",
            Text(f"{row.errors:,}", style="red" if row.errors else ""),
            _amount(row.tokens),
            _percent(row.cached_share),
        )
    return table


def _waits(report: Report) -> Table:
    table = _table("waits", ("for a slot p50", "p95", "p99", "for a byte p50", "p95", "p99"))
    for row in _rows(report):
        table.add_row(Text(row.name), *_times(row.wait), *_times(row.first_byte))
    return table


def _sessions(report: Report) -> Table:
    headings = ("number", "took p50", "p95", "without pauses p50", "p95", "cached")
    table = _table("sessions", headings)
    for row in _rows(report):
        if row.sessions:
            table.add_row(
                Text(row.name),
                f"{row.sessions:,}",
                *_times(row.session_time)[:2],
                *_times(row.session_busy)[:2],
                _percent(row.cached_share),
            )
    return table


def _table(name: str, headings: Sequence[str]) -> Table:
    table = Table(name, box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _rows(report: Report) -> Iterable[TenantReport]:
    yield from report.tenants
    if len(report.tenants) > 1:
        yield report.total


def _amount(tokens: int) -> str:
    return f"{tokens:,}" if tokens < 1_000_000 else f"{tokens / 1_000_000:,.2f} M"


def _percent(part: float) -> str:
    return f"{part * 100:.1f} %"


def _times(found: Quantiles) -> list[str]:
    return [
        "–" if value is None else _seconds(value) for value in (found.p50, found.p95, found.p99)
    ]


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"
