"""One order over a fleet, held to what one scheduler that sees every request would have done.

A *course* (`fleet_courses.py`) is lived twice: by a fleet at whose replicas the requests come in as
the course says, and by one replica that gets them all, whose scheduler the property tests hold to
the naive oracle. Everybody is backlogged, so that who is served is the scheduler's choice alone;
then the two are compared, grant by grant.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import Final

from dataplane.scripts import ScriptCall
from shared.policy import ModelPolicy
from tests.simulation.fleet_courses import Come, Course, any_course, skewed, wide_course
from tests.simulation.fleet_member import FleetSettings, Member, Request
from tests.simulation.fleet_network import Weather
from tests.simulation.fleet_world import Load, World

WINDOW: Final = 200
LAN: Final = Weather(latency=(0.0001, 0.0006))
WARM_UP: Final = 100
"""Grants before the first window."""


@dataclass(slots=True)
class Outcome:
    """How it went."""

    grants: list[tuple[float, str, float, bool]] = field(default_factory=list)
    """When, which tenant, how long it had waited, and whether everybody was backlogged."""
    apart: set[int] = field(default_factory=set)
    """Those of them at which a replica had lost the others, and went by its own order."""
    claims: int = 0
    calls: int = 0
    idle: float = 0.0
    """Slot-seconds in which a slot was free and somebody could have had it."""
    busy: float = 0.0
    """Slot-seconds there were while anybody waited, whether they could go or not."""
    killed_at: float = 0.0

    def shares(self, start: int) -> Counter[str]:
        return Counter(tenant for _, tenant, _, _ in self.grants[start : start + WINDOW])

    @property
    def steady(self) -> int:
        """How many grants there were before somebody ran out of waiters."""
        grants = enumerate(self.grants)
        return next((n for n, each in grants if n >= WARM_UP and not each[3]), len(self.grants))

    def longest_turns(self, grants: int) -> dict[str, float]:
        """The longest time between two grants of each tenant among the first grants."""
        last: dict[str, float] = {}
        turns: defaultdict[str, float] = defaultdict(float)
        for at, tenant, _, _ in self.grants[:grants]:
            turns[tenant] = max(turns[tenant], at - last.get(tenant, at))
            last[tenant] = at
        return dict(turns)

    def longest_waits(self, grants: int) -> dict[str, float]:
        """Of each tenant among the first grants."""
        waits: defaultdict[str, float] = defaultdict(float)
        for _, tenant, waited, _ in self.grants[:grants]:
            waits[tenant] = max(waits[tenant], waited)
        return dict(waits)


class OrderWorld(World):
    """A world in which a course is lived, and watched."""

    def __init__(self, seed: int, course: Course, settings: FleetSettings) -> None:
        super().__init__(seed, settings, Load(1.0, 1.0, 0.0), trace=False)
        self.course: Final = course
        self.outcome: Final = Outcome()
        self.waiting: Counter[tuple[str, str]] = Counter()
        self.running: Counter[tuple[str, str]] = Counter()
        self._since = 0.0
        self._more = course.more
        self._choose: Final = random.Random(f"{seed} more")
        self._watching = False
        self.varied = False
        for id, size in {"m": course.size, **course.pools}.items():
            self.models[id] = ModelPolicy(id, id, max_in_flight=size)
        self.backlogs: Final = set()
        for come in course.comes:
            self.keys[come.key.id] = come.key
            self.backlogs.add((come.model, come.key.tenant.id))
        ledger_after = self.server.after

        def after(call: ScriptCall, seen: object, reply: object, fresh: bool) -> None:
            ledger_after(call, seen, reply, fresh)
            if self._watching and call.script == "claim":
                self.outcome.calls += 1
                self.outcome.claims += (len(call.args) - 2) // 14

        self.server.after = after

    def live_through(self) -> Outcome:
        course = self.course
        for _ in range(course.replicas):
            self.start()
        self._until_in_step()
        begin = self.time.now
        self._watching = True
        for come in course.comes:
            self.time.at(begin + come.at, lambda come=come: self._come(come))
        if course.killed_at is not None and course.replicas > 1:
            self.outcome.killed_at = begin + course.killed_at
            self.time.at(begin + course.killed_at, lambda: self._kill(self.live[-1]))
        if course.joined_at is not None and course.replicas > 1:
            self.time.at(begin + course.joined_at, self._join)
        for at, tenant, weight in course.reweighed:
            self.time.at(begin + at, lambda t=tenant, w=weight: self._reweigh(t, w))
        if course.blocked and course.replicas > 1:
            self._block(self.live[-1])
        last = begin + max(come.at for come in course.comes)
        while self.time.now < last or any(member.unfinished for member in self.members.values()):
            self.run(1.0)
            if self.outcome.grants and not self._all_backlogged and self.time.now > last:
                break
        return self.outcome

    def _until_in_step(self) -> None:
        self.run_until(lambda: self.is_in_step, 60.0, "all share")
        self.run(1.0)
        for member in self.live:
            member.requests_link.weather = replace(LAN, reply_lost=self.course.reply_lost)

    def _kill(self, member: Member) -> None:
        self._account()
        for request in member.unfinished.values():
            who = (request.model.id, request.key.tenant.id)
            (self.waiting if request.entered_at is None else self.running)[who] -= 1
        self.kill(member)

    def _join(self) -> None:
        member = self.start()
        member.requests_link.weather = replace(LAN, reply_lost=self.course.reply_lost)

    def _reweigh(self, tenant: str, weight: int) -> None:
        for key in [key for key in self.keys.values() if key.tenant.id == tenant]:
            self.keys[key.id] = replace(key, tenant=replace(key.tenant, weight=weight))
        self._spread()

    def _come(self, come: Come) -> None:
        members = self.live
        member = members[come.replica % len(members)]
        self._account()
        self.waiting[come.model, come.key.tenant.id] += 1
        request = self.ask(member, self.keys[come.key.id], self.models[come.model], come.secs)
        if come.leaves_after is not None:
            self.time.after(come.leaves_after, lambda: self._leaves(request))

    def _leaves(self, request: Request) -> None:
        if request.end is None and request.entered_at is None and not request.member.loop.is_dead:
            request.member.loop.call_soon(request.member.leave, request)

    def _block(self, member: Member) -> None:
        if member.name in self.members:
            self.freeze(member, self.course.blocked)
            self.time.after(1.0, lambda: self._block(member))

    @property
    def _all_backlogged(self) -> bool:
        return all(self.waiting[who] > 0 for who in self.backlogs)

    def _entered(self, request: Request) -> None:
        self._account()
        who = request.model.id, request.key.tenant.id
        name = "/".join(who) if self.course.pools else who[1]
        grant = (self.time.now, name, request.queue_secs, self._all_backlogged)
        if not self.is_in_step:
            self.outcome.apart.add(len(self.outcome.grants))
        self.outcome.grants.append(grant)
        self.waiting[who] -= 1
        self.running[who] += 1
        super()._entered(request)

    def _left(self, request: Request) -> None:
        self._account()
        self.running[request.model.id, request.key.tenant.id] -= 1
        super()._left(request)
        if self._more:
            self._more -= 1
            replica = self._choose.randrange(self.course.replicas)
            secs = self._choose.uniform(0.5, 1.5) * self.course.service_secs
            self._come(Come(0.0, request.key, replica, secs))

    def _ended(self, request: Request) -> None:
        if request.entered_at is None:
            self._account()
            self.waiting[request.model.id, request.key.tenant.id] -= 1
        super()._ended(request)

    def _account(self) -> None:
        """What went by unused since the last look."""
        now, since = self.time.now, self._since
        self._since = now
        caps = {key.tenant.id: key.tenant.max_in_flight for key in self.keys.values()}
        if not self._watching or not self.waiting.total():
            return
        size, idle = 0, 0
        for pool, slots in {"m": self.course.size, **self.course.pools}.items():
            could = sum(
                min(n, n if (cap := caps[who[1]]) is None else max(0, cap - self.running[who]))
                for who, n in self.waiting.items()
                if who[0] == pool
            )
            free = slots - sum(n for who, n in self.running.items() if who[0] == pool)
            size += slots
            idle += max(0, min(free, could))
        size = min(size, self.course.ceiling)
        free = size - self.running.total()
        self.outcome.busy += (now - since) * size
        self.outcome.idle += (now - since) * max(0, min(free, idle))


def live(course: Course, *, fleet: bool, order: bool = True, seed: int = 0) -> Outcome:
    """Live a course, with its replicas or with one that gets everything."""
    if not fleet:
        course = replace(course, replicas=1, killed_at=None, joined_at=None, blocked=0.0)
    settings = FleetSettings(
        ceiling=course.ceiling, timeout=1e6, algorithm=course.algorithm, fleet_order=order
    )
    world = OrderWorld(seed, course, settings)
    try:
        return world.live_through()
    finally:
        world.end()


def worst_share(one: Outcome, fleet: Outcome) -> float:
    """By how much a tenant's share of a window differs at most, as a part of the window. Where a
    replica is on its own for a while there is no order to hold it to."""
    steady = min(one.steady, fleet.steady)
    worst = 0.0
    for start in range(WARM_UP, steady - WINDOW + 1, WINDOW // 4):
        if not fleet.apart.isdisjoint(range(start, start + WINDOW)):
            continue
        mine, theirs = fleet.shares(start), one.shares(start)
        for tenant in mine.keys() | theirs.keys():
            worst = max(worst, abs(mine[tenant] - theirs[tenant]) / WINDOW)
    return worst


def worst_wait(one: Outcome, fleet: Outcome, allowed: float = 0.0) -> float:
    """By how much a tenant waited longer at most than it would have with one scheduler, one of its
    own turns there and what is `allowed`; in seconds."""
    steady = min(one.steady, fleet.steady)
    waits, turns = one.longest_waits(steady), one.longest_turns(steady)
    return max(
        wait - waits.get(tenant, 0.0) - turns.get(tenant, 0.0) - allowed
        for tenant, wait in fleet.longest_waits(steady).items()
    )


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a fleet did, against one replica that gets everything."""

    worst_share: float
    """By how much a tenant's share of `WINDOW` grants differed at most, of all grants in it."""
    late_secs: float
    """By how much a tenant waited longer than that, one of its own turns, 250 ms and a service
    time; below zero: by none."""
    calls: float
    """Claims a grant."""
    idle: float


def judge(course: Course, *, order: bool = True) -> Verdict:
    """Live a course both ways and compare."""
    one, fleet = live(course, fleet=False), live(course, fleet=True, order=order)
    grants = len(fleet.grants)
    return Verdict(
        worst_share(one, fleet),
        worst_wait(one, fleet, 0.25 + course.service_secs),
        fleet.claims / grants,
        fleet.idle / fleet.busy,
    )


def told(name: str, one: Outcome, fleet: Outcome) -> str:
    steady = fleet.steady
    shares = Counter(tenant for _, tenant, _, _ in fleet.grants[WARM_UP:steady])
    total = sum(shares.values()) or 1
    split = " : ".join(f"{t} {n / total:.1%}" for t, n in sorted(shares.items()))
    grants = len(fleet.grants) or 1
    return (
        f"{name}: {split}; worst window {worst_share(one, fleet):.1%},"
        f" late {worst_wait(one, fleet, 0.25):+.2f} s, {fleet.claims / grants:.2f} claims and"
        f" {fleet.calls / grants:.2f} calls a grant, idle {fleet.idle / (fleet.busy or 1):.2%}"
        f" (one: {one.idle / (one.busy or 1):.2%}), {steady} steady of {grants}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--secs", type=float, default=1.0)
    parser.add_argument("--grants", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=0, help="random courses instead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--wide", action="store_true", help="with many of everything")
    options = parser.parse_args()
    for seed in range(options.seed, options.seed + options.seeds):
        course = (wide_course if options.wide else any_course)(seed)
        one, fleet = live(course, fleet=False), live(course, fleet=True)
        what = f"{course.name} {course.algorithm} x{course.replicas} size {course.size}"
        sys.stdout.write(told(f"{what} secs {course.service_secs / 1.5:.1f}", one, fleet) + "\n")
        sys.stdout.flush()
    if options.seeds:
        return 0
    for algorithm in ("hierarchical", "weighted"):
        for replicas in (2, 3):
            course = skewed(algorithm, replicas, options.secs, options.grants)
            one = live(course, fleet=False)
            for order in (False, True):
                fleet = live(course, fleet=True, order=order)
                what = f"{course.name} x{replicas} {'order' if order else 'first come'}"
                sys.stdout.write(told(what, one, fleet) + "\n")
                sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
