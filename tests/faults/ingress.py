"""Two tenants that always have requests waiting, each at replicas of its own choice: who is served,
by the backend's own log."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from obleth.backend.ledger import RequestRecord
from tests.faults.fleet import Fleet, Replica
from tests.faults.load import Request

MODEL, SLOTS = "eight", 8
CLIENTS = 24
"""Of each tenant, one request each at a time: three times the slots."""
SETTLE_SECS = 3.0


@dataclass(frozen=True, slots=True)
class Served:
    """What became of it. Times in seconds."""

    tenants: Mapping[str, int]
    """Requests that began in the time looked at."""
    longest_wait: Mapping[str, float]
    calls: float
    """Claims for each of them."""
    redis_calls: float
    """Scripts that Redis ran for each of them, heartbeats included."""
    redis_us: float
    """How long it was busy with them, in microseconds for each."""
    idle: float
    """Part of the slots' time in which nothing ran; somebody always waited."""

    @property
    def ratio(self) -> float:
        """A's requests for each of B's."""
        return self.tenants["a"] / max(1, self.tenants["b"])

    def row(self, name: str) -> str:
        waits = self.longest_wait
        return (
            f"{name:<44} {self.ratio:5.2f} : 1   wait a {waits['a']:5.2f} s  b {waits['b']:5.2f} s"
            f"   {self.calls:4.2f} claims, {self.redis_calls:4.2f} scripts,"
            f" {self.redis_us:5.0f} us each   idle {self.idle:6.2%}"
        )


async def serve(
    fleet: Fleet,
    at: Mapping[str, Sequence[int]],
    *,
    secs: float,
    service: float = 0.4,
    settle: float = SETTLE_SECS,
    killed: bool = False,
    blocked: bool = False,
) -> Served:
    """Tenant a has four times the weight of b; `at` says at which replicas their requests come in.

    With `killed` the last replica dies in the middle; with `blocked` it stands still for 300 ms of
    every second.
    """
    loop = asyncio.get_running_loop()
    secrets = {"a": fleet.secrets[0], "b": fleet.secrets[2]}
    done: list[Request] = []
    numbers = itertools.count()
    ending = asyncio.Event()

    async def client(tenant: str, replica: Replica) -> None:
        while not ending.is_set() and replica.is_running:
            id = f"{tenant}-{next(numbers)}"
            request = Request(MODEL, secrets[tenant], id, stream=False, secs=service)
            done.append(await request.make(fleet.session, replica.url))

    clients = [
        asyncio.create_task(client(tenant, fleet.replicas[replicas[n % len(replicas)]]))
        for tenant, replicas in at.items()
        for n in range(CLIENTS)
    ]
    blocker = asyncio.create_task(_block(fleet.replicas[-1])) if blocked else None
    try:
        await asyncio.sleep(settle)
        began, claims, scripts = loop.time(), await _claims(fleet), await _scripts(fleet)
        if killed:
            await asyncio.sleep(secs / 2)
            claims -= await _claims(fleet, [fleet.replicas[-1]])
            fleet.replicas[-1].kill()
            await asyncio.sleep(secs / 2)
        else:
            await asyncio.sleep(secs)
        ended, claims = loop.time(), await _claims(fleet) - claims
        spent = [now - then for now, then in zip(await _scripts(fleet), scripts, strict=True)]
    finally:
        ending.set()
        if blocker is not None:
            blocker.cancel()
        await asyncio.gather(*clients)
    records = [
        each
        for each in fleet.backend.log
        if each.started is not None and began <= each.started < ended
    ]
    return _told(records, done, (claims, *spent), began, ended, fleet)


def _told(
    records: Sequence[RequestRecord],
    done: Sequence[Request],
    spent: Sequence[float],
    began: float,
    ended: float,
    fleet: Fleet,
) -> Served:
    ids = {each.request_id or "" for each in records}
    busy = sum(
        min(ended, each.ended or ended) - max(began, each.started)
        for each in fleet.backend.log
        if each.started is not None and each.started < ended and (each.ended or ended) > began
    )
    waits = {"a": 0.0, "b": 0.0}
    for request in done:
        if request.id in ids and request.headers:
            tenant = request.id[0]
            waits[tenant] = max(
                waits[tenant], float(request.headers.get("x-obleth-queue-ms", 0)) / 1000
            )
    tenants = {name: sum(id.startswith(f"{name}-") for id in ids) for name in waits}
    claims, scripts, micros = (total / max(1, len(ids)) for total in spent)
    idle = 1 - busy / (SLOTS * (ended - began))
    return Served(tenants, waits, claims, scripts, micros, idle)


async def _claims(fleet: Fleet, of: Sequence[Replica] | None = None) -> float:
    total = 0.0
    for one in of or fleet.running:
        figures = await one.figures(fleet.session)
        total += sum(
            value
            for name, value in figures.items()
            if name.startswith("obleth_slot_calls_total") and 'script="claim"' in name
        )
    return total


async def _scripts(fleet: Fleet) -> tuple[float, float]:
    """How many scripts Redis has run, and for how many microseconds."""
    async with fleet.on_redis() as redis:
        ran = (await redis.info("commandstats")).get("cmdstat_evalsha", {})
    return float(ran.get("calls", 0)), float(ran.get("usec", 0))


async def _block(replica: Replica) -> None:
    while True:
        replica.signal(signal.SIGSTOP)
        await asyncio.sleep(0.3)
        replica.signal(signal.SIGCONT)
        await asyncio.sleep(0.7)
