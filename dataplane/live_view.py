"""What one replica says of its scheduler, and how several replicas' words become one picture.

A replica publishes a `ReplicaView` twice a second; whoever shows the fleet merges those that are
alive. Counts add up. What is one number for the whole fleet (a limit, a weight, a name) is taken
from the newest view that has it. Pool and group totals are always complete; tenants and keys are
bounded, the busiest first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

import msgspec

TENANTS_A_POOL: Final = 512
KEYS_A_POOL: Final = 128
TENANTS_IN_ALL: Final = 2_048
KEYS_IN_ALL: Final = 512


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that run, wait, and slots held for a session's next step."""

    in_flight: int = 0
    queued: int = 0
    held: int = 0

    @property
    def occupied(self) -> int:
        return self.in_flight + self.held


class LevelView(msgspec.Struct, frozen=True, kw_only=True):
    """How far siblings have come, in tokens a unit of weight."""

    virtual_time: float = 0.0
    lowest: float | None = None
    """The lowest score of one that could go if a slot were free."""


class NodeView(Counts, frozen=True, kw_only=True):
    """What a group, a tenant and a key have in common."""

    name: str
    weight: int
    """A tenant's is the effective one: scaled by the model's admission weight."""
    served_tokens: int = 0
    share_score: float = 0.0
    """Served tokens a unit of weight: the lowest goes first."""


class GroupView(NodeView, frozen=True, kw_only=True):
    tenants: int = 0
    """How many have work, those that are not listed included."""
    tenant_weight: int = 0
    """Of all those together."""
    tenants_level: LevelView = LevelView()


class TenantView(NodeView, frozen=True, kw_only=True):
    id: str
    group: str
    max_in_flight: int | None
    is_capped: bool = False
    """At its cap as this replica enforces it, or by what the fleet said."""
    keys_capped: bool = False
    """It is not, but every key of it that waits is."""
    key_weight: int = 0
    """Of all its keys with work together, those that are not listed included."""
    keys_level: LevelView = LevelView()


class KeyView(NodeView, frozen=True, kw_only=True):
    id: str
    tenant_id: str
    max_in_flight: int | None
    is_capped: bool = False
    is_passed: bool = False
    """A warm session's request goes ahead of the one that has waited for longest."""


class PickView(msgspec.Struct, frozen=True, kw_only=True):
    """A waiting request that would be admitted next; see `shared.live_state.NextPick`."""

    group: str
    tenant_id: str
    tenant: str
    key_id: str
    key: str
    under_share: bool | None
    group_score: float
    tenant_score: float
    key_score: float
    waited_ms: int
    tokens: int
    start_scores: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Of its group, tenant and key as they stand, before those picked ahead of it are charged."""
    floors: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """The levels at which they last came back on this replica: as in the books, a score is what was
    served or this, whichever is more."""
    weights: tuple[int, int, int] = (1, 1, 1)
    """Theirs, by which they are charged."""
    shares: tuple[int, int] | None = None
    """Slots of its group and of its tenant, as this replica cuts them; None where they do not
    count."""


class PoolView(Counts, frozen=True, kw_only=True):
    id: str
    model: str
    size: int
    """As this replica enforces it now."""
    configured_size: int
    size_source: str
    virtual_time: float
    """In tokens a unit of weight, of the level that is chosen from first."""
    oldest_wait_ms: int
    top_level: LevelView = LevelView()
    """Of groups, or of tenants where groups do not count."""
    groups: tuple[GroupView, ...]
    tenants: tuple[TenantView, ...]
    keys: tuple[KeyView, ...]
    next_in_line: tuple[PickView, ...] = ()
    """Of those that wait on this replica; a merged view has the newest one's."""
    may_be_next: tuple[PickView, ...] = ()
    """Others that wait on this replica and may come first after what other replicas admit."""
    affinity: dict[str, int] = {}
    """What session affinity did, by event, since the pool came to be."""


class ReplicaView(Counts, frozen=True, kw_only=True):
    """One replica's scheduler at one moment."""

    instance: str
    url: str
    version: str
    mode: str
    algorithm: str
    replicas: int
    started_at: float
    """Unix seconds, as is `taken_at`, by this replica's clock."""
    taken_at: float
    global_max_in_flight: int
    """As this replica enforces it now."""
    configured_global_max_in_flight: int
    interval_ms: int = 500
    """How often it is published."""
    replica_ttl_secs: float | None = None
    """How long the others count it after its last heartbeat; None: it is in no fleet."""
    pools: tuple[PoolView, ...]


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(ReplicaView)


def encode(view: ReplicaView) -> bytes:
    """The published form."""
    return _encoder.encode(view)


def decode(text: bytes | str) -> ReplicaView:
    """The inverse of `encode`. Raises ValueError; fields of newer replicas are passed over."""
    return _decoder.decode(text)


def aged(view: ReplicaView, ms: int) -> ReplicaView:
    """What it would say `ms` later of the same requests: those that wait have waited for longer."""
    changed = msgspec.structs.replace
    return changed(
        view,
        pools=tuple(
            changed(
                pool,
                oldest_wait_ms=pool.oldest_wait_ms + (ms if pool.queued else 0),
                next_in_line=tuple(
                    changed(pick, waited_ms=pick.waited_ms + ms) for pick in pool.next_in_line
                ),
                may_be_next=tuple(
                    changed(pick, waited_ms=pick.waited_ms + ms) for pick in pool.may_be_next
                ),
            )
            for pool in view.pools
        ),
    )


V = TypeVar("V", GroupView, TenantView, KeyView)


def merge(views: Sequence[ReplicaView]) -> tuple[PoolView, ...]:
    """The fleet's pools out of its replicas' views, at least one; fullest first.

    A pool's `size` is the largest that any replica enforces: in shared mode all enforce the whole.
    """
    newest_first = sorted(views, key=lambda view: (-view.taken_at, view.instance))
    found: dict[str, list[PoolView]] = {}
    for view in newest_first:
        for pool in view.pools:
            found.setdefault(pool.id, []).append(pool)
    pools = [merge_pool(each) for each in found.values()]
    return tuple(sorted(pools, key=fullness))


def fullness(pool: PoolView) -> tuple[float, int, str]:
    """Sorts pools fullest first, then by how many wait, then by name."""
    return (-pool.occupied / max(1, pool.size), -pool.queued, pool.model)


def busiest(view: TenantView | KeyView) -> tuple[int, int, str]:
    """Sorts by what runs, is held and waits, most first, then by name."""
    return (-(view.in_flight + view.held + view.queued), -view.queued, view.name)


def merge_pool(views: Sequence[PoolView]) -> PoolView:
    """One pool out of what several say of it, the newest first."""
    tenants = _together(_all(view.tenants for view in views), "id")
    groups = _together(_all(view.groups for view in views), "name")
    listed = Counter(tenant.group for tenant in tenants)
    weights: Counter[str] = Counter()
    for tenant in tenants:
        weights[tenant.group] += tenant.weight
    # Each knows of its own tenants; together they have at least those that are listed.
    groups = [
        msgspec.structs.replace(
            group,
            tenants=max(group.tenants, listed[group.name]),
            tenant_weight=max(group.tenant_weight, weights[group.name]),
        )
        for group in groups
    ]
    return msgspec.structs.replace(
        views[0],
        **_summed(views),
        size=max(view.size for view in views),
        virtual_time=max(view.virtual_time for view in views),
        oldest_wait_ms=max(view.oldest_wait_ms for view in views),
        groups=tuple(sorted(groups, key=_name)),
        tenants=tuple(sorted(tenants, key=busiest)),
        keys=tuple(sorted(_together(_all(v.keys for v in views), "id"), key=busiest)),
        affinity=dict(sum((Counter(view.affinity) for view in views), Counter())),
    )


def _together(views: Iterable[V], identity: str) -> list[V]:
    """One view for each group, tenant or key, out of what several replicas say of it."""
    found: dict[str, list[V]] = {}
    for view in views:
        found.setdefault(getattr(view, identity), []).append(view)
    return [
        msgspec.structs.replace(
            each[0],
            **_summed(each),
            **_largest(each),
        )
        for each in found.values()
    ]


def _summed(views: Sequence[Counts]) -> dict[str, int]:
    return {
        field: sum(getattr(view, field) for view in views)
        for field in ("in_flight", "queued", "held")
    }


_LARGEST: Final = (
    *("served_tokens", "share_score", "tenants", "tenant_weight", "key_weight"),
    *("is_capped", "is_passed"),
)


def _largest(views: Sequence[V]) -> dict[str, Any]:
    """What replicas see alike, or one sees what the others have yet to; and whether there is a key
    that could go on any replica."""
    found = {
        field: max(getattr(view, field) for view in views)
        for field in _LARGEST
        if hasattr(views[0], field)
    }
    waiting = [view.keys_capped for view in views if isinstance(view, TenantView) and view.queued]
    if isinstance(views[0], TenantView):
        found["keys_capped"] = bool(waiting) and all(waiting)
    return found


def _all(parts: Iterable[Iterable[V]]) -> Iterable[V]:
    return (each for part in parts for each in part)


def _name(view: GroupView) -> str:
    return view.name
