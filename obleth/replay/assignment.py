"""Who sends what, and when: a trace's sessions spread over tenants and over time."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count

from obleth.replay.options import Assignment, ReplayOptions, TenantKey
from obleth.replay.trace import Session, Trace, TraceKind


@dataclass(frozen=True, slots=True)
class Plan:
    """Sessions in order of their start, each with its sender, and how that came about in words."""

    sessions: tuple[tuple[TenantKey, Session], ...]
    words: str


def plan(trace: Trace, options: ReplayOptions) -> Plan:
    """Assign every session; rows of one session always go to one tenant."""
    sessions, spread = _spread(trace, options)
    assign = options.assign
    if assign is None:
        named = any(session.id is not None for session in sessions)
        assign = Assignment.SESSION if named else Assignment.ROUND_ROBIN
    choose = _chooser(assign, options)
    known: dict[str, TenantKey] = {}
    assigned = []
    for session in sessions:
        tenant = known.get(session.id) if session.id is not None else None
        if tenant is None:
            tenant = choose(session)
        if session.id is not None:
            known[session.id] = tenant
        assigned.append((tenant, session))
    words = {
        Assignment.ROUND_ROBIN: "tenants take turns",
        Assignment.RANDOM: f"tenants drawn at random, all alike (seed {options.seed})",
        Assignment.SESSION: "tenants by a hash of the session's name",
    }
    return Plan(tuple(assigned), words[assign] + spread)


def _spread(trace: Trace, options: ReplayOptions) -> tuple[tuple[Session, ...], str]:
    if trace.kind is not TraceKind.AGENTIC:
        return trace.sessions, ""
    over = options.start_spread_secs
    if over is None:
        over = float(len(trace.sessions))
    dice = random.Random(options.seed)  # noqa: S311 (a reproducible schedule, no secret)
    moved = [
        replace(session, starts_secs=session.starts_secs + dice.uniform(0, over))
        for session in trace.sessions
    ]
    moved.sort(key=lambda session: session.starts_secs)
    return tuple(moved), f"; session starts spread over {over:g} s (seed {options.seed})"


def _chooser(assign: Assignment, options: ReplayOptions) -> Callable[[Session], TenantKey]:
    tenants = options.tenants
    if assign is Assignment.RANDOM:
        dice = random.Random(options.seed)  # noqa: S311 (as above)
        return lambda session: dice.choice(tenants)
    turns = count()
    if assign is Assignment.ROUND_ROBIN:
        return lambda session: tenants[next(turns) % len(tenants)]

    def by_name(session: Session) -> TenantKey:
        # Requests that stand alone have no name to go by: they take turns.
        name = session.id
        number = next(turns) if name is None else zlib.crc32(name.encode())
        return tenants[number % len(tenants)]

    return by_name
