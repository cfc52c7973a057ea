"""A model of slots held for sessions: what `include/holds.lua` does, in plain Python.

`tests/contract/test_slot_model.py` holds it, through `RedisModel`, to the real scripts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.line_model import SAME, Queue, Waiting, served_of

if TYPE_CHECKING:
    from tests.simulation.redis_model import RedisModel

AT_ONCE: Final = 64
LONGEST: Final = 60_000
RUNNING: Final = 3_600_000
STARVING: Final = 1000


@dataclass(frozen=True, slots=True)
class Step:
    """The end of a session's step, as `release` is told of it."""

    id: str
    age: int
    ms: int
    life: int
    wants: int
    most: int
    jumps: int
    size: int
    ceiling: int
    tenant_cap: int
    key_cap: int


class Holds:
    """All holds of one server; `shared` names all, line:all, holds and hold_notes."""

    def __init__(self, model: RedisModel, shared: tuple[str, ...]) -> None:
        self._model: Final = model
        self.all, self._line_all, self._holds, self._notes = shared

    # Slots that are free

    def is_free(self, keys: list[str], names: list[str], refund: str, know: set[str]) -> None:
        self._settle(keys, names, refund)
        own = Queue(names[0], 0, keys[0], keys[5], keys[4], self.all)
        self._model.lines.wants_again(self._line_all, own)
        for each in (self._line_all, *keys[6:8]):
            self._announce(own, each)
        own.places = places = self._announce(own, own.line)
        self._call_next(own, places, know)
        if not places and not self._model.leases(keys[0]):
            self._model.delete(keys[4])

    def _settle(self, keys: list[str], names: list[str], refund: str) -> None:
        back = json.loads(refund) if refund else [0, 0, 0]
        known = dict(self._model.hash_of(keys[4]))
        for at, kind in enumerate("gtk"):
            field = f"{kind}:{names[at + 1]}"
            if field in known:
                score, _ = served_of(known[field], 0)
                taken = len(self._model.leases(keys[at + 1]))
                self._model.write(keys[4], field, f"{max(0, score - back[at]):.17g} {taken}")

    def _announce(self, own: Queue, line: str) -> list[Waiting]:
        places, is_unordered = self._model.lines.waiting(own, line)
        if is_unordered:
            self._model.publish({"pool": own.name, "ceiling": line == self._line_all})
        return places

    def _call_next(self, own: Queue, places: list[Waiting], know: set[str]) -> None:
        lines = self._model.lines
        known: Waiting | None = None
        for each in places:
            if each.place.name in know and (known is None or each.rank.comes_before(known.rank, 0)):
                known = each
        pools = lines.in_turn(self._line_all, own)
        for passed in (False, True):
            for pool in pools:
                best = lines.first_in(self._line_all, pool, passed=passed)
                is_before = best is None or (known and not best.rank.comes_before(known.rank, SAME))
                if pool is own and known is not None and is_before:
                    return
                if best is not None:
                    lines.call(pool.line, best)
                    return

    # Holds that end

    def drop(self, id: str, why: str) -> dict[str, Any] | None:
        text = self._model.hash_of(self._notes).get(id)
        self._model.take_out(self._holds, id)
        self._model.take_out(self.all, id)
        if text is None:
            return None
        self._model.remove(self._notes, id)
        note: dict[str, Any] = json.loads(text)
        for set in (*note["keys"][:4], note["keys"][8]):
            self._model.take_out(set, id)
        self._model.publish({"hold": id, "replica": note["replica"], "why": why})
        return note

    def is_whole(self, id: str) -> bool:
        text = self._model.hash_of(self._notes).get(id)
        if text is None:
            return False
        return all(self._model.has(set, id) for set in (self.all, *json.loads(text)["keys"][:4]))

    def free(self, id: str, why: str) -> None:
        note = self.drop(id, why)
        if note is not None:
            self.is_free(note["keys"], note["names"], "", set())

    def free_lapsed(self) -> None:
        now = self._model.now
        lapsed = [id for id, end in self._in_order(self._holds) if end <= now]
        for id in lapsed[:AT_ONCE]:
            self.free(id, "expire")
        overlong = [id for id, end in self._in_order(self._holds) if end > now + LONGEST]
        for id in overlong[:AT_ONCE]:
            self.free(id, "expire")

    def free_beyond(self, pool_holds: str, most: int, why: str) -> None:
        held = self._in_order(pool_holds)
        for id, _ in held[: max(0, len(held) - most)]:
            self.free(id, why)
            self._model.take_out(pool_holds, id)

    def free_of(self, replica: str) -> None:
        for id, _ in self._in_order(self._holds):
            note = self._model.hash_of(self._notes).get(id)
            if note is not None and json.loads(note)["replica"] == replica:
                self.free(id, "freed")

    def next_end(self, pool_holds: str) -> str:
        held = self._in_order(pool_holds)
        return str(max(1, held[0][1] - self._model.now)) if held else "0"

    def has(self, pool_holds: str, id: str) -> bool:
        return id in self._model.leases(pool_holds)

    def _in_order(self, key: str) -> list[tuple[str, int]]:
        return sorted(self._model.leases(key).items(), key=lambda each: (each[1], each[0]))

    # Holds that are made

    def judged(self, keys: list[str], step: Step) -> str:
        model = self._model
        finish, streak = (model.text_of(keys[10]) or "-1 0").split()
        outcome, in_a_row = "released", 0
        is_late = int(finish) < 0 or abs(model.now - step.age - int(finish)) > step.ms
        if step.wants and step.ms > 0 and not is_late:
            is_contended = self._is_waited_for(keys[5])
            outcome = "refused"
            if not self._is_forbidden(keys, step) and not (
                is_contended and int(streak) >= step.jumps
            ):
                outcome = "held"
                in_a_row = int(streak) + 1 if is_contended else 0
        model.set_text(keys[10], f"{model.now} {in_a_row}")
        model.live(keys[10], step.life)
        return outcome

    def _is_forbidden(self, keys: list[str], step: Step) -> bool:
        held = self._model.leases(keys[8])
        if len(held) >= step.most or step.id in held or self._is_starving(keys[9]):
            return True
        limits = (step.size, step.ceiling, step.tenant_cap, step.key_cap)
        sets = (keys[0], self.all, keys[2], keys[3])
        return any(
            0 <= most < len(self._model.leases(set)) for most, set in zip(limits, sets, strict=True)
        )

    def _is_starving(self, mark: str) -> bool:
        at = self._model.text_of(mark)
        return at is not None and self._model.now - int(at) < STARVING

    def _is_waited_for(self, line: str) -> bool:
        lines = self._model.lines
        pools = lines.in_turn(self._line_all, Queue("", 0, "", line, "", self.all))
        return any(lines.is_waited_for(each) for each in (self._line_all, *(p.line for p in pools)))

    def hold(self, step: Step, keys: list[str], names: list[str], replica: str) -> None:
        for set in (self.all, *keys[:4]):
            self._model.add(set, step.id, step.ms)
        note = {"replica": replica, "names": names, "keys": keys[:9]}
        self._model.write(self._notes, step.id, json.dumps(note))
        self._model.keep(self._notes, LONGEST)
        for set in (self._holds, keys[8]):
            self._model.add(set, step.id, step.ms)
            self._model.keep(set, LONGEST)
        self._model.publish({"held": step.id})
