"""Asking for ready backends, and what pools make of the answers, or of having none."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from dataplane.admission import Admission, Limits
from dataplane.admission.permit import Ask
from dataplane.discovery.capacity import Capacity
from dataplane.discovery.health import Health
from dataplane.discovery.sizing import PoolSize, Ready
from dataplane.discovery.sources import DnsSource, EndpointSource, NoAnswer
from shared.policy import CapacityPolicy, CapacitySource, EndpointPolicy, ModelPolicy
from tests.proxy.parts import KEY

NEVER = 3600.0
DNS = CapacityPolicy(CapacitySource.DNS, 4, dns_name="backends.example")
MODEL = ModelPolicy("m", "m", max_in_flight=9, capacity=DNS)


class Known:
    """A source whose answers the test sets."""

    def __init__(self) -> None:
        self.answer: int | Exception = NoAnswer("not yet")
        self.kept: list[list[str]] = []
        self.asked = 0
        self.hangs = False
        self.called = asyncio.Event()

    async def until_asked(self, times: int) -> None:
        async with asyncio.timeout(10):
            while self.asked < times:
                self.called.clear()
                await self.called.wait()

    async def ready(self, model: ModelPolicy) -> Ready:
        self.asked += 1
        self.called.set()
        if self.hangs:
            await asyncio.Event().wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return [None] * self.answer

    async def keep(self, models: list[ModelPolicy]) -> None:
        self.kept.append([model.id for model in models])


class Sized:
    def __init__(self, *models: ModelPolicy, **options: float) -> None:
        self.models = list(models)
        self.source = Known()
        self.resized = 0
        self.capacity = Capacity(
            lambda: self.models,
            {CapacitySource.DNS: self.source},
            default_size=32,
            is_usable=lambda endpoint: True,
            **{"every_secs": NEVER, **options},
        )
        self.capacity.subscribe(self.count)

    def count(self) -> None:
        self.resized += 1

    def size(self) -> PoolSize:
        return self.capacity.size_of(self.models[0])

    async def answered(self, answer: int | Exception) -> PoolSize:
        self.source.answer = answer
        await self.capacity.ask()
        return self.size()


async def test_before_any_answer_a_pool_is_as_configured() -> None:
    sized = Sized(MODEL)
    assert sized.size() == PoolSize(9, "configured")
    assert await sized.answered(NoAnswer("away")) == PoolSize(9, "configured")
    assert sized.resized == 0


async def test_an_answer_sizes_the_pool_and_is_told_only_when_it_is_news() -> None:
    sized = Sized(MODEL)
    assert await sized.answered(3) == PoolSize(12, "discovered:dns")
    await sized.answered(3)
    assert sized.resized == 1
    assert await sized.answered(0) == PoolSize(0, "discovered:dns")
    assert sized.resized == 2


@pytest.mark.parametrize("failure", [NoAnswer("away"), RuntimeError("a fault of ours")])
async def test_without_an_answer_the_last_one_stands_and_is_called_stale(
    failure: Exception,
) -> None:
    sized = Sized(MODEL)
    await sized.answered(3)
    for _ in range(3):
        assert await sized.answered(failure) == PoolSize(12, "discovered:dns:stale")
    assert await sized.answered(2) == PoolSize(8, "discovered:dns")


async def test_backends_are_asked_about_after_a_mistake_nobody_foresaw() -> None:
    sized, told = Sized(MODEL, every_secs=0.001), asyncio.Event()

    def mistake() -> None:
        if sized.resized == 1:
            sized.source.answer = 5
            raise LookupError("a mistake")
        told.set()

    sized.capacity.subscribe(mistake)
    sized.source.answer = 3
    sized.capacity.start()
    await asyncio.wait_for(told.wait(), 10)
    await sized.capacity.stop()
    assert sized.size() == PoolSize(20, "discovered:dns")


async def test_a_source_that_hangs_has_not_answered() -> None:
    sized = Sized(MODEL, answer_secs=0.01)
    await sized.answered(3)
    sized.source.hangs = True
    assert await sized.answered(5) == PoolSize(12, "discovered:dns:stale")


async def test_new_slots_a_backend_count_at_once_and_another_question_starts_anew() -> None:
    sized = Sized(MODEL)
    await sized.answered(3)
    sized.models = [replace(MODEL, capacity=replace(DNS, per_replica_max_in_flight=10))]
    assert sized.size() == PoolSize(30, "discovered:dns")
    sized.models = [replace(MODEL, capacity=replace(DNS, dns_name="other.example"))]
    assert sized.size() == PoolSize(9, "configured")
    sized.models = [replace(MODEL, capacity=None)]
    assert sized.size() == PoolSize(9, "configured")


async def test_only_models_with_a_source_are_asked_about() -> None:
    sized = Sized(MODEL, ModelPolicy("plain", "plain"))
    await sized.answered(1)
    assert (sized.source.asked, sized.source.kept) == (1, [["m"]])
    sized.models = []
    await sized.capacity.ask()
    assert sized.source.kept[-1] == []
    assert sized.capacity._sizes == {}


async def test_it_is_asked_regularly_and_soon_when_something_changed() -> None:
    sized = Sized(MODEL, every_secs=0.01)
    sized.capacity.start()
    await sized.source.until_asked(3)
    await sized.capacity.stop()
    waiting = Sized(MODEL)
    waiting.capacity.start()
    await waiting.source.until_asked(1)
    waiting.capacity.ask_soon()
    await waiting.source.until_asked(2)
    await waiting.capacity.stop()


async def test_pools_follow_discovered_sizes_while_they_are_in_use() -> None:
    """Growing admits who waits; shrinking, to nothing even, cuts nobody and queues."""
    sized = Sized(MODEL)
    admission = Admission(Limits(), size_of=sized.capacity.size_of)
    sized.capacity.subscribe(lambda: admission.models_changed(sized.models))
    await sized.answered(0)
    requests = [asyncio.create_task(_request(admission, sized.models[0])) for _ in range(6)]
    await asyncio.sleep(0)
    assert (_counts(admission)) == (0, 6, 0)
    await sized.answered(1)
    assert (_counts(admission)) == (4, 2, 4)
    await sized.answered(0)
    assert (_counts(admission)) == (4, 2, 0)
    (pool,) = admission.core.pools
    assert pool.policy.size_source == "discovered:dns"
    await sized.answered(2)
    assert (_counts(admission)) == (6, 0, 8)
    for request in requests:
        request.cancel()
    await asyncio.gather(*requests, return_exceptions=True)


def _counts(admission: Admission) -> tuple[int, int, int]:
    (pool,) = admission.core.pools
    return pool.running, pool.waiting, pool.size


async def _request(admission: Admission, model: ModelPolicy) -> None:
    async with admission.admit(Ask(KEY, model, 10, None)):
        await asyncio.Event().wait()


# The sources


def endpoints(**caps: int | None) -> ModelPolicy:
    made = tuple(EndpointPolicy(id, "http://x", max_in_flight=cap) for id, cap in caps.items())
    return ModelPolicy("m", "m", endpoints=made)


async def test_healthy_endpoints_are_ready_with_their_own_caps() -> None:
    health = {"a": Health.HEALTHY, "b": Health.UNHEALTHY, "c": Health.HEALTHY}
    source = EndpointSource(lambda each: health.get(each.id, Health.UNKNOWN))
    assert await source.ready(endpoints(a=3, b=5, c=None, new=7)) == [3, None]
    assert await source.ready(endpoints(b=5)) == []
    assert await source.ready(endpoints()) == []
    with pytest.raises(NoAnswer):
        await source.ready(endpoints(new=7))
    disabled = replace(endpoints(a=3).endpoints[0], enabled=False)
    assert await source.ready(ModelPolicy("m", "m", endpoints=(disabled,))) == []


@asynccontextmanager
async def resolver(answer: list[str] | Exception) -> AsyncIterator[list[Any]]:
    """The system's resolver, saying this."""
    asked: list[Any] = []

    async def getaddrinfo(host: Any, port: Any, **options: Any) -> list[Any]:
        asked.append(host)
        if isinstance(answer, Exception):
            raise answer
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 0)) for each in answer]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo, raising=False)
        yield asked


async def test_each_address_of_a_name_is_a_backend_once() -> None:
    async with resolver(["10.0.0.1", "10.0.0.2", "10.0.0.1"]) as asked:
        assert await DnsSource().ready(MODEL) == [None, None]
        assert asked == ["backends.example"]


@pytest.mark.parametrize("code", [socket.EAI_NONAME, socket.EAI_NODATA])
async def test_a_name_without_addresses_has_no_backend(code: int) -> None:
    async with resolver(socket.gaierror(code, "none")):
        assert await DnsSource().ready(MODEL) == []


@pytest.mark.parametrize(
    "error", [socket.gaierror(socket.EAI_AGAIN, "try again"), OSError("no"), UnicodeError("long")]
)
async def test_a_resolver_that_cannot_tell_has_not_answered(error: Exception) -> None:
    async with resolver(error):
        with pytest.raises(NoAnswer):
            await DnsSource().ready(MODEL)


async def test_the_systems_own_resolver_is_asked() -> None:
    here = replace(MODEL, capacity=replace(DNS, dns_name="localhost"))
    assert len(await DnsSource().ready(here)) >= 1
