"""A fleet's modes and books while Redis forgets, loses answers, carries things out late or is away:
never more at once than the bound, and once all is well again nothing missing and nothing left.

Everything above the scripts is the product's own; the server is the model, the time a number. A
heartbeat's round trips take a step each, and requests come and go between them. A failure names its
seed.
"""

from __future__ import annotations

import random
from collections.abc import Coroutine, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from dataplane.admission.replica import Mode, Replica, ReplicaSettings
from dataplane.admission.slots.port import Answer, Claim, Heard, Holding, SlotsUnavailable
from dataplane.admission.slots.redis import RedisSlots
from dataplane.scripts import ScriptCall
from shared.redis_keys import SlotKeys
from tests.simulation.redis_model import RedisModel

HEARTBEAT: Final = 5.0
TTL: Final = 30.0
STEP: Final = 0.1
RECOVERY: Final = 20.0
"""The longest way back after an outage that flapped, and two heartbeats."""
SEEDS: Final = 12


class NextStep:
    """Awaited: goes on at the next step of the simulation."""

    def __await__(self) -> Generator[None, None, None]:
        yield


@dataclass
class Link:
    """One replica's way to the server, and what is wrong with it."""

    model: RedisModel
    chance: random.Random
    takes_a_step: bool
    now: float = 0.0
    away: bool = False
    loss: float = 0.0
    late: list[ScriptCall] = field(default_factory=list)
    """Sent, given up on, and still to be carried out."""

    async def run(self, calls: Sequence[ScriptCall]) -> list[Any]:
        if self.takes_a_step:
            await NextStep()
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

    def __init__(self, name: str, links: tuple[Link, Link], now: float, size: int) -> None:
        self.name = name
        self.links = links
        self.size = size
        self.appetite = 0
        """Requests a step, at most."""
        self.running: dict[str, Holding] = {}
        self.mode = Replica(name, ReplicaSettings(heartbeat=HEARTBEAT), now)
        requests, heartbeats = links
        self.slots = RedisSlots(
            requests, replica=name, ttl=TTL, heartbeats=heartbeats, clock=lambda: requests.now
        )
        self._beat: Coroutine[Any, Any, Heard] | None = None
        self._claims = 0

    def beat(self, now: float) -> None:
        """Go on with the heartbeat under way, or begin one that is due."""
        if self._beat is None:
            if self.mode.next_at > now:
                return
            complete = self.mode.begin()
            self._beat = self.slots.heartbeat(list(self.running.values()), complete=complete)
        try:
            self._beat.send(None)
        except StopIteration as end:
            self._beat = None
            self.mode.heard(end.value, now)
            # What follows at once, follows at once.
            self.beat(now)
        except SlotsUnavailable:
            self._beat = None
            self.mode.unheard(now)

    def exchange(self, releases: list[Holding], claims: list[Claim], now: float) -> None:
        try:
            self.slots.exchange(releases, claims).send(None)
        except StopIteration as end:
            answers = end.value.claims
        except SlotsUnavailable:
            self.mode.slots_unavailable(now)
            return
        for claim, answer in zip(claims, answers, strict=True):
            if answer.answer is Answer.GRANTED:
                self.running[claim.id] = Holding(
                    claim.id, claim.pool, claim.group, claim.tenant, claim.key
                )
            elif answer.answer is Answer.NOT_LIVE:
                self.mode.lapsed(now)

    def want(self, number: int, now: float) -> None:
        """Ask for slots, as far as the mode lets this replica."""
        stance = self.mode.stance
        room = max(0, stance.part(self.size) - len(self.running))
        if stance.paused or not (number := min(number, room)):
            return
        claims = []
        for _ in range(number):
            self._claims += 1
            id = f"{self.name}:{self._claims}"
            claims.append(Claim(id, "m", "g", "t", f"k{self._claims % 3}", self.size, 1000))
        if stance.claims:
            self.exchange([], claims, now)
        else:
            for claim in claims:
                self.running[claim.id] = Holding(
                    claim.id, claim.pool, claim.group, claim.tenant, claim.key
                )

    def end(self, ids: Sequence[str], now: float) -> None:
        ended = [self.running.pop(id) for id in ids]
        if ended and self.mode.stance.mode is not Mode.LOCAL:
            self.exchange(ended, [], now)


class World:
    def __init__(self, seed: int, replicas: int | None = None) -> None:
        self.chance = random.Random(seed)
        self.model = RedisModel()
        self.now = 1000.0
        self.replicas = replicas or self.chance.randint(2, 4)
        self.size = self.chance.randint(1, 20)
        self.news_arrive = self.chance.random() < 0.7
        self.faultless = False
        """Whether nothing goes wrong, so that whoever claims has all it runs on the books."""
        self.turnover = self.chance.choice((0.0, 0.02, 0.1))
        self.most = 0
        self.members: list[Member] = []
        for number in range(self.replicas):
            self.join(f"r{number}")

    def join(self, name: str) -> Member:
        links = Link(self.model, self.chance, False), Link(self.model, self.chance, True)
        member = Member(name, links, self.now, self.size)
        self.members.append(member)
        return member

    @property
    def total(self) -> int:
        return sum(len(member.running) for member in self.members)

    @property
    def all_shared(self) -> bool:
        return all(member.mode.stance.mode is Mode.SHARED for member in self.members)

    @property
    def links(self) -> list[Link]:
        return [link for member in self.members for link in member.links]

    def draw_appetites(self) -> None:
        for member in self.members:
            member.appetite = self.chance.choice((0, 0, 1, 5, 20))

    def pass_time(self, secs: float) -> None:
        for _ in range(round(secs / STEP)):
            self.now += STEP
            for member in self.chance.sample(self.members, len(self.members)):
                self.step(member)
            self.pass_on_news()

    def step(self, member: Member) -> None:
        for link in member.links:
            link.now = self.now
            if link.late and not link.away and self.chance.random() < 0.3:
                link.thaw()
        member.beat(self.now)
        if member.appetite:
            ids = [id for id in member.running if self.chance.random() < self.turnover]
            member.end(ids, self.now)
            member.want(self.chance.randint(0, member.appetite), self.now)
        self.most = max(self.most, self.total)
        if self.faultless and member.mode.stance.claims:
            assert member.running.keys() <= self.booked(), f"{member.name} runs more than is booked"

    def pass_on_news(self) -> None:
        for message in self.model.published if self.news_arrive else ():
            for member in self.members:
                if "replica" in message and message["replica"] != member.name:
                    member.mode.replicas_changed(self.now)
        self.model.published.clear()

    def booked(self) -> set[str]:
        """What is on the books and has not lapsed."""
        leases = self.model.leases(SlotKeys().sets("m", "", "", "")[0])
        return {id for id, end in leases.items() if end > self.now * 1000}

    def check_books(self, seed: int) -> None:
        """On the books is what runs, no more and no less, and all of it can be used."""
        ids = self.booked()
        running = {id for member in self.members for id in member.running}
        assert ids == running, f"seed {seed}: {ids ^ running} on one side only"
        for member in self.members:
            member.appetite = 0
            member.end(list(member.running), self.now)
        assert self.booked() == set(), f"seed {seed}: slots nobody holds"
        for member in self.members:
            member.want(self.size, self.now)
        assert self.total == self.size, f"seed {seed}: a slot is lost"


def break_for_a_while(world: World, kind: str) -> None:
    """One fault, and its end."""
    chance, victim = world.chance, world.members[0]
    match kind:
        case "lost answers":
            for link in world.links:
                link.loss = chance.choice((0.02, 0.1, 0.3))
        case "away":
            for link in world.links:
                link.away = True
        case "cut off":
            for link in victim.links:
                link.away = True
        case "forgotten":
            world.model.flush()
    for _ in range(chance.randint(1, 4)):
        world.draw_appetites()
        world.pass_time(chance.uniform(0.2, 4))
    for link in world.links:
        link.away, link.loss = False, 0.0


@pytest.mark.parametrize("kind", ["lost answers", "away", "cut off", "forgotten"])
def test_a_fault_ends_with_nothing_missing_and_nothing_left(kind: str) -> None:
    for seed in range(SEEDS):
        world = World(seed)
        world.pass_time(2 * HEARTBEAT)
        assert world.all_shared, f"seed {seed}: the fleet did not come together"
        world.draw_appetites()
        world.pass_time(HEARTBEAT)
        assert world.most <= world.size, f"seed {seed}: {world.most} of {world.size} while healthy"

        break_for_a_while(world, kind)
        world.pass_time(RECOVERY)
        part = -(-world.size // world.replicas)
        bound = world.size + (world.replicas - 1) * part
        assert world.most <= bound, f"seed {seed}: {world.most} of at most {bound}"
        assert world.all_shared, f"seed {seed}: {[m.mode.phase for m in world.members]}"
        world.check_books(seed)


def test_a_replica_killed_is_counted_until_its_time_is_over_and_then_replaced() -> None:
    for seed in range(SEEDS):
        world = World(seed)
        world.pass_time(2 * HEARTBEAT)
        world.draw_appetites()
        world.pass_time(HEARTBEAT)
        victim = world.members.pop(0)
        world.join("new")
        world.draw_appetites()
        world.pass_time(TTL - 2 * HEARTBEAT)
        most = world.size - len(victim.running)
        assert world.total <= most, f"seed {seed}: {world.total} of {most} beside the dead one's"
        world.pass_time(4 * HEARTBEAT)
        assert world.most <= world.size, f"seed {seed}: {world.most} of {world.size}"
        world.check_books(seed)


def test_newcomers_to_one_that_runs_all_it_may_take_no_more_than_their_part() -> None:
    for seed in range(2 * SEEDS):
        world = World(seed, replicas=1)
        world.faultless = True
        world.pass_time(1)
        world.members[0].appetite = world.size
        world.pass_time(HEARTBEAT)
        bound = world.size
        for known in range(2, world.chance.randint(2, 4) + 1):
            world.join(f"n{known}").appetite = world.size
            bound += -(-world.size // known)
            world.pass_time(world.chance.uniform(0, 2 * HEARTBEAT))
        world.pass_time(RECOVERY)
        assert world.most <= bound, f"seed {seed}: {world.most} of at most {bound}"
        assert world.all_shared, f"seed {seed}: {[m.mode.phase for m in world.members]}"
        for member in world.members:
            member.appetite = 0
            member.end(list(member.running), world.now)
        world.most = 0
        for member in world.members:
            member.appetite = world.size
        world.pass_time(HEARTBEAT)
        assert world.most <= world.size, f"seed {seed}: {world.most} of {world.size} once shared"
        world.check_books(seed)
