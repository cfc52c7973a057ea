"""What a replica remembers, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from dataplane.live.history import GROUPS_A_POINT, OTHER, POOLS_A_SAMPLE, History, Sampler
from dataplane.live_view import PoolView
from tests.live.views import pool, tenant

STEP = 2_000


def a_pool(model: str, in_flight: int, queued: int = 0, group: str = "g") -> PoolView:
    return pool(8, tenant("t", in_flight, queued, group=group), id=model, model=model)


def filled(history: History, samples: int, *pools: PoolView) -> History:
    for n in range(1, samples + 1):
        history.add(pools, n * STEP)
    return history


def times(history: History, model: str | None = None, since_ms: int = 0) -> list[int]:
    return [point.ts_ms for point in history.points(model, since_ms)]


def test_a_sample_has_each_pool_and_the_sums_over_all() -> None:
    history = filled(History(60), 1, a_pool("m1", 3, 2, "a"), a_pool("m2", 1, 0, "b"))
    (one,) = history.points("m1")
    assert (one.ts_ms, one.in_flight, one.queued, one.held, one.groups) == (STEP, 3, 2, 0, {"a": 3})
    (both,) = history.points()
    assert (both.in_flight, both.queued, both.groups) == (4, 2, {"a": 3, "b": 1})


def test_a_pool_without_work_has_samples_of_nothing() -> None:
    history = History(60)
    history.add([a_pool("m", 3)], STEP)
    history.add([], 2 * STEP)
    history.add([a_pool("m", 1)], 3 * STEP)
    assert [point.in_flight for point in history.points("m")] == [3, 0, 1]
    assert [point.in_flight for point in history.points("never")] == [0, 0, 0]


def test_samples_are_kept_for_the_time_that_is_set() -> None:
    history = filled(History(10), 50, a_pool("m", 1))
    assert times(history, "m") == times(history) == [n * STEP for n in range(45, 51)]
    assert history.oldest_ts_ms == 45 * STEP


def test_a_model_that_is_not_used_any_more_is_forgotten() -> None:
    history = filled(History(10), 3, a_pool("gone", 1))
    for n in range(4, 20):
        history.add([], n * STEP)
    assert list(history.models) == []


def test_only_samples_at_or_after_a_moment_are_told() -> None:
    history = filled(History(60), 5, a_pool("m", 1))
    assert times(history, "m", since_ms=4 * STEP) == [4 * STEP, 5 * STEP]
    assert times(history, since_ms=6 * STEP) == []


def test_memory_is_bounded_whatever_the_number_of_models_and_groups() -> None:
    history = History(3600, figures_max=20_000)
    for n in range(1, 201):
        pools = [a_pool(f"m{n}-{p}", 1, group=f"g{p}") for p in range(1_000)]
        history.add(pools, n * STEP)
        assert len(list(history.models)) <= 20_000 / 5
        assert history._figures <= 20_000
    points = history.points()
    assert 0 < len(points) < 200
    assert points[-1].in_flight == 1_000
    assert history.oldest_ts_ms == points[0].ts_ms


def test_what_one_sample_keeps_is_bounded_and_its_sums_are_complete() -> None:
    tenants = [tenant(f"t{n}", 1 + (n < 10), group=f"g{n:03}") for n in range(100)]
    history = filled(History(60), 1, pool(200, *tenants))
    (point,) = history.points("m")
    assert len(point.groups) == GROUPS_A_POINT + 1
    assert sum(point.groups.values()) == point.in_flight == 110
    assert point.groups["g000"] == 2
    assert point.groups[OTHER] == 110 - 2 * 10 - (GROUPS_A_POINT - 10)
    many = [a_pool(f"m{n}", 1) for n in range(POOLS_A_SAMPLE + 50)]
    assert len(list(filled(History(60), 1, *many).models)) == POOLS_A_SAMPLE


def test_a_clock_set_back_leaves_no_sample_in_the_future() -> None:
    history = filled(History(60), 5, a_pool("m", 1))
    history.add([a_pool("m", 7)], 3 * STEP)
    assert times(history, "m") == [STEP, 2 * STEP, 3 * STEP]
    assert [point.in_flight for point in history.points("m")] == [1, 1, 7]


def test_two_pools_of_a_model_that_was_made_again_are_one_line() -> None:
    old = pool(8, tenant("t", 2), id="old", model="m")
    new = pool(8, tenant("t", 1), id="new", model="m")
    (point,) = filled(History(60), 1, old, new).points("m")
    assert point.in_flight == 3


async def test_samples_are_taken_after_a_mistake_nobody_foresaw(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dataplane.live.history.INTERVAL_SECS", 0)
    history, enough = History(60), asyncio.Event()
    clock = iter(range(STEP, 4 * STEP, STEP))

    def now() -> int:
        ts_ms = next(clock, None)
        if ts_ms is None:
            enough.set()
            raise LookupError("a mistake")
        if ts_ms == 2 * STEP:
            raise LookupError("a mistake")
        return ts_ms

    sampler = Sampler(history, lambda: [a_pool("m", 1)], now)
    sampler.start()
    await enough.wait()
    await sampler.stop()
    assert times(history) == [STEP, 3 * STEP]
