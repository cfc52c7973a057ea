"""A gateway in virtual time: the real scheduler core, requests that take as long as they are told
to."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dataplane.scheduler.effects import Admit, Effect, Noted, Reject, RejectReason
from dataplane.scheduler.events import Arrived, Event, Finished, KeyChanged, Left, PoolPolicy, Woken
from dataplane.scheduler.order import Hierarchical, Order
from dataplane.scheduler.scheduler import Scheduler
from shared.policy import GroupPolicy, KeyPolicy, TenantPolicy

POOL = PoolPolicy("m", "m", 8, "configured")


def a_key(
    tenant: str,
    *,
    key: str = "key",
    group: str = "default",
    group_weight: int = 100,
    weight: int = 100,
    key_weight: int = 100,
    cap: int | None = None,
    key_cap: int | None = None,
) -> KeyPolicy:
    """A key with its tenant and group, named and not numbered."""
    policy = TenantPolicy(
        tenant, tenant, GroupPolicy(group, group_weight), weight, max_in_flight=cap
    )
    return KeyPolicy(f"{tenant}/{key}", key, policy, key_weight, key_cap)


@dataclass(frozen=True)
class Grant:
    at: float
    request: int
    key: KeyPolicy
    pool: str
    fast: bool
    waited: float
    held: bool = False

    @property
    def tenant(self) -> str:
        return self.key.tenant.id


class World:
    """Time passes from event to event; what ran is in `grants`, what never did in `rejected`, what
    affinity did in `noted`."""

    def __init__(
        self,
        order: Order | None = None,
        *,
        ceiling: int = 4096,
        timeout: float = 1e9,
        pool_idle: float = 600,
    ) -> None:
        self.core = Scheduler(
            order or Hierarchical(), ceiling=ceiling, timeout=timeout, pool_idle=pool_idle
        )
        self.now = 0.0
        self.grants: list[Grant] = []
        self.rejected: dict[int, RejectReason] = {}
        self.noted: Counter[str] = Counter()
        self.running: set[int] = set()
        self._numbers = itertools.count(1)
        self._arrivals: dict[
            int, tuple[KeyPolicy, PoolPolicy, float | Callable[[], float] | None]
        ] = {}
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._ticks = itertools.count()
        self._changed: dict[str, KeyPolicy] = {}
        self._afterwards: dict[int, Callable[[], None]] = {}

    def send(
        self,
        key: KeyPolicy,
        *,
        pool: PoolPolicy = POOL,
        tokens: int = 100,
        secs: float | Callable[[], float] | None = None,
        then: Callable[[], None] | None = None,
        session: str | None = None,
    ) -> int:
        """A request arrives now. It runs for `secs`, known when it begins, or until it is ended by
        hand."""
        key = self._changed.get(key.id, key)
        number = next(self._numbers)
        self._arrivals[number] = (key, pool, secs)
        if then is not None:
            self._afterwards[number] = then
        self.post(Arrived(number, pool, key, tokens, session))
        return number

    def keep_sending(
        self,
        key: KeyPolicy,
        *,
        at_once: int,
        pool: PoolPolicy = POOL,
        tokens: int = 100,
        secs: float | Callable[[], float] = 1.0,
    ) -> None:
        """A client with `at_once` requests under way at any moment, for ever."""

        def again() -> None:
            took = secs() if callable(secs) else secs
            self.send(key, pool=pool, tokens=tokens, secs=took, then=again)

        for _ in range(at_once):
            again()

    def change(self, key: KeyPolicy) -> None:
        """The key's policy is this from now on, for what waits and for what is still to come."""
        self._changed[key.id] = key
        self.post(KeyChanged(key))

    def finish(self, request: int, *, failed: bool = False) -> None:
        self.running.discard(request)
        self.post(Finished(request, failed))
        again = self._afterwards.pop(request, None)
        if again is not None:
            again()

    def leave(self, request: int) -> None:
        self.running.discard(request)
        self.post(Left(request))

    def post(self, event: Event) -> list[Effect]:
        effects = self.core.handle(event, self.now)
        for effect in effects:
            if isinstance(effect, Reject):
                self.rejected[effect.request] = effect.reason
                continue
            if isinstance(effect, Noted):
                self.noted[effect.event] += 1
                continue
            assert isinstance(effect, Admit)
            self._begin(effect)
        return effects

    def _begin(self, effect: Admit) -> None:
        key, pool, secs = self._arrivals.pop(effect.request)
        self.running.add(effect.request)
        self.grants.append(
            Grant(self.now, effect.request, key, pool.id, effect.fast, effect.waited, effect.held)
        )
        if secs is not None:
            took = secs() if callable(secs) else secs
            self.at(self.now + took, lambda: self.finish(effect.request))

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (when, next(self._ticks), what))

    def run(self, secs: float) -> None:
        """Let `secs` pass."""
        end = self.now + secs
        while True:
            due = self._agenda[0][0] if self._agenda else end
            wake = self.core.wake_at()
            if min(due, end if wake is None else wake) >= end and due >= end:
                break
            if wake is not None and wake < due:
                self.now = max(self.now, wake)
                self.post(Woken())
                continue
            self.now, _, what = heapq.heappop(self._agenda)
            what()
        self.now = end
        self.post(Woken())

    def served(self, *, since: float = 0.0) -> Counter[str]:
        """Grants by tenant."""
        return Counter(grant.tenant for grant in self.grants if grant.at >= since)

    def runs(self, requests: Iterable[int]) -> list[bool]:
        return [request in self.running for request in requests]
