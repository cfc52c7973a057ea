"""Session affinity as agents and operators meet it: over sockets, with a backend that caches."""

from __future__ import annotations

import asyncio
import itertools
import math
from dataclasses import dataclass, field

import httpx

from obleth.backend import Faults, RequestRecord, SimulatedBackend
from tests.embedded.conftest import Product

MODEL = "m"
SESSIONS, STEPS, AGENT_KEYS = 12, 8, 3
FIRST, MORE, REPLY = 2_000, 100, 15
"""Tokens of a session's first prompt, of what each step adds, and of a reply."""
BYPASS_SECS = 10
COUNTER = "obleth_fairshare_affinity_total"


def a_backend() -> SimulatedBackend:
    """Four slots, and a cache for the prompts of four sessions."""
    whole = FIRST + STEPS * (MORE + REPLY + 20)
    return SimulatedBackend(
        slots=4, cache_tokens=4 * whole, prefill_secs_per_token=220e-6, token_secs=2e-3
    )


def text_of(name: str, tokens: int) -> str:
    return (f"{name} " * tokens * 4)[: tokens * 4]


@dataclass
class Day:
    """What became of the agents and of the batch beside them."""

    product: Product
    backend: SimulatedBackend
    agent_secs: float = 0.0
    batch_waits: list[float] = field(default_factory=list)
    slots: list[str] = field(default_factory=list)
    log: list[RequestRecord] = field(default_factory=list)
    """What the backend says really ran."""

    async def ask(self, key: str, messages: list[dict[str, str]], **headers: str) -> httpx.Response:
        answer = await self.product.ask(
            key, MODEL, messages=messages, max_tokens=REPLY, headers=headers
        )
        assert answer.status_code == 200, answer.text
        return answer

    async def agent(self, key: str, name: str) -> None:
        messages = [{"role": "user", "content": text_of(name, FIRST)}]
        for step in range(STEPS):
            messages.append({"role": "user", "content": text_of(f"{name}.{step}", MORE)})
            answer = await self.ask(key, messages, **{"x-obleth-session-id": name})
            assert answer.headers["x-obleth-session"] == "client"
            self.slots.append(answer.headers["x-obleth-slot"])
            messages.append(answer.json()["choices"][0]["message"])

    async def batch(self, key: str, numbers: itertools.count[int]) -> None:
        while True:
            messages = [{"role": "user", "content": text_of(f"b{next(numbers)}", 100)}]
            answer = await self.ask(key, messages)
            self.batch_waits.append(float(answer.headers["x-obleth-queue-ms"]) / 1000)

    async def run(self, agent_keys: list[str], batch_key: str) -> None:
        began = asyncio.get_running_loop().time()
        numbers = itertools.count()
        beside = [asyncio.create_task(self.batch(batch_key, numbers)) for _ in range(3)]
        async with asyncio.TaskGroup() as group:
            for n in range(SESSIONS):
                group.create_task(self.agent(agent_keys[n % AGENT_KEYS], f"s{n}"))
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        self.log = self.backend.log
        ends = {each.session: each.ended or 0.0 for each in self.log if each.session}
        assert len(ends) == SESSIONS
        self.agent_secs = sum(end - began for end in ends.values())

    @property
    def batch_p99(self) -> float:
        waits = sorted(self.batch_waits)
        return waits[math.ceil(0.99 * len(waits)) - 1]

    @property
    def longest_service(self) -> float:
        return max((each.ended or 0.0) - (each.started or 0.0) for each in self.log)

    @property
    def cached_share(self) -> float:
        """Of the agents' prompts."""
        of_agents = [each for each in self.log if each.session]
        cached = sum(each.cached_tokens for each in of_agents)
        return cached / sum(each.prompt_tokens for each in of_agents)


async def counts(product: Product) -> dict[str, float]:
    found = {}
    for line in (await product.operations.get("/metrics")).text.splitlines():
        if line.startswith(COUNTER + "{"):
            labels, _, value = line.rpartition(" ")
            found[labels.partition('event="')[2].partition('"')[0]] = float(value)
    return found


async def test_agents_take_half_the_time_and_a_batch_beside_them_waits_no_longer_than_it_may(
    product: Product,
) -> None:
    async with a_backend() as backend:
        model = await product.make("/models", name=MODEL, max_in_flight=4)
        await product.make(f"/models/{model['id']}/endpoints", url=backend.url)
        keys = [(await product.tenant(f"agents {n}"))[1] for n in range(AGENT_KEYS)]
        _, batch_key = await product.tenant("batch")

        off = Day(product, backend)
        await off.run(keys, batch_key)
        assert await counts(product) == {}
        assert set(off.slots) == {"new"}

        wanted = {"enabled": True, "hold_ms": 300, "max_bypass_secs": BYPASS_SECS}
        await product.api.put(f"/models/{model['id']}/session-affinity", json=wanted)
        backend.reset()
        on = Day(product, backend)
        await on.run(keys, batch_key)
        assert backend.peak(MODEL) <= 4

    counted = await counts(product)
    assert on.agent_secs <= off.agent_secs / 2
    assert on.cached_share > 0.5 > off.cached_share
    assert on.batch_p99 <= BYPASS_SECS + on.longest_service
    assert counted["redeem"] == on.slots.count("held") > 0
    assert counted["redeem"] <= counted["hold"]


async def until_held(product: Product, number: int) -> None:
    """Returns when so many slots are held."""
    async with asyncio.timeout(20):
        while True:
            text = (await product.operations.get("/metrics")).text
            if f'obleth_held_slots{{model="{MODEL}"}} {number}.0' in text:
                return
            await asyncio.sleep(0.01)


async def a_loop(product: Product, key: str) -> None:
    """Two steps of a session, one right after the other."""
    for _ in range(2):
        answer = await product.ask(key, MODEL, session_id="s")
        assert answer.status_code == 200


async def test_slots_held_for_long_are_freed_when_affinity_is_turned_off_or_the_key_or_model_goes(
    product: Product,
) -> None:
    long = {"enabled": True, "hold_ms": 60_000, "max_held_percent": 100}
    model = await product.model(MODEL, max_in_flight=1, session_affinity=long)
    tenant, key = await product.tenant("agents")
    _, other = await product.tenant("others")
    path = f"/models/{model['id']}/session-affinity"

    await a_loop(product, key)
    await until_held(product, 1)
    await product.api.put(path, json={"enabled": False})
    await until_held(product, 0)
    await product.api.put(path, json=long)

    await a_loop(product, key)
    await until_held(product, 1)
    waiting = asyncio.create_task(product.ask(other, MODEL))
    await product.queued(1)
    listed = (await product.api.get("/keys", params={"tenant_id": tenant["id"]})).json()["items"]
    await product.api.delete(f"/keys/{listed[0]['id']}")
    assert (await waiting).status_code == 200
    assert (await product.ask(key, MODEL)).status_code == 401

    await a_loop(product, other)
    await until_held(product, 1)
    await product.api.delete(f"/models/{model['id']}")
    assert (await product.ask(other, MODEL)).status_code == 404
    text = (await product.operations.get("/metrics")).text
    assert "obleth_held_slots{" not in text


async def test_a_step_that_fails_and_one_that_its_client_cuts_off_hold_nothing(
    product: Product,
) -> None:
    long = {"enabled": True, "hold_ms": 60_000, "max_held_percent": 100}
    await product.model(MODEL, max_in_flight=1, max_retries=0, session_affinity=long)
    _, key = await product.tenant("agents")
    assert (await product.ask(key, MODEL, session_id="s")).status_code == 200
    product.backend.faults = Faults(status=400)
    assert (await product.ask(key, MODEL, session_id="s")).status_code == 400
    await until_held(product, 0)
    product.backend.faults = Faults(token_ms=20)
    assert (await product.ask(key, MODEL, session_id="s")).status_code == 200
    await until_held(product, 1)
    step = {
        "model": MODEL,
        "session_id": "s",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 1000,
        "stream": True,
    }
    headers = {"authorization": f"Bearer {key}"}
    url = "/v1/chat/completions"
    async with product.client.stream("POST", url, headers=headers, json=step) as answer:
        assert answer.headers["x-obleth-slot"] == "held"
        await anext(answer.aiter_bytes())
        await until_held(product, 0)  # taken, and what follows is that nothing is held anew
    await product.backend.until(lambda: product.backend.running(MODEL) == 0)
    assert (await product.ask(key, MODEL)).headers["x-obleth-slot"] == "new"
    await until_held(product, 0)
