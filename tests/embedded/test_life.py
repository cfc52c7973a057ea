"""How the product starts, what it warns of, what it keeps, and how it says that it is stopping."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select
from structlog.testing import capture_logs

from dataplane.main import DataPlane
from dataplane.settings import DataPlaneSettings
from shared.database import Database
from shared.tables import BudgetUsageRow
from tests.embedded.conftest import Product, Starting


async def test_it_is_ready_and_says_its_mode(product: Product) -> None:
    answer = await product.operations.get("/readyz")
    assert answer.status_code == 200
    assert answer.json() == {"ready": True, "mode": "local", "problems": []}


async def test_policy_and_usage_outlive_a_restart(starting: Starting) -> None:
    async with starting() as product:
        await product.model("m")
        _, key = await product.tenant("t")
        assert (await product.ask(key, "m")).status_code == 200
    async with starting() as product:
        (model,) = (await product.api.get("/models")).json()["items"]
        (endpoint,) = (await product.api.get(f"/models/{model['id']}/endpoints")).json()["items"]
        await product.api.patch(
            f"/models/{model['id']}/endpoints/{endpoint['id']}", json={"url": product.backend.url}
        )
        assert (await product.ask(key, "m")).status_code == 200
        (row,) = (await product.api.get("/usage/requests")).json()["items"]
        assert (row["tenant"], row["model"], row["status"]) == ("t", "m", 200)


@pytest.mark.parametrize(("ceiling", "warned"), [(39, True), (40, False)])
async def test_a_ceiling_below_the_sum_of_the_pools_is_warned_of(
    starting: Starting, ceiling: int, warned: bool
) -> None:
    async with starting() as product:
        await product.make("/models", name="set", max_in_flight=8)
        await product.make("/models", name="default")
    with capture_logs() as logs:
        async with starting(global_max_in_flight=ceiling):
            pass
    warnings = [one for one in logs if "OBLETH_GLOBAL_MAX_IN_FLIGHT" in one["event"]]
    assert bool(warnings) is warned
    assert all(one["sum_of_pools"] == 40 and one["ceiling"] == ceiling for one in warnings)


async def test_what_days_long_gone_have_used_is_deleted(
    starting: Starting, sqlite_url: str
) -> None:
    async with starting():
        pass
    database = Database(sqlite_url)
    long_ago = datetime.now(UTC) - timedelta(days=63)
    for scope_id, calendar in (("a day", True), ("a term", False)):
        async with database.transaction() as session:
            session.add(
                BudgetUsageRow(
                    scope="tenant",
                    scope_id=scope_id,
                    period_started_at=long_ago,
                    committed_tokens=5,
                    calendar=calendar,
                    updated_at=long_ago,
                )
            )
    left = select(BudgetUsageRow.scope_id)
    async with starting(), asyncio.timeout(20):
        while True:
            async with database.reading() as session:
                found = (await session.scalars(left)).all()
            if found == ["a term"]:
                break
    await database.close()


async def test_unregistered_models_go_to_the_default_upstream_and_share_one_pool(
    starting: Starting,
) -> None:
    async with starting() as product:
        backend = product.backend
        options = {"upstream_base_url": backend.url, "default_model_max_in_flight": 1}
        async with starting(**options) as routed:
            _, key = await routed.tenant("t")
            slow = {"x-sim-first-token-ms": "200"}
            one, other = await asyncio.gather(
                routed.ask(key, "whatever", headers=slow), routed.ask(key, "else", headers=slow)
            )
            assert (one.status_code, other.status_code) == (200, 200)
            classes = {answer.headers["x-obleth-admission"] for answer in (one, other)}
            assert classes == {"fast", "queued"}
            assert {record.model for record in backend.log} == {"whatever", "else"}


async def test_while_it_drains_it_is_not_ready_and_takes_nothing_new(starting: Starting) -> None:
    async with starting() as product:
        await product.model("m")
        _, key = await product.tenant("t")
        slow = asyncio.create_task(
            product.ask(key, "m", max_tokens=5, headers={"x-sim-token-ms": "200"})
        )
        await product.backend.until(lambda: product.backend.running("m") == 1)
        stopping = asyncio.create_task(product.service.stop())
        while (ready := await product.operations.get("/readyz")).status_code == 200:
            pass
        assert ready.json()["problems"] == ["shutting down"]
        assert (await slow).status_code == 200
        await stopping


async def test_a_data_plane_on_a_database_without_a_schema_says_so(sqlite_url: str) -> None:
    plane = DataPlane(DataPlaneSettings(database_url=sqlite_url))
    await plane.start()
    readiness = plane.readiness()
    await plane.drain(0)
    await plane.stop()
    assert not readiness.is_ready
    assert any("run `obleth migrate`" in problem for problem in readiness.problems)
