"""The live picture of the product in one process, against what the backend really runs."""

from __future__ import annotations

import asyncio

from tests.embedded.conftest import Product


async def test_the_picture_has_what_the_backend_runs(product: Product) -> None:
    model = await product.model("m", max_in_flight=8)
    for name, weight in (("chat", 500), ("api", 50)):
        await product.make("/groups", name=name, weight=weight)
    _, chat = await product.tenant("chatbot", group="chat")
    batch, api = await product.tenant("api-batch", group="api")
    slow = {"x-sim-token-ms": "20"}
    asked = [
        asyncio.create_task(product.ask(key, "m", max_tokens=1000, headers=slow))
        for key in [chat] * 12 + [api] * 12
    ]
    await product.queued(16)
    told = (await product.api.get("/fairshare/live")).json()
    running = product.backend.running("m")
    assert (told["mode"], told["scope"], told["source"]) == ("local", "replica", "replica")
    assert (told["in_flight"], told["queued"], told["held"]) == (running, 16, 0)
    (pool,) = told["pools"]
    assert (pool["id"], pool["in_flight"], pool["queued"]) == (model["id"], running, 16)
    groups = {group["name"]: group for group in pool["groups"]}
    assert (groups["chat"]["slot_cap"], groups["api"]["slot_cap"]) == (7, 1)
    assert sum(group["in_flight"] for group in groups.values()) == running
    tenants = {tenant["name"]: tenant for tenant in pool["tenants"]}
    assert tenants["api-batch"]["id"] == batch["id"]
    assert round(tenants["chatbot"]["fair_slots"], 3) == 7.273
    assert len(pool["next_in_line"]) == 5
    history = (await product.api.get("/fairshare/history?model=m")).json()
    assert history["retention_ms"] == 3_600_000
    (replica,) = (await product.api.get("/replicas")).json()["items"]
    assert (replica["instance"], replica["in_flight"]) == (told["instance"], running)
    for task in asked:
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)


async def test_its_own_replica_can_be_named_and_no_other(product: Product) -> None:
    name = (await product.api.get("/fairshare/live")).json()["instance"]
    assert (await product.api.get(f"/fairshare/live?replica={name}")).status_code == 200
    for path in ("live", "history"):
        answer = await product.api.get(f"/fairshare/{path}?replica=other")
        assert answer.status_code == 404
    answer = await product.api.get("/fairshare/history?model=never")
    assert answer.status_code == 404


async def test_the_live_routes_of_the_replica_itself_are_off_without_a_token(
    product: Product,
) -> None:
    answer = await product.operations.get("/internal/fairshare/live")
    assert answer.status_code == 404
