"""Logging in through a proxy that ends TLS."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest

from controlplane.dashboard.login_limit import AT_ONCE
from controlplane.main import build
from controlplane.settings import ControlPlaneSettings
from shared.settings import load

PROXY = "10.1.2.3"
Open = Callable[[str], httpx.AsyncClient]


@pytest.fixture
async def through_proxy(tmp_path: Path) -> AsyncIterator[Open]:
    """Clients at an address, which are trusted to say on whose behalf they ask if it is PROXY's."""
    settings = load(
        ControlPlaneSettings,
        database_url=f"sqlite+aiosqlite:///{tmp_path / 'obleth.db'}",
        admin_token="admin-token",
        admin_trusted_proxies="10.1.0.0/16",
    )
    app = build(settings).app
    opened = []

    def client(address: str) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app, client=(address, 1234))
        opened.append(httpx.AsyncClient(transport=transport, base_url="http://obleth"))
        return opened[-1]

    yield client
    for each in opened:
        await each.aclose()


async def wrong_token(client: httpx.AsyncClient, **headers: str) -> int:
    page = await client.get("/login")
    (token,) = re.findall('name="form_token" value="([^"]+)"', page.text)
    form = {"form_token": token, "token": "wrong"}
    return (await client.post("/login", data=form, headers=headers)).status_code


@pytest.mark.parametrize(
    ("told", "is_secure"),
    [({}, False), ({"x-forwarded-proto": "https"}, True), ({"x-forwarded-proto": "http"}, False)],
)
async def test_the_session_cookie_is_for_tls_alone_where_the_browser_came_over_it(
    through_proxy: Open, told: dict[str, str], is_secure: bool
) -> None:
    for address in (PROXY, "192.0.2.7"):
        answer = await through_proxy(address).get("/login", headers=told)
        assert ("; Secure" in answer.headers["set-cookie"]) is is_secure


async def test_wrong_tokens_are_counted_by_who_asks_and_not_by_the_proxy(
    through_proxy: Open,
) -> None:
    client = through_proxy(PROXY)
    said = {"x-forwarded-for": "203.0.113.9"}
    for _ in range(AT_ONCE):
        assert await wrong_token(client, **said) == 401
    assert await wrong_token(client, **said) == 429
    assert await wrong_token(client, **{"x-forwarded-for": "203.0.113.10"}) == 401


async def test_whoever_is_no_proxy_of_ours_cannot_say_to_be_somebody_else(
    through_proxy: Open,
) -> None:
    client = through_proxy("192.0.2.7")
    for n in range(AT_ONCE):
        assert await wrong_token(client, **{"x-forwarded-for": f"203.0.113.{n}"}) == 401
    assert await wrong_token(client, **{"x-forwarded-for": "203.0.113.99"}) == 429
