"""What a replay showed, in numbers: per tenant and, where the trace has sessions, per session."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from obleth.replay.engine import Played, SessionRun
from obleth.replay.options import ReplayOptions, TenantKey
from obleth.replay.sender import Call
from obleth.replay.shares import Part, Service, Stretches, parts, while_all_wait
from obleth.replay.trace import Trace

_LATE_SECS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Of seconds; None where there was nothing to measure."""

    p50: float | None
    p95: float | None
    p99: float | None

    @classmethod
    def of(cls, values: Iterable[float]) -> Quantiles:
        """By nearest rank: each is a value that was really measured."""
        ordered = sorted(values)

        def at(part: float) -> float | None:
            return ordered[max(0, math.ceil(part * len(ordered)) - 1)] if ordered else None

        return cls(at(0.50), at(0.95), at(0.99))


@dataclass(frozen=True, slots=True)
class TenantReport:
    """One tenant's row. Fractions are of 1, times are seconds."""

    name: str
    weight: int
    weight_share: float
    requests: int
    errors: int
    error_kinds: dict[str, int]
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    token_share: float
    """Of the tokens served while every tenant waited."""
    slot_share: float
    """Of the slot time while every tenant waited."""
    wait: Quantiles
    """For a slot, as the gateway says; where it does not, to the first byte."""
    first_byte: Quantiles
    """From sending to the first byte of the answer's body, as measured here."""
    sessions: int
    """Sessions of more than one step that came to their end."""
    session_time: Quantiles
    session_busy: Quantiles
    """Without the pauses between steps."""

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens

    @property
    def cached_share(self) -> float:
        """Of the prompt tokens."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


@dataclass(frozen=True, slots=True)
class Report:
    trace: str
    kind: str
    url: str
    model: str
    how: str
    """How sessions were given to tenants and when they were sent, in words."""
    wall_secs: float
    contended_secs: float
    """How long every tenant had a request waiting; shares are counted over this time, or over the
    whole run when it is 0."""
    tenants: tuple[TenantReport, ...]
    total: TenantReport
    """All tenants in one."""
    notes: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """0 when any request was answered, else 1."""
        return 0 if self.total.requests > self.total.errors else 1

    def as_json(self) -> dict[str, Any]:
        """Everything, ready for `json.dumps`."""
        found = dataclasses.asdict(self)
        for row, tenant in zip(found["tenants"], self.tenants, strict=True):
            row |= {"tokens": tenant.tokens, "cached_share": tenant.cached_share}
        total = {"tokens": self.total.tokens, "cached_share": self.total.cached_share}
        found["total"] |= total
        return found


def measure(trace: Trace, options: ReplayOptions, model: str, played: Played) -> Report:
    """Work out what was played."""
    names = [tenant.name for tenant in options.tenants]
    stretches = while_all_wait(_waits(played), names)
    contended = stretches.total
    window = stretches if contended else Stretches([(played.began, played.ended)])
    shares = parts(_services(played), names, window)
    weights = sum(tenant.weight for tenant in options.tenants)
    rows = tuple(
        _row(tenant, tenant.weight / weights, shares[tenant.name], played)
        for tenant in options.tenants
    )
    everyone = TenantKey("all", "", weights)
    return Report(
        trace=trace.name,
        kind=trace.kind.value,
        url=options.base_url,
        model=model,
        how=_how(options, played),
        wall_secs=played.ended - played.began,
        contended_secs=contended,
        tenants=rows,
        total=_row(everyone, 1.0, Part(1.0, 1.0), played, everyone=True),
        notes=tuple(_notes(played, contended)),
    )


def _row(
    tenant: TenantKey, weight_share: float, part: Part, played: Played, *, everyone: bool = False
) -> TenantReport:
    calls = [call for call in played.calls if everyone or call.tenant == tenant.name]
    runs = [run for run in played.sessions if run.whole and (everyone or run.tenant == tenant.name)]
    answered = [call for call in calls if call.error is None]
    kinds = Counter(call.error for call in calls if call.error is not None)
    return TenantReport(
        name=tenant.name,
        weight=tenant.weight,
        weight_share=weight_share,
        requests=len(calls),
        errors=len(calls) - len(answered),
        error_kinds=dict(kinds.most_common()),
        prompt_tokens=sum(call.prompt_tokens for call in calls),
        cached_tokens=sum(call.cached_tokens for call in calls),
        output_tokens=sum(call.output_tokens for call in calls),
        token_share=part.tokens,
        slot_share=part.slots,
        wait=Quantiles.of(wait for call in answered if (wait := call.waited_secs) is not None),
        first_byte=Quantiles.of(
            call.first_byte - call.sent for call in answered if call.first_byte is not None
        ),
        sessions=len(runs),
        **_session_times(runs),
    )


def _session_times(runs: Sequence[SessionRun]) -> dict[str, Quantiles]:
    return {
        "session_time": Quantiles.of(run.ended - run.began for run in runs),
        "session_busy": Quantiles.of(run.busy_secs for run in runs),
    }


def _waits(played: Played) -> Iterable[tuple[str, tuple[float, float]]]:
    for call in played.calls:
        waited = call.waited_secs
        # One that never got an answer may never have been in the queue.
        if waited is not None:
            yield call.tenant, (call.sent, call.sent + waited)


def _services(played: Played) -> Iterable[Service]:
    for call in played.calls:
        waited = call.waited_secs
        if waited is not None and call.status == 200 and call.ended > call.sent + waited:
            interval = (call.sent + waited, call.ended)
            yield Service(call.tenant, interval, call.prompt_tokens + call.output_tokens)


def _how(options: ReplayOptions, played: Played) -> str:
    if options.closed_loop is not None:
        pace = f"closed loop, {options.closed_loop} at once for each tenant"
    else:
        pace = f"recorded arrivals at {options.speed:g}× speed"
    scale = options.output_scale or options.token_scale
    if options.token_scale != 1 or scale != 1:
        pace += f"; prompts × {options.token_scale:g}, outputs × {scale:g}"
    return f"{pace}; {played.words}"


def _notes(played: Played, contended: float) -> Iterable[str]:
    calls: list[Call] = played.calls
    if played.interrupted:
        yield "Interrupted: what was under way is not counted."
    if not contended:
        yield "Never did every tenant wait at once: shares are of the whole run and show demand."
    if any(call.queue_ms is None for call in calls if call.error is None):
        yield "The gateway does not tell waits: they are the time to the first byte."
    uncounted = sum(not call.counted for call in calls if call.error is None)
    if uncounted:
        yield f"{uncounted} answers had no usage: their tokens are counted from their text."
    if played.latest_secs > _LATE_SECS:
        yield f"Requests were sent up to {played.latest_secs:.1f} s after their time."
