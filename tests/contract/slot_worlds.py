"""Books to hold the slots' contract suite to: a real Redis, and the simulation's model of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

from dataplane import scripts
from dataplane.admission.slots.port import Answer, Claim, Holding, Slots
from dataplane.admission.slots.redis import RedisSlots
from dataplane.admission.slots.scripts import ScriptRunner, SlotScripts
from dataplane.scripts import RedisScripts, Script, ScriptCall
from shared.redis_keys import RELEASED, SlotKeys
from tests.redis_server import PATIENT_SECS, Corner, corner
from tests.simulation.redis_model import ModelScripts, RedisModel, announced

TTL: Final = 15.0


class World(Protocol):
    """Books, and the time they live in."""

    def replica(self, name: str) -> Slots: ...

    async def passes(self, secs: float) -> None: ...

    async def forgets(self) -> None:
        """The server loses everything."""

    async def counts(self) -> dict[str, int]:
        """How many slots each set of the books has, and how many notes of held ones there are."""

    async def announced(self) -> list[dict[str, object]]:
        """What was published since the last look."""


class StoppedScripts:
    """The real scripts on a real server, in whose world no time passes but what the test says."""

    def __init__(self, own: Corner) -> None:
        ms = f"redis.call('GET', '{own.stopped_clock}')"
        clock = f"{{ math.floor({ms} / 1000), {ms} % 1000 * 1000 }}"
        stopped = {
            name: Script.of(name, script.text.replace("redis.call('TIME')", clock))
            for name, script in scripts.load("dataplane.admission.slots").items()
        }
        self._scripts = RedisScripts(own.redis, stopped, secs=PATIENT_SECS)

    async def run(self, calls: Sequence[ScriptCall]) -> list[Any]:
        return await self._scripts.run(calls)


class RedisWorld:
    def __init__(self, own: Corner, subscription: Any, *, stopped: bool) -> None:
        self._own = own
        self._subscription = subscription
        self.scripts: ScriptRunner = SlotScripts(own.redis, secs=PATIENT_SECS)
        if stopped:
            self.scripts = StoppedScripts(own)

    def replica(self, name: str) -> Slots:
        return slots_of(self.scripts, name, self._own.keys, self._own.channel)

    async def passes(self, secs: float) -> None:
        await self._own.passes(round(secs * 1000))

    async def forgets(self) -> None:
        names = await self._own.names()
        if names:
            await self._own.redis.delete(*names)

    async def counts(self) -> dict[str, int]:
        return await self._own.counts()

    async def announced(self) -> list[dict[str, object]]:
        # What was published before is here before the end mark is.
        await self._own.redis.publish(self._own.channel, "{}")
        messages: list[str] = []
        while not messages or messages[-1] != "{}":
            message = await self._subscription.get_message(
                ignore_subscribe_messages=True, timeout=PATIENT_SECS
            )
            if message is not None:
                messages.append(message["data"])
        return announced(messages[:-1])


class ModelWorld:
    def __init__(self) -> None:
        self.model = RedisModel()
        self.now = 1_700_000_000_000
        self.scripts = ModelScripts(self.model, lambda: self.now)

    def replica(self, name: str) -> Slots:
        return slots_of(self.scripts, name, SlotKeys("{model}"), RELEASED)

    async def passes(self, secs: float) -> None:
        self.now += round(secs * 1000)

    async def forgets(self) -> None:
        self.model.flush()

    async def counts(self) -> dict[str, int]:
        self.model.expire(self.now)
        return {
            name.removeprefix("{model}:1:"): len(value)
            for name, value in self.model.keys.items()
            if name.endswith(":hold_notes")
            or (isinstance(value, dict) and all(isinstance(each, int) for each in value.values()))
        }

    async def announced(self) -> list[dict[str, object]]:
        messages = self.model.published[:]
        self.model.published.clear()
        return messages


def slots_of(scripts: ScriptRunner, name: str, keys: SlotKeys, channel: str) -> RedisSlots:
    return RedisSlots(scripts, replica=name, ttl=TTL, keys=keys, channel=channel)


@asynccontextmanager
async def redis_world(*, stopped: bool = False) -> AsyncIterator[RedisWorld]:
    """With `stopped` the scripts' time stands still between two calls of `passes`."""
    async with corner() as own, own.redis.pubsub() as subscription:
        await subscription.subscribe(own.channel)
        yield RedisWorld(own, subscription, stopped=stopped)


async def answers(
    slots: Slots, releases: Sequence[Holding], claims: Sequence[Claim]
) -> list[Answer]:
    """What became of claims, and nothing else."""
    return [reply.answer for reply in (await slots.exchange(releases, claims)).claims]
