"""Who is next in a pool: the choice of group and tenant. The key is chosen by score alone, in every
algorithm.

* `Hierarchical`: the pool is split over the groups that have work by group weight, and each group's
  part over its tenants that have work. Of the waiting tenants under their share in a group under
  its share, the lowest group score goes first, and in it the lowest tenant score. Where there is
  none, the slot is lent to whoever comes first by score alone.
* `Weighted`: no groups; the lowest tenant score goes first.

Both walk contenders in the order of their scores and stop at the first that may go. A node that
occupies nothing may always go, so the walk passes over nodes that occupy slots only: it is
bounded by the pool's size and not by how many wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final, Protocol

from dataplane.scheduler.fairness import Level, Node
from dataplane.scheduler.state import Group, Tenant
from shared.policy import GroupPolicy, TenantPolicy

EVERYONE: Final = ""
"""The id of the one group in which all tenants stand where groups do not count."""


GROUPS_MAX: Final = 16
"""Groups of which a replica tells the others who may come first: one that is not told of is hidden
behind the others until it is."""
TENANTS_MAX: Final = 4
"""Tenants of each that it tells of, in order, fewer where `GROUPS_MAX` would not do for all; and as
many that are at their caps for all it knows: for how long is for the fleet to say."""


class Order(Protocol):
    """One algorithm."""

    name: str

    def group_of(self, tenant: TenantPolicy) -> GroupPolicy:
        """The group a tenant is scheduled in."""
        ...

    def next(self, groups: Level[Group], slots: int) -> Tenant | None:
        """The tenant that gets the next free slot of a pool with `slots` to share; None if nobody
        can go."""
        ...

    def candidates(self, groups: Level[Group], slots: int) -> list[Tenant]:
        """The tenants of whom one comes first, whatever the other replicas did meanwhile."""
        ...

    def shares(self, tenant: Tenant, slots: int) -> tuple[int, int] | None:
        """What part of `slots` a tenant's group has, and what part of that the tenant; None where
        shares do not count."""
        ...


class Hierarchical:
    name = "hierarchical"

    def group_of(self, tenant: TenantPolicy) -> GroupPolicy:
        return tenant.group

    def next(self, groups: Level[Group], slots: int) -> Tenant | None:
        for group in groups.in_order():
            if not _under_share(group, slots):
                continue
            part = groups.shares.of(group.weight, group.name, slots)
            for tenant in group.tenants.in_order():
                if _under_share(tenant, part):
                    return tenant
        return _first_by_score(groups)

    def candidates(self, groups: Level[Group], slots: int) -> list[Tenant]:
        found: dict[str, Tenant] = {}
        most = max(1, min(TENANTS_MAX, GROUPS_MAX // max(1, len(groups.contenders))))
        for group in islice(groups.in_order(), GROUPS_MAX):
            part = groups.shares.of(group.weight, group.name, slots)
            under = (each for each in group.tenants.in_order() if _under_share(each, part))
            for tenant in (*_first_few(group, most), *islice(under, 1)):
                found[tenant.id] = tenant
        return list(found.values())

    def shares(self, tenant: Tenant, slots: int) -> tuple[int, int] | None:
        group = tenant.group
        part = group.level.shares.of(group.weight, group.name, slots)
        return part, group.tenants.shares.of(tenant.weight, tenant.name, part)


class Weighted:
    name = "weighted"
    _everyone = GroupPolicy(name=EVERYONE, weight=1)

    def group_of(self, tenant: TenantPolicy) -> GroupPolicy:
        return self._everyone

    def next(self, groups: Level[Group], slots: int) -> Tenant | None:
        return _first_by_score(groups)

    def candidates(self, groups: Level[Group], slots: int) -> list[Tenant]:
        group = groups.first()
        return [] if group is None else list(_first_few(group, TENANTS_MAX))

    def shares(self, tenant: Tenant, slots: int) -> tuple[int, int] | None:
        return None


def _under_share(node: Node, slots: int) -> bool:
    return node.level.shares.under(node.weight, node.name, slots, node.taken)


def _first_few(group: Group, most: int) -> Iterator[Tenant]:
    """The first tenants of a group, those at their caps told apart."""
    room = {False: most, True: most}
    for tenant in group.tenants.in_order():
        cap = tenant.configured_cap
        is_capped = cap is not None and tenant.taken >= cap
        room[is_capped] -= 1
        if room[is_capped] >= 0:
            yield tenant
        if not room[False]:
            return


def _first_by_score(groups: Level[Group]) -> Tenant | None:
    group = groups.first()
    return None if group is None else group.tenants.first()
