"""A fleet of real replicas between clients of ours and a simulated backend: each reaches Redis over
a link of its own, and the backend alone is believed about what ran."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from redis.asyncio import Redis

from obleth.backend import SimulatedBackend
from shared import redis as shared_redis
from tests.controlplane.api import Api, Told, plane
from tests.e2e.processes import LISTENING, START_SECS, Process
from tests.faults import load
from tests.faults.link import Link, Links
from tests.redis_server import Server, server

MODELS = {"one": 1, "eight": 8, "twenty": 20, "thirty-two": 32}
"""Slots of each model."""
TENANTS = {"a": 400, "b": 200, "c": 100, "d": 100}
MIXTURE = {"one": 3, "eight": 10, "twenty": 28, "thirty-two": 12}
"""Clients of each model: all but the largest always have some waiting."""
POLL_SECS = 0.02


@dataclass(frozen=True, slots=True)
class Timings:
    """What is configured, in seconds, and how long faults last that are not about a limit."""

    heartbeat: float = 0.5
    ttl: float = 1.5
    outage: float = 1.0
    answer_ms: int = 500

    @property
    def longest_recovery(self) -> float:
        """No way back takes longer, whatever the machine is busy with: a guard against hanging."""
        return 2 * (self.ttl + 2 * self.heartbeat) + 60


SHORT = Timings()
CONFIGURED_BY_DEFAULT = Timings(heartbeat=5, ttl=15, outage=5, answer_ms=250)


class Replica:
    """One data-plane process after another, in one place."""

    def __init__(self, folder: Path, link: Link, environment: dict[str, str]) -> None:
        self.link = link
        self.url = "http://127.0.0.1:1"
        """Where clients reach it; nobody, before it first runs."""
        self._operations = ""
        self._folder = folder
        self._environment = environment
        self._process: Process | None = None
        self._runs = 0

    @property
    def process(self) -> Process:
        assert self._process is not None, "it was started"
        return self._process

    @property
    def pid(self) -> int:
        return self.process.running.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.running.poll() is None

    async def start(self, **environment: str) -> None:
        """Start it, after what ran here before has ended, and wait until it listens."""
        await self.clean_up()
        self._runs += 1
        folder = self._folder / f"run-{self._runs}"
        folder.mkdir(parents=True)
        given = {**self._environment, **environment}
        self._process = await asyncio.to_thread(Process, "dataplane", folder=folder, **given)
        proxy = await self._process.said(LISTENING)
        metrics = await self._process.said(r'"listening": \["[^"]+", "([^"]+)"')
        self.url, self._operations = f"http://{proxy}", f"http://{metrics}"

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.running.wait(START_SECS)

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    async def stop(self) -> int:
        """SIGTERM; its exit code."""
        self.process.terminate()
        return await asyncio.to_thread(self.process.exit_code)

    async def clean_up(self) -> None:
        """Have nothing run here any more."""
        if self._process is not None:
            if self.is_running:
                self.signal(signal.SIGCONT)
            await asyncio.to_thread(self._process.__exit__, None, None, None)
            self._process = None

    async def mode(self, session: aiohttp.ClientSession) -> tuple[str, int]:
        """In which it is, and how many replicas it knows of."""
        figures = await self.figures(session)
        modes = [name for name, value in figures.items() if value == 1 and "_mode{" in name]
        return modes[0].partition('"')[2].partition('"')[0], int(
            figures["obleth_fairshare_replicas"]
        )

    async def runs(self, session: aiohttp.ClientSession) -> Counter[str]:
        """How many requests of each model it runs."""
        figures = await self.figures(session)
        return Counter(
            {name: int(figures.get(f'obleth_in_flight{{model="{name}"}}', 0)) for name in MODELS}
        )

    async def figures(self, session: aiohttp.ClientSession) -> dict[str, float]:
        """All its metrics."""
        async with session.get(f"{self._operations}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}


@dataclass(slots=True)
class Fleet:
    """What a test breaks."""

    timings: Timings
    backend: SimulatedBackend
    redis: Server
    links: Links
    replicas: list[Replica]
    session: aiohttp.ClientSession
    secrets: list[str]
    api: Api
    """Writes policy. It tells nobody: replicas find out at their next look."""
    seed: int = 1

    @property
    def running(self) -> list[Replica]:
        return [one for one in self.replicas if one.is_running]

    @property
    def mode_changes(self) -> int:
        """How often replicas that run have changed their mode."""
        return sum(one.process.errors().count('"fairshare_mode"') for one in self.running)

    async def modes(self, of: Sequence[Replica] | None = None) -> list[tuple[str, int]]:
        """In which mode each is, and how many replicas it knows of."""
        return [await one.mode(self.session) for one in of or self.running]

    async def until_shared(self) -> float:
        """How long it takes until each replica that runs shares limits with the others, if there
        are any."""
        number = len(self.running)
        mode = "shared" if number > 1 else "local"
        return await self.until_modes([(mode, number)] * number)

    async def until_modes(
        self, wanted: Sequence[tuple[str, int]], of: Sequence[Replica] | None = None
    ) -> float:
        """How long it takes until they are in these modes and know of so many replicas."""
        began = time.monotonic()
        while (now := await self.modes(of)) != list(wanted):
            took = time.monotonic() - began
            assert took < self.timings.longest_recovery, f"{now} after {took:.1f} s"
            await asyncio.sleep(POLL_SECS)
        return time.monotonic() - began

    def load(self, **clients: int) -> load.Load:
        """Clients, by model; the mixture of all tests if nothing is said."""
        named = {name.replace("_", "-"): number for name, number in clients.items()}
        self.seed += 1
        return load.Load(self.session, self.replicas, self.secrets, named or MIXTURE, self.seed)

    def burst(self, model: str, number: int, **fields: Any) -> list[asyncio.Task[load.Request]]:
        """Requests that all arrive at once, round the replicas that run."""
        replicas = self.running
        return [
            asyncio.create_task(
                load.Request(
                    model, self.secrets[at % len(self.secrets)], f"burst-{model}-{at}", **fields
                ).make(self.session, replicas[at % len(replicas)].url)
            )
            for at in range(number)
        ]

    @asynccontextmanager
    async def on_redis(self) -> AsyncIterator[Redis]:
        """A client of the server itself, by no link."""
        async with shared_redis.client(self.redis.url) as redis:
            yield redis


@asynccontextmanager
async def fleet(
    folder: Path,
    database_url: str,
    timings: Timings,
    *,
    each: Sequence[dict[str, str]] = ({}, {}, {}),
) -> AsyncIterator[Fleet]:
    """One that runs, in mode shared; `each` is what one replica's environment has beside."""
    async with (
        SimulatedBackend() as backend,
        _policy(database_url, backend.url) as (api, secrets),
        _redis(folder) as redis,
        Links() as links,
        load.session() as session,
    ):
        own = Fleet(timings, backend, redis, links, [], session, secrets, api)
        try:
            for number, own_environment in enumerate(each):
                link = await links.open(redis.port, seed=number)
                given = _environment(database_url, link.port, timings, len(each))
                given |= own_environment
                own.replicas.append(Replica(folder / f"replica-{number}", link, given))
            await asyncio.gather(*(one.start() for one in own.replicas))
            await own.until_shared()
            yield own
        finally:
            await asyncio.gather(*(one.clean_up() for one in own.replicas))


@asynccontextmanager
async def _redis(folder: Path) -> AsyncIterator[Server]:
    home = folder / "redis"
    home.mkdir()
    async with server(home) as own:
        yield own


@asynccontextmanager
async def _policy(database_url: str, backend: str) -> AsyncIterator[tuple[Api, list[str]]]:
    """The schema, `MODELS` and `TENANTS`; the secret of each tenant's key."""
    told = Told()
    control_plane = plane(database_url, told)
    api = Api(control_plane, told)
    await control_plane.start()
    try:
        for name, slots in MODELS.items():
            model = await api.model(name, max_in_flight=slots)
            await api.endpoint(model["id"], backend)
        secrets = []
        for name, weight in TENANTS.items():
            tenant = await api.tenant(name, weight=weight)
            secrets.append((await api.key(tenant["id"]))["secret"])
        yield api, secrets
    finally:
        await api.close()
        await control_plane.stop()


def _environment(database: str, redis_port: int, timings: Timings, replicas: int) -> dict[str, str]:
    return {
        "OBLETH_DATABASE_URL": database,
        "OBLETH_REDIS_URL": f"redis://127.0.0.1:{redis_port}/0",
        "OBLETH_REDIS_RESPONSE_TIMEOUT_MS": str(timings.answer_ms),
        "OBLETH_FAIRSHARE_REPLICA_HEARTBEAT_SECS": str(timings.heartbeat),
        "OBLETH_FAIRSHARE_REPLICA_TTL_SECS": str(timings.ttl),
        "OBLETH_FAIRSHARE_EXPECTED_REPLICAS": str(replicas),
        "OBLETH_SHUTDOWN_GRACE_SECS": "10",
        "OBLETH_LOG_FORMAT": "json",
    }
