"""A change over the API is in force for the next request, and for those that wait already."""

import asyncio

from tests.embedded.conftest import Product

HOLD = {"headers": {"x-sim-token-ms": "600000"}, "stream": True}


async def holding(product: Product, key: str, model: str) -> asyncio.Task[object]:
    """A request that keeps one slot of a model until it is cancelled."""
    task: asyncio.Task[object] = asyncio.create_task(product.ask(key, model, **HOLD))
    before = product.backend.running(model)
    await product.backend.until(lambda: product.backend.running(model) > before)
    return task


async def let_go(task: asyncio.Task[object]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_new_key_and_a_new_model_work_at_once(product: Product) -> None:
    await product.model("m")
    _, key = await product.tenant("t")
    answer = await product.ask(key, "m")
    assert answer.status_code == 200
    assert answer.headers["x-obleth-admission"] == "fast"
    await product.model("another")
    assert (await product.ask(key, "another")).status_code == 200


async def test_a_revoked_key_is_refused_at_once(product: Product) -> None:
    await product.model("m")
    _, key = await product.tenant("t")
    assert (await product.ask(key, "m")).status_code == 200
    (found,) = (await product.api.get("/keys")).json()["items"]
    assert (await product.api.delete(f"/keys/{found['id']}")).is_success
    assert (await product.ask(key, "m")).status_code == 401


async def test_growing_a_pool_admits_who_waits(product: Product) -> None:
    model = await product.model("m", max_in_flight=1)
    _, key = await product.tenant("t")
    held = await holding(product, key, "m")
    waiting = asyncio.create_task(product.ask(key, "m"))
    await product.queued(1)
    await product.api.patch(f"/models/{model['id']}", json={"max_in_flight": 2})
    answer = await waiting
    assert answer.status_code == 200
    assert answer.headers["x-obleth-admission"] == "queued"
    await let_go(held)


async def test_who_waits_for_a_model_that_is_deleted_gets_404(product: Product) -> None:
    model = await product.model("m", max_in_flight=1)
    _, key = await product.tenant("t")
    held = await holding(product, key, "m")
    waiting = asyncio.create_task(product.ask(key, "m"))
    await product.queued(1)
    await product.api.delete(f"/models/{model['id']}")
    answer = await waiting
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
    await let_go(held)


async def test_who_waits_while_its_tenant_is_suspended_gets_403(product: Product) -> None:
    await product.model("m", max_in_flight=1)
    tenant, key = await product.tenant("t")
    _, other = await product.tenant("other")
    held = await holding(product, other, "m")
    waiting = asyncio.create_task(product.ask(key, "m"))
    await product.queued(1)
    await product.api.patch(f"/tenants/{tenant['id']}", json={"status": "suspended"})
    answer = await waiting
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "tenant_suspended"
    await let_go(held)


async def test_a_cap_that_is_lifted_lets_who_waits_go(product: Product) -> None:
    await product.model("m", max_in_flight=4)
    tenant, key = await product.tenant("t", max_in_flight=1)
    held = await holding(product, key, "m")
    waiting = asyncio.create_task(product.ask(key, "m"))
    await product.queued(1)
    await product.api.patch(f"/tenants/{tenant['id']}", json={"max_in_flight": None})
    assert (await waiting).status_code == 200
    await let_go(held)


async def test_who_waits_with_a_secret_that_is_replaced_gets_401_and_whoever_has_the_new_one_not(
    product: Product,
) -> None:
    await product.model("m", max_in_flight=1)
    _, old = await product.tenant("t")
    _, other = await product.tenant("other")
    held = await holding(product, other, "m")
    waiting = asyncio.create_task(product.ask(old, "m"))
    await product.queued(1)
    (found,) = (
        each
        for each in (await product.api.get("/keys")).json()["items"]
        if old.startswith(each["prefix"])
    )
    rotated = (await product.api.post(f"/keys/{found['id']}/rotate")).json()
    next_one = asyncio.create_task(product.ask(rotated["secret"], "m"))
    assert (await waiting).status_code == 401
    await product.queued(1)
    await let_go(held)
    assert (await next_one).status_code == 200


async def test_a_group_that_is_renamed_is_one_group_for_what_runs_and_what_waits(
    product: Product,
) -> None:
    await product.model("m", max_in_flight=1)
    await product.make("/groups", name="old", weight=100)
    _, runs = await product.tenant("runs", group="old")
    _, waits = await product.tenant("waits", group="old")
    held = await holding(product, runs, "m")
    waiting = asyncio.create_task(product.ask(waits, "m"))
    await product.queued(1)
    await product.api.patch("/groups/old", json={"name": "new", "weight": 300})
    async with asyncio.timeout(10):
        while True:
            (pool,) = (await product.api.get("/fairshare/live")).json()["pools"]
            groups = [(group["name"], group["weight"]) for group in pool["groups"]]
            if ("old", 100) not in groups:
                break
    assert groups == [("new", 300)]
    assert [(g["in_flight"], g["queued"]) for g in pool["groups"]] == [(1, 1)]
    await let_go(held)
    assert (await waiting).status_code == 200
