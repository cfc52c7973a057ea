"""Budgets are the fleet's, on real replicas: whoever is asked, however many ask at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.faults.fleet import Fleet
from tests.faults.load import End, Request

pytestmark = pytest.mark.asyncio(loop_scope="module")

ESTIMATE = 8
"""Of each request, in tokens: its one message and the three it asks for."""


async def tenant(three: Fleet, name: str, **budget: Any) -> str:
    made = await three.api.tenant(name, **budget)
    key = await three.api.key(made["id"])
    return str(key["secret"])


async def ask(three: Fleet, secret: str, number: int, **fields: Any) -> list[Request]:
    """So many requests at once, round the replicas."""
    return await asyncio.gather(
        *(
            Request("thirty-two", secret, f"budget-{at}", **fields).make(
                three.session, three.replicas[at % len(three.replicas)].url
            )
            for at in range(number)
        )
    )


def told(requests: list[Request]) -> Counter[int | None]:
    return Counter(request.status for request in requests)


async def test_requests_at_once_on_three_replicas_cannot_overrun_a_term(three: Fleet) -> None:
    budget = 25 * ESTIMATE
    secret = await tenant(three, "term", budget_tokens=budget, budget_period="lifetime")
    requests = await ask(three, secret, 120)
    assert told(requests) == {200: 25, 403: 95}
    assert all(b"budget_exhausted" in one.body for one in requests if one.status == 403)
    assert told(await ask(three, secret, 3)) == {403: 3}


async def test_a_minute_spent_on_all_replicas_is_429_until_the_moment_that_is_told(
    three: Fleet,
) -> None:
    secret = await tenant(three, "minute", tokens_per_minute=160)
    urls = [one.url for one in three.replicas] * 20
    asking = [
        asyncio.create_task(
            Request("thirty-two", secret, f"minute-{at}", secs=600).make(three.session, url)
        )
        for at, url in enumerate(urls)
    ]
    running = three.backend.running
    for left in range(60, 0, -1):
        done = sum(task.done() for task in asking)
        if running("thirty-two") + done == 60:
            break
        assert left > 1, f"{running('thirty-two')} run and {done} were refused"
        await asyncio.sleep(0.5)
    refused = [task.result() for task in asking if task.done()]
    assert told(refused) == {429: len(refused)}
    # What the bucket had, and what came into it while they asked.
    assert 160 // ESTIMATE <= running("thirty-two") < 60
    waits = [int(request.headers["retry-after"]) for request in refused]
    assert max(waits) <= -(-ESTIMATE * 60 // 160)
    await asyncio.sleep(max(waits))
    (later,) = await ask(three, secret, 1)
    assert later.end is End.WHOLE
    for task in asking:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)


async def test_without_redis_each_replica_spends_its_part_and_no_more(three: Fleet) -> None:
    budget = 30 * ESTIMATE
    secret = await tenant(three, "divided", budget_tokens=budget, budget_period="lifetime")
    # Such that every replica knows the key, and how much is left.
    assert told(await ask(three, secret, 3)) == {200: 3}
    await three.redis.stop()
    apart = told(await ask(three, secret, 90))
    assert set(apart) == {200, 403}
    assert (3 + apart[200]) * ESTIMATE <= budget
    await three.redis.start()
    await three.until_shared()
    # Each replica asks Redis again in its own time; then all know what was used meanwhile.
    passed = 3 + apart[200]
    async with asyncio.timeout(three.timings.longest_recovery):
        while more := told(await ask(three, secret, 3))[200]:
            passed += more
    assert passed * ESTIMATE <= budget
