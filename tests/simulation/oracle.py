"""The scheduler's rules a second time: slowly, from scratch after every event, with fractions.

Nothing is kept but the facts: who waits, who runs, each node's served tokens as a score, and each
level's virtual time; of sessions when each last finished, which step came last, and what is held.
Every question is answered by going through everybody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

from dataplane.scheduler.events import AffinityRules, Arrived, PoolPolicy
from shared.policy import KeyPolicy, split

Path = tuple[str, ...]
"""A node's place: (group,), (group, tenant) or (group, tenant, key)."""


@dataclass
class Request:
    number: int
    pool: str
    path: Path
    tokens: int
    arrived_at: float
    running: bool = False
    charges: dict[Path, Fraction] = field(default_factory=dict)
    session: tuple[str, str] | None = None
    """Key and session id, where sessions counted when it arrived and have since."""
    follows: bool = False
    passed: int = 0


@dataclass(frozen=True)
class Held:
    pool: str
    path: Path
    session: tuple[str, str]
    ends: float


@dataclass
class Seen:
    """A session in a pool."""

    finished: float | None = None
    latest: int = 0


@dataclass
class OraclePool:
    policy: PoolPolicy
    scores: dict[Path, Fraction] = field(default_factory=dict)
    weights: dict[Path, int] = field(default_factory=dict)
    caps: dict[Path, int | None] = field(default_factory=dict)
    virtual_time: dict[Path, Fraction] = field(default_factory=dict)
    top_admitted: dict[Path, Fraction] = field(default_factory=dict)


class Oracle:
    """The same events as the scheduler; each answers the requests admitted, in order."""

    def __init__(self, *, hierarchical: bool, ceiling: int) -> None:
        self.hierarchical = hierarchical
        self.ceiling = ceiling
        self.pools: dict[str, OraclePool] = {}
        self.requests: dict[int, Request] = {}
        self.turns: list[str] = []
        """Pools that could be served if the ceiling let them, longest without a turn first."""
        self.now = 0.0
        self.holds: list[Held] = []
        self.sessions: dict[tuple[str, tuple[str, str]], Seen] = {}
        self.noted: Counter[str] = Counter()
        self.redeemed: list[int] = []
        self.early: list[int] = []
        """Admitted because time passed, before the event."""

    # Events

    def arrive(self, event: Arrived) -> list[int]:
        id = event.pool.id
        self._follow(self.pools.setdefault(id, OraclePool(event.pool)), event.pool)
        self._learn(self.pools[id], event.key)
        self._settle(id)
        self._keep_to_caps()
        pool = self.pools[id]
        path = self._learn(pool, event.key)
        contending = self._contending(id)
        can_go = not (self._capped(id, pool, path) or self._capped(id, pool, path[:2]))
        for each in (path[:1], path[:2], path):
            if not self.waiting(id, each) or (can_go and each not in contending):
                self._raise(pool, each)
        request = Request(event.request, id, path, event.tokens, self.now)
        self.requests[event.request] = request
        if pool.policy.affinity is not None and event.session is not None:
            request.session = (event.key.id, event.session)
            seen = self.sessions.setdefault((id, request.session), Seen())
            seen.latest = request.number
            if seen.finished is not None:
                request.follows = self.now <= seen.finished + pool.policy.affinity.hold_secs
            for held in self.holds:
                if (held.pool, held.session) == (id, request.session):
                    return [self._redeem(held, request), *self._serve()]
        self._settle(id)
        at_once = self._serve_free()
        if not request.running:
            self._free_of_passed(request)
        return at_once + self._serve()

    def leave(self, number: int) -> list[int]:
        request = self.requests.get(number)
        if request is not None:
            for path, amount in request.charges.items():
                self.pools[request.pool].scores[path] -= amount
            self._remove(request)
        return self._serve()

    def finish(self, number: int, *, failed: bool) -> list[int]:
        request = self.requests[number]
        rules = self.pools[request.pool].policy.affinity
        if rules is None or request.session is None:
            self._remove(request)
            return self._serve()
        seen = self.sessions[request.pool, request.session]
        seen.finished = self.now
        latest = self.requests.get(seen.latest)
        came = latest is not None and self.now <= latest.arrived_at + rules.hold_secs
        if latest is not None and latest is not request and came:
            latest.follows = True
        next_one = latest if came and latest is not request and not latest.running else None
        wanted = request.follows and rules.hold_secs > 0 and not failed
        if not wanted or (latest is not request and next_one is None):
            self._remove(request)
            return self._serve()
        if self._is_hold_refused(request, rules):
            self.noted["refused"] += 1
            self._remove(request)
            return self._serve()
        self.noted["hold"] += 1
        ends = self.now + rules.hold_secs
        held = Held(request.pool, request.path, request.session, ends)
        self.holds.append(held)
        self._remove(request)
        return ([] if next_one is None else [self._redeem(held, next_one)]) + self._serve()

    def change_key(self, key: KeyPolicy) -> list[int]:
        for id, pool in self.pools.items():
            if any(path[1:2] == (key.tenant.id,) for path in self._paths(id)):
                self._learn(pool, key)
                self._settle(id)
        self._keep_to_caps()
        return self._serve()

    def change_pool(self, policy: PoolPolicy) -> list[int]:
        if policy.id in self.pools:
            self._follow(self.pools[policy.id], policy)
        return self._serve()

    def change_ceiling(self, ceiling: int) -> list[int]:
        self.ceiling = ceiling
        return self._serve()

    def pass_time(self, now: float, timeout: float) -> list[int]:
        """Before each event; answers requests that have waited too long, oldest first."""
        self.now = now
        late = [
            r for r in self.requests.values() if not r.running and now >= r.arrived_at + timeout
        ]
        for request in late:
            self._remove(request)
        self.early = self._serve_free() if self._tend() else []
        return [r.number for r in late]

    # Facts, counted anew each time

    def running(self, pool: str, path: Path = ()) -> int:
        return sum(1 for r in self._under(pool, path) if r.running)

    def held(self, pool: str, path: Path = ()) -> int:
        return sum(1 for h in self.holds if h.pool == pool and h.path[: len(path)] == path)

    def occupied(self, pool: str, path: Path = ()) -> int:
        return self.running(pool, path) + self.held(pool, path)

    def in_all(self) -> int:
        return sum(1 for r in self.requests.values() if r.running) + len(self.holds)

    def waiting(self, pool: str, path: Path = ()) -> list[Request]:
        return [r for r in self._under(pool, path) if not r.running]

    def _under(self, pool: str, path: Path) -> Iterable[Request]:
        return (r for r in self.requests.values() if r.pool == pool and r.path[: len(path)] == path)

    def _paths(self, pool: str) -> set[Path]:
        return {r.path for r in self._under(pool, ())} | {
            h.path for h in self.holds if h.pool == pool
        }

    def _contending(self, id: str) -> set[Path]:
        """Nodes with a request that could go if a slot were free: none at its cap on the way."""
        pool = self.pools[id]
        out: set[Path] = set()
        for request in self.waiting(id):
            group, tenant, key = request.path[:1], request.path[:2], request.path
            if self._capped(id, pool, key):
                continue
            out.add(key)
            if self._capped(id, pool, tenant):
                continue
            out |= {tenant, group}
        return out

    def _capped(self, id: str, pool: OraclePool, path: Path) -> bool:
        cap = pool.caps[path]
        return cap is not None and self.occupied(id, path) >= cap

    # Keeping scores

    def _learn(self, pool: OraclePool, key: KeyPolicy) -> Path:
        tenant, group = key.tenant, key.tenant.group
        name = group.name if self.hierarchical else ""
        path = (name, tenant.id, key.id)
        for old in {each[:2] for each in self._paths(pool.policy.id) if each[1] == tenant.id}:
            if old != path[:2]:
                self._move(pool, old, path[:2])
        scale = pool.policy.admission_weight
        contending = self._contending(pool.policy.id)
        for node, weight, cap in (
            (path[:1], group.weight if self.hierarchical else 1, None),
            (path[:2], max(1, (tenant.weight * scale + 50) // 100), tenant.max_in_flight),
            (path, key.weight, key.max_in_flight),
        ):
            before = pool.caps.get(node)
            pool.weights[node], pool.caps[node] = weight, cap
            pool.scores.setdefault(node, Fraction(0))
            if before is not None and (cap is None or cap > before):
                for each in (node[:n] for n in range(1, len(node) + 1)):
                    if each == node or each not in contending:
                        self._raise(pool, each)
        return path

    def _move(self, pool: OraclePool, old: Path, new: Path) -> None:
        """A tenant changes groups, with all that is under it."""
        id, group = pool.policy.id, new[:1]
        pool.scores.setdefault(group, Fraction(0))
        others = {path for path in self._contending(id) if len(path) == 2 and path != old}
        self._advance(pool, old[:1], others)
        self._advance(pool, (), {path[:1] for path in others})
        if not self.waiting(id, group):
            self._raise(pool, group)
        score = max(pool.scores.get(new, Fraction(0)), pool.virtual_time.get(group, Fraction(0)))

        def moved(path: Path) -> Path:
            return new + path[2:] if path[:2] == old else path

        books: list[dict[Path, Any]] = [
            *(pool.scores, pool.weights, pool.caps, pool.virtual_time, pool.top_admitted),
            *(request.charges for request in self._under(id, old)),
        ]
        for book in books:
            kept = {moved(path): each for path, each in book.items() if path[:2] != new}
            book.clear()
            book.update(kept)
        pool.scores[new] = score
        for request in self._under(id, old):
            request.path = moved(request.path)
        self.holds = [
            replace(held, path=moved(held.path)) if held.pool == id else held for held in self.holds
        ]

    def _raise(self, pool: OraclePool, path: Path) -> None:
        level = pool.virtual_time.get(path[:-1], Fraction(0))
        pool.scores[path] = max(pool.scores[path], level)

    def _settle(self, id: str) -> None:
        """After a change: move each level's virtual time on."""
        pool, after = self.pools[id], self._contending(id)
        for parent in {(), *(path for path in pool.scores if len(path) < 3)}:
            self._advance(pool, parent, after)
        self._forget(id)

    def _advance(self, pool: OraclePool, parent: Path, contending: Iterable[Path]) -> None:
        lowest = min(
            (pool.scores[path] for path in contending if path[:-1] == parent),
            default=pool.top_admitted.get(parent, Fraction(0)),
        )
        pool.virtual_time[parent] = max(pool.virtual_time.get(parent, Fraction(0)), lowest)

    def _forget(self, id: str) -> None:
        pool, paths = self.pools[id], self._paths(id)
        if not paths:
            self.pools[id] = OraclePool(pool.policy)
            return
        busy = {path[:n] for path in paths for n in (1, 2, 3)}
        for path in sorted(pool.scores, key=len):
            if path in busy or path not in pool.scores:
                continue
            if pool.scores[path] > pool.virtual_time[path[:-1]]:
                continue
            for book in (pool.scores, pool.virtual_time, pool.top_admitted):
                for below in [p for p in book if p[: len(path)] == path]:
                    del book[below]
            for request in self._under(id, ()):
                request.charges.pop(path, None)  # of a group that its tenant has left

    def _remove(self, request: Request) -> None:
        del self.requests[request.number]
        self._settle(request.pool)

    # Sessions

    def _follow(self, pool: OraclePool, policy: PoolPolicy) -> None:
        """A pool has this policy from now on."""
        was_on, pool.policy = pool.policy.affinity is not None, policy
        self._update_turns()
        if policy.affinity is None:
            self._free([h for h in self.holds if h.pool == policy.id])
            for request in self._under(policy.id, ()):
                request.session, request.follows, request.passed = None, False, 0
            self.sessions = {k: seen for k, seen in self.sessions.items() if k[0] != policy.id}
        elif was_on:
            for held in [h for h in self.holds if h.pool == policy.id]:
                self._free_of_passed(*self.waiting(policy.id, held.path)[:1])

    def _is_warm(self, request: Request, rules: AffinityRules) -> bool:
        if request.session is None:
            return False
        finished = self.sessions[request.pool, request.session].finished
        if finished is not None and self.now <= finished + rules.warm_secs:
            return True
        others = self._under(request.pool, request.path)
        return any(r.running and r.session == request.session for r in others)

    def _is_late(self, request: Request, rules: AffinityRules) -> bool:
        return self.now >= request.arrived_at + rules.max_bypass_secs

    def _is_starving(self, id: str, rules: AffinityRules, ending: Request | None = None) -> bool:
        """Whether a request has waited too long and no cap of what runs keeps it out."""

        def at_cap(path: Path) -> bool:
            cap = self.pools[id].caps[path]
            running = [r for r in self._under(id, path) if r.running and r is not ending]
            return cap is not None and len(running) >= cap

        late = [r for r in self.waiting(id) if self._is_late(r, rules)]
        return any(not at_cap(r.path) and not at_cap(r.path[:2]) for r in late)

    def _is_hold_refused(self, request: Request, rules: AffinityRules) -> bool:
        id, pool = request.pool, self.pools[request.pool]
        size, key_waits = pool.policy.size, self.waiting(request.pool, request.path)

        def over(path: Path) -> bool:
            cap = pool.caps[path]
            return cap is not None and self.occupied(id, path) > cap

        kept_out = [self._first(each) for each in self.pools if self._able(each)]
        return (
            self.held(id) + 1 > -(-size * rules.max_held_percent // 100)
            or self.occupied(id) > size
            or self.in_all() > self.ceiling
            or over(request.path)
            or over(request.path[:2])
            or any(r.passed >= rules.max_jumps for r in key_waits)
            or self._is_starving(id, rules, request)
            or (self.in_all() == self.ceiling and any(self._is_late(r, rules) for r in kept_out))
        )

    def _redeem(self, held: Held, request: Request) -> int:
        self.noted["redeem"] += 1
        self.redeemed.append(request.number)
        self.holds.remove(held)
        return self._admit(request.pool, request)

    def _tend(self) -> bool:
        """Free what may not be held any more; whether there was any."""
        before = len(self.holds)
        for id, pool in list(self.pools.items()):
            rules = pool.policy.affinity
            if rules is None:
                continue
            self._free([h for h in self._held_in(id) if h.ends <= self.now], "expire")
            if self._is_starving(id, rules):
                self._free(self._held_in(id), "freed_starving")
            size = pool.policy.size
            most = min(-(-size * rules.max_held_percent // 100), size - self.running(id))
            self._free(self._held_in(id)[: max(0, self.held(id) - max(0, most))])
        by_end = sorted(self.holds, key=lambda h: (h.ends, h.pool, h.session))
        self._free(by_end[: max(0, self.in_all() - self.ceiling)])
        return len(self.holds) < before

    def _held_in(self, id: str) -> list[Held]:
        held = [h for h in self.holds if h.pool == id]
        return sorted(held, key=lambda h: (h.ends, h.session))

    def _free(self, holds: Iterable[Held], why: str | None = None) -> None:
        for held in list(holds):
            self.holds.remove(held)
            self._settle(held.pool)
            if why is not None:
                self.noted[why] += 1

    def _free_of_passed(self, *waiters: Request) -> None:
        """Nothing is held for a key that has a request that was passed often enough."""
        for waiter in waiters:
            rules = self.pools[waiter.pool].policy.affinity
            in_key = self.waiting(waiter.pool, waiter.path)
            if rules is not None and any(r.passed >= rules.max_jumps for r in in_key):
                held = [h for h in self._held_in(waiter.pool) if h.path == waiter.path]
                self._free(held, "freed_starving")

    def _keep_to_caps(self) -> None:
        for id in self.pools:
            for held in self._held_in(id):
                for path in (held.path, held.path[:2]):
                    cap = self.pools[id].caps[path]
                    if held in self.holds and cap is not None and self.occupied(id, path) > cap:
                        self._free([held])

    # Who goes

    def _serve(self) -> list[int]:
        admitted = self._serve_free()
        return admitted + self._serve_free() if self._tend() else admitted

    def _serve_free(self) -> list[int]:
        admitted: list[int] = []
        while True:
            running = self.in_all()
            self._update_turns()
            if not self.turns or running >= self.ceiling:
                return admitted
            id = self.turns.pop(0)
            admitted.append(self._admit(id, self._next(id, self.ceiling - running)))

    def _update_turns(self) -> None:
        able = [id for id in self.pools if self._able(id)]
        self.turns = [id for id in self.turns if id in able]
        self.turns += [id for id in able if id not in self.turns]

    def _able(self, id: str) -> bool:
        room = self.occupied(id) < self.pools[id].policy.size
        return room and any(len(path) == 1 for path in self._contending(id))

    def _first(self, id: str) -> Request:
        """The oldest request of whoever comes first in a pool by score all the way down."""
        return self.requests[self._order(id)(())[1]]

    def _order(self, id: str) -> Callable[[Path], tuple[Fraction, int]]:
        pool, contending = self.pools[id], self._contending(id)

        def head(path: Path) -> int:
            """The oldest request below a node, chosen by score all the way down."""
            if len(path) == 3:
                return min(r.number for r in self.waiting(id, path))
            below = [p for p in contending if p[:-1] == path]
            return head(min(below, key=order))

        def order(path: Path) -> tuple[Fraction, int]:
            return pool.scores.get(path, Fraction(0)), head(path)

        return order

    def _next(self, id: str, left: int) -> Request:
        pool, contending, order = self.pools[id], self._contending(id), self._order(id)
        tenants = sorted(
            (path for path in contending if len(path) == 2),
            key=lambda path: (order(path[:1]), order(path)),
        )
        chosen = tenants[0]
        if self.hierarchical:
            under = self._under_share(id, min(pool.policy.size, self.occupied(id) + left))
            chosen = next((t for t in tenants if under(t[:1]) and under(t)), chosen)
        keys = [path for path in contending if len(path) == 3 and path[:2] == chosen]
        return self._next_in_key(id, min(keys, key=order))

    def _next_in_key(self, id: str, key: Path) -> Request:
        rules, in_order = self.pools[id].policy.affinity, self.waiting(id, key)
        in_order.sort(key=lambda r: r.number)
        if rules is None or self._is_late(in_order[0], rules):
            return in_order[0]
        if any(r.passed >= rules.max_jumps for r in in_order):
            return next(r for r in in_order if r.passed >= rules.max_jumps)
        return next((r for r in in_order if self._is_warm(r, rules)), in_order[0])

    def _under_share(self, id: str, slots: int) -> Callable[[Path], bool]:
        pool, paths = self.pools[id], self._paths(id)
        groups = split(max(1, slots), {path[0]: pool.weights[path[:1]] for path in paths})

        def under(path: Path) -> bool:
            running = self.occupied(id, path)
            if running == 0:
                return True
            if len(path) == 1:
                return running < groups[path[0]]
            weights = {p[1]: pool.weights[p[:2]] for p in paths if p[0] == path[0]}
            return running < split(groups[path[0]], weights)[path[1]]

        return under

    def _admit(self, id: str, request: Request) -> int:
        pool = self.pools[id]
        request.running = True
        older = [r for r in self.waiting(id, request.path) if r.number < request.number]
        for each in older:
            each.passed += 1
        if older and request.number not in self.redeemed:
            self.noted["warm"] += 1
        for n in (1, 2, 3):
            path = request.path[:n]
            top = pool.top_admitted.get(path[:-1], Fraction(0))
            pool.top_admitted[path[:-1]] = max(top, pool.scores[path])
            request.charges[path] = Fraction(request.tokens, pool.weights[path])
            pool.scores[path] += request.charges[path]
        self._settle(id)
        self._free_of_passed(*older[:1])
        return request.number


def is_sorted(numbers: Iterable[int]) -> bool:
    return all(a < b for a, b in pairwise(numbers))
