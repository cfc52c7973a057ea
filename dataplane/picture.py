"""The live picture: what the scheduler of this replica looks like now, as others may read it.

One function makes it, for the published view, the replica's own page and tests alike.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import nsmallest
from itertools import chain
from typing import Any

import msgspec

from dataplane.live.picks import may_be_next, next_in_line
from dataplane.live_view import (
    KEYS_A_POOL,
    KEYS_IN_ALL,
    TENANTS_A_POOL,
    TENANTS_IN_ALL,
    GroupView,
    KeyView,
    LevelView,
    PoolView,
    ReplicaView,
    TenantView,
    busiest,
    fullness,
    merge_pool,
)
from dataplane.metrics import PoolFigures
from dataplane.scheduler.fairness import SCORE_UNIT, Level, Node
from dataplane.scheduler.order import EVERYONE
from dataplane.scheduler.scheduler import Scheduler
from dataplane.scheduler.state import Key, Pool, Tenant
from shared.policy import KeyPolicy, effective_weight


@dataclass(frozen=True, slots=True)
class Identity:
    """Who draws the picture; all of it stays as it is while the process runs."""

    instance: str
    url: str
    """Where its operations listener is reached."""
    version: str
    algorithm: str
    started_at: float
    """Unix seconds."""
    ttl_secs: float | None = None
    """How long the others count it after its last heartbeat; None: it is in no fleet."""


def replica(
    core: Scheduler, now: float, who: Identity, *, mode: str, replicas: int, interval: float = 0.5
) -> ReplicaView:
    """All of it; `now` is the time of the scheduler's events, `interval` seconds between two."""
    views = pools(core, now)
    return ReplicaView(
        instance=who.instance,
        url=who.url,
        version=who.version,
        mode=mode,
        algorithm=who.algorithm,
        replicas=replicas,
        started_at=who.started_at,
        taken_at=time.time(),
        global_max_in_flight=core.ceiling,
        configured_global_max_in_flight=core.configured_ceiling,
        interval_ms=round(interval * 1000),
        replica_ttl_secs=who.ttl_secs,
        in_flight=sum(view.in_flight for view in views),
        queued=sum(view.queued for view in views),
        held=sum(view.held for view in views),
        pools=views,
    )


def pools(core: Scheduler, now: float) -> tuple[PoolView, ...]:
    """Every pool with work, fullest first; `now` is the time of the scheduler's events.

    Tenants and keys are bounded, in each pool and over all, the busiest first.
    """
    views = sorted((_pool(core, pool, now) for pool in core.pools if pool.is_seen), key=fullness)
    tenants = nsmallest(TENANTS_IN_ALL, chain.from_iterable(v.tenants for v in views), key=busiest)
    keys = nsmallest(KEYS_IN_ALL, chain.from_iterable(v.keys for v in views), key=busiest)
    if sum(len(view.tenants) for view in views) == len(tenants) and (
        sum(len(view.keys) for view in views) == len(keys)
    ):
        return tuple(views)
    kept = set(map(id, chain(tenants, keys)))
    return tuple(
        msgspec.structs.replace(
            view,
            tenants=tuple(each for each in view.tenants if id(each) in kept),
            keys=tuple(each for each in view.keys if id(each) in kept),
        )
        for view in views
    )


def totals(core: Scheduler) -> tuple[PoolView, ...]:
    """Every pool with work and its groups, fullest first; nobody is listed in them."""
    views = (_totals(pool) for pool in core.pools if pool.is_seen)
    return tuple(sorted(views, key=fullness))


def figures(core: Scheduler) -> Iterable[PoolFigures]:
    """What the gauges show: one for each name.

    A model that is deleted and made again has two pools until the last request of the old one has
    ended. What still runs there counts with the new one, whose size is in force.
    """
    found: dict[str, PoolFigures] = {}
    for pool in sorted(core.pools, key=lambda pool: pool.gone):
        name = pool.policy.model
        known = found.get(name, PoolFigures(name, pool.size, 0, 0, 0))
        found[name] = PoolFigures(
            name,
            known.size,
            known.in_flight + pool.running,
            known.queued + pool.waiting,
            known.held + pool.held + len(pool.fleet_holds),
        )
    return found.values()


def _pool(core: Scheduler, pool: Pool, now: float) -> PoolView:
    tenants = list(pool.tenants.values())
    keys = [key for tenant in tenants for key in tenant.keys.nodes.values() if key.has_work]
    heads = [head.arrived_at for key in keys if (head := key.head()) is not None]
    view = msgspec.structs.replace(
        _totals(pool),
        oldest_wait_ms=round((now - min(heads)) * 1000) if heads else 0,
        tenants=tuple(_tenant(each) for each in nsmallest(TENANTS_A_POOL, tenants, key=_busy)),
        keys=tuple(_key(pool, each) for each in nsmallest(KEYS_A_POOL, keys, key=_busy)),
        next_in_line=(picks := next_in_line(core, pool, now)),
        may_be_next=may_be_next(core, pool, now, picks),
    )
    if not pool.fleet_holds:
        return view
    holds = (_fleet_hold(view, pool, hold.key) for hold in pool.fleet_holds.values())
    return merge_pool([view, *holds])


def _fleet_hold(view: PoolView, pool: Pool, key: KeyPolicy) -> PoolView:
    """Whose slot the fleet holds since it was given back here; the pool's total has it already."""
    tenant, group = key.tenant, key.tenant.group
    return msgspec.structs.replace(
        view,
        in_flight=0,
        queued=0,
        held=0,
        affinity={},
        groups=(GroupView(name=group.name, weight=group.weight, held=1),),
        tenants=(
            TenantView(
                id=tenant.id,
                name=tenant.name,
                group=group.name,
                weight=effective_weight(tenant.weight, pool.policy.admission_weight),
                max_in_flight=tenant.max_in_flight,
                held=1,
            ),
        ),
        keys=(
            KeyView(
                id=key.id,
                tenant_id=tenant.id,
                name=key.name,
                weight=key.weight,
                max_in_flight=key.max_in_flight,
                held=1,
            ),
        ),
    )


def _totals(pool: Pool) -> PoolView:
    return PoolView(
        id=pool.policy.id,
        model=pool.policy.model,
        size=pool.size,
        configured_size=pool.policy.size,
        size_source=pool.policy.size_source,
        in_flight=pool.running,
        queued=pool.waiting,
        held=pool.held + len(pool.fleet_holds),
        virtual_time=_chosen_from(pool).virtual_time / SCORE_UNIT,
        top_level=_level(_chosen_from(pool)),
        oldest_wait_ms=0,
        groups=_groups(pool.tenants.values()),
        tenants=(),
        keys=(),
        affinity=dict(pool.affinity_events),
    )


def _chosen_from(pool: Pool) -> Level[Any]:
    """The first level that has anything to choose: groups, or tenants where groups do not count."""
    groups = pool.groups.nodes
    if len(groups) == 1 and EVERYONE in groups:
        return groups[EVERYONE].tenants
    return pool.groups


def _level(level: Level[Any]) -> LevelView:
    lowest = level.lowest
    return LevelView(
        virtual_time=level.virtual_time / SCORE_UNIT,
        lowest=None if lowest is None else lowest / SCORE_UNIT,
    )


def _groups(tenants: Iterable[Tenant]) -> tuple[GroupView, ...]:
    """The groups of tenants with work, in name order, whether or not they count here."""
    members: dict[str, list[Tenant]] = {}
    for tenant in tenants:
        members.setdefault(tenant.policy.group.name, []).append(tenant)
    views = []
    for name, each in sorted(members.items()):
        counts = each[0].group.id == name
        # Where it counts, the weight is the one it counts with, whichever tenant brought it.
        weight = (each[0].group.policy if counts else each[0].policy.group).weight
        served = (
            each[0].group.served_tokens if counts else sum(tenant.served_tokens for tenant in each)
        )
        views.append(
            GroupView(
                name=name,
                weight=weight,
                in_flight=sum(tenant.running for tenant in each),
                queued=sum(tenant.waiting for tenant in each),
                held=sum(tenant.held for tenant in each),
                served_tokens=served,
                share_score=served / weight,
                tenants=len(each),
                tenant_weight=sum(tenant.weight for tenant in each),
                tenants_level=_level(each[0].group.tenants) if counts else LevelView(),
            )
        )
    return tuple(views)


def _tenant(tenant: Tenant) -> TenantView:
    return TenantView(
        id=tenant.id,
        name=tenant.policy.name,
        group=tenant.policy.group.name,
        weight=tenant.weight,
        max_in_flight=tenant.configured_cap,
        in_flight=tenant.running,
        queued=tenant.waiting,
        held=tenant.held,
        served_tokens=tenant.served_tokens,
        share_score=tenant.score / SCORE_UNIT,
        is_capped=tenant.capped,
        keys_capped=tenant.waiting > 0 and not tenant.capped and tenant.keys.head() is None,
        key_weight=tenant.keys.shares.total_weight,
        keys_level=_level(tenant.keys),
    )


def _key(pool: Pool, key: Key) -> KeyView:
    return KeyView(
        id=key.id,
        tenant_id=key.tenant.id,
        name=key.policy.name,
        weight=key.weight,
        max_in_flight=key.configured_cap,
        in_flight=key.running,
        queued=key.waiting,
        held=key.held,
        served_tokens=key.served_tokens,
        share_score=key.score / SCORE_UNIT,
        is_capped=key.capped,
        is_passed=pool.head(key) is not key.head(),
    )


def _busy(node: Node) -> tuple[int, int, str]:
    return (-(node.occupied + node.waiting), -node.waiting, node.name)
