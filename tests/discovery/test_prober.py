"""Checks of endpoints, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_network

import pytest

from dataplane.discovery.endpoint_health import EndpointHealth
from dataplane.discovery.health import Health
from dataplane.discovery.prober import Prober
from dataplane.proxy.aiohttp_upstream import AiohttpUpstream
from shared.network import NetworkRules
from shared.policy import EndpointPolicy, ModelPolicy
from tests.proxy.serving import Peer, Upstream, answers, upstream

NEVER = 3600.0


class Checked:
    """Endpoints, their health, and who checks them."""

    def __init__(self, client: AiohttpUpstream, *endpoints: EndpointPolicy, **options: float):
        self.endpoints = list(endpoints)
        self.looked = 0
        self.health = EndpointHealth(self.models)
        self.prober = Prober(
            client,
            self.health,
            self.models,
            **{"every_secs": NEVER, "answer_secs": 5.0, **options},
        )
        self.changed = asyncio.Event()
        self.health.subscribe(self.changed.set)

    def models(self) -> list[ModelPolicy]:
        self.looked += 1
        return [ModelPolicy("m", "m", endpoints=tuple(self.endpoints))]

    async def first(self) -> Health:
        """The health of the first endpoint once it has been checked."""
        await self.prober.check_all()
        return self.health.of(self.endpoints[0])


@asynccontextmanager
async def checked(
    *endpoints: EndpointPolicy, rules: NetworkRules | None = None, **options: float
) -> AsyncIterator[Checked]:
    client = AiohttpUpstream(rules or NetworkRules())
    made = Checked(client, *endpoints, **options)
    try:
        yield made
    finally:
        await made.prober.stop()
        await client.close()


def at(url: str, id: str = "e1", **fields: object) -> EndpointPolicy:
    return EndpointPolicy(id, url, **fields)  # type: ignore[arg-type]


async def test_an_endpoint_is_asked_for_its_models_with_its_own_key() -> None:
    async with (
        upstream(answers(b"{}")) as up,
        checked(at(up.url, api_key="theirs")) as found,
    ):
        assert await found.first() is Health.HEALTHY
        assert [asked.target for asked in up.asked] == ["/v1/models"]
        assert up.last.header("authorization") == "Bearer theirs"
        await found.prober.check_all()
        assert (len(up.asked), up.connections) == (2, 1)


@pytest.mark.parametrize(
    ("status", "health"),
    [
        ("200 OK", Health.HEALTHY),
        ("401 No", Health.HEALTHY),
        ("429 Slow", Health.HEALTHY),
        ("302 There", Health.UNHEALTHY),
        ("500 Oh", Health.UNHEALTHY),
        ("503 Loading", Health.UNHEALTHY),
    ],
)
async def test_any_answer_that_is_no_redirect_and_no_failure_will_do(
    status: str, health: Health
) -> None:
    script = answers(b"", status, location="http://127.0.0.1:1/")
    async with upstream(script) as up, checked(at(up.url)) as found:
        assert await found.first() is health
        assert len(up.asked) == 1


@pytest.mark.parametrize(
    ("status", "health"),
    [("200 OK", Health.HEALTHY), ("404 None", Health.HEALTHY), ("503 Bad", Health.UNHEALTHY)],
)
async def test_a_server_that_lists_no_models_is_asked_for_its_health(
    status: str, health: Health
) -> None:
    async def script(_: Upstream, peer: Peer) -> None:
        while True:
            asked = await peer.request()
            await peer.answer(b"", "404 None" if asked.target == "/v1/models" else status)

    async with upstream(script) as up, checked(at(up.url)) as found:
        assert await found.first() is health
        assert [asked.target for asked in up.asked] == ["/v1/models", "/health"]


async def no_http(_: Upstream, peer: Peer) -> None:
    await peer.request()
    await peer.write(b"SSH-2.0-OpenSSH\r\n\r\n")


async def mute(_: Upstream, peer: Peer) -> None:
    await peer.until_gone()


async def endless(_: Upstream, peer: Peer) -> None:
    await peer.request()
    await peer.start_stream()
    while True:
        await peer.chunk(b"x")
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("script", [no_http, mute, endless])
async def test_an_endpoint_without_a_whole_answer_in_time_is_unhealthy(
    script: Callable[[Upstream, Peer], Awaitable[None]],
) -> None:
    async with upstream(script) as up, checked(at(up.url), answer_secs=0.1) as found:
        assert await found.first() is Health.UNHEALTHY
        await up.until(lambda up: up.open == 0)


async def test_an_endpoint_nobody_listens_at_is_unhealthy() -> None:
    async with checked(at("http://127.0.0.1:1/v1")) as found:
        assert await found.first() is Health.UNHEALTHY


async def test_the_rules_for_addresses_hold_for_checks_too() -> None:
    rules = NetworkRules(block_private=True, allowed_private=(ip_network("10.0.0.0/8"),))
    async with upstream(answers(b"{}")) as up, checked(at(up.url), rules=rules) as found:
        assert await found.first() is Health.UNHEALTHY
        assert up.connections == 0


async def test_a_disabled_endpoint_is_left_alone() -> None:
    async with upstream(answers(b"{}")) as up, checked(at(up.url, enabled=False)) as found:
        assert await found.first() is Health.UNKNOWN
        assert up.connections == 0


async def test_endpoints_are_checked_again_and_again() -> None:
    async with upstream(answers(b"{}")) as up, checked(at(up.url), every_secs=0.01) as found:
        found.prober.start()
        await up.until(lambda up: len(up.asked) >= 3)


async def test_a_new_endpoint_is_checked_at_once_and_the_others_in_their_time() -> None:
    async with (
        upstream(answers(b"{}")) as old,
        upstream(answers(b"{}")) as new,
        checked(at(old.url)) as found,
    ):
        found.prober.start()
        await old.until(lambda up: len(up.asked) == 1)
        await found.changed.wait()
        found.changed.clear()
        found.endpoints.append(at(new.url, "e2"))
        found.prober.policy_changed()
        await new.until(lambda up: len(up.asked) == 1)
        await found.changed.wait()
        looked = found.looked
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(old.asked) == len(new.asked) == 1
        assert found.looked <= looked + 5  # and then it rests


async def test_one_endpoint_that_hangs_keeps_no_other_waiting() -> None:
    async with (
        upstream(mute) as hanging,
        upstream(answers(b"{}")) as well,
        checked(at(hanging.url), at(well.url, "e2")) as found,
    ):
        found.prober.start()
        await found.changed.wait()
        assert found.health.of(found.endpoints[1]) is Health.HEALTHY
        assert found.health.of(found.endpoints[0]) is Health.UNKNOWN
