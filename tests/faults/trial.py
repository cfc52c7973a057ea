"""One fault, under load: what may run at most meanwhile, and that nothing is left of it after."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp

from obleth.backend import Outcome, SimulatedBackend
from shared import redis_keys
from tests.faults.fleet import MODELS, Fleet
from tests.faults.load import PATIENCE_SECS, End, Load

Allows = Callable[[int, int, int], int]
"""What may run at most of a limit, with so many replicas, of which one that is apart from the
others past its time to live ran so many when it came to be."""
GAUGES = ("obleth_in_flight{", "obleth_queue_depth{", "obleth_held_slots{")
LOOK_SECS = 0.1
FULL_SECS = 60.0
"""For a pool to be full; a guard against hanging."""


def shared(limit: int, replicas: int, ran: int) -> int:
    """All is well."""
    return limit


def fallback_begun(limit: int, replicas: int, ran: int) -> int:
    """One may have run everything when all came to be on their part: nothing is cut short."""
    return limit + (replicas - 1) * part(limit, replicas)


def joined_blind(limit: int, replicas: int, ran: int) -> int:
    """The same of all but one, who came when it could not say so, and expected so many."""
    return fallback_begun(limit, replicas - 1, ran) + part(limit, replicas)


def cut_off(limit: int, replicas: int, ran: int) -> int:
    """One does not reach Redis past its time to live, the others do."""
    return limit + max(part(limit, replicas), ran)


def asleep(limit: int, replicas: int, ran: int) -> int:
    """One slept past its time to live, and what it ran goes on."""
    return limit + ran


def twice(limit: int, replicas: int, ran: int) -> int:
    """A pool that is full is taken for empty."""
    return 2 * limit


def part(limit: int, replicas: int) -> int:
    return max(1, -(-limit // replicas))


@dataclass(slots=True)
class Trial:
    """What became of a fault."""

    fault: str
    requests: int = 0
    whole: list[str] = field(default_factory=list)
    """The ids of those that had their whole answer."""
    peaks: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The most that ran of each model, and the most that was allowed."""
    recovery: float = 0.0
    """From the end of the fault until all replicas share limits again, in seconds."""
    ran: Counter[str] = field(default_factory=Counter)
    """Set by a test that keeps one replica apart from the others: what that one ran then."""
    killed: bool = False
    """Set by a test that kills a replica: its clients are told nothing."""

    def __str__(self) -> str:
        peaks = ", ".join(f"{most}/{allowed}" for most, allowed in self.peaks.values())
        return f"{self.fault:<58} {self.requests:>5} {peaks:<30} {self.recovery:>6.2f} s"


@asynccontextmanager
async def trial(fleet: Fleet, fault: str, allows: Allows) -> AsyncIterator[Trial]:
    """Load, the fault (the block, which ends it), the way back, and the reckoning."""
    backend, own = fleet.backend, Trial(fault)
    await fleet.until_shared()
    backend.reset()
    before = len(fleet.running)
    async with _never_below_zero(fleet), fleet.load() as load:
        await backend.until(lambda: backend.running("twenty") == MODELS["twenty"], FULL_SECS)
        yield own
        own.recovery = await fleet.until_shared()
    own.requests = len(load.requests)
    own.whole = [one.id for one in load.requests if one.end is End.WHOLE]
    replicas = max(before, len(fleet.running))
    for model, limit in MODELS.items():
        own.peaks[model] = (backend.peak(model), allows(limit, replicas, own.ran[model]))
    assert all(most <= allowed for most, allowed in own.peaks.values()), str(own)
    check_ends(load, backend, killed=own.killed)
    await nothing_left(fleet)
    await all_slots_usable(fleet)


def check_ends(load: Load, backend: SimulatedBackend, *, killed: bool = False) -> None:
    """Every request had one end, and that is what really became of it."""
    runs = Counter(record.request_id for record in backend.log)
    done = {record.request_id for record in backend.log if record.outcome is Outcome.FINISHED}
    wrong = [
        request
        for request in load.requests
        if runs[request.id] > 1
        or (request.end is End.WHOLE) > (request.id in done)
        or (request.end is End.LOST and not killed)
        or (request.end is End.LEFT and request.leaves_after == PATIENCE_SECS)
        or (request.end is End.REFUSED and request.status not in (429, 503))
    ]
    assert not wrong, [(one, one.body[:200]) for one in wrong[:5]]
    assert load.ends[End.WHOLE] > 0, load.ends


async def nothing_left(fleet: Fleet) -> None:
    """Nobody asks any more: nothing runs, nothing waits, and the books are empty."""
    async with asyncio.timeout(fleet.timings.longest_recovery):
        while True:
            left = [
                f"{name} {value:.0f}"
                for replica in fleet.running
                for name, value in (await replica.figures(fleet.session)).items()
                if name.startswith(GAUGES) and value
            ] + await _booked(fleet)
            if not left and not any(fleet.backend.running(model) for model in MODELS):
                return
            await asyncio.sleep(LOOK_SECS)


async def all_slots_usable(fleet: Fleet) -> None:
    """Of a burst of long requests as many run at once as there are slots, and not one more."""
    for model in ("twenty", "one"):
        async with asyncio.timeout(fleet.timings.longest_recovery):
            while not await _burst_in_one_mode(fleet, model):
                pass


async def _burst_in_one_mode(fleet: Fleet, model: str) -> bool:
    """Whether all replicas shared limits throughout, which a starved machine does not allow: then
    so many slots were used."""
    slots, backend = MODELS[model], fleet.backend
    await fleet.until_shared()
    backend.reset()
    before = fleet.mode_changes
    tasks = fleet.burst(model, slots + 5, secs=600)
    await backend.until(lambda: backend.running(model) >= slots, FULL_SECS)
    await asyncio.sleep(LOOK_SECS)
    most, is_calm = backend.peak(model), fleet.mode_changes == before
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await backend.until(lambda: not backend.running(model), FULL_SECS)
    assert most == slots or not is_calm, f"{most} of {slots} ran"
    return is_calm


async def _booked(fleet: Fleet) -> list[str]:
    """Keys of slots in Redis; and whatever is to stay there for ever, which nothing is."""
    async with fleet.on_redis() as redis:
        names = [name async for name in redis.scan_iter(match="*")]
        lives = [await redis.pttl(name) for name in names]
    books = f"{redis_keys.SLOTS_TAG}:{redis_keys.LAYOUT}"
    slots = tuple(f"{books}:{kind}" for kind in ("all", "pool:", "tenant:", "key:", "held:"))
    return [
        name
        for name, life in zip(names, lives, strict=True)
        if name.startswith(slots) or life == -1
    ]


@asynccontextmanager
async def _never_below_zero(fleet: Fleet) -> AsyncIterator[None]:
    async def look() -> None:
        while True:
            for replica in fleet.running:
                try:
                    figures = await replica.figures(fleet.session)
                except (OSError, aiohttp.ClientError):
                    # It ends, and says so in one of many ways.
                    continue
                below = {k: v for k, v in figures.items() if k.startswith(GAUGES) and v < 0}
                assert not below, below
                await asyncio.sleep(LOOK_SECS)
            await asyncio.sleep(LOOK_SECS)

    task = asyncio.create_task(look())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.result()
