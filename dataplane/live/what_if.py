"""What would become of one more request now, judged as everybody who waits already is. PURE."""

from __future__ import annotations

from collections.abc import Sequence

from dataplane.live.verdicts import effective_size, judge
from dataplane.live_view import GroupView, KeyView, PoolView, TenantView
from shared.live_state import (
    Cause,
    Counts,
    LiveGroup,
    LiveKey,
    LivePool,
    LiveState,
    LiveTenant,
    Newcomer,
    Outlook,
)

_CAPPED = (Cause.AT_TENANT_CAP, Cause.AT_KEY_CAP)


def outlook(state: LiveState, newcomer: Newcomer) -> Outlook:
    """Whether a request would be admitted at once as things stand, and if not, why it would wait.

    It is about slots alone: budgets are looked at before.
    """
    pool = next((each for each in state.pools if each.id == newcomer.pool_id), None)
    view = _with_one_more(pool, newcomer)
    left = state.global_max_in_flight - state.in_flight - state.held
    verdicts = judge(
        view,
        slots=effective_size(view.size, view.occupied, left),
        by_group=state.algorithm == "hierarchical",
        ceiling_reached=left <= 0,
    )
    tenant = next(each for each in view.tenants if each.id == newcomer.tenant_id)
    key = next(each for each in view.keys if each.id == newcomer.key_id)
    cause = verdicts.keys[key.id].cause
    rivals = pool is not None and any(
        each.queued and each.cause not in _CAPPED for each in pool.tenants
    )
    is_free = view.occupied < view.size and left > 0 and cause not in _CAPPED
    return Outlook(
        is_admitted=is_free and not rivals,
        cause=cause,
        size=view.size,
        in_flight=view.in_flight,
        queued=view.queued - 1,
        held=view.held,
        tenant_slots=tenant.occupied,
        fair_slots=verdicts.tenants[tenant.id].fair_slots,
        key_slots=key.occupied,
    )


def _with_one_more(pool: LivePool | None, new: Newcomer) -> PoolView:
    """The pool's view with the request in its queue."""
    tenants = (
        [] if pool is None else [_tenant(each, each.id == new.tenant_id) for each in pool.tenants]
    )
    if all(each.id != new.tenant_id for each in tenants):
        tenants.append(
            TenantView(
                id=new.tenant_id,
                name=new.tenant,
                group=new.group,
                weight=new.tenant_weight,
                max_in_flight=new.tenant_cap,
                queued=1,
            )
        )
    keys = [] if pool is None else [_key(each, each.id == new.key_id) for each in pool.keys]
    if all(each.id != new.key_id for each in keys):
        keys.append(
            KeyView(
                id=new.key_id,
                tenant_id=new.tenant_id,
                name=new.key,
                weight=new.key_weight,
                max_in_flight=new.key_cap,
                queued=1,
            )
        )
    groups = () if pool is None else pool.groups
    whole = Counts() if pool is None else pool
    return PoolView(
        id=new.pool_id,
        model=new.model,
        size=new.size if pool is None else pool.size,
        configured_size=new.size,
        size_source="",
        in_flight=whole.in_flight,
        queued=whole.queued + 1,
        held=whole.held,
        virtual_time=0.0,
        oldest_wait_ms=0,
        groups=tuple(_groups(groups, new)),
        tenants=tuple(tenants),
        keys=tuple(keys),
    )


def _groups(groups: Sequence[LiveGroup], new: Newcomer) -> list[GroupView]:
    weights = {each.name: each.weight for each in groups}
    weights.setdefault(new.group, new.group_weight)
    return [GroupView(name=name, weight=weight) for name, weight in weights.items()]


def _tenant(tenant: LiveTenant, is_its: bool) -> TenantView:
    return TenantView(
        id=tenant.id,
        name=tenant.name,
        group=tenant.group,
        weight=tenant.weight,
        max_in_flight=tenant.max_in_flight,
        in_flight=tenant.in_flight,
        queued=tenant.queued + is_its,
        held=tenant.held,
        served_tokens=tenant.served_tokens,
        share_score=tenant.share_score,
        is_capped=tenant.cause is Cause.AT_TENANT_CAP,
    )


def _key(key: LiveKey, is_its: bool) -> KeyView:
    return KeyView(
        id=key.id,
        tenant_id=key.tenant_id,
        name=key.name,
        weight=key.weight,
        max_in_flight=key.max_in_flight,
        in_flight=key.in_flight,
        queued=key.queued + is_its,
        held=key.held,
        served_tokens=key.served_tokens,
        share_score=key.share_score,
        is_capped=key.cause is Cause.AT_KEY_CAP,
        is_passed=key.cause is Cause.PASSED_BY_WARM_SESSION,
    )
