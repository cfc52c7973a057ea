"""The live pages while policy cannot be read: who runs and waits is told all the same."""

from __future__ import annotations

import httpx
import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from controlplane.admin_auth import Role
from controlplane.dashboard.app import Dashboard
from controlplane.dashboard.sessions import COOKIE, Sessions
from dataplane.live.assembly import assemble
from tests.live.views import pool, replica, tenant

AWAY = "the database is away"


async def live(request: Request) -> Response:
    state = assemble(replica(pool(8, tenant("a-tenant", 8, 3), model="a-model")))
    return Response(msgspec.json.encode(state), media_type="application/json")


async def away(request: Request) -> Response:
    return JSONResponse({"status": 503, "detail": AWAY}, 503)


@pytest.mark.parametrize("path", ["/", "/fairshare", "/fairshare?pool=a-model"])
async def test_with_the_database_away_the_live_pages_show_who_runs_and_waits(path: str) -> None:
    api = Starlette(
        routes=[Route("/api/v1/fairshare/live", live), Route("/api/v1/{rest:path}", away)]
    )
    pages = Dashboard(api, admin_token="admin", viewer_token=None, version="1").app
    sessions = Sessions("admin", None)
    transport = httpx.ASGITransport(pages)
    cookies = {COOKIE: sessions.cookie(sessions.start(Role.ADMIN))}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://obleth", cookies=cookies
    ) as browser:
        answer = await browser.get(path)
    assert answer.status_code == 200
    assert "a-model" in answer.text
    assert "The database is away." in answer.text
    assert "was deleted" not in answer.text
