"""What the other replicas have, so that this one's choice is the fleet's.

Twice a second a replica that shares slots reads the views of the others and the scores of what
waits here, and hands both to its scheduler. Views may be as old as three intervals; what is decided
between replicas is decided by the books, which are never old. So what is read here only says how
shares are cut, which of its own waiters a replica puts forward, and where a newcomer joins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from dataplane.live_view import (
    GroupView,
    KeyView,
    LevelView,
    PoolView,
    ReplicaView,
    TenantView,
)
from dataplane.scheduler.events import FleetSeen
from dataplane.scheduler.order import EVERYONE, Hierarchical
from dataplane.scheduler.scheduler import Scheduler
from dataplane.scheduler.standing import LevelElsewhere, PoolElsewhere, Served, Sibling
from dataplane.scheduler.state import Pool

BEYOND_ALL: Final = 1e100
"""No score comes anywhere near."""
NODES_A_POOL: Final = 1024
"""Waiting tenants and keys of a pool whose scores are read at most, each kind."""


def seen(others: Iterable[ReplicaView], algorithm: str, served: Mapping[str, Served]) -> FleetSeen:
    """What the scheduler is told: the views of those that share slots, put together by pool."""
    views = [view for view in others if view.mode == "shared"]
    found: dict[str, list[PoolView]] = {}
    for view in views:
        for pool in view.pools:
            found.setdefault(pool.id, []).append(pool)
    return FleetSeen(
        sum(view.occupied for view in views),
        {id: _pool(pools, algorithm) for id, pools in found.items()},
        served,
    )


def asked(core: Scheduler) -> dict[str, list[str]]:
    """By pool, the nodes whose scores this replica wants to know, as the books name them."""
    return {pool.policy.id: _waiting(pool) for pool in core.pools if pool.waiting}


def served(fields: Sequence[str], values: Sequence[str | None]) -> Served:
    """The scores that the books have of the nodes asked for: none is as good as zero."""
    kinds: dict[str, dict[str, float]] = {"g": {}, "t": {}, "k": {}}
    for field, value in zip(fields, values, strict=True):
        kind, _, id = field.partition(":")
        kinds[kind][id] = 0.0 if value is None else _score(value)
    return Served(kinds["g"], kinds["t"], kinds["k"])


def _score(text: str) -> float:
    """A score as the books write it; what is none counts for nothing, as for the scripts."""
    try:
        score = float(text.partition(" ")[0])
    except ValueError:
        return 0.0
    return score if score < BEYOND_ALL else 0.0


def _waiting(pool: Pool) -> list[str]:
    groups = [group for group in pool.groups.nodes.values() if group.waiting]
    tenants = [tenant for tenant in pool.tenants.values() if tenant.waiting][:NODES_A_POOL]
    keys = [key for each in tenants for key in each.keys.nodes.values() if key.waiting]
    return [
        *(f"g:{group.id}" for group in groups),
        *(f"t:{tenant.id}" for tenant in tenants),
        *(f"k:{key.id}" for key in keys[:NODES_A_POOL]),
    ]


def _pool(views: Sequence[PoolView], algorithm: str) -> PoolElsewhere:
    tenants = [tenant for view in views for tenant in view.tenants]
    keys: dict[str, list[KeyView]] = {}
    for key in (key for view in views for key in view.keys):
        keys.setdefault(key.tenant_id, []).append(key)
    of_tenant: dict[str, list[TenantView]] = {}
    for tenant in tenants:
        of_tenant.setdefault(tenant.id, []).append(tenant)
    top = [view.top_level for view in views]
    taken = sum(view.occupied for view in views)
    inside = {
        id: _level([(each.id, each) for each in keys.get(id, ())], [t.keys_level for t in same])
        for id, same in of_tenant.items()
    }
    if algorithm != Hierarchical.name:
        everyone = _level([(each.id, each) for each in tenants], top)
        return PoolElsewhere(taken, LevelElsewhere(), {EVERYONE: everyone}, inside)
    groups = [group for view in views for group in view.groups]
    of_group: dict[str, list[TenantView]] = {group.name: [] for group in groups}
    for tenant in tenants:
        of_group.setdefault(tenant.group, []).append(tenant)
    levels: dict[str, list[LevelView]] = {}
    for group in groups:
        levels.setdefault(group.name, []).append(group.tenants_level)
    return PoolElsewhere(
        taken,
        _level([(each.name, each) for each in groups], top),
        {
            name: _level([(each.id, each) for each in members], levels.get(name, []))
            for name, members in of_group.items()
        },
        inside,
    )


def _level(
    nodes: Iterable[tuple[str, GroupView | TenantView | KeyView]], levels: Sequence[LevelView]
) -> LevelElsewhere:
    siblings: dict[str, Sibling] = {}
    for id, view in nodes:
        known = siblings.get(id)
        taken, waits = (known.taken, known.waits) if known else (0, False)
        siblings[id] = Sibling(
            name=_order_name(view),
            weight=view.weight,
            taken=taken + view.occupied,
            waits=waits or view.queued > 0,
        )
    return LevelElsewhere(
        siblings,
        min((level.lowest for level in levels if level.lowest is not None), default=None),
        max((level.virtual_time for level in levels), default=0.0),
    )


def _order_name(view: GroupView | TenantView | KeyView) -> str:
    return view.name if isinstance(view, GroupView) else f"{view.name}\0{view.id}"
