"""The scheduler's rules a second time: slowly, from scratch after every event, with fractions.

Nothing is kept but the facts: who waits, who runs, each node's served tokens as a score, and each
level's virtual time. Every question is answered by going through everybody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise

from dataplane.scheduler.events import Arrived, PoolPolicy
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

    # Events

    def arrive(self, event: Arrived, now: float) -> list[int]:
        pool = self.pools.setdefault(event.pool.id, OraclePool(event.pool))
        path = self._learn(pool, event.key)
        for n in (1, 2, 3):
            if not self.waiting(event.pool.id, path[:n]):
                self._raise(pool, path[:n])
        self.requests[event.request] = Request(
            event.request, event.pool.id, path, event.tokens, now
        )
        self._settle(event.pool.id)
        return self._serve()

    def leave(self, number: int) -> list[int]:
        return self._end(number, undo=True)

    def finish(self, number: int) -> list[int]:
        return self._end(number, undo=False)

    def change_key(self, key: KeyPolicy) -> list[int]:
        for id, pool in self.pools.items():
            if any(path[1:2] == (key.tenant.id,) for path in self._paths(id)):
                self._learn(pool, key)
                self._settle(id)
        return self._serve()

    def change_pool(self, policy: PoolPolicy) -> list[int]:
        if policy.id in self.pools:
            self.pools[policy.id].policy = policy
        return self._serve()

    def change_ceiling(self, ceiling: int) -> list[int]:
        self.ceiling = ceiling
        return self._serve()

    def expire(self, now: float, timeout: float) -> list[int]:
        """Requests that have waited too long, oldest first."""
        late = [
            r for r in self.requests.values() if not r.running and now >= r.arrived_at + timeout
        ]
        for request in late:
            self._remove(request)
        return [r.number for r in late]

    # Facts, counted anew each time

    def running(self, pool: str, path: Path = ()) -> int:
        return sum(1 for r in self._under(pool, path) if r.running)

    def waiting(self, pool: str, path: Path = ()) -> list[Request]:
        return [r for r in self._under(pool, path) if not r.running]

    def _under(self, pool: str, path: Path) -> Iterable[Request]:
        return (r for r in self.requests.values() if r.pool == pool and r.path[: len(path)] == path)

    def _paths(self, pool: str) -> set[Path]:
        return {r.path for r in self._under(pool, ())}

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
        return cap is not None and self.running(id, path) >= cap

    # Keeping scores

    def _learn(self, pool: OraclePool, key: KeyPolicy) -> Path:
        tenant, group = key.tenant, key.tenant.group
        name = group.name if self.hierarchical else ""
        path = (name, tenant.id, key.id)
        scale = pool.policy.admission_weight
        for node, weight, cap in (
            (path[:1], group.weight if self.hierarchical else 1, None),
            (path[:2], max(1, (tenant.weight * scale + 50) // 100), tenant.max_in_flight),
            (path, key.weight, key.max_in_flight),
        ):
            before = pool.caps.get(node)
            pool.weights[node], pool.caps[node] = weight, cap
            pool.scores.setdefault(node, Fraction(0))
            if before is not None and (cap is None or cap > before):
                self._raise(pool, node)
        return path

    def _raise(self, pool: OraclePool, path: Path) -> None:
        level = pool.virtual_time.get(path[:-1], Fraction(0))
        pool.scores[path] = max(pool.scores[path], level)

    def _settle(self, id: str) -> None:
        """After a change: move each level's virtual time on."""
        pool, after = self.pools[id], self._contending(id)
        for parent in {path[:-1] for path in pool.scores}:
            lowest = min(
                (pool.scores[p] for p in after if p[:-1] == parent),
                default=pool.top_admitted.get(parent, Fraction(0)),
            )
            pool.virtual_time[parent] = max(pool.virtual_time.get(parent, Fraction(0)), lowest)
        self._forget(id)

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

    def _remove(self, request: Request) -> None:
        del self.requests[request.number]
        self._settle(request.pool)

    def _end(self, number: int, *, undo: bool) -> list[int]:
        request = self.requests.get(number)
        if request is None:
            return []
        pool = self.pools[request.pool]
        if undo:
            for path, amount in request.charges.items():
                pool.scores[path] -= amount
        self._remove(request)
        return self._serve()

    # Who goes

    def _serve(self) -> list[int]:
        admitted: list[int] = []
        while True:
            running = sum(1 for r in self.requests.values() if r.running)
            able = [id for id in self.pools if self._able(id)]
            self.turns = [id for id in self.turns if id in able]
            self.turns += [id for id in able if id not in self.turns]
            if not able or running >= self.ceiling:
                return admitted
            id = self.turns.pop(0)
            admitted.append(self._admit(id, self._next(id, self.ceiling - running)))

    def _able(self, id: str) -> bool:
        room = self.running(id) < self.pools[id].policy.size
        return room and any(len(path) == 1 for path in self._contending(id))

    def _next(self, id: str, left: int) -> Request:
        pool, contending = self.pools[id], self._contending(id)

        def head(path: Path) -> int:
            """The next request below a node, chosen by score all the way down."""
            if len(path) == 3:
                return min(r.number for r in self.waiting(id, path))
            below = [p for p in contending if p[:-1] == path]
            return head(min(below, key=order))

        def order(path: Path) -> tuple[Fraction, int]:
            return pool.scores[path], head(path)

        tenants = sorted(
            (path for path in contending if len(path) == 2),
            key=lambda path: (order(path[:1]), order(path)),
        )
        chosen = tenants[0]
        if self.hierarchical:
            under = self._under_share(id, min(pool.policy.size, self.running(id) + left))
            chosen = next((t for t in tenants if under(t[:1]) and under(t)), chosen)
        keys = [path for path in contending if len(path) == 3 and path[:2] == chosen]
        key = min(keys, key=order)
        return min(self.waiting(id, key), key=lambda r: r.number)

    def _under_share(self, id: str, slots: int) -> Callable[[Path], bool]:
        pool, paths = self.pools[id], self._paths(id)
        groups = split(max(1, slots), {path[0]: pool.weights[path[:1]] for path in paths})

        def under(path: Path) -> bool:
            running = self.running(id, path)
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
        for n in (1, 2, 3):
            path = request.path[:n]
            top = pool.top_admitted.get(path[:-1], Fraction(0))
            pool.top_admitted[path[:-1]] = max(top, pool.scores[path])
            request.charges[path] = Fraction(request.tokens, pool.weights[path])
            pool.scores[path] += request.charges[path]
        self._settle(id)
        return request.number


def is_sorted(numbers: Iterable[int]) -> bool:
    return all(a < b for a, b in pairwise(numbers))
