"""The task that keeps a replica on the books, over books that answer when the test says."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from dataplane.admission.heartbeat import Heartbeat
from dataplane.admission.replica import ReplicaSettings
from dataplane.admission.slots.port import Answer, Claim, Heard, Holding


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

    async def exchange(
        self, releases: Sequence[Holding], claims: Sequence[Claim]
    ) -> Sequence[Answer]:
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
