"""The life of a fleet: built, loaded, broken, healed, and looked through for damage.

Half of the lives mix faults of every kind; the others stay with one, for which there is a row in
the table of `fleet_ledger`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from dataplane.admission.replica import ANSWERS_MAX, RETRY_SECS
from dataplane.scheduler.limits import part
from shared.policy import ModelPolicy
from tests.simulation.fleet_faults import FAULTS, heal
from tests.simulation.fleet_ledger import Violation
from tests.simulation.fleet_member import FleetSettings, Member, Request
from tests.simulation.fleet_network import PARTED, REFUSED, ServerState, Weather
from tests.simulation.fleet_report import Report
from tests.simulation.fleet_world import STUCK_SECS, Load, World, key_of, tenant_of

HEARTBEATS: Final = ((5.0, 15.0), (2.0, 6.0), (2.0, 6.0), *(((1.0, 3.0), (0.5, 1.5)) * 3))
"""Seconds between heartbeats, and for how long one is good."""
LATEST_SECS: Final = 4.0
"""How late a call may be carried out."""
LINES_SECS: Final = 10.0
"""How long a place in a line may outlive whoever stood there."""
DRAIN_SECS: Final = 900.0
SLUGGISH: Final = Weather(latency=(0.02, 0.08))


class Life:
    """One seed. Which `kind` of life it is follows from it, unless one is asked for."""

    def __init__(
        self, seed: int, *, kind: str | None = None, trace: bool = False, affinity: bool = False
    ) -> None:
        self._plan: Final = random.Random(f"{seed} plan")
        plan = self._plan
        heartbeat, ttl = plan.choice(HEARTBEATS)
        replicas = plan.choice((1, 2, 2, 2, 3, 3, 3, 4))
        self.replicas: Final = max(2, replicas) if kind in SINGLE else replicas
        sizes = [plan.choice((1, 1, 2, 3, 4, 5, 8)) for _ in range(plan.choice((1, 2, 3)))]
        secs = plan.choice((0.2, 0.7, 1.5, 4.0))
        settings = FleetSettings(
            heartbeat=heartbeat,
            ttl=ttl,
            ceiling=plan.choice((64, max(1, sum(sizes) * 2 // 3), sum(sizes))),
            timeout=plan.choice((2.0, 10.0, 30.0)),
            expected=plan.choice((1, self.replicas)),
            affinity=affinity,
        )
        busy = plan.choice((0.6, 1.2, 2.5))
        load = Load(
            per_sec=min(10.0, busy * sum(sizes) / secs),
            secs=secs,
            leaving=plan.choice((0.0, 0.1, 0.4)),
            pull=[plan.choice((1.0, 1.0, 0.2, 3.0)) for _ in range(4)],
        )
        self.world: Final = World(seed, settings, load, trace=trace)
        self.recovery = 0.0
        self._populate(sizes)
        kinds = ("mixed",) * 8 + tuple(SINGLE) if self.replicas > 1 else ("mixed", "alone")
        self.kind: Final = kind or plan.choice(kinds)

    def _populate(self, sizes: list[int]) -> None:
        world, plan = self.world, self._plan
        for number, size in enumerate(sizes):
            id = f"m{number}"
            world.models[id] = ModelPolicy(id, id, max_in_flight=size)
        for name in ("a", "b", "c")[: plan.choice((1, 2, 3))]:
            tenant = tenant_of(
                name,
                plan.choice(("x", "y")),
                plan.choice((50, 100, 400)),
                plan.choice((None, None, 2, 4)),
            )
            for key in ("k", "l")[: plan.choice((1, 2))]:
                policy = key_of(tenant, key, plan.choice((None, None, 1, 3)))
                world.keys[policy.id] = policy
        policy = key_of(tenant_of("burst", "x", 100, None), "k", None)
        world.keys[policy.id] = policy

    # Its phases

    def run(self) -> Report:
        """Live. Raises `Violation`."""
        world = self.world
        world.say(
            f"{self.kind}: {self.replicas} replicas, {world.settings}, {world.load},"
            f" pools {[model.max_in_flight for model in world.models.values()]}"
        )
        self._begin()
        world.faults[self.kind] += 1
        if self.kind == "mixed":
            self._mixed()
        elif self.kind == "alone":
            self._alone()
        else:
            SINGLE[self.kind](self)
        self._recover()
        self._drain()
        self._burst()
        self._end()
        ledger = world.ledger
        return Report(
            1,
            world.time.now,
            ledger.asked,
            ledger.entries,
            ledger.grants,
            ledger.checks,
            world.server.counts.pop("scripts", 0),
            world.starts,
            self.recovery,
            world.digest,
            world.faults + world.server.counts,
            ledger.ended,
        )

    def _begin(self) -> None:
        """Replicas start one after the other, under load."""
        world = self.world
        world.ask_away()
        for _ in range(self.replicas):
            world.start()
            world.run(self._plan.choice((0.0, 0.001, 0.3)))
        if self.kind != "mixed" or self._plan.random() < 0.7:
            self._until_in_step(2 * world.settings.heartbeat + 3)
            self._all_in_step()
            world.run(self._plan.uniform(0.0, 3.0))

    def _mixed(self) -> None:
        world, plan = self.world, self._plan
        world.ledger.row = None
        for _ in range(plan.choice((1, 2, 3, 4, 6))):
            name = plan.choice(list(FAULTS))
            world.faults[name] += 1
            FAULTS[name](world, plan)
            world.run(plan.choice((0.0, 0.1, 1.0)) * plan.uniform(0.3, 1) * world.settings.ttl)

    def _alone(self) -> None:
        """One replica needs no Redis, and has whole limits whatever becomes of it."""
        world, plan = self.world, self._plan
        for name in ("Redis frozen", "Redis restarted empty", "Redis read only"):
            FAULTS[name](world, plan)
            world.run(plan.uniform(0.2, 1.0) * world.settings.ttl)
            if not world.is_in_step:
                raise Violation("a replica alone is not local")

    # One kind of fault

    def _outage(self) -> None:
        world, plan = self.world, self._plan
        self._allow_outage()
        name = plan.choice(
            (
                "Redis frozen",
                "Redis restarted",
                "Redis restarted empty",
                "Redis flushed",
                "Redis read only",
            )
        )
        world.faults[name] += 1
        FAULTS[name](world, plan)
        if plan.random() < 0.5:
            # On the way back every step takes its time.
            for member in world.live:
                member.requests_link.weather = member.beats_link.weather = SLUGGISH
        world.run(plan.uniform(0.3, 1.5) * world.settings.ttl)
        world.server.become(ServerState.UP)
        world.run(3.0)

    def _forgotten(self) -> None:
        """One runs all it may when Redis forgets that, and waits for nothing more; then the others
        are asked for as much again."""
        world, plan = self.world, self._plan
        world.is_asking = False
        world.run_until(lambda: not self._unfinished(), DRAIN_SECS, "nothing runs")
        one, *others = plan.sample(world.live, len(world.live))
        room = world.settings.ceiling
        for model in world.models.values():
            size = min(model.max_in_flight or 0, room)
            room -= size
            for _ in range(size):
                world.ask(one, world.keys["burst/k"], model, 3 * world.settings.ttl)
        world.run(1.0)
        self._allow_outage()
        world.faults["Redis flushed"] += 1
        FAULTS["Redis flushed"](world, plan)
        for model in world.models.values():
            for number in range(2 * (model.max_in_flight or 0)):
                other = others[number % len(others)]
                world.ask(other, world.keys["burst/k"], model, plan.expovariate(1.0))
        world.run(plan.uniform(0.2, 1.0) * world.settings.heartbeat)
        world.ask_away()

    def _allow_outage(self) -> None:
        replicas = self.replicas
        self.world.apply(
            "all apart, after one may have run everything",
            lambda limit, most: most + (replicas - 1) * part(most, replicas),
        )

    def _joined(self) -> None:
        """One alone has everything, and hears late or at once that it is alone no more."""
        world, plan = self.world, self._plan
        for member in world.live[1:]:
            world.stop(member)
        (member,) = world.live
        world.ledger.row = None
        world.run_until(
            lambda: len(world.members) == 1 and world.is_in_step,
            5 + 2 * world.settings.heartbeat,
            "it is alone",
        )
        world.apply("all in step", lambda limit, most: most)
        world.run(plan.uniform(1.0, 4.0))
        world.apply("one alone and one new", lambda limit, most: most + part(most, 2))
        if plan.random() < 0.7:
            member.requests_link.weather = Weather(announcement_lost=1.0)
        if plan.random() < 0.5:
            member.beats_link.weather = SLUGGISH
        new = world.start()
        keys = list(world.keys.values())
        for model in world.models.values():
            for _ in range(2 * (model.max_in_flight or 0)):
                world.ask(new, plan.choice(keys), model, plan.expovariate(1 / world.load.secs))
        self._until_in_step(2 * world.settings.heartbeat + 3)

    def _resized(self) -> None:
        """Sizes change in a fleet that is in step, and are in force as each replica hears it."""
        world, plan = self.world, self._plan
        world.ledger.row = None
        for _ in range(6):
            FAULTS["pool resized"](world, plan)
            world.is_asking = False
            world.run(plan.uniform(0.5, 2.0))
            world.ask_away()
            world.run(plan.uniform(0.5, 2.0))

    def _parted(self) -> None:
        world, plan = self.world, self._plan
        member = plan.choice(world.live)
        self._apart(member, "parted")
        weather = plan.choice((PARTED, REFUSED))
        member.requests_link.weather = member.beats_link.weather = weather
        world.run(plan.uniform(0.3, 2.0) * world.settings.ttl)

    def _asleep(self) -> None:
        """One is stopped and goes on, for longer than it is taken for alive or not so long; if a
        call was under way it will believe that Redis was away."""
        world, plan = self.world, self._plan
        member, settings = plan.choice(world.live), world.settings
        long = plan.random() < 0.7
        secs = plan.uniform(1.0, 2.0) * settings.ttl if long else 0.6 * settings.heartbeat
        self._apart(member, "asleep")
        world.freeze(member, secs)
        world.run(secs + plan.uniform(0.0, 1.0) * settings.heartbeat)

    def _apart(self, member: Member, how: str) -> None:
        replicas, ran = self.replicas, member.taken()
        self.world.apply(
            f"{member.name} {how}, the others in step",
            lambda limit, most: most + max(part(most, replicas), ran[limit]),
        )

    def _killed(self) -> None:
        world, plan = self.world, self._plan
        world.kill(plan.choice(world.live))
        world.run(plan.uniform(0.0, 1.5) * world.settings.ttl)

    def _blocked(self) -> None:
        """Loops that do not come round for a moment change nothing."""
        for _ in range(5):
            for member in self.world.live:
                self.world.freeze(member, self._plan.uniform(0.01, 0.2))
            self.world.run(1.0)

    def _deaf(self) -> None:
        """Announcements only hurry things."""
        for member in self.world.live:
            member.requests_link.weather = Weather(announcement_lost=1.0)
        self.world.run(self.world.settings.ttl)

    # And back

    def _recover(self) -> None:
        world, settings = self.world, self.world.settings
        heal(world)
        whole = settings.ttl + 2 * settings.heartbeat + ANSWERS_MAX * RETRY_SECS + LATEST_SECS + 3
        # Whoever had nothing to do may only now hear of what happened.
        hears = settings.heartbeat + 1
        world.run(hears)
        self.recovery = hears + self._until_in_step(whole - hears)
        self._all_in_step()
        world.run(1.0)
        # What the dead held lapses, and what nobody holds is found out.
        world.load.per_sec = min(world.load.per_sec, 2.0)
        world.run(max(0.0, whole - self.recovery))
        if world.clock_moved_at > 0:
            world.run(whole)
        self._until_in_step(0.0)

    def _until_in_step(self, secs: float) -> float:
        world = self.world
        return world.run_until(
            lambda: world.is_in_step, secs, "every replica shares what there is with the others"
        )

    def _all_in_step(self) -> None:
        self.world.apply("all in step", lambda limit, most: most)

    def _drain(self) -> None:
        """Nobody comes any more, and everybody who waits is served."""
        world = self.world
        world.is_asking = False
        stuck: dict[str, float] = {}
        patience = STUCK_SECS
        if world.settings.affinity:
            # A hold that was not taken is freed by the next heartbeat if nothing comes before.
            patience += world.settings.heartbeat
        while waiting := self._unfinished():
            seen, stuck = stuck, {}
            for request in waiting:
                if request.entered_at is None and world.has_room(request):
                    since = seen.get(request.id, world.time.now)
                    if world.ledger.last_entry >= since:
                        since = world.time.now
                    if world.time.now - since > patience:
                        raise Violation(f"{request.id} waits and could run")
                    stuck[request.id] = since
            if world.time.now > DRAIN_SECS:
                raise Violation(f"{len(waiting)} requests have no end")
            world.run(0.25)

    def _unfinished(self) -> list[Request]:
        return [r for member in self.world.members.values() for r in member.unfinished.values()]

    def _burst(self) -> None:
        """Every slot is there again: as many as there are run at once, and one more waits."""
        world = self.world
        self._quiet()
        requests = []
        room = world.settings.ceiling
        members = world.live
        for model in world.models.values():
            size = model.max_in_flight or 0
            for number in range(min(size, room) + 1):
                member = members[number % len(members)]
                requests.append(world.ask(member, world.keys["burst/k"], model, 1e6))
            room -= min(size, room)
        whole = world.settings.ceiling - room
        patience = 2.0
        if world.clock_moved_at > 0:
            patience += 2 * (world.settings.ttl + 2 * world.settings.heartbeat)
        world.run_until(lambda: self._running() >= whole, patience, f"{whole} run at once")
        world.run(0.5)
        if self._running() != whole:
            raise Violation(f"{self._running()} run at once, and there are {whole} slots")
        for request in requests:
            request.member.loop.call_soon(request.member.leave, request)
        world.run_until(lambda: not self._unfinished(), 5.0, "all have ended")

    def _running(self) -> int:
        return sum(len(member.running) for member in self.world.members.values())

    def _quiet(self) -> None:
        """Nothing runs, and nothing is left of what ran."""
        world, settings = self.world, self.world.settings
        world.run(settings.ttl + 2 * settings.heartbeat + LINES_SECS)
        for member in world.live:
            core = member.admission.core
            if core.in_flight or core.queued:
                raise Violation(f"{member.name} still counts {core.in_flight}, {core.queued}")
        if world.clock_moved_at > 0:
            return  # leases of the dead may be for later than now; they are cut when in the way
        now = world.server.ms()
        world.server.model.expire(now)
        for name, value in world.server.model.keys.items():
            if ":served:" in name:
                continue  # if the last slot of its pool lapsed, it is not long in going too
            if ":line:" in name:
                raise Violation(f"{name} still has {value}")
            if ":held:" in name and name.rpartition(":")[2] in world.members:
                raise Violation(f"{name} still has {value}")
            if name.rpartition(":")[2].startswith("hold"):
                raise Violation(f"{name} still has {value}")
            if isinstance(value, dict) and not name.endswith(":roster") and ":held:" not in name:
                leaked = [id for id, end in value.items() if int(end) > now]
                if leaked:
                    raise Violation(f"{name} still has {leaked}")

    def _end(self) -> None:
        """All stop, and leave nothing behind."""
        world = self.world
        for member in world.live:
            world.stop(member)
        world.run_until(lambda: not world.members, 5.0, "all have stopped")
        left = [name for name in world.server.model.keys if name.endswith(":roster")]
        if left and world.clock_moved_at < 0:
            raise Violation(f"the roster still has {world.server.model.keys[left[0]]}")
        ended = sum(world.ledger.ended.values())
        if ended != world.ledger.asked:
            raise Violation(f"{world.ledger.asked} requests came and {ended} have ended")


SINGLE: Final[dict[str, Callable[[Life], None]]] = {
    "outage": Life._outage,
    "outage again": Life._outage,
    "forgotten": Life._forgotten,
    "joined": Life._joined,
    "resized": Life._resized,
    "one parted": Life._parted,
    "one asleep": Life._asleep,
    "one killed": Life._killed,
    "blocked": Life._blocked,
    "deaf": Life._deaf,
}
