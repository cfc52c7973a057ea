"""Without its database the control plane says so, and is there again when it is."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from tests.controlplane.api import Api, Told, plane
from tests.controlplane.conftest import (
    StartApi,
    on_postgres_now,
    postgres_url,
    unused_name,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


def _closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


async def _expect_away(api: Api) -> None:
    for problem in (
        await api.get("/groups", expect=503),
        await api.get("/health", expect=503),
        await api.post("/groups", {"name": "x"}, expect=503),
        await api.patch("/groups/default", {"weight": 5}, expect=503),
    ):
        assert problem["type"] == "urn:obleth:problem:database-away"


async def _away(url: str) -> Api:
    told = Told()
    return Api(plane(url, told), told)


@pytest.mark.parametrize("where", ["closed port", "no such database", "no such folder"])
async def test_a_database_that_cannot_be_reached_is_503(where: str, tmp_path: Path) -> None:
    url = {
        "closed port": f"postgresql+asyncpg://nobody@127.0.0.1:{_closed_port()}/none",
        "no such database": postgres_url(unused_name()),
        "no such folder": f"sqlite+aiosqlite:///{tmp_path}/nowhere/policy.db",
    }[where]
    api = await _away(url)
    await _expect_away(api)
    await api.get("/version")
    await api.get("/settings")
    await api.close()
    await api.plane.stop()


async def test_a_request_is_checked_before_the_database_is_asked(tmp_path: Path) -> None:
    api = await _away(f"sqlite+aiosqlite:///{tmp_path}/nowhere/policy.db")
    await api.post("/groups", {"name": ""}, expect=422)
    await api.post("/groups", b"{", expect=400)
    await api.get("/groups", headers={"Authorization": "Bearer x"}, expect=401)
    await api.close()
    await api.plane.stop()


async def test_it_comes_back_after_all_connections_were_cut(api: Api) -> None:
    if api.plane.database.engine.dialect.name == "sqlite":
        await api.plane.database.engine.dispose()
    else:
        await api.get("/groups")
        name = api.plane.database.engine.url.database
        await on_postgres_now(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        )
    await api.get("/groups")
    await api.group()


async def test_a_database_that_others_keep_locked_is_503_and_not_for_ever(
    api: Api, start_api: StartApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.database.LOCK_SECS", 1)
    impatient = await start_api()
    async with api.plane.database.transaction() as session:
        await session.execute(text("UPDATE revision SET value = value"))
        problem = await impatient.post("/groups", {"name": "x"}, expect=503)
        assert problem["status"] == 503
        await impatient.get("/groups")
    await impatient.group("x")


async def test_a_failed_statement_does_not_repeat_its_values(api: Api) -> None:
    with pytest.raises(DBAPIError) as failed:
        async with api.plane.database.reading() as session:
            await session.execute(text("SELECT :secret FROM nowhere"), {"secret": "canary"})
    assert "canary" not in str(failed.value)


async def test_an_error_of_our_own_is_told_without_its_words(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("sk-secret")

    monkeypatch.setattr("controlplane.groups.service.GroupService.get", fail)
    transport = api.client._transport
    monkeypatch.setattr(transport, "raise_app_exceptions", False)
    problem = await api.get("/groups/default", expect=500)
    assert "secret" not in str(problem)
    assert problem["type"] == "urn:obleth:problem:internal"
