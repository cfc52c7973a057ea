"""Recording usage: never in a request's way, nothing twice, nothing lost in silence."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from dataplane.usage.record import UsageRecord, UsageStoreUnavailable
from dataplane.usage.recorder import DAY_SECS, PURGED_AT_A_TIME, UsageRecorder
from tests.usage.records import STARTED, MemoryUsageStore, record


def recorder(store: MemoryUsageStore, **options: Any) -> UsageRecorder:
    return UsageRecorder(store, **{"retention_days": 30, **options})


async def test_records_are_written_in_batches() -> None:
    store = MemoryUsageStore()
    usage = recorder(store, batch_max=10)
    for number in range(25):
        usage.record(record(f"r{number}"))
    assert await usage.write()
    assert store.batches == [10, 10, 5]
    assert [one.request_id for one in store.kept.values()] == [f"r{n}" for n in range(25)]
    assert usage.waiting == 0


async def test_a_full_batch_is_written_at_once_and_a_small_one_soon() -> None:
    written = asyncio.Event()

    class TellingStore(MemoryUsageStore):
        async def write(self, records: Sequence[UsageRecord]) -> int:
            written.set()
            return await super().write(records)

    for options in ({"batch_max": 3, "write_every_secs": 3600.0}, {"write_every_secs": 0.001}):
        written.clear()
        usage = recorder(TellingStore(), **options)
        await usage.start()
        for number in range(3):
            usage.record(record(f"r{number}"))
        await asyncio.wait_for(written.wait(), 10)
        await usage.stop()


async def test_records_wait_while_the_database_is_away_and_are_written_when_it_is_back() -> None:
    store = MemoryUsageStore(away=True)
    usage = recorder(store, batch_max=2)
    for number in range(5):
        usage.record(record(f"r{number}"))
    assert not await usage.write()
    assert usage.waiting == 5
    store.away = False
    assert await usage.write()
    assert len(store.kept) == 5
    assert usage.dropped == 0


async def test_a_batch_whose_commit_was_never_confirmed_is_not_kept_twice() -> None:
    store = MemoryUsageStore(loses_answers=True)
    usage = recorder(store)
    usage.record(record("r1"))
    assert not await usage.write()
    store.loses_answers = False
    usage.record(record("r2"))
    assert await usage.write()
    assert sorted(one.request_id for one in store.kept.values()) == ["r1", "r2"]


async def test_requests_that_share_a_clients_id_are_both_kept() -> None:
    store = MemoryUsageStore()
    usage = recorder(store)
    usage.record(record("chosen"))
    usage.record(record("chosen"))
    await usage.write()
    assert len(store.kept) == 2


async def test_what_does_not_fit_into_memory_is_dropped_and_counted() -> None:
    store, told = MemoryUsageStore(away=True), []
    usage = recorder(store, waiting_max=10, on_dropped=told.append)
    for number in range(25):
        usage.record(record(f"r{number}"))
    assert (usage.waiting, usage.dropped, sum(told)) == (10, 15, 15)
    store.away = False
    await usage.write()
    assert len(store.kept) == 10


async def test_a_record_the_database_will_not_take_is_counted_and_holds_up_nobody() -> None:
    store, told = MemoryUsageStore(refuses=frozenset({"bad"})), []
    usage = recorder(store, on_dropped=told.append)
    for name in ("r1", "bad", "r2"):
        usage.record(record(name))
    assert await usage.write()
    assert (len(store.kept), usage.waiting, told) == (2, 0, [1])


async def test_an_unexpected_fault_costs_its_batch_and_not_all_that_follow() -> None:
    class Broken(MemoryUsageStore):
        async def write(self, records: Sequence[UsageRecord]) -> int:
            if any(one.request_id == "bad" for one in records):
                raise ZeroDivisionError
            return await super().write(records)

    store = Broken()
    usage = recorder(store, batch_max=1)
    for name in ("bad", "r1"):
        usage.record(record(name))
    assert await usage.write()
    assert (len(store.kept), usage.dropped, usage.waiting) == (1, 1, 0)


async def test_stopping_writes_what_waits() -> None:
    store = MemoryUsageStore()
    usage = recorder(store, write_every_secs=3600.0)
    await usage.start()
    usage.record(record())
    await usage.stop()
    assert len(store.kept) == 1


async def test_stopping_in_the_middle_of_a_write_writes_the_batch_again() -> None:
    writing = asyncio.Event()

    class Slow(MemoryUsageStore):
        async def write(self, records: Sequence[UsageRecord]) -> int:
            first = not writing.is_set()
            writing.set()
            done = await super().write(records)
            if first:
                await asyncio.Event().wait()
            return done

    store = Slow()
    usage = recorder(store, batch_max=1)
    await usage.start()
    usage.record(record())
    await writing.wait()
    await usage.stop()
    assert (store.batches, len(store.kept), usage.dropped) == ([1, 1], 1, 0)


async def test_what_cannot_be_written_at_the_end_is_counted() -> None:
    usage = recorder(MemoryUsageStore(away=True))
    usage.record(record())
    await usage.stop()
    assert (usage.waiting, usage.dropped) == (0, 1)


async def test_what_is_older_than_the_retention_is_deleted_a_part_at_a_time() -> None:
    store = MemoryUsageStore()
    usage = recorder(store, retention_days=7, wall=lambda: STARTED + 10 * DAY_SECS)
    old = PURGED_AT_A_TIME * 2 + 5
    for number in range(old):
        usage.record(record(f"old {number}"))
    usage.record(record("young", started_at=STARTED + 3 * DAY_SECS))
    await usage.write()
    assert await usage.purge() == old
    assert [one.request_id for one in store.kept.values()] == ["young"]
    assert len(store.purges) == 3


@pytest.mark.parametrize("error", [UsageStoreUnavailable("away"), LookupError("a mistake")])
async def test_old_usage_is_deleted_while_running_and_neither_outage_nor_mistake_ends_that(
    error: Exception,
) -> None:
    purged, tried = asyncio.Event(), asyncio.Event()

    class Store(MemoryUsageStore):
        async def purge(self, before: float, at_most: int) -> int:
            if not tried.is_set():
                tried.set()
                raise error
            purged.set()
            return await super().purge(before, at_most)

    usage = recorder(Store(), purge_every_secs=0.001)
    await usage.start()
    await asyncio.wait_for(purged.wait(), 10)
    await usage.stop()


async def test_recording_needs_no_running_task() -> None:
    usage = recorder(MemoryUsageStore(), waiting_max=1)
    usage.record(record())
    usage.record(record())
    assert usage.waiting == 1


@pytest.mark.parametrize("count", [1, 7])
async def test_every_record_is_written_dropped_or_waiting(count: int) -> None:
    store = MemoryUsageStore()
    usage = recorder(store, waiting_max=5, batch_max=2)
    for number in range(count):
        usage.record(record(f"r{number}"))
    await usage.write()
    assert len(store.kept) + usage.dropped + usage.waiting == count
