"""What an admission and its release cost in the scheduler, by how many tenants wait.

    python -m tests.bench.decisions

Every waiting tenant has one request queued; each step finishes a running request, which admits the
next waiter, and queues another for a tenant that then has none. With affinity, every waiter is a
session of one key instead; each step finishes one, and the session's next step comes a moment
later: slots are held, taken and run out, warm sessions pass others and are passed. The figures are
ratios to the smallest size, all measured in one run: absolute times are the machine's.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from dataplane.scheduler.effects import Admit, Effect
from dataplane.scheduler.events import AffinityRules, Arrived, Finished, PoolPolicy
from dataplane.scheduler.order import Hierarchical, Order, Weighted
from dataplane.scheduler.scheduler import Scheduler
from shared.policy import GroupPolicy, KeyPolicy, TenantPolicy

SIZES = (10, 100, 1_000, 10_000)
SLOTS = 32
STEPS = 4_000
ROUNDS = 5
"""Sizes take turns, so that a busy moment of the machine falls on all alike; the median counts."""

WEIGHTS: dict[str, Callable[[int], int]] = {
    "equal weights": lambda n: 100,
    "four weights": lambda n: (50, 100, 200, 500)[n % 4],
    "all different": lambda n: 1_000 + n,
}


def world(order: Order, tenants: int, weight: Callable[[int], int]) -> Callable[[], None]:
    """A pool of `SLOTS` with as many tenants waiting; calling the answer runs `STEPS` steps."""
    core = Scheduler(order, ceiling=4096, timeout=1e9, pool_idle=600)
    pool = PoolPolicy("m", "m", SLOTS)
    keys = [
        KeyPolicy(
            f"k{n}",
            "key",
            TenantPolicy(f"t{n}", f"tenant {n:05}", GroupPolicy(f"g{n % 4}"), weight(n)),
        )
        for n in range(tenants + SLOTS)
    ]
    number = 0
    running: deque[int] = deque()
    idle: deque[KeyPolicy] = deque()
    owner: dict[int, KeyPolicy] = {}

    def arrive(key: KeyPolicy) -> None:
        nonlocal number
        number += 1
        owner[number] = key
        admitted(core.handle(Arrived(number, pool, key, 500), 0.0))

    def admitted(effects: list[object]) -> None:
        for effect in effects:
            assert isinstance(effect, Admit)
            running.append(effect.request)
            idle.append(owner.pop(effect.request))

    def steps() -> None:
        for _ in range(STEPS):
            admitted(core.handle(Finished(running.popleft()), 0.0))
            arrive(idle.popleft())

    for key in keys:
        arrive(key)
    idle.clear()
    idle.extend(keys[:SLOTS])
    assert core.queued == tenants
    return steps


def sessions(order: Order, waiting: int) -> Callable[[], None]:
    """A pool with affinity on and so many sessions of one key that wait."""
    core = Scheduler(order, ceiling=4096, timeout=1e9, pool_idle=600)
    pool = PoolPolicy("m", "m", SLOTS, affinity=AffinityRules(max_bypass_secs=1e9))
    key = KeyPolicy("k", "key", TenantPolicy("t", "tenant"))
    number, now = 0, 0.0
    running: deque[int] = deque()
    owner: dict[int, str] = {}

    def handle(effects: list[Effect]) -> None:
        running.extend(effect.request for effect in effects if isinstance(effect, Admit))

    def arrive(session: str) -> None:
        nonlocal number
        number += 1
        owner[number] = session
        handle(core.handle(Arrived(number, pool, key, 500, session), now))

    def steps() -> None:
        nonlocal now
        for _ in range(STEPS):
            now += 0.05
            ended = running.popleft()
            handle(core.handle(Finished(ended), now))
            now += 0.05
            arrive(owner.pop(ended))

    for n in range(waiting + SLOTS):
        arrive(f"s{n}")
    return steps


def measure(world: Callable[[int], Callable[[], None]]) -> dict[int, float]:
    """Microseconds an admit and release, by size."""
    worlds = {size: world(size) for size in SIZES}
    times: dict[int, list[float]] = {size: [] for size in SIZES}
    gc.collect()
    gc.disable()
    for _ in range(ROUNDS):
        for size, steps in worlds.items():
            start = time.perf_counter()
            steps()
            times[size].append((time.perf_counter() - start) / STEPS * 1e6)
    gc.enable()
    return {size: statistics.median(each) for size, each in times.items()}


def main() -> None:
    """Print the table in Markdown."""
    out = sys.stdout
    out.write("| algorithm | weights | " + " | ".join(f"{size:,}" for size in SIZES) + " |\n")
    out.write("|---|---|" + "---|" * len(SIZES) + "\n")
    rows: list[tuple[str, str, Callable[[int], Callable[[], None]]]] = []
    for order in (Hierarchical, Weighted):
        for name, weight in WEIGHTS.items():
            rows.append((order.name, name, partial(world, order(), weight=weight)))
        rows.append((order.name, "one key, affinity on", partial(sessions, order())))
    for algorithm, name, made in rows:
        figures = measure(made)
        base = figures[SIZES[1]]
        cells = (f"{figures[size] / base:.2f}× ({figures[size]:.0f} µs)" for size in SIZES)
        out.write(f"| {algorithm} | {name} | " + " | ".join(cells) + " |\n")


if __name__ == "__main__":
    main()
