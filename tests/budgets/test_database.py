"""What terms have used, in a real database."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import text

from dataplane.budgets.database import DatabaseTermStore
from dataplane.budgets.local import LocalBudgets
from dataplane.budgets.port import TermStoreUnavailable
from dataplane.budgets.retention import TermRetention
from dataplane.budgets.terms import Scope, Term
from dataplane.errors import BudgetExhausted
from shared.database import Database
from tests.budgets.world import key, month, tenant

MARCH = Term(Scope.TENANT, "t1", 1_900_000_000_000, calendar=True)
EPOCH = Term(Scope.TENANT, "t1", 0, calendar=False)
MOVED = Term(Scope.KEY, "t1", 1_900_000_000_123, calendar=False)


async def test_totals_come_back_as_they_were_saved(database: Database) -> None:
    store = DatabaseTermStore(database)
    totals = {MARCH: 1, EPOCH: 2**50, MOVED: 3}
    await store.save(totals)
    assert await store.load(list(totals)) == totals


async def test_terms_without_a_record_are_left_out(database: Database) -> None:
    store = DatabaseTermStore(database)
    await store.save({MARCH: 7})
    assert await store.load([MARCH, EPOCH]) == {MARCH: 7}
    assert await store.load([]) == {}


async def test_a_repeated_or_late_save_takes_nothing_back(database: Database) -> None:
    store = DatabaseTermStore(database)
    for total in (10, 30, 30, 20):
        await store.save({MARCH: total})
    assert await store.load([MARCH]) == {MARCH: 30}


async def test_saves_at_once_do_not_disturb_each_other(database: Database) -> None:
    store = DatabaseTermStore(database)
    terms = [Term(Scope.KEY, f"k{n}", 0, calendar=False) for n in range(200)]
    await asyncio.gather(*(store.save(dict.fromkeys(terms, total)) for total in (1, 2, 3)))
    assert set((await store.load(terms)).values()) == {3}


async def test_only_old_days_and_months_are_purged_and_no_more_than_asked(
    database: Database,
) -> None:
    store = DatabaseTermStore(database)
    day_ms = 86_400_000
    days = [Term(Scope.KEY, "k", MARCH.starts_ms + n * day_ms, calendar=True) for n in range(5)]
    begun_by_hand = [EPOCH, Term(Scope.KEY, "by hand", MARCH.starts_ms, calendar=False)]
    totals = dict.fromkeys([*days, *begun_by_hand], 7)
    await store.save(totals)
    before = days[3].starts_ms / 1000
    assert [await store.purge(before, 2) for _ in range(3)] == [2, 1, 0]
    assert set(await store.load(list(totals))) == {*days[3:], *begun_by_hand}


async def test_a_term_that_began_with_a_month_is_not_purged_with_it(database: Database) -> None:
    store = DatabaseTermStore(database)
    for grow in (store.save, store.add):
        began = Term(Scope.TENANT, grow.__name__, MARCH.starts_ms, calendar=False)
        await grow({began._replace(calendar=True): 5})
        await grow({began: 9})
        await grow({began._replace(calendar=True): 11})
        assert await store.purge(MARCH.starts_ms / 1000 + 1, 10) == 0


async def test_a_term_is_purged_a_month_after_the_longest_could_have_ended() -> None:
    calls: list[tuple[float, int]] = []

    class Store:
        async def purge(self, before: float, at_most: int) -> int:
            calls.append((before, at_most))
            return at_most if len(calls) < 3 else 1

    retention = TermRetention(Store(), wall=lambda: 100 * 86_400.0)
    assert await retention.purge() == 2 * calls[0][1] + 1
    assert {before for before, _ in calls} == {38 * 86_400.0}


@pytest.mark.parametrize("error", [TermStoreUnavailable("away"), LookupError("a mistake")])
async def test_purging_goes_on_after_the_database_was_away_or_a_mistake_nobody_foresaw(
    error: Exception,
) -> None:
    tried = asyncio.Event()

    class Store:
        async def purge(self, before: float, at_most: int) -> int:
            if tried.is_set():
                done.set()
                return 0
            tried.set()
            raise error

    done = asyncio.Event()
    retention = TermRetention(Store(), every_secs=0.001)
    retention.start()
    await asyncio.wait_for(done.wait(), 10)
    await retention.stop()


async def test_a_database_that_fails_is_told_as_unavailable(database: Database) -> None:
    async with database.transaction() as session:
        await session.execute(text("DROP TABLE budget_usage"))
    store = DatabaseTermStore(database)
    with pytest.raises(TermStoreUnavailable):
        await store.load([MARCH])
    with pytest.raises(TermStoreUnavailable):
        await store.save({MARCH: 1})


async def test_a_restarted_process_goes_on_counting_where_the_last_one_ended(
    database: Database,
) -> None:
    key_ = key(of=tenant(budget=month(1000)), budget=month(1000))
    first = LocalBudgets(DatabaseTermStore(database))
    await first.start()
    await first.settle(await first.reserve(key_, 900), 950)
    await first.stop()
    second = LocalBudgets(DatabaseTermStore(database))
    await second.check(key_, 50)
    with pytest.raises(BudgetExhausted, match="950 used"):
        await second.check(key_, 51)


async def test_what_several_writers_add_at_once_adds_up(database: Database) -> None:
    store = DatabaseTermStore(database)
    terms = [Term(Scope.KEY, f"k{n}", 0, calendar=False) for n in range(100)]
    backwards = dict.fromkeys(reversed(terms), 2)
    await asyncio.gather(
        *(store.add(used) for used in (dict.fromkeys(terms, 1), backwards, backwards))
    )
    assert set((await store.load(terms)).values()) == {5}


async def test_adding_tells_the_totals_with_what_was_there(database: Database) -> None:
    store = DatabaseTermStore(database)
    await store.save({MARCH: 2**50})
    assert await store.add({MARCH: 1, EPOCH: 7}) == {MARCH: 2**50 + 1, EPOCH: 7}
    assert await store.add({}) == {}


async def test_two_terms_that_began_at_the_same_moment_are_one_in_the_database(
    database: Database,
) -> None:
    store = DatabaseTermStore(database)
    same = MARCH._replace(calendar=False)
    assert await store.add({MARCH: 1, same: 2}) == {MARCH: 3, same: 3}
