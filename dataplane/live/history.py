"""What ran and waited in each pool lately, sampled every two seconds and kept in memory.

A pool is remembered by its model's name while it has work; where it has none there is nothing to
keep. Memory is bounded whatever the number of models and groups: a sample has so many pools and
groups at most, the fullest, and where all samples together grow too large the oldest are dropped
before their time. The sums over all pools are always complete.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from dataplane.live_view import PoolView
from shared.live_state import HistoryPoint

INTERVAL_SECS: Final = 2.0
POOLS_A_SAMPLE: Final = 256
GROUPS_A_POINT: Final = 32
FIGURES_MAX: Final = 500_000
"""Of all points together, a figure being one number that is kept."""
OTHER: Final = "(other)"
"""The groups beyond `GROUPS_A_POINT`, together. No group can be called so by accident alone."""
_FIGURES_A_POINT: Final = 4

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Point:
    ts_ms: int
    in_flight: int
    queued: int
    held: int
    groups: tuple[tuple[str, int], ...]

    @property
    def figures(self) -> int:
        return _FIGURES_A_POINT + len(self.groups)


class History:
    """The samples of one replica. `retention_secs` 0: it keeps none."""

    def __init__(self, retention_secs: float, *, figures_max: int = FIGURES_MAX) -> None:
        self.retention_ms: Final = round(retention_secs * 1000)
        self._figures_max: Final = figures_max
        self._figures = 0
        self._sums: deque[_Point] = deque()
        """One a sample, so that it tells when samples were taken."""
        self._models: dict[str, deque[_Point]] = {}

    @property
    def oldest_ts_ms(self) -> int | None:
        return self._sums[0].ts_ms if self._sums else None

    @property
    def models(self) -> Iterable[str]:
        """Those of which something is remembered."""
        return self._models.keys()

    def add(self, pools: Sequence[PoolView], ts_ms: int) -> None:
        """A sample: every pool with work, fullest first, at this Unix time in milliseconds.

        A clock set back takes back what it says was sampled later.
        """
        while self._sums and self._sums[-1].ts_ms >= ts_ms:
            self._drop(newest=True)
        self._keep(self._sums, _point(ts_ms, pools))
        by_model: dict[str, list[PoolView]] = {}
        for pool in pools:
            # A model that was made again has two pools until the old one is empty.
            by_model.setdefault(pool.model, []).append(pool)
        for model in list(by_model)[:POOLS_A_SAMPLE]:
            self._keep(self._models.setdefault(model, deque()), _point(ts_ms, by_model[model]))
        while self._sums[0].ts_ms < ts_ms - self.retention_ms or (
            self._figures > self._figures_max and len(self._sums) > 1
        ):
            self._drop()

    def points(self, model: str | None = None, since_ms: int = 0) -> tuple[HistoryPoint, ...]:
        """Samples of one model, or of all pools together, taken at or after `since_ms`."""
        of = self._sums if model is None else self._models.get(model, ())
        known = {point.ts_ms: point for point in of if point.ts_ms >= since_ms}
        times = (each.ts_ms for each in self._sums if each.ts_ms >= since_ms)
        return tuple(_as_told(ts_ms, known.get(ts_ms)) for ts_ms in times)

    def _keep(self, points: deque[_Point], point: _Point) -> None:
        points.append(point)
        self._figures += point.figures

    def _drop(self, *, newest: bool = False) -> None:
        """Forget one sample of everything, the oldest unless said otherwise."""
        at = -1 if newest else 0
        ts_ms = self._sums[at].ts_ms
        for points in (self._sums, *self._models.values()):
            if points and points[at].ts_ms == ts_ms:
                self._figures -= points[at].figures
                if newest:
                    points.pop()
                else:
                    points.popleft()
        for model in [model for model, points in self._models.items() if not points]:
            del self._models[model]


class Sampler:
    """Adds a sample every two seconds, of what `pools` and `clock` (Unix milliseconds) say then."""

    def __init__(
        self,
        history: History,
        pools: Callable[[], Sequence[PoolView]],
        clock: Callable[[], int],
    ) -> None:
        self._history: Final = history
        self._pools: Final = pools
        self._clock: Final = clock
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, unless nothing is to be kept."""
        if self._history.retention_ms:
            self._task = asyncio.create_task(self._run(), name="history")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            try:
                self._history.add(self._pools(), self._clock())
            except Exception:
                # A fault of ours in one sample, and no reason to take none from then on.
                log.exception("sample_failed")
            # In step with the clock: a late sample is not followed by an early one in haste.
            due = max(due + INTERVAL_SECS, loop.time())
            await asyncio.sleep(due - loop.time())


def _point(ts_ms: int, pools: Sequence[PoolView]) -> _Point:
    groups: Counter[str] = Counter()
    for pool in pools:
        for group in pool.groups:
            if group.in_flight:
                groups[group.name] += group.in_flight
    return _Point(
        ts_ms,
        sum(pool.in_flight for pool in pools),
        sum(pool.queued for pool in pools),
        sum(pool.held for pool in pools),
        _bounded(groups),
    )


def _bounded(groups: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    ranked = sorted(groups.items(), key=lambda each: (-each[1], each[0]))
    kept, rest = ranked[:GROUPS_A_POINT], ranked[GROUPS_A_POINT:]
    return (*kept, (OTHER, sum(n for _, n in rest))) if rest else tuple(kept)


def _as_told(ts_ms: int, point: _Point | None) -> HistoryPoint:
    if point is None:
        return HistoryPoint(ts_ms=ts_ms)
    return HistoryPoint(
        ts_ms=ts_ms,
        in_flight=point.in_flight,
        queued=point.queued,
        held=point.held,
        groups=dict(point.groups),
    )
