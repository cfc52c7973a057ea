"""Changes, messages, loads and outages in any order: nothing that was told is ever undone."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from dataplane.errors import InvalidApiKey, PolicyUnavailable
from dataplane.policy.source import SourceUnavailable
from shared.invalidation import Invalidation, Kind
from shared.policy import KeyPolicy
from tests.policy.world import Source, World

STEPS = st.sampled_from(
    ["change", "revoke", "tell", "lose", "ask", "answer", "answer last", "away", "back", "poll"]
)
LAST = 10_000


@dataclass
class Scrambled(Source):
    """Each answer is taken when the question begins and given when, and in the order that, the test
    says."""

    waiting: list[asyncio.Future[None]] = field(default_factory=list)

    async def key(self, digest: str) -> KeyPolicy | None:
        answer, away = self.stored.get(digest), self.away
        turn = asyncio.get_running_loop().create_future()
        self.waiting.append(turn)
        await turn
        if away:
            raise SourceUnavailable("away")
        return answer


@dataclass
class Run:
    """A key's weight is the number of its newest change; revoked, it is gone for good."""

    world: World
    source: Scrambled
    changes: int = 1
    told: int = 0
    revoked: bool = False
    messages: list[tuple[Invalidation, int]] = field(default_factory=list)
    requests: list[asyncio.Task[None]] = field(default_factory=list)

    def step(self, step: str) -> None:
        world, source = self.world, self.source
        match step:
            case "change" | "revoke" if not self.revoked:
                self.changes = LAST if step == "revoke" else self.changes + 1
                self.revoked = step == "revoke"
                world.put("a", weight=self.changes, disabled=self.revoked)
                self.messages.append((Invalidation(Kind.KEY, "a", source.number), self.changes))
            case "tell" if self.messages:
                message, change = self.messages.pop(0)
                world.cache.invalidate(message)
                self.told = max(self.told, change)
            case "lose" if self.messages:
                self.messages.pop(0)
            case "ask":
                self.requests.append(asyncio.create_task(self.request(self.told)))
            case "answer" if source.waiting:
                source.waiting.pop(0).set_result(None)
            case "answer last" if source.waiting:
                source.waiting.pop().set_result(None)
            case "away":
                source.away = True
            case "back":
                source.away = False
                world.passes(2)
            case "poll":
                self.requests.append(asyncio.create_task(world.cache.poll()))

    async def request(self, told: int) -> None:
        """Whoever asks after a change was told gets that change or a newer one, or nothing. Only
        with the database away may it be what was known before."""
        was_away = self.source.away or self.world.cache.is_away
        try:
            key = await self.world.key("a")
        except (InvalidApiKey, PolicyUnavailable):
            return
        finally:
            was_away |= self.source.away or self.world.cache.is_away
        assert key.weight >= told or was_away
        assert not key.disabled


@given(st.lists(STEPS, max_size=60))
def test_whatever_the_order_a_change_that_was_told_of_holds(steps: list[str]) -> None:
    async def run() -> None:
        world = World()
        await world.cache.poll()
        source = Scrambled(registered=world.source.registered, number=world.source.number)
        world.source = source
        world.cache._source = source  # the same cache over a source that answers out of order
        world.put("a", weight=1)
        run = Run(world, source)
        for step in steps:
            run.step(step)
            await asyncio.sleep(0)
        source.away = False
        world.passes(2)
        while not all(request.done() for request in run.requests):
            while source.waiting:
                source.waiting.pop().set_result(None)
            await asyncio.sleep(0)
        await asyncio.gather(*run.requests)
        # All is quiet and well again: one look, and what is stored is in force.
        await world.cache.poll()
        last = asyncio.create_task(world.key("a"))
        while not last.done():
            while source.waiting:
                source.waiting.pop().set_result(None)
            await asyncio.sleep(0)
        if run.revoked:
            assert isinstance(last.exception(), InvalidApiKey)
        else:
            assert last.result().weight == run.changes

    asyncio.run(run())
