"""What really runs, and what may: the simulation's own account, kept beside the product's.

**The rule.** Every replica is either *in step* (it shares the limit and its slots are on the books)
or *apart* (it goes by its part of the limit, whatever the books say). Those in step have the limit
between them; each that is apart has ceil(limit / replicas as it last knew them). A grant may never
bring whoever grants above its own bound. What ran before somebody came to be apart goes on running
over that bound, and only ever becomes less. With L the limit, R the replicas, s = ceil(L / R) and r
what a replica ran when it fell out of step, that makes at most

    L                all in step
    R × s            all apart for a while
    L + (R - 1) × s  all apart, and one of them ran everything
    L + max(s, r)    one apart, whose slots the others were given since
    L + r            one asleep for longer than its time to live

and the same on the way back, until all are in step. `Ledger` checks the rule at every grant, and
where only one kind of fault is about, the row of the table for it as well, from the number of
replicas alone and without asking the product anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from dataplane.scheduler.limits import part
from dataplane.scripts import ScriptCall
from tests.simulation.fleet_member import SAME, Limit, Member, Request

LATE_SECS: Final = 1.0
"""By how much a wait may exceed its limit."""


class Violation(AssertionError):
    """Something happened that must not."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table that applies from a moment on, and what it allows of a limit."""

    name: str
    since: float
    allows: Callable[[Limit, int], int]


@dataclass(slots=True)
class Ledger:
    """`now` is the world's clock; `members` are the replicas whose processes exist."""

    now: Callable[[], float]
    ms: Callable[[], int]
    keys: Callable[[], dict[str, Any]]
    """What is in Redis."""
    members: dict[str, Member]
    is_excused: Callable[[Member], bool]
    """Whether a fault has taken what a replica holds off the books, and it cannot know yet."""
    row: Row | None = None
    ended: Counter[str] = field(default_factory=Counter)
    asked: int = 0
    grants: int = 0
    entries: int = 0
    checks: int = 0
    last_entry: float = 0.0
    most_over: int = 0

    # What runs

    def enter(self, request: Request) -> None:
        """A request runs in a slot from now on."""
        member = request.member
        assert request.entered_at is not None
        admitted = request.asked_at + request.queue_secs
        number = int(request.id.rpartition(":")[2])
        claimed = member.claimed_at.get(number)
        for limit in request.limits:
            member.counts[limit] += 1
        self.entries += 1
        self.last_entry = self.now()
        if request.queue_secs > member.settings.timeout + LATE_SECS + member.frozen_secs:
            raise Violation(f"{request.id} waited {request.queue_secs:.2f} s")
        self._check_own_bound(request, admitted if claimed is None else claimed, admitted, claimed)
        self._check_row(request, admitted if claimed is None else claimed)

    def leave(self, request: Request) -> None:
        """A request runs no longer; its slot may not even be given back yet."""
        for limit in request.limits:
            request.member.counts[limit] -= 1

    def end(self, request: Request) -> None:
        assert request.end is not None
        self.ended[request.end] += 1
        patience = request.member.settings.timeout + LATE_SECS + request.member.frozen_secs
        if request.end == "AdmissionTimedOut" and request.queue_secs > patience:
            raise Violation(f"{request.id} was refused after {request.queue_secs:.2f} s")

    def lost(self, member: Member) -> None:
        """A replica is dead, and what it ran is cut off with it."""
        for request in member.running.values():
            self.leave(request)
        for request in member.unfinished.values():
            self.ended["killed"] += 1
            request.end = "killed"

    def total(self, limit: Limit) -> int:
        return sum(member.counts[limit] for member in self.members.values())

    # What may run

    def _check_own_bound(
        self, request: Request, start: float, admitted: float, claimed: float | None
    ) -> None:
        member = request.member
        stances = [
            stance for stance in member.stances.during(start - SAME, admitted + SAME) if stance
        ]
        if claimed is None:
            stances = [stance for stance in stances if not stance.paused]
            if not stances:
                raise Violation(f"{request.id} was admitted while nobody may be")
            if all(stance.claims for stance in stances):
                raise Violation(f"{request.id} was admitted without a claim")
        for limit in request.limits:
            sizes = member.limit(limit).during(start - SAME, admitted + SAME)
            if None in sizes:
                continue
            self.checks += 1
            most = max(
                part(size, stance.divisor)
                for size in sizes
                if size is not None
                for stance in stances
            )
            if member.counts[limit] > most:
                raise Violation(
                    f"{member.name} runs {member.counts[limit]} under {limit}, at most {most} of"
                    f" {sizes} are its own"
                )

    def _check_row(self, request: Request, decided: float) -> None:
        row = self.row
        for limit in request.limits:
            most = request.member.limit(limit).last
            if most is None:
                continue
            self.checks += 1
            total = self.total(limit)
            self.most_over = max(self.most_over, total - most)
            if row is not None and decided > row.since + SAME and total > row.allows(limit, most):
                raise Violation(
                    f"{total} run under {limit}, {row.allows(limit, most)} may: {row.name}"
                )

    # What the books say

    def before(self, call: ScriptCall) -> set[str]:
        """Which of the claims are on the books already."""
        if call.script != "claim":
            return set()
        return {id for id, sets, _ in _claims(call) if self._is_booked(sets[0], id)}

    def after(self, call: ScriptCall, seen: object, reply: Any, fresh: bool) -> None:
        """A script was carried out, `fresh` if its replica may still be waiting for it."""
        if call.script != "claim" or not fresh:
            return
        assert isinstance(seen, set)
        for (id, sets, limits), answer in zip(_claims(call), reply, strict=True):
            if answer[0] == "granted" and id not in seen:
                self._granted(id, sets, limits)

    def _granted(self, id: str, sets: tuple[str, ...], limits: tuple[str, ...]) -> None:
        self.grants += 1
        member = self.members.get(id.rpartition(":")[0])
        if member is None or not member.is_shared:
            return
        request = member.requests.get(int(id.rpartition(":")[2]))
        if request is None:
            return  # its client has left; the slot goes straight back
        in_step = [
            each for each in self.members.values() if each.is_shared and not self.is_excused(each)
        ]
        for limit, books, most in zip(request.limits, sets, limits, strict=True):
            if not most:
                continue
            self.checks += 1
            running = sum(each.counts[limit] for each in in_step)
            if running + 1 > int(most):
                raise Violation(
                    f"{id} was granted the {running + 1}th slot of {most} under {limit}"
                )
            self._check_all_are_booked(in_step, limit, books)

    def _check_all_are_booked(self, members: Iterable[Member], limit: Limit, books: str) -> None:
        for member in members:
            if member.counts[limit]:
                for each in member.running.values():
                    if limit in each.limits and not self._is_booked(books, each.id):
                        raise Violation(f"{each.id} runs and is not on the books under {limit}")

    def _is_booked(self, books: str, id: str) -> bool:
        leases = self.keys().get(books)
        return isinstance(leases, dict) and leases.get(id, 0) > self.ms()


def _claims(call: ScriptCall) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """Of each claim in a call: id, the four sets it counts in, and the limit of each."""
    _, every, _, _, _, _, *keys = call.keys
    claims = []
    for number, at in enumerate(range(2, len(call.args), 14)):
        pool, _, tenant, key = keys[11 * number : 11 * number + 4]
        id, _, _, *limits = call.args[at : at + 7]
        claims.append((id, (pool, every, tenant, key), tuple(limits)))
    return claims
