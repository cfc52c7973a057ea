"""The live state drawn for a terminal: pools fullest first, and in each the tenants."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shared.live_state import LivePool, LiveState, LiveTenant

BAR_CELLS = 24
TENANTS_SHOWN = 20
NARROW = 72
"""Of a terminal with fewer columns only what says who waits and why is told."""
_NUMBERS = ("running", "held", "waiting", "fair", "score")
_COLUMNS = ("  tenant", "group", *_NUMBERS, "waits for")
_WIDE_ONLY = ("group", "held", "fair", "score")


def drawn(state: LiveState, width: int) -> RenderableType:
    """What fits into `width` columns. Names are text, whatever they look like."""
    parts: list[RenderableType] = [_head(state)]
    for pool in state.pools:
        parts += [Text(), _pool(pool), _tenants(pool, width < NARROW)]
    if not state.pools:
        parts += [Text(), Text("nothing runs and nothing waits")]
    return Group(*parts)


def _head(state: LiveState) -> Text:
    where = (
        f"{state.replicas_reporting} of {state.replicas} replicas"
        if state.scope == "cluster"
        else f"replica {state.instance}"
    )
    lines = [
        f"{where} · mode {state.mode} · {state.algorithm} · {state.in_flight} running,"
        f" {state.queued} waiting, {state.held} held of {state.global_max_in_flight}"
    ]
    lines += [reason for reason in (state.scope_reason, state.source_reason) if reason]
    return Text("\n".join(lines))


def _pool(pool: LivePool) -> Text:
    wait = f", oldest {pool.oldest_wait_ms / 1000:.1f} s" if pool.queued else ""
    return Text.assemble(
        (pool.model, "bold"),
        f"  {_bar(pool)} {pool.in_flight + pool.held}/{pool.size}"
        f" · {pool.queued} waiting{wait} · {pool.borrowed} borrowed",
    )


def _bar(pool: LivePool) -> str:
    """`#` runs, `=` is held, `.` is free; in whole cells, so that what there is can be seen."""
    if pool.size <= 0:
        return "[]"
    cells = min(BAR_CELLS, pool.size)
    held = -(-pool.held * cells // pool.size)
    running = min(cells - min(held, cells), -(-pool.in_flight * cells // pool.size))
    filled = "#" * running + "=" * min(held, cells)
    return f"[{filled:.<{cells}}]"


def _tenants(pool: LivePool, is_narrow: bool) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    titles = [title for title in _COLUMNS if not (is_narrow and title in _WIDE_ONLY)]
    for title in titles:
        table.add_column(
            title,
            justify="right" if title in _NUMBERS else "left",
            min_width=14 if title == "waits for" else len(title),
            no_wrap=True,
        )
    for tenant in pool.tenants[:TENANTS_SHOWN]:
        row = dict(zip(_COLUMNS, _row(tenant), strict=True))
        table.add_row(*(row[title] for title in titles))
    more = sum(group.tenants for group in pool.groups) - min(TENANTS_SHOWN, len(pool.tenants))
    return Group(table, Text(f"  and {more} more tenants")) if more > 0 else table


def _row(tenant: LiveTenant) -> list[Text]:
    return [
        Text(f"  {tenant.name}"),
        Text(tenant.group),
        Text(str(tenant.in_flight)),
        Text(str(tenant.held)),
        Text(str(tenant.queued)),
        Text(f"{tenant.fair_slots:.1f}"),
        Text(f"{tenant.share_score:.1f}"),
        Text("" if tenant.cause == "idle" else str(tenant.cause)),
    ]
