"""A fleet's modes and books while Redis forgets, loses answers, carries things out late or is away:
never more at once than the bound, and once all is well again nothing missing and nothing left.

Everything above the scripts is the product's own; the server is the model, the time a number. A
failure names its seed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from dataplane.admission.replica import Mode, Replica, ReplicaSettings
from dataplane.admission.slots.port import Answer, Claim, Holding, SlotsUnavailable
from dataplane.admission.slots.redis import RedisSlots
from dataplane.admission.slots.scripts import ScriptCall
from tests.simulation.redis_model import RedisModel

HEARTBEAT: Final = 5.0
TTL: Final = 15.0
STEP: Final = 0.1
SEEDS: Final = 20


@dataclass
class Link:
    """One replica's way to the server, and what is wrong with it."""

    model: RedisModel
    chance: random.Random
    now: float = 0.0
    away: bool = False
    loss: float = 0.0
    late: list[ScriptCall] = field(default_factory=list)
    """Sent, given up on, and still to be carried out."""

    async def run(self, calls: Sequence[ScriptCall]) -> list[Any]:
        if self.away:
            # What a frozen server has in its socket, it carries out when it thaws.
            self.late += calls if self.chance.random() < 0.3 else []
            raise SlotsUnavailable("away")
        if self.chance.random() < self.loss:
            done = self.chance.randint(0, len(calls))
            self.carry_out(calls[:done])
            self.late += calls[done:] if self.chance.random() < 0.5 else []
            raise SlotsUnavailable("lost")
        return self.carry_out(calls)

    def carry_out(self, calls: Sequence[ScriptCall]) -> list[Any]:
        return [self.model.run(call, round(self.now * 1000)) for call in calls]

    def thaw(self) -> None:
        late, self.late = self.late, []
        self.carry_out(late)


class Member:
    """One replica: what it runs, and what it does each step."""

    def __init__(self, name: str, link: Link, now: float, size: int) -> None:
        self.name = name
        self.link = link
        self.size = size
        self.running: dict[str, Holding] = {}
        self.mode = Replica(name, ReplicaSettings(heartbeat=HEARTBEAT), now)
        self.slots = RedisSlots(link, replica=name, ttl=TTL)
        self._claims = 0

    async def beat(self, now: float) -> None:
        complete = self.mode.begin()
        try:
            heard = await self.slots.heartbeat(list(self.running.values()), complete=complete)
        except SlotsUnavailable:
            self.mode.unheard(now)
        else:
            self.mode.heard(heard, now)

    async def exchange(self, releases: list[Holding], claims: list[Claim], now: float) -> None:
        try:
            answers = await self.slots.exchange(releases, claims)
        except SlotsUnavailable:
            self.mode.slots_unavailable(now)
            return
        for claim, answer in zip(claims, answers, strict=True):
            if answer is Answer.GRANTED:
                self.running[claim.id] = Holding(claim.id, claim.pool, claim.tenant, claim.key)
            elif answer is Answer.NOT_LIVE:
                self.mode.lapsed(now)

    async def want(self, number: int, now: float) -> None:
        """Ask for slots, as far as the mode lets this replica."""
        stance = self.mode.stance
        room = max(0, stance.part(self.size) - len(self.running))
        if stance.paused or not (number := min(number, room)):
            return
        claims = []
        for _ in range(number):
            self._claims += 1
            id = f"{self.name}:{self._claims}"
            claims.append(Claim(id, "m", "t", f"k{self._claims % 3}", self.size, 1000))
        if stance.claims:
            await self.exchange([], claims, now)
        else:
            for claim in claims:
                self.running[claim.id] = Holding(claim.id, claim.pool, claim.tenant, claim.key)

    async def end(self, ids: Sequence[str], now: float) -> None:
        ended = [self.running.pop(id) for id in ids]
        if ended and self.mode.stance.claims:
            await self.exchange(ended, [], now)


class World:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.model = RedisModel()
        self.now = 1000.0
        self.replicas = self.chance.randint(2, 4)
        self.size = self.chance.randint(1, 20)
        self.members = [self.member(f"r{number}") for number in range(self.replicas)]
        self.pressure = 0
        self.most = 0

    def member(self, name: str) -> Member:
        return Member(name, Link(self.model, self.chance), self.now, self.size)

    @property
    def total(self) -> int:
        return sum(len(member.running) for member in self.members)

    @property
    def all_shared(self) -> bool:
        return all(member.mode.stance.mode is Mode.SHARED for member in self.members)

    async def pass_time(self, secs: float) -> None:
        for _ in range(round(secs / STEP)):
            self.now += STEP
            for member in self.chance.sample(self.members, len(self.members)):
                await self.step(member)
            self.pass_on_news()

    async def step(self, member: Member) -> None:
        member.link.now = self.now
        if not member.link.away and self.chance.random() < 0.3:
            member.link.thaw()
        while member.mode.next_at <= self.now:
            await member.beat(self.now)
        if self.pressure:
            ids = [id for id in member.running if self.chance.random() < 0.1]
            await member.end(ids, self.now)
            await member.want(self.chance.randint(0, self.pressure), self.now)
        self.most = max(self.most, self.total)

    def pass_on_news(self) -> None:
        for message in self.model.published:
            for member in self.members:
                if "replica" in message and message["replica"] != member.name:
                    member.mode.replicas_changed(self.now)
        self.model.published.clear()


async def _fault(world: World, kind: str) -> None:
    """Break one thing for a while, and mend it."""
    chance, victim = world.chance, world.members[0]
    secs = chance.uniform(0.2, 12)
    match kind:
        case "lost answers":
            for member in world.members:
                member.link.loss = chance.choice((0.02, 0.1, 0.3))
        case "away":
            for member in world.members:
                member.link.away = True
        case "cut off":
            victim.link.away = True
        case "forgotten":
            world.model.flush()
        case "killed":
            world.members.remove(victim)
            await world.pass_time(secs)
            newcomer = world.member("new")
            world.members.append(newcomer)
    await world.pass_time(secs)
    for member in world.members:
        member.link.away, member.link.loss = False, 0.0


@pytest.mark.parametrize("kind", ["lost answers", "away", "cut off", "forgotten", "killed"])
async def test_a_fault_ends_with_nothing_missing_and_nothing_left(kind: str) -> None:
    for seed in range(SEEDS):
        world = World(seed)
        await world.pass_time(2)
        assert world.all_shared, f"seed {seed}: the fleet did not come together"
        world.pressure = 3
        await world.pass_time(5)
        assert world.most <= world.size, f"seed {seed}: {world.most} of {world.size} while healthy"

        await _fault(world, kind)
        # Late replies, a heartbeat or two, and what was admitted meanwhile ends.
        await world.pass_time(TTL + 3 * HEARTBEAT)
        part = -(-world.size // world.replicas)
        bound = world.size + (world.replicas - 1) * part
        assert world.most <= bound, f"seed {seed}: {world.most} of at most {bound}"
        assert world.all_shared, f"seed {seed}: {[m.mode.phase for m in world.members]}"
        world.most = 0
        await world.pass_time(5)
        assert world.most <= world.size, f"seed {seed}: {world.most} of {world.size} once healed"

        world.pressure = 0
        for member in world.members:
            await member.end(list(member.running), world.now)
        await world.pass_time(2 * HEARTBEAT)
        left = [name for name in world.model.keys if ":pool:" in name or name.endswith(":all")]
        assert left == [], f"seed {seed}: slots nobody holds"
        for member in world.members:
            await member.want(world.size, world.now)
        assert world.total == world.size, f"seed {seed}: a slot is lost"
