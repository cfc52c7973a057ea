from __future__ import annotations

import httpx
import pytest

from controlplane.admin_auth import Role, Tokens
from tests.controlplane.api import ADMIN, NO_SUCH_ID, VIEWER, Api
from tests.controlplane.conftest import StartApi

pytestmark = pytest.mark.asyncio(loop_scope="module")

WRITES = [
    ("POST", "/groups"),
    ("PATCH", "/groups/default"),
    ("DELETE", "/groups/default"),
    ("POST", "/tenants"),
    ("PATCH", f"/tenants/{NO_SUCH_ID}"),
    ("DELETE", f"/tenants/{NO_SUCH_ID}"),
    ("POST", f"/tenants/{NO_SUCH_ID}/keys"),
    ("PATCH", f"/keys/{NO_SUCH_ID}"),
    ("POST", f"/keys/{NO_SUCH_ID}/rotate"),
    ("DELETE", f"/keys/{NO_SUCH_ID}"),
    ("POST", "/models"),
    ("POST", "/models/import"),
    ("PATCH", f"/models/{NO_SUCH_ID}"),
    ("PUT", f"/models/{NO_SUCH_ID}/session-affinity"),
    ("DELETE", f"/models/{NO_SUCH_ID}"),
    ("POST", f"/models/{NO_SUCH_ID}/endpoints"),
    ("PATCH", f"/models/{NO_SUCH_ID}/endpoints/{NO_SUCH_ID}"),
    ("DELETE", f"/models/{NO_SUCH_ID}/endpoints/{NO_SUCH_ID}"),
]
READS = [
    "/groups",
    "/groups/default",
    "/tenants",
    "/keys",
    "/models",
    "/models/export",
    "/usage",
    "/usage/requests",
    "/audit",
    "/settings",
    "/nothing",
    "/openapi.json/",
    "",
    "/",
]


async def test_a_stranger_can_neither_read_nor_write(stranger: Api) -> None:
    for path in READS:
        await stranger.get(path, expect=401)
    for method, path in WRITES:
        await stranger.call(method, path, b"{", expect=401)


async def test_a_viewer_reads_and_does_not_write(viewer: Api) -> None:
    for path in READS[:-5]:
        await viewer.get(path)
    before = await viewer.everything()
    for method, path in WRITES:
        await viewer.call(method, path, b"{", expect=403)
    assert await viewer.everything() == before


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"Bearer",
        b"Bearer ",
        b"Basic " + ADMIN.encode(),
        ADMIN.encode(),
        b"Bearer " + ADMIN.encode() + b"x",
        b"Bearer " + ADMIN.encode()[:-1],
        b"Bearer \xff\xfe\x00",
        "Bearer ключ".encode(),
        b"Bearer " + b"x" * 100_000,
        b"Bearer " + ADMIN.encode() + b"," + VIEWER.encode(),
    ],
)
async def test_a_wrong_header_of_any_bytes_is_401(stranger: Api, header: bytes) -> None:
    answer = await stranger.client.get("/groups", headers=[(b"authorization", header)])
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert ADMIN not in answer.text


async def test_two_authorization_headers_are_401(stranger: Api) -> None:
    twice = [("Authorization", f"Bearer {ADMIN}"), ("Authorization", f"Bearer {VIEWER}")]
    assert (await stranger.client.get("/groups", headers=twice)).status_code == 401


async def test_the_scheme_is_read_in_any_case(stranger: Api) -> None:
    await stranger.get("/groups", headers={"Authorization": f"bEARER {ADMIN}"})


async def test_without_a_viewer_token_there_is_no_viewer(start_api: StartApi) -> None:
    api = await start_api(viewer_token=None)
    await api.get("/groups", headers={"Authorization": f"Bearer {VIEWER}"}, expect=401)
    await api.get("/groups")


async def test_a_token_in_the_query_or_a_cookie_opens_nothing(stranger: Api) -> None:
    await stranger.get("/groups", params={"token": ADMIN, "access_token": ADMIN}, expect=401)
    cookie = httpx.Cookies({"session": ADMIN, "token": ADMIN, "Authorization": f"Bearer {ADMIN}"})
    stranger.client.cookies = cookie
    await stranger.get("/groups", expect=401)


async def test_behind_a_path_prefix_the_api_is_guarded_too(stranger: Api) -> None:
    transport = httpx.ASGITransport(stranger.plane.app, root_path="/gateway")
    async with httpx.AsyncClient(transport=transport, base_url="http://x/gateway/api/v1") as client:
        assert (await client.get("/groups")).status_code == 401
        assert (await client.get("/version")).status_code == 200
        authorized = {"Authorization": f"Bearer {ADMIN}"}
        assert (await client.get("/groups", headers=authorized)).status_code == 200


async def test_tokens_are_told_apart() -> None:
    tokens = Tokens("admin", "viewer")
    assert tokens.role(b"admin") is Role.ADMIN
    assert tokens.role(b"viewer") is Role.VIEWER
    assert tokens.role(b"") is None
