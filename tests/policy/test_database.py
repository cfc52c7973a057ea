"""Policy as it is read from a real database."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from cryptography.fernet import Fernet
from sqlalchemy import event, text
from sqlalchemy.pool import QueuePool

from dataplane.policy.cache import PolicyCache
from dataplane.policy.database import DatabasePolicySource
from dataplane.policy.source import SourceUnavailable
from migrations import schema
from shared.database import Database
from shared.policy import (
    AffinityOverride,
    Budget,
    BudgetPeriod,
    CapacityPolicy,
    CapacitySource,
    EndpointPolicy,
    GroupPolicy,
    KeyPolicy,
    LoadBalancing,
    ModelPolicy,
    TenantPolicy,
)
from shared.secrets import key_digest, seal
from shared.tables import (
    REVISION_ID,
    EndpointRow,
    GroupRow,
    KeyRow,
    ModelNameRow,
    ModelRow,
    RevisionRow,
    Row,
    TenantRow,
)

NOON = datetime(2031, 3, 30, 12, 0, 0, 250_000, tzinfo=UTC)
WRITTEN: dict[str, Any] = {"created_at": NOON, "updated_at": NOON, "revision": 1}
PEPPER = "pepper"


async def store(database: Database, *rows: Row) -> None:
    async with database.transaction() as session:
        for row in rows:  # in the order given: the mappers know of no relations between them
            session.add(row)
            await session.flush()


def group(name: str = "g1", **fields: Any) -> GroupRow:
    return GroupRow(**{"name": name, "weight": 100, **WRITTEN, **fields})


def tenant(id_: str = "t1", **fields: Any) -> TenantRow:
    plain = {
        "id": id_,
        "name": f"name of {id_}",
        "group_name": "g1",
        "weight": 100,
        "budget_period": "month",
        "status": "active",
    }
    return TenantRow(**{**plain, **WRITTEN, **fields})


def key(id_: str = "k1", secret: str = "sk-1", **fields: Any) -> KeyRow:
    plain = {
        "id": id_,
        "tenant_id": "t1",
        "name": f"name of {id_}",
        "digest": key_digest(secret, PEPPER),
        "prefix": secret[:4],
        "weight": 100,
        "budget_period": "month",
        "disabled": False,
    }
    return KeyRow(**{**plain, **WRITTEN, **fields})


def model(id_: str, name: str, **fields: Any) -> ModelRow:
    plain = {
        "id": id_,
        "name": name,
        "enabled": True,
        "admission_weight": 100,
        "load_balancing": "failover",
        "session_affinity": {},
        "request_timeout_secs": 600.0,
        "max_retries": 1,
    }
    return ModelRow(**{**plain, **WRITTEN, **fields})


def endpoint(id_: str, model_id: str, **fields: Any) -> EndpointRow:
    plain = {
        "id": id_,
        "model_id": model_id,
        "url": f"http://127.0.0.1/{id_}/v1",
        "weight": 100,
        "priority": 0,
        "enabled": True,
    }
    return EndpointRow(**{**plain, **WRITTEN, **fields})


async def test_a_key_comes_with_all_that_is_allowed_to_it(database: Database) -> None:
    await store(
        database,
        group(weight=500),
        tenant(
            weight=3,
            max_in_flight=4,
            tokens_per_minute=10**10,
            budget_tokens=2**50,
            budget_period="term",
            budget_started_at=NOON,
            status="suspended",
            allowed_models=["m1", "m2"],
        ),
        key(
            weight=5,
            max_in_flight=6,
            budget_tokens=7,
            budget_period="term",
            disabled=True,
            expires_at=NOON,
        ),
    )
    digest = key_digest("sk-1", PEPPER)
    found = await DatabasePolicySource(database).key(digest)
    at = NOON.timestamp()
    assert found == KeyPolicy(
        id="k1",
        name="name of k1",
        tenant=TenantPolicy(
            id="t1",
            name="name of t1",
            group=GroupPolicy("g1", 500),
            weight=3,
            max_in_flight=4,
            tokens_per_minute=10**10,
            budget=Budget(2**50, BudgetPeriod.TERM, at),
            suspended=True,
            allowed_models=frozenset({"m1", "m2"}),
        ),
        weight=5,
        max_in_flight=6,
        budget=Budget(7, BudgetPeriod.TERM, at),
        disabled=True,
        expires_at=at,
    )
    assert found.digest == digest


async def test_a_key_with_nothing_set_is_limited_by_nothing(database: Database) -> None:
    await store(database, group(), tenant(), key())
    found = await DatabasePolicySource(database).key(key_digest("sk-1", PEPPER))
    assert found == KeyPolicy(
        "k1", "name of k1", TenantPolicy("t1", "name of t1", GroupPolicy("g1", 100))
    )


async def test_an_unknown_digest_has_no_key(database: Database) -> None:
    await store(database, group(), tenant(), key())
    assert await DatabasePolicySource(database).key(key_digest("sk-2", PEPPER)) is None


@pytest.mark.parametrize(
    ("stored", "capacity"),
    [
        (
            {"mode": "discovered", "source": "endpoints", "per_replica_max_in_flight": 4},
            CapacityPolicy(CapacitySource.ENDPOINTS, 4),
        ),
        (
            {
                "mode": "discovered",
                "source": "kubernetes",
                "per_replica_max_in_flight": 8,
                "headroom": 1.5,
                "service": "vllm",
                "namespace": "ai",
                "of_a_later_version": 1,
            },
            CapacityPolicy(CapacitySource.KUBERNETES, 8, 1.5, service="vllm", namespace="ai"),
        ),
        (
            {
                "mode": "discovered",
                "source": "dns",
                "per_replica_max_in_flight": 1,
                "dns_name": "vllm.example",
            },
            CapacityPolicy(CapacitySource.DNS, 1, dns_name="vllm.example"),
        ),
        (None, None),
    ],
)
async def test_how_a_pool_is_sized_comes_with_its_model(
    database: Database, stored: dict[str, Any] | None, capacity: CapacityPolicy | None
) -> None:
    await store(database, model("m-1", "a", capacity=stored))
    (found,) = await DatabasePolicySource(database).models()
    assert found.capacity == capacity


async def test_a_source_of_sizes_of_a_later_version_is_not_guessed_at(database: Database) -> None:
    later = {"mode": "discovered", "source": "stars", "per_replica_max_in_flight": 1}
    await store(database, model("m-1", "a", capacity=later))
    with pytest.raises(SourceUnavailable):
        await DatabasePolicySource(database).models()


async def test_models_come_with_aliases_and_endpoints_in_order(database: Database) -> None:
    keys = (Fernet.generate_key().decode(),)
    await store(
        database,
        model("m-2", "b"),
        model(
            "m-1",
            "a",
            upstream_model="real-a",
            enabled=False,
            max_in_flight=8,
            admission_weight=250,
            load_balancing="round_robin",
            session_affinity={"enabled": True, "hold_ms": 5000, "of_a_later_version": 1},
            request_timeout_secs=1.5,
            max_retries=0,
        ),
    )
    await store(
        database,
        ModelNameRow(name="a", model_id="m-1", position=0),
        ModelNameRow(name="z", model_id="m-1", position=1),
        ModelNameRow(name="y", model_id="m-1", position=2),
        endpoint("e-3", "m-1", priority=1),
        endpoint("e-2", "m-1", sealed_api_key=seal("upstream secret", keys), max_in_flight=3),
        endpoint("e-1", "m-1", enabled=False, weight=7),
    )
    assert await DatabasePolicySource(database, encryption_keys=keys).models() == [
        ModelPolicy(
            id="m-1",
            name="a",
            aliases=("z", "y"),
            upstream_model="real-a",
            enabled=False,
            max_in_flight=8,
            admission_weight=250,
            load_balancing=LoadBalancing.ROUND_ROBIN,
            affinity=AffinityOverride(enabled=True, hold_ms=5000),
            request_timeout_secs=1.5,
            max_retries=0,
            endpoints=(
                EndpointPolicy("e-1", "http://127.0.0.1/e-1/v1", weight=7, enabled=False),
                EndpointPolicy(
                    "e-2", "http://127.0.0.1/e-2/v1", "upstream secret", max_in_flight=3
                ),
                EndpointPolicy("e-3", "http://127.0.0.1/e-3/v1", priority=1),
            ),
        ),
        ModelPolicy(id="m-2", name="b"),
    ]


async def test_an_endpoint_whose_key_cannot_be_opened_is_left_out(database: Database) -> None:
    sealed = seal("upstream secret", (Fernet.generate_key().decode(),))
    await store(database, model("m-1", "a"))
    await store(database, endpoint("e-1", "m-1", sealed_api_key=sealed), endpoint("e-2", "m-1"))
    (found,) = await DatabasePolicySource(database).models()
    assert [one.id for one in found.endpoints] == ["e-2"]


async def test_the_revision_is_that_of_the_newest_change(database: Database) -> None:
    source = DatabasePolicySource(database)
    assert await source.revision() == 0
    await store(database, RevisionRow(id=REVISION_ID, value=2**40))
    assert await source.revision() == 2**40


async def test_a_schema_that_does_not_suit_this_build_is_told(database_url: str) -> None:
    database = Database(database_url)
    source = DatabasePolicySource(database)
    assert "older" in str(await source.schema_problem())
    await schema.migrate(database_url)
    assert await source.schema_problem() is None
    async with database.transaction() as session:
        await session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    assert "newer" in str(await source.schema_problem())
    await database.close()


async def test_a_migrated_database_can_be_read(database_url: str) -> None:
    await schema.migrate(database_url)
    database = Database(database_url)
    source = DatabasePolicySource(database)
    assert await source.models() == []
    assert await source.key("0" * 64) is None
    assert await source.revision() >= 0
    await database.close()


async def test_what_cannot_be_read_is_told_as_unavailable(database: Database) -> None:
    await store(database, group(), tenant(budget_period="fortnight"), key())
    source = DatabasePolicySource(database)
    with pytest.raises(SourceUnavailable):
        await source.key(key_digest("sk-1", PEPPER))
    async with database.transaction() as session:
        await session.execute(text("DROP TABLE model_names"))
    with pytest.raises(SourceUnavailable):
        await source.models()


@pytest.mark.parametrize(
    "url",
    [
        "sqlite+aiosqlite:////nowhere/at/all.db",
        "postgresql+asyncpg://nobody:wrong@127.0.0.1:1/nothing",
    ],
)
async def test_a_database_that_cannot_be_reached_is_unavailable(url: str) -> None:
    database = Database(url)
    source = DatabasePolicySource(database)
    for question in (source.revision(), source.schema_problem(), source.key(""), source.models()):
        with pytest.raises(SourceUnavailable):
            await question
    await database.close()


async def test_requests_cut_while_their_keys_are_loaded_give_every_connection_back(
    database: Database,
) -> None:
    await store(database, group(), tenant(), *(key(f"k{n}", f"sk-{n}") for n in range(200)))
    cache = PolicyCache(DatabasePolicySource(database), pepper=PEPPER, capacity=1000, stale_secs=60)
    await cache.poll()
    requests = [asyncio.create_task(cache.key(f"sk-{n}")) for n in range(200)]
    await asyncio.sleep(0)
    for request in requests:
        request.cancel()
    await asyncio.gather(*requests, return_exceptions=True)
    served = await asyncio.gather(*(cache.key(f"sk-{n}") for n in range(10)))
    assert [one.id for one in served] == [f"k{n}" for n in range(10)]
    await cache.stop()
    pool = database.engine.pool
    assert isinstance(pool, QueuePool)
    assert pool.checkedout() == 0


async def test_a_key_in_the_cache_costs_no_query(database: Database) -> None:
    await store(database, group(), tenant(), key())
    cache = PolicyCache(DatabasePolicySource(database), pepper=PEPPER, capacity=10, stale_secs=60)
    await cache.poll()
    await cache.key("sk-1")
    queries: list[str] = []
    event.listen(
        database.engine.sync_engine,
        "before_cursor_execute",
        lambda *args: queries.append(args[2]),
    )
    for _ in range(10):
        assert cache.cached_key("sk-1") is not None
        await cache.key("sk-1")
    assert queries == []
