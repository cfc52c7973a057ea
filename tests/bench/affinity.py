"""What session affinity is worth over a fleet of real replicas, and what it costs Redis: a trace is
played with affinity off, then on, through replicas that clients reach by turns.

    python -m tests.bench.affinity [TRACE] [--replicas 3] [--sessions 16]

Of an agentic trace twelve sessions run at once, under three keys; anything else is played as it was
recorded. A fourth key sends plain requests beside them. Times are a tenth (`--scale`) of what they
would be, and so are all lengths in tokens. The backend, with a cache for as many sessions as it has
slots, says what was cached; Redis itself says what it ran, for each request.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from obleth.backend import SimulatedBackend
from obleth.replay import ReplayOptions, TenantKey
from obleth.replay.driver import read, replay
from obleth.replay.prompts import TOKEN_CHARS
from obleth.replay.report import Quantiles, Report
from obleth.replay.sender import Sender
from obleth.replay.trace import Trace, TraceKind
from tests.bench.balancer import balancer
from tests.bench.monitor import Monitor
from tests.controlplane.conftest import on_postgres_now, postgres_url, unused_name
from tests.faults.fleet import CONFIGURED_BY_DEFAULT, Fleet, fleet

SLICE = Path(__file__).parents[1] / "data" / "agentic_code_synthetic_16.jsonl"
PREFILL_SECS, TOKEN_SECS = 1e-4, 0.01
"""Of a token, on a backend that computes 10,000 tokens of a prompt a second."""
AGENT_KEYS, BESIDE = 3, 3
"""Keys of the agents, and how many requests of the other key there always are."""
PROMPT, REPLY = 100, 30
"""Tokens of one of those."""
WARM_SECS = 120
COUNTED = "obleth_fairshare_affinity_total"
HEADINGS = (
    "affinity",
    "session time p50, p95",
    "cached",
    "hold : redeem",
    "the others wait p50, p95, p99",
    "claims",
    "for a hold alone",
    "releases",
    "scripts",
)


@dataclass(frozen=True, slots=True)
class Given:
    """What a run is told."""

    trace: Trace
    path: Path
    scale: int
    """How many times shorter times and prompts are than they would be."""
    backend_speed: float
    slots: int
    agents: int
    affinity: dict[str, int]
    limit: int | None
    sessions: int | None

    @property
    def is_agentic(self) -> bool:
        return self.trace.kind is TraceKind.AGENTIC

    @property
    def cache_tokens(self) -> int:
        """Room for as many whole sessions as there are slots."""
        whole = [
            sum(step.prompt_tokens + step.output_tokens for step in session.steps)
            for session in self.trace.sessions
        ]
        return round(self.slots * statistics.mean(whole) / self.scale)

    def options(self, model: str, url: str, secrets: Sequence[str]) -> ReplayOptions:
        return ReplayOptions(
            self.path,
            url,
            tuple(TenantKey(f"agents-{n}", secrets[n]) for n in range(AGENT_KEYS)),
            model=model,
            speed=self.scale,
            limit=self.limit,
            max_sessions=self.sessions,
            closed_loop=self.agents // AGENT_KEYS if self.is_agentic else None,
            token_scale=1 / self.scale,
        )


@dataclass(frozen=True, slots=True)
class Told:
    """What became of one run."""

    affinity: str
    """Off or on."""
    report: Report
    beside: Quantiles
    """How long the other key's requests waited, in seconds."""
    events: Counter[str]
    """What affinity did."""
    ran: Counter[str]
    """What Redis ran: scripts by name, and claims for a hold alone."""
    evalsha: int
    """The same by the server's own count, heartbeats included."""
    requests: int

    def row(self) -> str:
        session, waits = self.report.total.session_time, self.beside
        each = {name: f"{self.ran[name] / self.requests:.2f}" for name in self.ran}
        cells = (
            self.affinity,
            f"{_secs(session.p50)} / {_secs(session.p95)}",
            f"{self.report.total.cached_share:.2f}",
            f"{self.events['hold']} : {self.events['redeem']}",
            f"{_secs(waits.p50)} / {_secs(waits.p95)} / {_secs(waits.p99)}",
            each.get("claim", "0"),
            each.get("hold only", "0"),
            each.get("release", "0"),
            f"{self.evalsha / self.requests:.2f}",
        )
        return f"| {' | '.join(cells)} |"


def _secs(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"


async def play(fleet: Fleet, given: Given, model: str, secrets: Sequence[str]) -> Told:
    """The trace once, in one model's pool, with the other key beside it."""
    async with (
        balancer([one.url for one in fleet.replicas]) as url,
        fleet.on_redis() as redis,
        Monitor(fleet.redis.port) as monitor,
    ):
        await redis.config_resetstat()
        options = given.options(model, url, secrets)
        waits: list[float] = []
        numbers = itertools.count()
        beside = [
            asyncio.create_task(_beside(options, secrets[-1], waits, numbers))
            for _ in range(BESIDE)
        ]
        report = await replay(options, given.trace)
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        evalsha = (await fleet.redis.calls())["evalsha"]
        requests = report.total.requests + len(waits)
        assert not report.total.errors, report.total.error_kinds
        events = await _events(fleet, model)
        return Told(model, report, Quantiles.of(waits), events, monitor.ran, evalsha, requests)


async def _beside(
    options: ReplayOptions, secret: str, waits: list[float], numbers: Iterator[int]
) -> None:
    """Plain requests, one after the other."""
    tenant = TenantKey("beside", secret)
    async with Sender(options) as sender:
        while True:
            # No two alike: they would be taken for a session.
            text = f"{next(numbers)} " * PROMPT * TOKEN_CHARS
            message = {"role": "user", "content": text[: PROMPT * TOKEN_CHARS]}
            call, _ = await sender.call(tenant, [message], REPLY, None)
            assert call.queue_ms is not None, call.error
            waits.append(call.queue_ms / 1000)


async def _events(fleet: Fleet, model: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for one in fleet.replicas:
        for name, value in (await one.figures(fleet.session)).items():
            if name.startswith(COUNTED) and f'model="{model}"' in name:
                found[name.partition('event="')[2].partition('"')[0]] += round(value)
    return found


async def table(given: Given, replicas: int) -> None:
    """Both runs, in one fleet, in pools of their own."""
    name = unused_name()
    await on_postgres_now(f'CREATE DATABASE "{name}"')
    each = {
        "OBLETH_FAIRSHARE_SESSION_AFFINITY_WARM_SECS": f"{WARM_SECS // given.scale}",
        "OBLETH_POLICY_POLL_SECS": "0.2",
    }
    backend = SimulatedBackend(
        slots=given.slots,
        cache_tokens=given.cache_tokens,
        prefill_secs_per_token=PREFILL_SECS,
        token_secs=TOKEN_SECS,
        speed=given.backend_speed,
    )
    out = sys.stdout
    try:
        with tempfile.TemporaryDirectory() as folder:
            url = postgres_url(name)
            # Patient: what a busy machine does to the mode is no part of this.
            timings = replace(CONFIGURED_BY_DEFAULT, answer_ms=2000)
            async with (
                backend,
                fleet(Path(folder), url, timings, each=[each] * replicas) as own,
            ):
                for model, affinity in (("off", None), ("on", given.affinity)):
                    settings = {"enabled": False} if affinity is None else affinity
                    made = await own.api.model(
                        model, max_in_flight=given.slots, session_affinity=settings
                    )
                    await own.api.endpoint(made["id"], backend.url)
                # Replicas find out at their next look.
                await asyncio.sleep(1)
                changes = own.mode_changes
                out.write(f"| {' | '.join(HEADINGS)} |\n|{'---|' * len(HEADINGS)}\n")
                for model in ("off", "on"):
                    told = await play(own, given, model, own.secrets)
                    out.write(f"{told.row()}\n")
                    out.flush()
                events = ", ".join(f"{count} {name}" for name, count in told.events.items())
                out.write(f"\n{told.requests} requests with affinity on; {events}\n")
                if own.mode_changes > changes:
                    out.write("Not in one mode all the time: the machine is too busy.\n")
    finally:
        await on_postgres_now(f'DROP DATABASE "{name}" WITH (FORCE)')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path, nargs="?", default=SLICE)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--scale", type=int, default=10)
    parser.add_argument("--backend-speed", type=float, default=1)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--agents", type=int, default=12)
    parser.add_argument("--limit", type=int, help="rows of the trace")
    parser.add_argument("--sessions", type=int)
    parser.add_argument("--hold-secs", type=float, default=5)
    parser.add_argument("--held-percent", type=int, default=50)
    parser.add_argument("--bypass-secs", type=int, default=120)
    options = parser.parse_args()
    replayed = ReplayOptions(
        options.trace,
        "http://127.0.0.1:1",
        (TenantKey("agents", "-"),),
        limit=options.limit,
        max_sessions=options.sessions,
    )
    affinity = {
        "enabled": True,
        "hold_ms": round(options.hold_secs * 1000 / options.scale),
        "max_held_percent": options.held_percent,
        "max_bypass_secs": max(1, options.bypass_secs // options.scale),
    }
    given = Given(
        read(replayed),
        options.trace,
        options.scale,
        options.backend_speed,
        options.slots,
        options.agents,
        affinity,
        options.limit,
        options.sessions,
    )
    asyncio.run(table(given, options.replicas))


if __name__ == "__main__":
    main()
