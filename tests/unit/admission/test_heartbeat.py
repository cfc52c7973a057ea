"""The task that keeps a replica on the books, over books that answer when the test says."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from dataplane.admission.fleet import Fleet
from dataplane.admission.heartbeat import Heartbeat
from dataplane.admission.replica import ReplicaSettings
from dataplane.admission.slots.port import Answer, Claim, Exchanged, Heard, Holding, Reply
from dataplane.scheduler.effects import Claim as ClaimEffect
from dataplane.scheduler.events import ClaimRefused, RefusedBy
from tests.simulation.fleet_time import Time, new_loop


class SlowBooks:
    """`Slots` that write down what was asked of them, and answer a heartbeat when told to."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.begun = asyncio.Event()
        self.answers = asyncio.Event()

    async def heartbeat(self, holdings: Sequence[Holding], *, complete: bool = True) -> Heard:
        self.begun.set()
        await self.answers.wait()
        self.done.append("heartbeat")
        return Heard(("a",), 0, 0)

    async def leave(self, holdings: Sequence[Holding]) -> None:
        self.done.append("leave")

    async def exchange(self, releases: Sequence[Holding], claims: Sequence[Claim]) -> Exchanged:
        raise AssertionError("nobody claims")


async def test_a_heartbeat_under_way_ends_before_the_replica_leaves_and_none_comes_after() -> None:
    """Carried out after `leave`, it would have the others count with a replica that is gone."""
    books = SlowBooks()
    heartbeat = Heartbeat(
        books,
        "a",
        ReplicaSettings(heartbeat=0.0),
        holdings=list,
        changed=lambda stance: None,
    )
    heartbeat.start()
    await books.begun.wait()
    stopping = asyncio.create_task(heartbeat.stop())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not stopping.done()
    books.answers.set()
    await stopping
    await books.leave([])
    for _ in range(5):
        await asyncio.sleep(0)
    assert books.done == ["heartbeat", "leave"]


async def test_a_heart_that_is_not_beating_stops_at_once() -> None:
    heartbeat = Heartbeat(
        SlowBooks(), "a", ReplicaSettings(), holdings=list, changed=lambda stance: None
    )
    await heartbeat.stop()


class FaultyBooks(SlowBooks):
    """`Slots` with a mistake in them that nobody foresaw."""

    async def heartbeat(self, holdings: Sequence[Holding], *, complete: bool = True) -> Heard:
        self.done.append("heartbeat")
        raise ValueError("a reply that cannot be read")

    async def exchange(self, releases: Sequence[Holding], claims: Sequence[Claim]) -> Exchanged:
        raise ValueError("a reply that cannot be read")


class FullBooks(SlowBooks):
    """In which the pool is full."""

    async def exchange(self, releases: Sequence[Holding], claims: Sequence[Claim]) -> Exchanged:
        return Exchanged([], [Reply(Answer.POOL)] * len(claims))


async def test_a_heart_goes_on_beating_after_a_mistake_nobody_foresaw() -> None:
    time = Time(random.Random(1))
    failed: list[object] = []
    loop = new_loop(time, 0.0, failed.append)
    books = FaultyBooks()
    told: list[Heard | None] = []

    async def live() -> None:
        settings = ReplicaSettings(heartbeat=0.5)
        Heartbeat(
            books, "a", settings, holdings=list, changed=lambda stance: None, done=told.append
        ).start()

    loop.call_soon(lambda: loop.create_task(live()))
    time.run(5.0)
    loop.kill()
    assert failed == []
    assert len(books.done) >= 4
    assert told == [None] * len(books.done)


async def test_a_claim_is_answered_after_a_mistake_nobody_foresaw() -> None:
    answers: list[object] = []
    outages: list[None] = []
    fleet = Fleet(
        FaultyBooks(),
        "a",
        post=answers.append,
        unavailable=lambda: outages.append(None),
        lapsed=lambda: None,
    )
    fleet.claim(ClaimEffect(1, "m", "g", "t", "k", 8, 64, None, None))
    await fleet.settled()
    (answer,) = answers
    assert isinstance(answer, ClaimRefused)
    assert answer.by is RefusedBy.NOBODY
    assert outages == [None]


async def test_who_was_refused_tries_again_after_100_to_250_ms_if_nothing_is_announced() -> None:
    drawn: list[tuple[float, float]] = []
    answers: list[ClaimRefused] = []

    def draw(least: float, most: float) -> float:
        drawn.append((least, most))
        return most

    fleet = Fleet(
        FullBooks(),
        "a",
        post=lambda answer: answers.append(answer) if isinstance(answer, ClaimRefused) else None,
        unavailable=lambda: None,
        lapsed=lambda: None,
        draw=draw,
    )
    before = asyncio.get_running_loop().time()
    fleet.claim(ClaimEffect(1, "m", "g", "t", "k", 8, 64, None, None))
    await fleet.settled()
    (answer,) = answers
    assert answer.by is RefusedBy.POOL
    assert drawn == [(0.1, 0.25)]
    assert answer.retry_at >= before + 0.25
