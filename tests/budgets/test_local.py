"""What counting in one process adds: a store behind it, and memory that stays bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from dataplane.budgets.local import SAVED_AT_A_TIME, LocalBudgets
from dataplane.budgets.terms import Term
from dataplane.errors import BudgetExhausted, PolicyUnavailable, RateLimited
from shared.policy import Budget, BudgetPeriod, KeyPolicy
from tests.budgets.world import MemoryTermStore, Time, key, month, per_minute, tenant

TIME_OF_A_DAY = 86_400.0


def budgets(store: MemoryTermStore, time: Time, **options: Any) -> LocalBudgets:
    return LocalBudgets(store, clock=lambda: time.monotonic, wall=lambda: time.wall, **options)


async def use(of: LocalBudgets, key: KeyPolicy, tokens: int) -> None:
    await of.settle(await of.reserve(key, tokens), tokens)


def monthly(tokens: int, id_: str = "t1") -> KeyPolicy:
    return key(f"key of {id_}", of=tenant(id_, budget=month(tokens)))


async def test_a_term_is_read_once_however_many_requests_wait_for_it() -> None:
    store = MemoryTermStore()
    local = budgets(store, Time())
    await asyncio.gather(*(local.reserve(monthly(10_000), 10) for _ in range(50)))
    await local.check(monthly(10_000), 10)
    assert len(store.loads) == 1


async def test_a_key_without_budgets_never_touches_the_store() -> None:
    store = MemoryTermStore(away=True)
    local = budgets(store, Time())
    await use(local, per_minute(1000), 1000)
    assert store.loads == []


async def test_a_term_that_cannot_be_read_is_refused_and_not_let_through() -> None:
    store, time = MemoryTermStore(away=True), Time()
    local = budgets(store, time)
    for question in (local.check, local.reserve):
        with pytest.raises(PolicyUnavailable):
            await question(monthly(1000), 10)
    store.away = False
    await local.reserve(monthly(1000), 10)


async def test_a_known_term_goes_on_counting_while_the_store_is_away() -> None:
    store = MemoryTermStore()
    local = budgets(store, Time())
    await use(local, monthly(1000), 400)
    store.away = True
    await use(local, monthly(1000), 600)
    with pytest.raises(BudgetExhausted):
        await local.check(monthly(1000), 1)


async def test_midnight_passes_without_the_store() -> None:
    store, time = MemoryTermStore(), Time()
    local = budgets(store, time)
    daily = key(of=tenant(budget=Budget(100, BudgetPeriod.DAY)))
    await use(local, daily, 100)
    store.away = True
    time.passes(TIME_OF_A_DAY)
    await use(local, daily, 100)
    with pytest.raises(BudgetExhausted):
        await local.check(daily, 1)


async def test_a_term_once_forgotten_is_read_back_even_if_it_began_under_our_eyes() -> None:
    store, time = MemoryTermStore(), Time()
    local = budgets(store, time, term_capacity=3)
    time.passes(TIME_OF_A_DAY)
    daily = key(of=tenant(budget=Budget(100, BudgetPeriod.DAY)))
    await use(local, daily, 100)
    await local.save()
    for other in range(6):
        await use(local, monthly(1000, f"other {other}"), 1)
        await local.save()
    with pytest.raises(BudgetExhausted):
        await local.check(daily, 1)


async def test_usage_is_saved_in_totals_of_what_changed() -> None:
    store = MemoryTermStore()
    local = budgets(store, Time())
    await use(local, monthly(1000, "a"), 10)
    await use(local, monthly(1000, "a"), 20)
    await use(local, monthly(1000, "b"), 5)
    assert await local.save()
    await use(local, monthly(1000, "b"), 1)
    assert await local.save()
    assert await local.save()
    saved = [sorted((term.subject_id, used) for term, used in one.items()) for one in store.saves]
    assert saved == [[("a", 30), ("b", 5)], [("b", 6)]]


async def test_usage_waits_while_the_store_is_away_and_is_saved_when_it_is_back() -> None:
    store = MemoryTermStore()
    local = budgets(store, Time())
    await use(local, monthly(1000), 10)
    store.away = True
    assert not await local.save()
    await use(local, monthly(1000), 5)
    store.away = False
    assert await local.save()
    assert list(store.used.values()) == [15]


async def test_usage_is_saved_after_a_mistake_nobody_foresaw() -> None:
    class Mistaken(MemoryTermStore):
        tried, saved = asyncio.Event(), asyncio.Event()

        async def save(self, used: Mapping[Term, int]) -> None:
            if not self.tried.is_set():
                self.tried.set()
                raise LookupError("a mistake")
            await super().save(used)
            self.saved.set()

    store = Mistaken()
    local = budgets(store, Time(), save_every_secs=0.001)
    await use(local, monthly(1000), 10)
    await local.start()
    await asyncio.wait_for(store.saved.wait(), 10)
    await local.stop()
    assert list(store.used.values()) == [10]


async def test_usage_that_arrives_during_a_save_is_saved_by_the_next() -> None:
    class SlowStore(MemoryTermStore):
        async def save(self, used: Mapping[Term, int]) -> None:
            if not self.saves:
                await use(local, monthly(1000), 7)
            await super().save(used)

    store = SlowStore()
    local = budgets(store, Time())
    await use(local, monthly(1000), 10)
    await local.save()
    assert list(store.used.values()) == [10]
    await local.save()
    assert list(store.used.values()) == [17]


async def test_many_changed_terms_are_saved_in_several_writes() -> None:
    store = MemoryTermStore()
    local = budgets(store, Time())
    for number in range(SAVED_AT_A_TIME + 1):
        await use(local, monthly(1000, f"t{number}"), 1)
    assert await local.save()
    assert sorted(len(one) for one in store.saves) == [1, SAVED_AT_A_TIME]


async def test_stopping_saves_what_is_left() -> None:
    store = MemoryTermStore()
    local = budgets(store, Time())
    await local.start()
    await use(local, monthly(1000), 10)
    await local.stop()
    assert list(store.used.values()) == [10]


async def test_usage_is_saved_while_running_too() -> None:
    saved = asyncio.Event()

    class TellingStore(MemoryTermStore):
        async def save(self, used: Mapping[Term, int]) -> None:
            await super().save(used)
            saved.set()

    store = TellingStore()
    local = budgets(store, Time(), save_every_secs=0.001)
    await local.start()
    await use(local, monthly(1000), 10)
    await asyncio.wait_for(saved.wait(), 10)
    await local.stop()


async def test_a_request_that_leaves_while_its_term_is_read_takes_nothing_with_it() -> None:
    reading, go = asyncio.Event(), asyncio.Event()

    class SlowStore(MemoryTermStore):
        async def load(self, terms: Sequence[Term]) -> Mapping[Term, int]:
            reading.set()
            await go.wait()
            return await super().load(terms)

    store = SlowStore()
    local = budgets(store, Time())
    leaving = asyncio.create_task(local.reserve(monthly(1000), 600))
    staying = asyncio.create_task(local.reserve(monthly(1000), 600))
    await reading.wait()
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    go.set()
    await staying
    assert leaving.cancelled()
    assert len(store.loads) == 1
    with pytest.raises(BudgetExhausted):
        await local.reserve(monthly(1000), 600)


async def test_a_hundred_thousand_tenants_leave_no_buckets_behind() -> None:
    time = Time()
    local = budgets(MemoryTermStore(), time)
    for number in range(100_000):
        time.passes(0.001)
        await use(local, per_minute(60_000, tenant_id=f"t{number}"), 10)
    assert local.remembered == (local.remembered[0], 0, 0)
    assert local.remembered[0] < 100


async def test_a_bucket_in_debt_is_not_forgotten() -> None:
    time = Time()
    local = budgets(MemoryTermStore(), time)
    await local.settle(await local.reserve(per_minute(60, tenant_id="debtor"), 60), 6000)
    for number in range(100):
        time.passes(10)
        await use(local, per_minute(60_000, tenant_id=f"t{number}"), 10)
    with pytest.raises(RateLimited):
        await local.check(per_minute(60, tenant_id="debtor"), 60)


async def test_the_truth_reaches_a_bucket_that_was_forgotten_meanwhile() -> None:
    time = Time()
    local = budgets(MemoryTermStore(), time)
    running = await local.reserve(per_minute(600, tenant_id="slow"), 100)
    time.passes(600)
    for number in range(3):
        await use(local, per_minute(600, tenant_id=f"t{number}"), 1)
    await local.settle(running, 700)
    with pytest.raises(RateLimited) as caught:
        await local.check(per_minute(600, tenant_id="slow"), 10)
    assert caught.value.retry_after_secs == 1


async def test_terms_in_memory_are_bounded_and_read_back_when_needed() -> None:
    store = MemoryTermStore()
    local = budgets(store, Time(), term_capacity=10)
    for number in range(200):
        await use(local, monthly(1000, f"t{number}"), 900)
        await local.save()
    assert local.remembered[1] <= 10
    with pytest.raises(BudgetExhausted):
        await local.check(monthly(1000, "t0"), 101)


async def test_a_term_with_a_request_running_or_usage_unsaved_is_never_forgotten() -> None:
    store = MemoryTermStore(away=False)
    local = budgets(store, Time(), term_capacity=5)
    running = await local.reserve(monthly(1000, "runs"), 900)
    await use(local, monthly(1000, "unsaved"), 900)
    for number in range(50):
        await local.check(monthly(1000, f"t{number}"), 1)
    await local.settle(running, 900)
    for name in ("runs", "unsaved"):
        with pytest.raises(BudgetExhausted):
            await local.check(monthly(1000, name), 101)


async def test_settled_reservations_leave_nothing_open() -> None:
    local = budgets(MemoryTermStore(), Time())
    running = [await local.reserve(monthly(10_000), 10) for _ in range(20)]
    assert local.remembered[2] == 20
    for number, reservation in enumerate(running):
        await local.settle(reservation, None if number % 2 else 5)
    assert local.remembered[2] == 0
