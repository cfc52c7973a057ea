"""Who would be admitted next, were slots of a pool freed one after another now. PURE.

The scheduler's own order is asked, over its own state with the picks so far laid on top: each pick
occupies a slot, is charged, and leaves its queue to the next, as it would in the scheduler. Nothing
is changed. In a key with warm sessions the first pick is the one that goes ahead; after it, the
oldest first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import Any, cast

from dataplane.live_view import PickView
from dataplane.scheduler.fairness import SCORE_UNIT, Level, Node
from dataplane.scheduler.order import EVERYONE, Hierarchical, Order, Weighted
from dataplane.scheduler.scheduler import Scheduler
from dataplane.scheduler.shares import are_under
from dataplane.scheduler.state import Group, Key, Pool, Tenant, Waiter
from shared.live_state import NEXT_IN_LINE


def next_in_line(
    core: Scheduler, pool: Pool, now: float, most: int = NEXT_IN_LINE
) -> tuple[PickView, ...]:
    """The next picks in a pool, first to last; fewer where fewer could go."""
    order, slots = _order(pool), _slots(core, pool)
    groups = _Siblings(pool.groups)
    picks: list[PickView] = []
    while len(picks) < most:
        tenant = order.next(cast("Level[Group]", groups), slots)
        if tenant is None:
            break
        picks.append(_pick(pool, groups, tenant, order.shares(tenant, slots), now))
    return tuple(picks)


def may_be_next(
    core: Scheduler, pool: Pool, now: float, picks: Sequence[PickView]
) -> tuple[PickView, ...]:
    """Beside the next `picks`: the first request of each tenant that may come first after what
    other replicas admit, which raises scores and fills shares."""
    order, slots = _order(pool), _slots(core, pool)
    tenants = {each.id: each for each in order.candidates(pool.groups, slots)}
    group = pool.groups.first()
    if group is not None:
        tenants |= {each.id: each for each in islice(group.tenants.in_order(), NEXT_IN_LINE)}
    told = {pick.tenant_id for pick in picks}
    return tuple(
        _pick(pool, _Siblings(pool.groups), each, order.shares(each, slots), now)
        for each in tenants.values()
        if each.id not in told
    )


def _order(pool: Pool) -> Order:
    return Weighted() if EVERYONE in pool.groups.nodes else Hierarchical()


def _slots(core: Scheduler, pool: Pool) -> int:
    """What shares are cut from."""
    left = core.ceiling - sum(each.occupied + each.elsewhere.taken for each in core.pools)
    return max(1, min(pool.size, pool.occupied + pool.elsewhere.taken + max(0, left)))


def _pick(
    pool: Pool, groups: _Siblings, tenant: Tenant, shares: tuple[int, int] | None, now: float
) -> PickView:
    """What the tenant's next request is picked by; from then on the picture has it running."""
    group_ = groups.moved(tenant.group)
    tenant_ = group_.below("tenants").moved(tenant)
    keys = tenant_.below("keys")
    first = keys.first()
    assert first is not None, "a tenant that contends has a key that does"
    key_ = keys.moved(first)
    waiter = key_.next(pool)
    assert waiter is not None, "a key that contends has a request"
    key_.gone.add(waiter.request)
    pick = PickView(
        group=tenant.policy.group.name,
        tenant_id=tenant.id,
        tenant=tenant.policy.name,
        key_id=waiter.key.id,
        key=waiter.key.policy.name,
        under_share=None if shares is None else are_under(shares, (group_.taken, tenant_.taken)),
        group_score=group_.score / SCORE_UNIT,
        tenant_score=tenant_.score / SCORE_UNIT,
        key_score=key_.score / SCORE_UNIT,
        waited_ms=round((now - waiter.arrived_at) * 1000),
        tokens=max(1, waiter.tokens),
        start_scores=(group_.start, tenant_.start, key_.start),
        floors=(group_.floor / SCORE_UNIT, tenant_.floor / SCORE_UNIT, key_.floor / SCORE_UNIT),
        weights=(group_.weight, tenant_.weight, key_.weight),
        shares=shares,
    )
    for node in (group_, tenant_, key_):
        node.take(pick.tokens)
    return pick


class _Moved:
    """A node that picks have passed through; what they did not change is the node's own."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._taken = 0
        self._below: dict[str, _Siblings] = {}
        self.gone: set[int] = set()
        """Of a key: the requests that have been picked."""
        self.score = node.score

    def __getattr__(self, name: str) -> Any:
        if name in self._below:
            return self._below[name]
        return getattr(self._node, name)

    @property
    def occupied(self) -> int:
        return self._node.occupied + self._taken

    @property
    def taken(self) -> int:
        """Over the fleet, as the order counts."""
        return self._node.taken + self._taken

    @property
    def start(self) -> float:
        """Its score before any pick, in tokens a unit of weight."""
        return self._node.score / SCORE_UNIT

    def take(self, tokens: int) -> None:
        self.score += tokens * SCORE_UNIT // self._node.weight
        self._taken += 1

    def below(self, name: str) -> _Siblings:
        """Its tenants or keys."""
        return self._below.setdefault(name, _Siblings(getattr(self._node, name)))

    def next(self, pool: Pool) -> Waiter | None:
        """Of a key: the request that goes next."""
        return self._oldest() if self.gone else pool.head(cast(Key, self._node))

    def _oldest(self) -> Waiter | None:
        """Of a key: the request that has waited for longest, which it stands for."""
        queue = cast(Key, self._node).queue
        return next((queue[request] for request in queue if request not in self.gone), None)

    def request(self) -> int | None:
        """What it contends with; None: it does not."""
        node = self._node
        if node.blocked or (node.cap is not None and self.occupied >= node.cap):
            return None
        for siblings in self._below.values():
            return siblings.head()
        waiter = self._oldest()
        return None if waiter is None else waiter.request


class _Siblings:
    """A level with some of its nodes moved. Answers what an `Order` asks of one."""

    def __init__(self, level: Level[Any]) -> None:
        self._level = level
        self._moved: dict[str, _Moved] = {}
        self.shares = level.shares

    def moved(self, node: Any) -> _Moved:
        """The node, to be moved."""
        known = self._moved.get(node.id)
        if known is None:
            known = self._moved[node.id] = _Moved(node)
        return known

    def in_order(self) -> Iterator[Any]:
        stay = (entry for entry in self._level.contenders if entry[2].id not in self._moved)
        return (node for _, _, node in merge(stay, self._entries(), key=_place))

    def first(self) -> Any | None:
        return next(self.in_order(), None)

    def head(self) -> int | None:
        stay = (entry for entry in self._level.contenders if entry[2].id not in self._moved)
        entry = next(merge(stay, self._entries(), key=_place), None)
        return None if entry is None else entry[1]

    def _entries(self) -> list[tuple[int, int, Any]]:
        entries = (
            (node.score, request, node)
            for node in self._moved.values()
            if (request := node.request()) is not None
        )
        return sorted(entries, key=_place)


def _place(entry: tuple[int, int, Any]) -> tuple[int, int]:
    return entry[:2]
