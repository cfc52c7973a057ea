"""Who would be admitted next over several replicas, were slots of a pool freed one after another
now. PURE.

Each replica publishes whom it would pick next itself, and who else of its waiters may come first.
They are put in one order by the rule the books go by: who is under its share, by the shares that
its replica cut, comes first; then the lowest score of group and tenant decides, inside a tenant
that of the key, then age. As in the books, scores and the slots that are taken are the fleet's, and
each pick raises them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from dataplane.live_view import PickView, PoolView
from dataplane.scheduler.shares import are_under
from shared.live_state import NEXT_IN_LINE


@dataclass(slots=True)
class _Node:
    """A group, tenant or key as it stands in the fleet."""

    served: float = 0.0
    """Tokens a unit of weight that it was charged, as far as any replica has heard."""
    taken: int = 0
    cap: int | None = None

    @property
    def is_capped(self) -> bool:
        return self.cap is not None and self.taken >= self.cap


def next_over(
    pool: PoolView, views: Mapping[str, PoolView], most: int = NEXT_IN_LINE
) -> Iterator[tuple[str, PickView]]:
    """The next picks of a pool, first to last, each with the replica it waits on.

    `pool` is what `views`, by replica, were merged to.
    """
    queues = {
        (instance, key): waiters
        for instance, view in views.items()
        for key, waiters in _queues((*view.next_in_line, *view.may_be_next)).items()
    }
    nodes = _nodes(pool, (pick for waiters in queues.values() for pick in waiters))
    for _ in range(most):
        firsts = {
            where: waiters[0]
            for where, waiters in queues.items()
            if waiters and not any(node.is_capped for node in _path(nodes, waiters[0]))
        }
        if not firsts:
            return
        (over, *_), tenant = min((_standing(nodes, one), one.tenant_id) for one in firsts.values())
        _, instance, key = min(
            (_standing_inside(nodes, one), *where)
            for where, one in firsts.items()
            if one.tenant_id == tenant
        )
        yield instance, _picked(nodes, queues[instance, key].popleft(), over)


def _queues(waiters: Iterable[PickView]) -> Mapping[str, deque[PickView]]:
    """By key, in the order in which its replica would serve them."""
    found: defaultdict[str, deque[PickView]] = defaultdict(deque)
    for waiter in waiters:
        found[waiter.key_id].append(waiter)
    return found


def _nodes(pool: PoolView, waiters: Iterable[PickView]) -> Mapping[tuple[str, str], _Node]:
    """Everyone in line."""
    seen: defaultdict[tuple[str, str], _Node] = defaultdict(_Node)
    for group in pool.groups:
        seen["group", group.name].taken = group.occupied
    for tenant in pool.tenants:
        seen["tenant", tenant.id] = _Node(0.0, tenant.occupied, tenant.max_in_flight)
    for key in pool.keys:
        seen["key", key.id] = _Node(0.0, key.occupied, key.max_in_flight)
    for waiter in waiters:
        scores = zip(_path(seen, waiter), waiter.start_scores, waiter.floors, strict=True)
        for node, score, floor in scores:
            if score > floor:  # otherwise it is where it came back, which says nothing of it
                node.served = max(node.served, score)
    return seen


def _path(nodes: Mapping[tuple[str, str], _Node], waiter: PickView) -> tuple[_Node, _Node, _Node]:
    return (
        nodes["group", waiter.group],
        nodes["tenant", waiter.tenant_id],
        nodes["key", waiter.key_id],
    )


def _scores(nodes: Mapping[tuple[str, str], _Node], waiter: PickView) -> list[float]:
    """Of its group, tenant and key, as they come in from its replica."""
    path = zip(_path(nodes, waiter), waiter.floors, strict=True)
    return [max(node.served, floor) for node, floor in path]


def _standing(
    nodes: Mapping[tuple[str, str], _Node], waiter: PickView
) -> tuple[bool, float, float, int]:
    """Sorts waiters by whose tenant goes first."""
    group, tenant, _ = _path(nodes, waiter)
    group_score, tenant_score, _ = _scores(nodes, waiter)
    if waiter.shares is None:
        over, group_score = True, 0.0
    else:
        over = not are_under(waiter.shares, (group.taken, tenant.taken))
    return (over, group_score, tenant_score, -waiter.waited_ms)


def _standing_inside(nodes: Mapping[tuple[str, str], _Node], waiter: PickView) -> tuple[float, int]:
    """Sorts waiters of one tenant, the first to go first."""
    return (_scores(nodes, waiter)[2], -waiter.waited_ms)


def _picked(nodes: Mapping[tuple[str, str], _Node], waiter: PickView, is_over: bool) -> PickView:
    """What it is picked by; from then on it counts as running."""
    scores = _scores(nodes, waiter)
    for node, score, weight in zip(_path(nodes, waiter), scores, waiter.weights, strict=True):
        node.taken += 1
        node.served = score + waiter.tokens / weight
    group_score, tenant_score, key_score = scores
    return msgspec.structs.replace(
        waiter,
        under_share=None if waiter.shares is None else not is_over,
        group_score=group_score,
        tenant_score=tenant_score,
        key_score=key_score,
    )
