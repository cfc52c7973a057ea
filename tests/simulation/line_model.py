"""A model of the line at a limit: what `include/line.lua` does, in plain Python.

`tests/contract/test_slot_model.py` holds it, through `RedisModel`, to the real scripts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

FRESH: Final = 8000
CALLED: Final = 100
PASSED: Final = 250
SAME: Final = 100
LIFE: Final = FRESH


class Hashes(Protocol):
    """What the line needs of the model of Redis."""

    now: int

    def hash_of(self, key: str) -> dict[str, str]:
        """The hash, empty if there is none; one of the wrong type is deleted."""

    def write(self, key: str, field: str, value: str) -> None: ...

    def remove(self, key: str, field: str) -> None: ...

    def leases(self, key: str) -> Mapping[str, int]: ...

    def live(self, key: str, ms: int) -> None: ...

    def publish(self, message: dict[str, object]) -> None: ...


@dataclass(frozen=True, slots=True)
class Place:
    name: str
    at: int
    called: int
    passed: int
    text: str

    @property
    def record(self) -> str:
        return f"{self.at} {self.called} {self.passed} {self.text}"


@dataclass(slots=True)
class Rank:
    pool: str
    since: float
    who: tuple[str, str]
    of: tuple[Any, ...] = ()
    order: tuple[float, ...] = ()
    taken: tuple[int, int] = (0, 0)
    is_capped: bool = False

    def comes_before(self, other: Rank, slack: int) -> bool:
        levels = 4 if self.who[0] == other.who[0] else 3
        if self.order[:levels] != other.order[:levels]:
            return self.order < other.order
        return self.since + slack < other.since


@dataclass(slots=True)
class Waiting:
    place: Place
    rank: Rank
    is_passed: bool


@dataclass(slots=True)
class Queue:
    """A pool as its line knows it."""

    name: str
    size: int
    set: str
    line: str
    served: str
    all: str
    places: list[Waiting] | None = None


class Lines:
    """All lines of one server."""

    def __init__(self, hashes: Hashes) -> None:
        self._hashes: Final = hashes

    def stand(self, line: str, replica: str, text: str) -> None:
        before = self._place_of(line, replica)
        passed = 0 if before is None else before.passed
        self._write(line, Place(replica, self._hashes.now, 0, passed, text))

    def is_called(self, line: str, replica: str) -> bool:
        place = self._place_of(line, replica)
        return place is not None and place.called > 0

    def step_out(self, line: str, replica: str) -> None:
        before = self._place_of(line, replica)
        if before is None:
            return
        now = self._hashes.now
        if self._is_passed(before):
            self._write(line, Place(replica, now, 0, before.passed, "-"))
        else:
            self._hashes.remove(line, f"r:{replica}")

    def best_of(self, pool: Queue, text: str, at: int) -> Rank | None:
        best: Rank | None = None
        for of in json.loads(text):
            rank = self.ranked(pool, of, at)
            if not rank.is_capped and (best is None or rank.comes_before(best, 0)):
                best = rank
        return best

    def ranked(self, queue: Queue, of: list[Any], at: int) -> Rank:
        pool, waited, group, group_floor, group_share, tenant, tenant_floor, share, cap, *rest = of
        key, floor, key_cap, *cuts = rest
        if cuts:
            group_share, share = self._shares_of(queue, *cuts)
        values = self._hashes.hash_of(queue.served)
        group_score, group_taken = served_of(values.get(f"g:{group}"), group_floor)
        tenant_score, taken = served_of(values.get(f"t:{tenant}"), tenant_floor)
        key_score, key_taken = served_of(values.get(f"k:{key}"), floor)
        over = 1.0
        if group_share < 0:
            group_score = 0.0
        elif (not group_taken or group_taken < group_share) and (not taken or taken < share):
            over = 0.0
        order = (over, group_score, tenant_score, key_score)
        is_capped = 0 <= cap <= taken or 0 <= key_cap <= key_taken
        taken_both = (group_taken, taken)
        return Rank(pool, at - waited, (tenant, key), tuple(of), order, taken_both, is_capped)

    def _shares_of(
        self,
        queue: Queue,
        first: int,
        size: int,
        ceiling: int,
        groups: list[int],
        tenants: list[int],
    ) -> tuple[int, int]:
        taken = len(self._hashes.leases(queue.set))
        left = ceiling - (len(self._hashes.leases(queue.all)) - taken)
        slots = min(size, max(taken, left))
        at = max(0, min(len(groups) - 1, slots - first))
        return groups[at], tenants[at]

    def waiting(self, queue: Queue, line: str | None = None) -> tuple[list[Waiting], bool]:
        now, line = self._hashes.now, queue.line if line is None else line
        records = dict(self._hashes.hash_of(line))
        found: list[Waiting] = []
        is_unordered = False
        for name, record in records.items():
            if not name.startswith("r:"):
                continue
            place = self._decoded(name[2:], record)
            if place is None:
                self._hashes.remove(line, name)
                continue
            if place.called > 0 and now - place.called >= CALLED:
                place = replace(place, called=0, passed=place.called + CALLED)
                self._write(line, place)
            if place.text == "":
                is_unordered = True
                self._hashes.remove(line, name)
            elif place.text != "-":
                rank = self.best_of(queue, place.text, place.at)
                if rank is not None:
                    found.append(Waiting(place, rank, self._is_passed(place)))
        return found, is_unordered

    def wait_in(
        self,
        line_all: str,
        pool: Queue,
        note: Sequence[object],
        by: str,
        replica: str,
        text: str,
    ) -> None:
        field = f"p:{pool.name}"
        known = self._hashes.hash_of(line_all)
        is_known = field in known
        if by == "ceiling" or known:
            self._hashes.write(line_all, field, json.dumps(note))
            if not is_known or not self.is_waited_for(pool.line):
                self.goes_last(line_all, pool.name)
        if by == "ceiling":
            self._hashes.live(line_all, LIFE)
        self.stand(pool.line, replica, text)

    def wants_again(self, line_all: str, pool: Queue) -> None:
        note = self._hashes.hash_of(line_all).get(f"p:{pool.name}")
        if note and len(self._hashes.leases(pool.set)) == json.loads(note)[0] - 1:
            self.goes_last(line_all, pool.name)

    def goes_last(self, line_all: str, pool: str) -> None:
        known = self._hashes.hash_of(line_all)
        if known:
            turn = str(int(known.get("n", "0")) + 1)
            self._hashes.write(line_all, "n", turn)
            self._hashes.write(line_all, f"t:{pool}", turn)

    def in_turn(self, line_all: str, own: Queue) -> list[Queue]:
        known = self._hashes.hash_of(line_all)
        others = [
            Queue(name[2:], *json.loads(text), own.all)
            for name, text in known.items()
            if name.startswith("p:") and name[2:] != own.name
        ]
        turns = {name[2:]: int(turn) for name, turn in known.items() if name.startswith("t:")}
        if others and not self.is_waited_for(own.line):
            turns[own.name] = max(turns.values(), default=0) + 1
        key = lambda each: (turns.get(each.name, 0), each is not own, each.name)  # noqa: E731
        return sorted([own, *others], key=key)

    def first_in(self, line_all: str, pool: Queue, *, passed: bool = False) -> Waiting | None:
        if pool.places is None:
            is_full = len(self._hashes.leases(pool.set)) >= pool.size
            pool.places = [] if is_full else self.waiting(pool)[0]
            if not is_full and not self._hashes.hash_of(pool.line):
                self._hashes.remove(line_all, f"p:{pool.name}")
                self._hashes.remove(line_all, f"t:{pool.name}")
        return first(pool.places, passed=passed)

    def is_waited_for(self, line: str) -> bool:
        """Whether a replica waits at a limit."""
        for name, record in self._hashes.hash_of(line).items():
            if name.startswith("r:"):
                place = self._decoded(name[2:], record)
                if place is not None and place.text != "-":
                    return True
        return False

    def call(self, line: str, who: Waiting) -> None:
        if who.place.called:
            return
        who.place = replace(who.place, called=self._hashes.now)
        self._write(line, who.place)
        rank, name = who.rank, who.place.name
        tenant, key = rank.who
        self._hashes.publish({"pool": rank.pool, "turn": name, "tenant": tenant, "key": key})

    def _is_passed(self, place: Place) -> bool:
        return place.passed > 0 and (
            self._hashes.now - place.passed < PASSED or place.at < place.passed
        )

    def _place_of(self, line: str, replica: str) -> Place | None:
        record = self._hashes.hash_of(line).get(f"r:{replica}")
        return None if record is None else self._decoded(replica, record)

    def _decoded(self, name: str, record: str) -> Place | None:
        at, called, passed, text = record.split(" ", 3)
        if int(at) > self._hashes.now or self._hashes.now - int(at) >= FRESH:
            return None
        return Place(name, int(at), int(called), int(passed), text)

    def _write(self, line: str, place: Place) -> None:
        self._hashes.write(line, f"r:{place.name}", place.record)
        self._hashes.live(line, LIFE)


def first(places: list[Waiting], but: str | None = None, *, passed: bool = False) -> Waiting | None:
    best: Waiting | None = None
    for each in places:
        if each.place.name == but or each.is_passed != passed:
            continue
        is_first = best is None or each.rank.comes_before(best.rank, 0)
        if is_first or (
            best is not None
            and each.place.name < best.place.name
            and not best.rank.comes_before(each.rank, 0)
        ):
            best = each
    return best


def served_of(value: str | None, floor: float) -> tuple[float, int]:
    score, taken = (value or "0 0").split()
    return max(float(score), floor), int(taken)
