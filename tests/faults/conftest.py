"""A fleet a module, and what is told of the faults that were tried on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from tests.controlplane.conftest import on_postgres, postgres_url, unused_name
from tests.faults import trial as trials
from tests.faults.fleet import CONFIGURED_BY_DEFAULT, SHORT, Fleet, Timings, fleet
from tests.faults.trial import Allows, Trial

ROUNDS, LONG = "--fault-rounds", "--default-timings"
Fault = Callable[[str, Allows], AbstractAsyncContextManager[Trial]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(ROUNDS, type=int, default=1, help="How often each fault is tried.")
    parser.addoption(LONG, action="store_true", help="Heartbeats as they are by default.")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    rounds = metafunc.config.getoption(ROUNDS, 1)
    if rounds > 1 and "fault" in metafunc.fixturenames:
        metafunc.fixturenames.append("round_number")
        metafunc.parametrize("round_number", range(rounds))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    told = [
        line
        for report in terminalreporter.stats.get("passed", [])
        for name, line in report.user_properties
        if name == "fault"
    ]
    if told:
        terminalreporter.section("faults: requests, most that ran / may run, recovery")
        for line in told:
            terminalreporter.line(line)


@pytest.fixture(scope="module")
def timings(request: pytest.FixtureRequest) -> Timings:
    return CONFIGURED_BY_DEFAULT if request.config.getoption(LONG, False) else SHORT


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    """An empty database on the real server, for a module."""
    name = unused_name()
    on_postgres(f'CREATE DATABASE "{name}"')
    yield postgres_url(name)
    on_postgres(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def three(
    database: str, timings: Timings, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Fleet]:
    """Three replicas that the module's tests break and heal."""
    async with fleet(tmp_path_factory.mktemp("fleet"), database, timings) as own:
        yield own


@pytest.fixture
def fault(three: Fleet, record_property: Callable[[str, object], None]) -> Fault:
    """Try a fault on the module's fleet: see `trial`."""

    @asynccontextmanager
    async def tried(name: str, allows: Allows) -> AsyncIterator[Trial]:
        async with trials.trial(three, name, allows) as own:
            yield own
        record_property("fault", str(own))

    return tried
