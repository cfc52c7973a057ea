"""PostgreSQL stops, freezes and is full: requests go on by what replicas know, and what they used
is written down when it is back."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from tests.e2e.processes import LISTENING, Process
from tests.faults.conftest import Fault
from tests.faults.fleet import Fleet, Timings, fleet
from tests.faults.load import End, Request
from tests.faults.trial import shared
from tests.postgres_server import Server, server

pytestmark = pytest.mark.asyncio(loop_scope="module")

TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name='obleth'"
POOL = 15
"""Connections that a process may have at most."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def postgres() -> AsyncIterator[Server]:
    async with server() as own:
        yield own


@pytest.fixture(scope="module")
def timings(timings: Timings) -> Timings:
    """Redis is not what is looked at here."""
    return replace(timings, ttl=max(timings.ttl, 3.0), answer_ms=2000)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def three(
    postgres: Server, timings: Timings, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Fleet]:
    async with fleet(tmp_path_factory.mktemp("fleet"), postgres.url(), timings) as own:
        yield own


async def test_stopped(three: Fleet, postgres: Server, fault: Fault) -> None:
    async with fault("PostgreSQL killed and started", shared) as trial:
        await postgres.stop()
        await asyncio.sleep(three.timings.outage)
        problem = await three.api.get("/tenants", expect=503)
        assert problem["type"] == "urn:obleth:problem:database-away"
        await postgres.start()
    await _written_down(postgres, trial.whole)


async def test_frozen(three: Fleet, postgres: Server, fault: Fault) -> None:
    """A request is not even delayed; one with a key that nobody has seen is told so in time."""
    async with fault("PostgreSQL frozen", shared) as trial:
        await postgres.freeze()
        await asyncio.sleep(three.timings.outage)
        await postgres.thaw()
    await _written_down(postgres, trial.whole)


async def test_full(three: Fleet, postgres: Server, fault: Fault) -> None:
    async with fault("PostgreSQL takes no connections", shared) as trial:
        held: list[Any] = []
        for _ in range(3):
            held += await _all_there_are(postgres)
            await held[0].execute(TERMINATE)
        held += await _all_there_are(postgres)
        await asyncio.sleep(three.timings.outage)
        for connection in held:
            await connection.close()
    await _written_down(postgres, trial.whole)


async def test_200_requests_cut_off_while_their_key_is_looked_up_leave_no_connection_behind(
    three: Fleet, postgres: Server
) -> None:
    tenant = await three.api.tenant("newcomer")
    secrets = [(await three.api.key(tenant["id"], name=f"key-{at}"))["secret"] for at in range(20)]
    await postgres.freeze()
    urls = [one.url for one in three.replicas]
    cut = await asyncio.gather(
        *(
            Request("eight", secrets[at % 20], f"cut-{at}", leaves_after=0.5).make(
                three.session, urls[at % 3]
            )
            for at in range(200)
        )
    )
    assert {one.end for one in cut} == {End.LEFT}
    await postgres.thaw()
    served = [
        await Request("eight", secret, f"served-{at}").make(three.session, urls[at % 3])
        for at, secret in enumerate(secrets[:10])
    ]
    assert [one.end for one in served] == [End.WHOLE] * 10
    watcher = await postgres.connect()
    busy = "SELECT count(*) FROM pg_stat_activity WHERE application_name='obleth' AND state<>'idle'"
    for _ in range(200):
        if not await watcher.fetchval(busy):
            break
        await asyncio.sleep(0.05)
    assert await watcher.fetchval(busy) == 0
    every = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'obleth'"
    assert await watcher.fetchval(every) <= POOL * (len(urls) + 1)
    await watcher.close()


async def test_three_control_planes_started_at_once_on_an_empty_database_are_all_ready(
    postgres: Server, tmp_path: Path
) -> None:
    maker = await postgres.connect("postgres")
    await maker.execute("CREATE DATABASE empty")
    await maker.close()
    environment = {
        "OBLETH_DATABASE_URL": postgres.url().removesuffix("obleth") + "empty",
        "OBLETH_ADMIN_TOKEN": "token-of-the-tests",
        "OBLETH_LOG_FORMAT": "json",
    }
    with ExitStack() as stack:
        for number in range(3):
            (tmp_path / str(number)).mkdir()
        started = [
            stack.enter_context(
                Process("controlplane", folder=tmp_path / str(number), **environment)
            )
            for number in range(3)
        ]
        assert all([await one.said(LISTENING) for one in started])
        assert not any('"level": "error"' in one.errors() for one in started)


async def _all_there_are(postgres: Server) -> list[Any]:
    taken: list[Any] = []
    while True:
        try:
            taken.append(await postgres.connect())
        except asyncpg.TooManyConnectionsError:
            return taken


async def _written_down(postgres: Server, whole: list[str]) -> None:
    """Every request that had its answer is in the table of usage, once."""
    reader = await postgres.connect()
    rows: list[str] = []
    async with asyncio.timeout(60):
        while not set(whole) <= set(rows):
            found = await reader.fetch("SELECT request_id FROM usage_requests")
            rows = [row["request_id"] for row in found]
            await asyncio.sleep(0.1)
    await reader.close()
    times = Counter(rows)
    assert {times[one] for one in whole} == {1}
