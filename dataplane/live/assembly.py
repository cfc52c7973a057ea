"""Puts views together to the one picture that the API, pages and commands show. PURE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from dataplane import live_view
from dataplane.live.fleet_line import next_over
from dataplane.live.verdicts import Verdicts, effective_size, judge
from dataplane.live_view import PoolView, ReplicaView
from shared import policy
from shared.live_state import (
    LiveGroup,
    LiveKey,
    LivePool,
    LiveState,
    LiveTenant,
    NextPick,
)

NOT_SHARED: Final = {
    "local": "mode local: limits hold on this replica alone",
    "split": "mode split: each replica enforces its own part of every limit",
    "fallback": "mode fallback: each replica enforces its own part of every limit until all that"
    " it runs is on the books in Redis again",
}
"""Why the picture of a replica in such a mode is its own alone."""
WHOLE: Final = (
    "mode fallback: each replica enforces the whole of every limit by itself until all that it runs"
    " is on the books in Redis again"
)
"""The same where replicas do not count each other."""


def assemble(
    own: ReplicaView,
    others: Sequence[ReplicaView] = (),
    *,
    state_age_ms: int = 0,
    scope_reason: str | None = None,
    source: Literal["replica", "views"] = "replica",
    source_reason: str | None = None,
) -> LiveState:
    """The live state as the replica of `own` answers it.

    Where slots are shared it is the cluster's: `others` are merged with it. Else, or with a
    `scope_reason`, it is that replica's alone. `state_age_ms` is the age of the oldest view.
    """
    scope_reason = scope_reason or not_shared(own)
    is_cluster = scope_reason is None
    views = [own, *others] if is_cluster else [own]
    merged = live_view.merge(views) if is_cluster else own.pools
    by_group = own.algorithm == "hierarchical"
    in_flight = sum(pool.in_flight for pool in merged)
    held = sum(pool.held for pool in merged)
    left = own.global_max_in_flight - in_flight - held
    by_pool = _by_pool(views)
    return LiveState(
        instance=own.instance,
        mode=own.mode,
        algorithm=own.algorithm,
        scope="cluster" if is_cluster else "replica",
        scope_reason=scope_reason,
        source=source,
        source_reason=source_reason,
        # One that came since this one's last heartbeat is seen before it is counted.
        replicas=max(own.replicas, len(views)),
        replicas_reporting=len(views),
        replica_ttl_secs=own.replica_ttl_secs,
        state_age_ms=state_age_ms,
        global_max_in_flight=own.global_max_in_flight,
        configured_global_max_in_flight=own.configured_global_max_in_flight,
        in_flight=in_flight,
        queued=sum(pool.queued for pool in merged),
        held=held,
        replica_in_flight=own.in_flight,
        replica_queued=own.queued,
        cluster_in_flight=in_flight if is_cluster else None,
        pools=tuple(
            _pool(
                pool,
                by_pool[pool.id].get(own.instance),
                slots=effective_size(pool.size, pool.occupied, left),
                ceiling_reached=left <= 0,
                by_group=by_group,
                is_cluster=is_cluster,
                picks=_picks(pool, by_pool[pool.id]),
            )
            for pool in merged
        ),
    )


def not_shared(own: ReplicaView) -> str | None:
    """Why a replica's picture is its own alone; None where slots are shared."""
    if own.mode == "fallback" and own.global_max_in_flight == own.configured_global_max_in_flight:
        return WHOLE
    return NOT_SHARED.get(own.mode)


def _pool(
    pool: PoolView,
    own: PoolView | None,
    *,
    slots: int,
    ceiling_reached: bool,
    by_group: bool,
    is_cluster: bool,
    picks: Sequence[NextPick],
) -> LivePool:
    verdicts = judge(pool, slots=slots, by_group=by_group, ceiling_reached=ceiling_reached)
    groups = _groups(pool, verdicts, slots, by_group)
    return LivePool(
        id=pool.id,
        model=pool.model,
        size=pool.size,
        configured_size=pool.configured_size,
        size_source=pool.size_source,
        in_flight=pool.in_flight,
        queued=pool.queued,
        held=pool.held,
        borrowed=sum(group.borrowed for group in groups),
        replica_in_flight=0 if own is None else own.in_flight,
        replica_queued=0 if own is None else own.queued,
        cluster_in_flight=pool.in_flight if is_cluster else None,
        virtual_time=pool.virtual_time,
        oldest_wait_ms=pool.oldest_wait_ms,
        groups=groups,
        tenants=tuple(_tenants(pool, verdicts)),
        keys=tuple(_keys(pool, verdicts)),
        next_in_line=tuple(picks),
        affinity=pool.affinity,
    )


def _groups(
    pool: PoolView, verdicts: Verdicts, slots: int, by_group: bool
) -> tuple[LiveGroup, ...]:
    caps = (
        policy.split(slots, {group.name: group.weight for group in pool.groups}) if by_group else {}
    )
    return tuple(
        LiveGroup(
            name=group.name,
            weight=group.weight,
            in_flight=group.in_flight,
            queued=group.queued,
            held=group.held,
            weight_share=verdicts.groups[group.name],
            fair_slots=slots * verdicts.groups[group.name],
            slot_cap=caps.get(group.name),
            borrowed=max(0, group.occupied - caps.get(group.name, group.occupied)),
            served_tokens=group.served_tokens,
            share_score=group.share_score,
            tenants=group.tenants,
        )
        for group in pool.groups
    )


def _tenants(pool: PoolView, verdicts: Verdicts) -> list[LiveTenant]:
    return [
        LiveTenant(
            id=tenant.id,
            name=tenant.name,
            group=tenant.group,
            weight=tenant.weight,
            max_in_flight=tenant.max_in_flight,
            in_flight=tenant.in_flight,
            queued=tenant.queued,
            held=tenant.held,
            fair_slots=verdict.fair_slots,
            served_tokens=tenant.served_tokens,
            share_score=tenant.share_score,
            below_share=verdict.below_share,
            cause=verdict.cause,
        )
        for tenant in pool.tenants
        for verdict in (verdicts.tenants[tenant.id],)
    ]


def _keys(pool: PoolView, verdicts: Verdicts) -> list[LiveKey]:
    return [
        LiveKey(
            id=key.id,
            tenant_id=key.tenant_id,
            name=key.name,
            weight=key.weight,
            max_in_flight=key.max_in_flight,
            in_flight=key.in_flight,
            queued=key.queued,
            held=key.held,
            fair_slots=verdict.fair_slots,
            served_tokens=key.served_tokens,
            share_score=key.share_score,
            below_share=verdict.below_share,
            cause=verdict.cause,
        )
        for key in pool.keys
        for verdict in (verdicts.keys[key.id],)
    ]


def _by_pool(views: Sequence[ReplicaView]) -> Mapping[str, Mapping[str, PoolView]]:
    """What each replica says of a pool."""
    found: dict[str, dict[str, PoolView]] = {}
    for view in views:
        for pool in view.pools:
            found.setdefault(pool.id, {})[view.instance] = pool
    return found


def _picks(pool: PoolView, views: Mapping[str, PoolView]) -> list[NextPick]:
    """Whom one replica picks next is what it says; several are put in one order."""
    ((instance, own), *others) = views.items()
    picks = next_over(pool, views) if others else ((instance, each) for each in own.next_in_line)
    return [
        NextPick(
            instance=instance,
            group=pick.group,
            tenant_id=pick.tenant_id,
            tenant=pick.tenant,
            key_id=pick.key_id,
            key=pick.key,
            under_share=pick.under_share,
            group_score=pick.group_score,
            tenant_score=pick.tenant_score,
            key_score=pick.key_score,
            waited_ms=pick.waited_ms,
            tokens=pick.tokens,
        )
        for instance, pick in picks
    ]
