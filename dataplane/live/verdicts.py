"""What a pool's counts mean: fair slots, who is below its share, and why each waits. PURE.

*Fair slots* are the exact weighted split of the effective pool: over the groups with work by
weight, each group's part over its tenants with work, each tenant's over its keys. They have
decimals; the scheduler cuts whole slots (`dataplane.scheduler.shares`), which differ by less than
one where everybody is worth a slot.

A tenant is *below its share* when it has requests queued, occupies fewer slots than its fair ones,
and another tenant of the pool occupies at least a slot more than its own. Slots are never taken
back, so without such another the wait is the pool or a cap being full. That other is *ahead of its
share*.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dataplane.live_view import Counts, KeyView, PoolView, TenantView
from shared.live_state import Cause


@dataclass(frozen=True, slots=True)
class Verdict:
    """On one tenant or key."""

    fair_slots: float
    below_share: bool
    cause: Cause


@dataclass(frozen=True, slots=True)
class Verdicts:
    """On one pool, by group name, tenant id and key id."""

    groups: Mapping[str, float]
    """Parts of the pool, as fractions of 1."""
    tenants: Mapping[str, Verdict]
    keys: Mapping[str, Verdict]


@dataclass(frozen=True, slots=True)
class _Claimant:
    """A tenant or key beside those it shares with."""

    counts: Counts
    fair: float
    capped: Cause | None
    """The cap it is at, or that all below it are at."""
    is_passed: bool = False

    @property
    def excess(self) -> float:
        return self.counts.occupied - self.fair

    @property
    def contends(self) -> bool:
        return self.counts.queued > 0 and self.capped is None


def effective_size(size: int, occupied: int, ceiling_leaves: int) -> int:
    """The slots that shares are cut from: no more than the limit over all pools lets be used, and
    at least one unless the pool has none."""
    return min(size, max(1, occupied + max(0, ceiling_leaves)))


def judge(pool: PoolView, *, slots: int, by_group: bool, ceiling_reached: bool) -> Verdicts:
    """All verdicts on a pool of `slots` to share; `by_group` False: tenants share it directly."""
    groups, tenants = _fair(pool, slots, by_group)
    keys = _fair_keys(pool.keys, pool.tenants, tenants)
    general = _general(pool, ceiling_reached)
    by_tenant = {
        id: _Claimant(view, tenants[id], _tenant_cap(view))
        for id, view in ((view.id, view) for view in pool.tenants)
    }
    on_tenants = _verdicts(by_tenant, general)
    on_keys: dict[str, Verdict] = {}
    siblings: dict[str, dict[str, _Claimant]] = {}
    for view in pool.keys:
        tenant = by_tenant.get(view.tenant_id)
        siblings.setdefault(view.tenant_id, {})[view.id] = _Claimant(
            view, keys[view.id], _key_cap(view, tenant), view.is_passed
        )
    for tenant_id, claimants in siblings.items():
        above = on_tenants.get(tenant_id)
        on_keys |= _verdicts(claimants, general, None if above is None else above.cause)
    return Verdicts(groups, on_tenants, on_keys)


def _fair(pool: PoolView, slots: int, by_group: bool) -> tuple[dict[str, float], dict[str, float]]:
    """Parts of the pool by group name, and fair slots by tenant id."""
    listed: Counter[str] = Counter()
    for tenant in pool.tenants:
        listed[tenant.group] += tenant.weight
    # A list that was cut still says what its whole weighs.
    inside = {g.name: max(1, g.tenant_weight, listed[g.name]) for g in pool.groups}
    outside = {g.name: g.weight if by_group else inside[g.name] for g in pool.groups}
    total = sum(outside.values())
    groups = {name: weight / total for name, weight in outside.items()}
    tenants = {
        t.id: slots * groups.get(t.group, 0.0) * t.weight / inside.get(t.group, t.weight)
        for t in pool.tenants
    }
    return groups, tenants


def _fair_keys(
    keys: Iterable[KeyView], tenants: Iterable[TenantView], fair: Mapping[str, float]
) -> dict[str, float]:
    keys = tuple(keys)
    listed: Counter[str] = Counter()
    for key in keys:
        listed[key.tenant_id] += key.weight
    whole = {t.id: max(t.key_weight, listed[t.id]) for t in tenants}
    return {
        key.id: fair.get(key.tenant_id, 0.0)
        * key.weight
        / whole.get(key.tenant_id, listed[key.tenant_id])
        for key in keys
    }


def _general(pool: PoolView, ceiling_reached: bool) -> Cause:
    """Why anybody waits here who is at no cap and has its share."""
    if pool.size == 0:
        return Cause.NO_READY_BACKEND
    if pool.occupied < pool.size and ceiling_reached:
        return Cause.GLOBAL_CEILING
    return Cause.POOL_FULL


def _tenant_cap(view: TenantView) -> Cause | None:
    if _is_capped(view):
        return Cause.AT_TENANT_CAP
    return Cause.AT_KEY_CAP if view.keys_capped else None


def _key_cap(view: KeyView, tenant: _Claimant | None) -> Cause | None:
    if tenant is not None and tenant.capped is Cause.AT_TENANT_CAP:
        return Cause.AT_TENANT_CAP
    return Cause.AT_KEY_CAP if _is_capped(view) else None


def _is_capped(view: TenantView | KeyView) -> bool:
    cap = view.max_in_flight
    return view.is_capped or (cap is not None and view.occupied >= cap)


def _verdicts(
    claimants: Mapping[str, _Claimant], general: Cause, above: Cause | None = None
) -> dict[str, Verdict]:
    """On siblings; `above` is what keeps whoever they belong to waiting."""
    most_excess = max((each.excess for each in claimants.values()), default=0.0)
    contenders = sum(each.contends for each in claimants.values())
    found = {}
    for id, each in claimants.items():
        # Who is below has no excess itself, so the most excess is another's.
        below = each.counts.queued > 0 and each.excess < 0 and most_excess >= 1
        ahead = each.excess >= 1 and contenders - each.contends > 0
        found[id] = Verdict(each.fair, below, _cause(each, below, ahead, general, above))
    return found


def _cause(
    claimant: _Claimant, below: bool, ahead: bool, general: Cause, above: Cause | None
) -> Cause:
    if claimant.counts.queued == 0:
        return Cause.IDLE
    if general is Cause.NO_READY_BACKEND:
        return general
    if claimant.capped is not None:
        return claimant.capped
    if general is Cause.GLOBAL_CEILING:
        return general
    if claimant.is_passed:
        return Cause.PASSED_BY_WARM_SESSION
    if above in (Cause.BELOW_SHARE, Cause.AHEAD_OF_SHARE):
        return above
    if below:
        return Cause.BELOW_SHARE
    return Cause.AHEAD_OF_SHARE if ahead else general
