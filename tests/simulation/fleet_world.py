"""The simulated world: one Redis, a few replicas that come and go, clients, and the ledger."""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from dataplane.admission.replica import Mode
from dataplane.scheduler.limits import part
from shared.policy import GroupPolicy, KeyPolicy, ModelPolicy, TenantPolicy
from tests.simulation.fleet_ledger import Ledger, Row, Violation
from tests.simulation.fleet_member import KEYS, FleetSettings, Limit, Member, Request, Watch
from tests.simulation.fleet_network import Server, ServerState
from tests.simulation.fleet_time import Time, new_loop

LOOK_SECS: Final = 0.5
PAUSED_SECS: Final = 3.0
"""How long admission may stand still on a replica whose loop runs."""
STUCK_SECS: Final = 1.5
"""How long somebody may wait who could run."""
LEARN_SECS: Final = 1.0
"""Within what time replicas hear of a new policy."""


@dataclass(slots=True)
class Load:
    """What clients do."""

    per_sec: float
    secs: float
    """How long a request runs on average."""
    leaving: float
    """How many of the clients leave early."""
    pull: list[float] = field(default_factory=list)
    """How the requests are spread over the replicas, in the order in which those started."""


@dataclass(slots=True)
class Wait:
    """A request that waits though it could run, as it was seen first."""

    since: float
    last_entry: float
    stance_since: float


class World:
    """Everything there is. `seed` decides everything that happens in it."""

    def __init__(self, seed: int, settings: FleetSettings, load: Load, *, trace: bool) -> None:
        self.seed: Final = seed
        self.settings: Final = settings
        self.load: Final = load
        self.choose: Final = random.Random(f"{seed} clients")
        self.time: Final = Time(random.Random(f"{seed} turns"))
        self._network: Final = random.Random(f"{seed} network")
        self.server: Final = Server(self.time, self._network)
        self.members: dict[str, Member] = {}
        self.models: dict[str, ModelPolicy] = {}
        self.keys: dict[str, KeyPolicy] = {}
        self.faults: Counter[str] = Counter()
        self.waits: dict[str, Wait] = {}
        self.paused: dict[str, float] = {}
        self.clock_moved_at = -1e9
        self.books_lost_at = -1e9
        self.varied = True
        self.is_asking = False
        self._is_ask_due = False
        self.starts = 0
        self.story: list[str] | None = [] if trace else None
        self.digest = 0
        self.failure: Violation | None = None
        self.ledger: Final = Ledger(
            now=lambda: self.time.now,
            ms=self.server.ms,
            keys=lambda: self.server.model.keys,
            members=self.members,
            is_excused=self._is_excused,
        )
        self.server.before, self.server.after = self.ledger.before, self.ledger.after
        self._watch: Final = Watch(self._entered, self._left, self._ended, self.say, self._broken)
        self.time.after(LOOK_SECS, self._look)

    # Telling

    def say(self, text: str) -> None:
        line = f"{self.time.now:10.4f}  {text}"
        self.digest = zlib.crc32(line.encode(), self.digest)
        if self.story is not None:
            self.story.append(line)

    def _entered(self, request: Request) -> None:
        self.say(
            f"{request.id} runs in {request.model.id} for {request.key.id}"
            f" after {request.queue_secs:.4f} s"
        )
        self.ledger.enter(request)

    def _left(self, request: Request) -> None:
        if not request.member.loop.is_dead:
            self.ledger.leave(request)

    def _ended(self, request: Request) -> None:
        if request.member.loop.is_dead:
            return
        self.say(f"{request.id or request.number} has ended: {request.end}")
        self.ledger.end(request)

    def _broken(self, text: str) -> None:
        raise Violation(text)

    def _failed(self, context: dict[str, Any]) -> None:
        """Something was raised inside a replica."""
        error = context.get("exception")
        if self.failure is not None:
            return
        self.say(f"broken: {error!r}")
        if isinstance(error, Violation):
            self.failure = error
        else:
            self.failure = Violation(f"{context.get('message')}: {error!r}")
            self.failure.__cause__ = error

    # Time

    def run(self, secs: float) -> None:
        """Let `secs` pass. Raises `Violation`."""
        end = self.time.now + secs
        while self.time.now < end:
            try:
                self.time.run(min(LOOK_SECS, end - self.time.now))
            except Violation as violation:
                # What went wrong first may have led to this.
                raise self.failure or violation from None
            if self.failure is not None:
                raise self.failure

    def run_until(self, holds: Callable[[], bool], secs: float, what: str) -> float:
        """Let time pass until something holds; how long it took. Raises `Violation`."""
        start = self.time.now
        while not holds():
            if self.time.now - start > secs:
                raise Violation(f"after {secs:.1f} s it was still not so that {what}")
            self.run(0.1)
        return self.time.now - start

    def end(self) -> None:
        """Unwind whatever there still is."""
        for member in self.members.values():
            member.loop.kill()

    # Replicas

    @property
    def live(self) -> list[Member]:
        return [each for each in self.members.values() if not each.is_closing]

    def start(self) -> Member:
        self.starts += 1
        name = f"r{self.starts}"
        loop = new_loop(self.time, self.choose.uniform(0, 1e5), self._failed)
        member = Member(
            name, self.settings, self.time, loop, self.server, self._network, self._watch
        )
        self.members[name] = member
        self.say(f"{name} starts")
        loop.call_soon(self._learn, member)
        return member

    def kill(self, member: Member) -> None:
        self.say(f"{member.name} is killed")
        self.ledger.lost(member)
        self._remove(member)
        member.loop.kill()

    def stop(self, member: Member) -> None:
        """A clean end, given a moment."""
        self.say(f"{member.name} is to stop")
        member.is_closing = True
        task = member.stop(grace=1.0)
        task.add_done_callback(lambda _: self.time.at(self.time.now, lambda: self._gone(member)))

    def freeze(self, member: Member, secs: float) -> None:
        if member.loop.is_frozen or member.loop.is_dead:
            return
        self.say(f"{member.name} is frozen for {secs:.2f} s")
        member.loop.freeze()
        member.frozen_secs += secs
        self.time.after(secs, lambda: self.thaw(member))

    def thaw(self, member: Member) -> None:
        if member.loop.is_frozen and not member.loop.is_dead:
            self.say(f"{member.name} goes on")
            member.thawed_at = self.time.now
            member.loop.thaw(timers_first=self._network.random() < 0.5)

    def _gone(self, member: Member) -> None:
        if member.name in self.members:
            assert not member.requests, "what has stopped serves nobody"
            self._remove(member)
            member.loop.kill()

    def _remove(self, member: Member) -> None:
        del self.members[member.name]
        member.requests_link.close()
        member.beats_link.close()

    def _is_excused(self, member: Member) -> bool:
        if member.is_damaged:
            return True
        settings = self.settings
        recent = self.time.now - settings.ttl - settings.heartbeat - 1
        if not (
            member.loop.is_frozen
            or max(member.thawed_at, self.clock_moved_at, self.books_lost_at) > recent
        ):
            return False
        slept = member.loop.is_frozen or member.thawed_at > recent
        if self.books_lost_at > recent and not slept and self.clock_moved_at <= recent:
            # Replicas that never knew it may have started since; the others wait for it.
            return self.starts_since_loss > 0 and not self._is_on_roster(member)
        return not self._is_on_roster(member)

    @property
    def starts_since_loss(self) -> int:
        return self.starts - self._starts_at_loss

    _starts_at_loss = 0

    def lose_books(self) -> None:
        self.server.model.flush()
        self.books_lost_at = self.time.now
        self._starts_at_loss = self.starts

    def _is_on_roster(self, member: Member) -> bool:
        roster = self.server.model.keys.get("{obleth:slots}:roster")
        record = roster.get(member.name, "") if isinstance(roster, dict) else ""
        if not record:
            return False
        heard, ttl, _, asserted = record.split()
        return asserted == "1" and self.server.ms() - int(heard) < int(ttl)

    # Policy

    def resize(self, pool: str, size: int) -> None:
        self.say(f"{pool} is to have {size} slots")
        self.models[pool] = replace(self.models[pool], max_in_flight=size)
        self._spread()

    def cap(self, tenant: str, tenant_cap: int | None, key_cap: int | None) -> None:
        self.say(f"{tenant} is to have a cap of {tenant_cap}, its keys of {key_cap}")
        policy: TenantPolicy | None = None
        for key in [key for key in self.keys.values() if key.tenant.id == tenant]:
            policy = policy or replace(key.tenant, max_in_flight=tenant_cap)
            self.keys[key.id] = replace(key, tenant=policy, max_in_flight=key_cap)
        self._spread()

    def _spread(self) -> None:
        for member in self.members.values():
            secs = self.choose.uniform(0, LEARN_SECS)
            self.time.after(secs, lambda member=member: self._teach(member))

    def _teach(self, member: Member) -> None:
        if not member.loop.is_dead:
            member.loop.call_soon(self._learn, member)

    def _learn(self, member: Member) -> None:
        member.learn(list(self.models.values()), list(self.keys.values()))

    # Clients

    def ask_away(self) -> None:
        """From now on clients come at random."""
        self.is_asking = True
        if not self._is_ask_due:
            self._ask_later()

    def _ask_later(self) -> None:
        self._is_ask_due = True
        self.time.after(self.choose.expovariate(self.load.per_sec), self._ask_next)

    def _ask_next(self) -> None:
        self._is_ask_due = False
        if not self.is_asking:
            return
        self._ask_later()
        members = self.live
        if not members:
            return
        pull = [self.load.pull[int(each.name[1:]) % len(self.load.pull)] for each in members]
        (member,) = self.choose.choices(members, pull)
        keys = [key for key in self.keys.values() if key.tenant.id != "burst"]
        request = self.ask(
            member,
            self.choose.choice(keys),
            self.choose.choice(list(self.models.values())),
            self.choose.expovariate(1 / self.load.secs),
        )
        if self.choose.random() < self.load.leaving:
            self._leaves_early(request)

    def ask(self, member: Member, key: KeyPolicy, model: ModelPolicy, secs: float) -> Request:
        self.ledger.asked += 1
        request = Request(self.ledger.asked, member, key, model, secs)
        request.tokens = self.ledger.asked % 7 * 50 if self.varied else 100
        if self.settings.affinity and self.ledger.asked % 3:
            request.session = f"s{self.ledger.asked % 5}"
        member.serve(request)
        return request

    def _leaves_early(self, request: Request) -> None:
        way = self.choose.random()
        if way < 0.25:
            request.leaves_when_granted = True
            return
        if way < 0.35:
            secs = 0.0
        elif way < 0.45:
            secs = self.settings.timeout  # at the moment at which it is refused
        else:
            secs = self.choose.expovariate(1 / self.choose.choice((0.003, 1)))

        def leave() -> None:
            if request.end is None and not request.member.loop.is_dead:
                request.member.loop.call_soon(request.member.leave, request)

        self.time.after(secs, leave)

    # Looking on

    def _look(self) -> None:
        self.time.after(LOOK_SECS, self._look)
        for member in self.members.values():
            if member.loop.is_frozen or member.stance is None:
                self.paused.pop(member.name, None)
                continue
            if not member.stance.paused:
                self.paused.pop(member.name, None)
            elif self.time.now - self.paused.setdefault(member.name, self.time.now) > PAUSED_SECS:
                raise Violation(f"{member.name} has admitted nobody for {PAUSED_SECS} s")
        self._look_for_the_stuck()

    def _look_for_the_stuck(self) -> None:
        seen = self.waits
        self.waits = {}
        for member in self.members.values():
            stance = member.stance
            if stance is None or stance.paused or member.loop.is_frozen:
                continue
            if stance.claims and not self._is_redis_long_away(member):
                continue
            since = member.stances.last_at
            for request in member.requests.values():
                if request.entered_at is None and self.could_run(request, stance.divisor):
                    wait = seen.get(request.id)
                    if wait is None or wait.stance_since != since:
                        wait = Wait(self.time.now, self.ledger.last_entry, since)
                    elif (
                        self.time.now - wait.since > STUCK_SECS
                        and self.ledger.last_entry < wait.since
                    ):
                        raise Violation(f"{request.id} waits and could run on {member.name}")
                    self.waits[request.id] = wait

    def _is_redis_long_away(self, member: Member) -> bool:
        """Whether whoever claims must have noticed by now that there is no answer."""
        server = self.server
        away_since = max(server.state_since, member.thawed_at)
        return server.state is not ServerState.UP and self.time.now - away_since > STUCK_SECS

    def could_run(self, request: Request, divisor: int) -> bool:
        """Whether a replica that goes by its part has room for it."""
        member = request.member
        held = sum(pool.held for pool in member.admission.core.pools)
        return all(
            (most := member.limit(limit).last) is None
            or member.counts[limit] + held < part(most, divisor)
            for limit in request.limits
        )

    def has_room(self, request: Request) -> bool:
        """Whether the fleet as a whole has room for it."""
        return all(
            (most := request.member.limit(limit).last) is None
            or self.ledger.total(limit) + self._held() < most
            for limit in request.limits
        )

    def _held(self) -> int:
        """Slots held for sessions, wherever: no fewer than count at any one limit."""
        ends = self.server.model.leases(KEYS.holds).values()
        return sum(end > self.server.ms() for end in ends)

    @property
    def is_in_step(self) -> bool:
        """Whether every replica knows how many there are, and shares what there is with them."""
        members = self.live
        mode = Mode.LOCAL if len(members) == 1 else Mode.SHARED
        return all(
            (stance := member.stance) is not None
            and stance.mode is mode
            and stance.replicas == len(members)
            and not stance.paused
            for member in members
        )

    def apply(self, name: str, allows: Callable[[Limit, int], int]) -> None:
        """From now on this row of the table applies."""
        self.say(f"row: {name}")
        self.ledger.row = Row(name, self.time.now, allows)


def key_of(tenant: TenantPolicy, name: str, cap: int | None) -> KeyPolicy:
    return KeyPolicy(f"{tenant.id}/{name}", name, tenant, max_in_flight=cap)


def tenant_of(name: str, group: str, weight: int, cap: int | None) -> TenantPolicy:
    return TenantPolicy(name, name, GroupPolicy(group), weight, max_in_flight=cap)
