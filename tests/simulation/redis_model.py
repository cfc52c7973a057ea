"""A model of the books: what each script does to Redis, in plain Python and with the time as an
argument.

`tests/contract/test_slots.py` holds it to the real scripts on a real server. It takes the same
script calls and gives the same replies, so everything above a `ScriptRunner` runs on it unchanged.
Nothing here waits or fails; whoever simulates faults decides when a call is carried out, how often,
and whether its reply arrives.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from dataplane.scripts import ScriptCall
from tests.simulation.holds_model import RUNNING, STARVING, Holds, Step
from tests.simulation.line_model import SAME, Lines, Queue, Rank, Waiting, first
from tests.simulation.redis_store import RedisStore

LIMITS: Final = ("pool", "ceiling", "tenant", "key")


class RedisModel(RedisStore):
    """One server and the scripts it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: Final = Lines(self)

    def run(self, call: ScriptCall, now: int) -> Any:
        """Carry out one script at `now`, in ms of the server's clock. Raises `WrongType`."""
        self.expire(now)
        script: Callable[[tuple[str, ...], tuple[str, ...]], Any] = {
            "claim": self._claim,
            "release": self._release,
            "heartbeat": self._heartbeat,
            "assert": self._assert,
            "reclaim": self._reclaim,
            "settle": self._settle,
            "leave": self._leave,
        }[call.script]
        return script(call.keys, call.args)

    # The scripts

    def _claim(self, keys: tuple[str, ...], args: tuple[str, ...]) -> list[list[str]]:
        lease = self._lease_of(keys[0], args[0])
        self._holds(keys[1], keys[3:6]).free_lapsed()
        return [
            self._claim_one(lease, args[0], keys, keys[k : k + 11], args[a : a + 14])
            for k, a in zip(range(6, len(keys), 11), range(2, len(args), 14), strict=True)
        ]

    def _holds(self, all: str, others: tuple[str, ...]) -> Holds:
        return Holds(self, (all, *others))

    def _claim_held(
        self,
        lease: int,
        replica: str,
        shared: tuple[str, ...],
        keys: tuple[str, ...],
        args: tuple[str, ...],
    ) -> list[str] | None:
        """What a claim says of holds comes first; its answer if that decides it."""
        pool_line, pool_holds, starves, session = keys[5], *keys[8:11]
        standing, others, charges, hold, is_only, most, is_starving = args[7:14]
        holds = self._holds(shared[1], shared[3:6])
        sets = (keys[0], shared[1], *keys[2:4])
        limits = list(zip(sets, args[3:7], strict=True))
        starving = is_starving == "1"
        if starving and not any(self._is_at_cap(*each, pool_holds) for each in limits[2:]):
            self.set_text(starves, str(self.now))
            self.live(starves, STARVING)
            holds.free_beyond(pool_holds, 0, "freed_starving")
        else:
            room = len(self._set(pool_holds)) - self._excess(*limits[0])
            holds.free_beyond(pool_holds, min(int(most), room), "freed")
        own = _queue(shared, keys, args)
        rank = self.lines.ranked(own, json.loads(standing)[0], self.now) if standing else None
        if hold:
            if self.text_of(session) is not None:
                self.live(session, RUNNING)
            is_held = holds.has(pool_holds, hold)
            if is_held and (
                not holds.is_whole(hold) or any(self._excess(*each) for each in limits)
            ):
                holds.free(hold, "freed")
                self.take_out(pool_holds, hold)
            elif is_held:
                holds.drop(hold, "redeem")
                self._take(args[0], args[1], shared, keys, lease)
                if rank is not None:
                    self._charge(rank, json.loads(charges), keys, lease)
                if rank is not None and is_only == "0":
                    self._stand_for(pool_line, replica, others)
                return ["granted", "1", "held", "", "", *_told(rank)]
        return ["no_hold", "0", "", "", ""] if is_only == "1" else None

    def _take(
        self, id: str, note: str, shared: tuple[str, ...], keys: tuple[str, ...], lease: int
    ) -> None:
        self._note(shared[2], id, note)
        self.keep(shared[2], lease)
        for set in (keys[0], shared[1], *keys[1:4]):
            self.add(set, id, lease)

    def _claim_one(
        self,
        lease: int | None,
        replica: str,
        shared: tuple[str, ...],
        keys: tuple[str, ...],
        args: tuple[str, ...],
    ) -> list[str]:
        pool, _, tenant, key, served, pool_line, tenant_line, key_line = keys[:8]
        id, _, name, *sizes, standing, others, charges = args[:10]
        own = _queue(shared, keys, args)
        note = (own.size, pool, pool_line, served)
        if lease is None:
            return ["not_live", "0", "", "", ""]
        if self._set(pool).get(id, 0) > self.now:
            return ["granted", "1", "", "", ""]
        held = self._claim_held(lease, replica, shared, keys, args)
        if held is not None:
            return held
        sets = (pool, shared[1], tenant, key)
        lines = (pool_line, shared[3], tenant_line, key_line)
        limits = [
            (by, set, int(most), line)
            for by, set, most, line in zip(LIMITS, sets, sizes, lines, strict=True)
            if most
        ]
        order = self.lines
        rank = order.ranked(own, json.loads(standing)[0], self.now) if standing else None
        text = _both(standing, others)
        if rank is not None and order.is_called(pool_line, replica):
            self.publish({"came": replica, "at": name})
        for by, set, most, line in limits:
            if self._is_full(set, most):
                if rank is None:
                    order.stand(line, replica, text)
                else:
                    order.wait_in(shared[3], own, note, by, replica, text)
                if rank is not None and by in ("tenant", "key"):
                    self._count(served, f"t:{rank.of[5]}", rank.order[2], tenant)
                    self._count(served, f"k:{rank.of[9]}", rank.order[3], key)
                    self.keep(served, lease)
                    mine = self._best_of_others(own, others)
                    best, line, _ = self._next_one(own, shared[3], mine, replica)
                    if best is not None:
                        order.call(line, best)
                held_in = shared[4] if by == "ceiling" else keys[8]
                ends = self._holds(shared[1], shared[3:6]).next_end(held_in)
                return [by, ends, "", "", "", *_told(rank)]
        mine = self._best_of_others(own, others)
        if rank is not None:
            best, line, by = self._next_one(own, shared[3], rank, replica)
            if best is not None and (
                by == "ceiling" or mine is None or best.rank.comes_before(mine, SAME)
            ):
                order.call(line, best)
                order.wait_in(shared[3], own, note, by, replica, text)
                return ["not_your_turn", "0", by, "", "", *_told(rank)]
        if mine is not None and rank is not None and mine.comes_before(rank, SAME):
            order.stand(pool_line, replica, text)
            return ["not_your_turn", "0", "pool", *mine.who, *_told(rank)]
        self._take(id, args[1], shared, keys, lease)
        if rank is None:
            return ["granted", "1", "", "", ""]
        self._charge(rank, json.loads(charges), keys, lease)
        order.goes_last(shared[3], name)
        order.step_out(pool_line, replica)
        by = self._no_more_by(limits, own, replica, others)
        return ["granted", "0" if by else "1", by, "", "", *_told(rank)]

    def _charge(self, rank: Rank, charges: list[float], keys: tuple[str, ...], lease: int) -> None:
        _, group, tenant, key, served = keys[:5]
        over, *scores = rank.order
        scores = [score + charge for score, charge in zip(scores, charges, strict=True)]
        if rank.of[4] < 0:
            scores[0] = 0.0
        rank.order = (over, *scores)
        rank.taken = (len(self._set(group)), len(self._set(tenant)))
        self._count(served, f"g:{rank.of[2]}", scores[0], group)
        self._count(served, f"t:{rank.of[5]}", scores[1], tenant)
        self._count(served, f"k:{rank.of[9]}", scores[2], key)
        self.keep(served, lease)

    def _count(self, served: str, node: str, score: float, set: str) -> None:
        self.write(served, node, f"{score:.17g} {len(self._set(set))}")

    def _best_of_others(self, own: Queue, others: str) -> Rank | None:
        return self.lines.best_of(own, others, self.now) if others else None

    def _no_more_by(
        self,
        limits: list[tuple[str, str, int, str]],
        own: Queue,
        replica: str,
        others: str,
    ) -> str:
        """The limit at which the replica's next stands in line; empty if it may claim at once."""
        line_all = limits[1][3]
        for by, set, most, _ in limits[:2]:
            if self._is_full(set, most):
                if others:
                    note = (own.size, own.set, own.line, own.served)
                    self.lines.wait_in(line_all, own, note, by, replica, others)
                return by
        mine = self._best_of_others(own, others)
        best, line, by = self._next_one(own, line_all, mine, replica)
        if best is None and not (others and mine is None):
            return ""
        if best is not None:
            self.lines.call(line, best)
        self._stand_for(own.line, replica, others)
        return by

    def _stand_for(self, line: str, replica: str, text: str) -> None:
        if text:
            self.lines.stand(line, replica, text)
        else:
            self.lines.step_out(line, replica)

    def _next_one(
        self, own: Queue, line_all: str, rank: Rank | None, replica: str
    ) -> tuple[Waiting | None, str, str]:
        best, line = self._ahead_in_turn(line_all, own)
        if best is not None:
            return best, line, "ceiling"
        return self._ahead(own, rank, replica), own.line, "pool"

    def _ahead_in_turn(self, line_all: str, own: Queue) -> tuple[Waiting | None, str]:
        for pool in self.lines.in_turn(line_all, own):
            if pool is own:
                break
            best = self.lines.first_in(line_all, pool)
            if best is not None:
                return best, pool.line
        return None, ""

    def _ahead(self, own: Queue, rank: Rank | None, replica: str) -> Waiting | None:
        places, _ = self.lines.waiting(own)
        best = first(places, replica)
        if rank is None:
            return best or first(places, replica, passed=True)
        if best is None:
            return None
        return best if best.rank.comes_before(rank, SAME) else None

    def _release(self, keys: tuple[str, ...], args: tuple[str, ...]) -> list[str]:
        holds = self._holds(keys[0], keys[2:5])
        holds.free_lapsed()
        found = []
        for k, a in zip(range(5, len(keys), 11), range(2, len(args), 8), strict=True):
            own = list(keys[k : k + 11])
            id, *names, refund, claims, step = args[a : a + 8]
            outcome = "gone"
            if holds.has(own[8], id):
                holds.free(id, "freed")
                outcome = "released"
            elif id in self._set(own[0]):
                outcome = "released"
                if step:
                    ended = Step(*json.loads(step))
                    outcome = holds.judged(own, ended)
                    if outcome == "held":
                        holds.hold(ended, own, names, args[1])
            removed = [self.take_out(set, id) for set in (keys[0], *own[:4])]
            self._unnote(keys[1], id)
            if any(removed) and outcome != "held":
                holds.is_free(own, names, refund, {args[1]} if claims == "1" else set())
                outcome = "released" if outcome == "gone" else outcome
            found.append(outcome)
        return found

    def _heartbeat(self, keys: tuple[str, ...], args: tuple[str, ...]) -> list[Any]:
        replica, ttl, layout, complete, _ = args
        for key in keys:
            if isinstance(self.keys.get(key), str) or not self._is_hash(key):
                self.delete(key)
        lapsed, asserted, longest = 1, "0", int(ttl)
        for name, record in list(self._hash(keys[0]).items()):
            heard, its_ttl, its_layout, its_asserted = record.split()
            if self.now - int(heard) >= int(its_ttl):
                self._unnote(keys[0], name)
                continue
            longest = max(longest, int(its_ttl))
            if int(heard) > self.now:
                renewed = f"{self.now} {its_ttl} {its_layout} {its_asserted}"
                self._note(keys[0], name, renewed)
            if name == replica:
                lapsed = 0
                if complete == "1" and its_layout == layout:
                    asserted = its_asserted
        self._note(keys[0], replica, f"{self.now} {ttl} {layout} {asserted}")
        self._expiry[keys[0]] = self.now + 2 * longest
        if keys[1] in self.keys:
            self.keep(keys[1], int(ttl))
        if lapsed:
            self.published.append({"replica": replica})
        return [lapsed, longest, *self._flat(keys[1])]

    def _assert(self, keys: tuple[str, ...], args: tuple[str, ...]) -> list[str]:
        record = self._hash(keys[0]).get(args[0], "0 0 0 0").split()
        lease = int(record[1])
        if self.now - int(record[0]) >= lease:
            return ["not_live"]
        missing = []
        for k, a in zip(range(3, len(keys), 4), range(1, len(args), 2), strict=True):
            id, note = args[a : a + 2]
            added = [self._note(keys[2], id, note)]
            for key in (keys[1], *keys[k : k + 4]):
                if not self._is_set(key):
                    self._repair(key, keys[0])
                added.append(self.add(key, id, lease))
            if any(added):
                missing.append(id)
        if len(args) > 1:
            self.keep(keys[2], lease)
        return ["ok", *missing]

    def _reclaim(self, keys: tuple[str, ...], args: tuple[str, ...]) -> list[int]:
        latest = self.now + int(args[0])
        removed = []
        for key in keys[5:]:
            if not self._is_set(key):
                self._repair(key, keys[0])
        holds = self._holds(keys[1], keys[2:5])
        holds.free_lapsed()
        for key in keys[5:]:
            removed.append(self._purge(key))
            leases = self._set(key)
            for id, end in leases.items():
                if not holds.has(keys[3], id):
                    leases[id] = min(end, latest)
        return removed

    def _settle(self, keys: tuple[str, ...], args: tuple[str, ...]) -> list[Any]:
        replica, layout, complete, _ = args
        roster = {name: record.split() for name, record in self._hash(keys[0]).items()}
        live = sorted(name for name, of in roster.items() if self.now - int(of[0]) < int(of[1]))
        if replica not in live:
            return ["not_live", [], []]
        mine = roster[replica]
        before, mine[3] = mine[3], "1" if complete == "1" and len(live) > 1 else "0"
        self._note(keys[0], replica, " ".join(mine))
        if (before, mine[3]) == ("0", "1"):
            self.published.append({"replica": replica})
        return ["ok", live, [name for name in live if roster[name][2:] == [layout, "1"]]]

    def _leave(self, keys: tuple[str, ...], args: tuple[str, ...]) -> list[str]:
        self._holds(keys[2], keys[3:6]).free_of(args[0])
        if self._unnote(keys[0], args[0]):
            self.published.append({"replica": args[0]})
        return self._flat(keys[1])

    # What the scripts have in common

    def _lease_of(self, roster: str, replica: str) -> int | None:
        heard, ttl, _, asserted = self._hash(roster).get(replica, "0 0 0 0").split()
        return int(ttl) if asserted == "1" and self.now - int(heard) < int(ttl) else None

    def _is_at_cap(self, set: str, cap: str, pool_holds: str) -> bool:
        if not cap or not self._is_full(set, int(cap)):
            return False
        return len(self._set(set).keys() - self._set(pool_holds).keys()) >= int(cap)

    def _excess(self, set: str, limit: str) -> int:
        if not limit or not self._is_full(set, int(limit) + 1):
            return 0
        return len(self._set(set)) - int(limit)

    def _is_full(self, key: str, limit: int) -> bool:
        if len(self._set(key)) < limit:
            return False
        self._purge(key)
        return len(self._set(key)) >= limit

    def _repair(self, key: str, roster: str) -> None:
        self.delete(key)
        for name, record in list(self._hash(roster).items()):
            self._note(roster, name, f"{record[:-1]}0")


def _queue(shared: tuple[str, ...], keys: tuple[str, ...], args: tuple[str, ...]) -> Queue:
    """A claim's pool."""
    return Queue(args[2], int(args[3]), keys[0], keys[5], keys[4], shared[1])


def _both(one: str, other: str) -> str:
    return f"{one[:-1]},{other[1:]}" if one and other else one + other


def _told(rank: Rank | None) -> list[str]:
    if rank is None:
        return []
    return [*(f"{score:.17g}" for score in rank.order[1:]), *map(str, rank.taken)]


class ModelScripts:
    """A `ScriptRunner` on a model: at once, and never failing."""

    def __init__(self, model: RedisModel, clock: Callable[[], int]) -> None:
        self._model: Final = model
        self._clock: Final = clock

    async def run(self, calls: Sequence[ScriptCall]) -> list[Any]:
        return [self._model.run(call, self._clock()) for call in calls]


def announced(messages: Sequence[str]) -> list[dict[str, object]]:
    """Messages of the real channel as the model keeps them."""
    return [json.loads(message) for message in messages]
