"""Usage in a real database."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import func, select, text

from dataplane.usage.database import DatabaseUsageStore
from dataplane.usage.record import UsageRecord, UsageStoreUnavailable
from shared.database import Database
from shared.policy import GroupPolicy, KeyPolicy, TenantPolicy
from shared.tables import GroupRow, KeyRow, TenantRow, UsageRow
from tests.usage.records import KEY, STARTED, record

NOON = datetime.fromtimestamp(STARTED, UTC)


async def rows(database: Database) -> list[UsageRow]:
    async with database.reading() as session:
        return list(await session.scalars(select(UsageRow).order_by(UsageRow.id)))


async def with_key(database: Database, *ids: str) -> None:
    stamp = {"created_at": NOON, "updated_at": NOON, "revision": 1}
    async with database.transaction() as session:
        session.add(GroupRow(name="default", weight=100, **stamp))
        await session.flush()
        session.add(
            TenantRow(
                id="t1",
                name="t",
                group_name="default",
                weight=1,
                budget_period="month",
                status="active",
                **stamp,
            )
        )
        await session.flush()
        for id_ in ids:
            session.add(
                KeyRow(
                    id=id_,
                    tenant_id="t1",
                    name="k",
                    digest=id_,
                    prefix="sk-",
                    weight=1,
                    budget_period="month",
                    disabled=False,
                    **stamp,
                )
            )


async def last_used(database: Database, id_: str = "k1") -> tuple[datetime | None, datetime, int]:
    async with database.reading() as session:
        key = await session.get_one(KeyRow, id_)
        return key.last_used_at, key.updated_at, key.revision


async def test_a_record_becomes_a_row_with_the_names_of_the_time(database: Database) -> None:
    key = KeyPolicy("k1", "my key", TenantPolicy("t1", "my team", GroupPolicy("my group")))
    given = record(
        "client's id",
        key=key,
        started_at=STARTED + 0.25,
        is_partial=True,
        is_estimated=True,
        session="abc",
        status=499,
    )
    assert await DatabaseUsageStore(database).write([given]) == 0
    (row,) = await rows(database)
    assert {column.name: getattr(row, column.name) for column in UsageRow.__table__.columns} == {
        "id": given.id,
        "request_id": "client's id",
        "started_at": NOON + timedelta(seconds=0.25),
        "group_name": "my group",
        "tenant_id": "t1",
        "tenant": "my team",
        "key_id": "k1",
        "key": "my key",
        "model": "m1",
        "admission": "fast",
        "status": 499,
        "partial": True,
        "queue_ms": 0.5,
        "ttfb_ms": 12.25,
        "duration_ms": 100.0,
        "input_tokens": 10,
        "output_tokens": 20,
        "cached_tokens": 5,
        "estimated": True,
        "session": "abc",
    }


async def test_what_is_not_known_stays_unknown(database: Database) -> None:
    nothing = record(ttfb_ms=None, input_tokens=None, output_tokens=None, cached_tokens=None)
    await DatabaseUsageStore(database).write([nothing])
    (row,) = await rows(database)
    assert (row.ttfb_ms, row.input_tokens, row.output_tokens, row.cached_tokens) == (None,) * 4


async def test_writing_a_batch_again_changes_nothing(database: Database) -> None:
    store = DatabaseUsageStore(database)
    batch = [record(f"r{n}") for n in range(50)]
    await store.write(batch[:30])
    assert await store.write(batch) == 0
    assert await store.write([replace(batch[0], status=500)]) == 0
    found = await rows(database)
    assert len(found) == 50
    assert {row.status for row in found} == {200}


async def test_text_no_column_takes_is_cut_and_cleaned(database: Database) -> None:
    odd = record("\ud800\0" + "x" * 500, model="\U0001f600" * 300, session="s" * 65)
    assert await DatabaseUsageStore(database).write([odd]) == 0
    (row,) = await rows(database)
    assert (row.request_id, row.model) == ("?" + "x" * 199, "\U0001f600" * 200)
    assert row.session == "s" * 64


async def test_figures_beyond_a_column_are_cut(database: Database) -> None:
    assert (
        await DatabaseUsageStore(database).write([record(input_tokens=10**30, output_tokens=-1)])
        == 0
    )
    (row,) = await rows(database)
    assert (row.input_tokens, row.output_tokens) == (2**63 - 1, 0)


async def test_one_record_that_cannot_be_kept_costs_no_other(database: Database) -> None:
    bad: UsageRecord = record("bad", status=None)
    batch = [record("r1"), bad, record("r2")]
    assert await DatabaseUsageStore(database).write(batch) == 1
    assert sorted(row.request_id for row in await rows(database)) == ["r1", "r2"]


async def test_keys_know_when_they_were_last_used(database: Database) -> None:
    await with_key(database, "k1", "k2")
    store = DatabaseUsageStore(database)
    await store.write([record(started_at=STARTED + at) for at in (5, 9, 7)])
    at, updated_at, revision = await last_used(database)
    assert at == NOON + timedelta(seconds=9)
    assert (updated_at, revision) == (NOON, 1), "being used is no change of policy"
    assert (await last_used(database, "k2"))[0] is None


async def test_an_older_request_does_not_set_a_keys_last_use_back(database: Database) -> None:
    await with_key(database, "k1")
    store = DatabaseUsageStore(database)
    for at in (9, 5):
        await store.write([record(started_at=STARTED + at)])
    assert (await last_used(database))[0] == NOON + timedelta(seconds=9)


async def test_usage_of_a_key_deleted_meanwhile_is_kept(database: Database) -> None:
    assert await DatabaseUsageStore(database).write([record()]) == 0
    assert len(await rows(database)) == 1


async def test_writers_at_once_do_not_wait_for_each_other_in_a_ring(database: Database) -> None:
    ids = [f"k{n}" for n in range(1, 20)]
    await with_key(database, *ids)
    store = DatabaseUsageStore(database)

    def batch(order: list[str]) -> list[UsageRecord]:
        return [record(key=replace(KEY, id=id_)) for id_ in order]

    await asyncio.gather(*(store.write(batch(ids if n % 2 else ids[::-1])) for n in range(8)))
    assert len(await rows(database)) == 8 * len(ids)


async def test_only_what_is_old_is_deleted_and_no_more_than_asked(database: Database) -> None:
    store = DatabaseUsageStore(database)
    await store.write([record(f"r{n}", started_at=STARTED + n) for n in range(10)])
    assert await store.purge(STARTED + 7, 5) == 5
    assert await store.purge(STARTED + 7, 5) == 2
    assert await store.purge(STARTED + 7, 5) == 0
    assert sorted(row.request_id for row in await rows(database)) == ["r7", "r8", "r9"]


async def test_a_database_without_the_table_is_unavailable(database: Database) -> None:
    async with database.transaction() as session:
        await session.execute(text("DROP TABLE usage_requests"))
    store = DatabaseUsageStore(database)
    with pytest.raises(UsageStoreUnavailable):
        await store.write([record(), record()])
    with pytest.raises(UsageStoreUnavailable):
        await store.purge(STARTED, 1)


async def test_a_thousand_records_are_one_batch(database: Database) -> None:
    assert await DatabaseUsageStore(database).write([record(f"r{n}") for n in range(1000)]) == 0
    async with database.reading() as session:
        assert await session.scalar(select(func.count()).select_from(UsageRow)) == 1000
