from __future__ import annotations

from importlib.metadata import version

import pytest
from cryptography.fernet import Fernet
from sqlalchemy import text

from tests.controlplane.api import ADMIN, VIEWER, Api
from tests.controlplane.conftest import StartApi

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_health_version_and_description_are_anyones(stranger: Api) -> None:
    assert (await stranger.get("/health"))["status"] == "ok"
    assert await stranger.get("/version") == {"version": version("obleth")}
    assert (await stranger.get("/openapi.json"))["openapi"].startswith("3.")


async def test_health_is_503_on_a_schema_of_another_build(api: Api) -> None:
    fits = (await api.get("/health"))["database_schema"]
    async with api.plane.database.transaction() as session:
        await session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    try:
        problem = await api.get("/health", expect=503)
    finally:
        async with api.plane.database.transaction() as session:
            await session.execute(text(f"UPDATE alembic_version SET version_num = '{fits}'"))
    assert "newer" in problem["detail"]
    await api.get("/health")


async def test_settings_are_shown_without_secrets(start_api: StartApi) -> None:
    key = Fernet.generate_key().decode()
    api = await start_api(encryption_key=key, api_key_pepper="pepper", global_max_in_flight=77)
    shown = (await api.get("/settings"))["settings"]
    assert shown["OBLETH_GLOBAL_MAX_IN_FLIGHT"] == 77
    assert shown["OBLETH_FAIRSHARE_SESSION_AFFINITY_MAX_HELD_PERCENT"] == 25
    for secret in (ADMIN, VIEWER, key, "pepper", "obleth:obleth"):
        assert secret not in str(shown)


@pytest.mark.parametrize("path", ["/health", "/groups", "/groups/default", "/nothing"])
async def test_head_is_answered_as_get_is(api: Api, stranger: Api, path: str) -> None:
    for caller in api, stranger:
        asked = await caller.client.get(path)
        answer = await caller.client.head(path)
        assert answer.status_code == asked.status_code
        assert answer.headers == asked.headers
        assert not answer.content


async def test_every_route_is_described(api: Api) -> None:
    described = (await api.get("/openapi.json"))["paths"]
    assert {
        f"{method.upper()} {path.removeprefix('/api/v1')}"
        for path, methods in described.items()
        for method in methods
    } == {
        "GET /groups",
        "POST /groups",
        "GET /groups/{name}",
        "PATCH /groups/{name}",
        "DELETE /groups/{name}",
        "GET /tenants",
        "POST /tenants",
        "GET /tenants/{tenant_id}",
        "PATCH /tenants/{tenant_id}",
        "DELETE /tenants/{tenant_id}",
        "POST /tenants/{tenant_id}/keys",
        "GET /keys",
        "GET /keys/{key_id}",
        "PATCH /keys/{key_id}",
        "DELETE /keys/{key_id}",
        "POST /keys/{key_id}/rotate",
        "GET /models",
        "POST /models",
        "GET /models/export",
        "POST /models/import",
        "GET /models/{model_id}",
        "PATCH /models/{model_id}",
        "DELETE /models/{model_id}",
        "PUT /models/{model_id}/session-affinity",
        "GET /models/{model_id}/endpoints",
        "POST /models/{model_id}/endpoints",
        "GET /models/{model_id}/endpoints/{endpoint_id}",
        "PATCH /models/{model_id}/endpoints/{endpoint_id}",
        "DELETE /models/{model_id}/endpoints/{endpoint_id}",
        "GET /fairshare/live",
        "GET /fairshare/history",
        "GET /fairshare/explain",
        "GET /replicas",
        "GET /usage",
        "GET /usage/sums.csv",
        "GET /usage/requests",
        "GET /usage/requests.csv",
        "GET /audit",
        "GET /health",
        "GET /version",
        "GET /settings",
    }


async def test_errors_are_described_as_the_problems_they_are(api: Api) -> None:
    described = (await api.get("/openapi.json"))["paths"]["/api/v1/groups"]["post"]["responses"]
    assert {"201", "400", "401", "403", "409", "412", "413", "422", "503"} <= described.keys()
    for status, response in described.items():
        if status != "201":
            assert list(response["content"]) == ["application/problem+json"]


async def test_a_path_that_does_not_exist_is_a_problem_too(api: Api) -> None:
    problem = await api.get("/nothing", expect=404)
    assert problem["status"] == 404
    await api.get("/groups/", expect=404)


async def test_a_method_that_a_path_does_not_take_is_told_those_that_it_takes(api: Api) -> None:
    for path, methods in (
        ("/groups", {"GET", "HEAD", "POST"}),
        ("/groups/default", {"GET", "HEAD", "PATCH", "DELETE"}),
        ("/tenants/x/keys", {"POST"}),
        ("/health", {"GET", "HEAD"}),
    ):
        response = await api.client.request("TRACE", path)
        assert response.json()["type"] == "urn:obleth:problem:method-not-allowed"
        assert response.status_code == 405
        assert set(response.headers["allow"].split(", ")) == methods, path
