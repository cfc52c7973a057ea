"""What one replica says of its scheduler, and how several replicas' words become one picture.

A replica publishes a `ReplicaView` twice a second; whoever shows the fleet merges those that are
alive. Counts add up. What is one number for the whole fleet (a limit, a weight, a name) is taken
from the newest view that has it. Pool and group totals are always complete; tenants and keys are
bounded, the busiest first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

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


class GroupView(Counts, frozen=True, kw_only=True):
    name: str
    weight: int
    served_tokens: int
    share_score: float
    """Served tokens a unit of weight: the lowest goes first."""


class TenantView(Counts, frozen=True, kw_only=True):
    id: str
    name: str
    group: str
    weight: int
    """Effective: scaled by the model's admission weight."""
    max_in_flight: int | None
    served_tokens: int
    share_score: float


class KeyView(Counts, frozen=True, kw_only=True):
    id: str
    tenant_id: str
    name: str
    weight: int
    max_in_flight: int | None
    served_tokens: int
    share_score: float


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
    groups: tuple[GroupView, ...]
    tenants: tuple[TenantView, ...]
    keys: tuple[KeyView, ...]


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
    pools: tuple[PoolView, ...]


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(ReplicaView)


def encode(view: ReplicaView) -> bytes:
    """The published form."""
    return _encoder.encode(view)


def decode(text: bytes | str) -> ReplicaView:
    """The inverse of `encode`. Raises ValueError; fields of newer replicas are passed over."""
    return _decoder.decode(text)


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
    pools = [_merge_pool(each) for each in found.values()]
    return tuple(sorted(pools, key=fullness))


def fullness(pool: PoolView) -> tuple[float, int, str]:
    """Sorts pools fullest first, then by how many wait, then by name."""
    return (-pool.occupied / max(1, pool.size), -pool.queued, pool.model)


def busiest(view: TenantView | KeyView) -> tuple[int, int, str]:
    """Sorts by what runs, is held and waits, most first, then by name."""
    return (-(view.in_flight + view.held + view.queued), -view.queued, view.name)


def _merge_pool(views: Sequence[PoolView]) -> PoolView:
    return msgspec.structs.replace(
        views[0],
        **_summed(views),
        size=max(view.size for view in views),
        virtual_time=max(view.virtual_time for view in views),
        oldest_wait_ms=max(view.oldest_wait_ms for view in views),
        groups=tuple(sorted(_together(_all(v.groups for v in views), "name"), key=_name)),
        tenants=tuple(sorted(_together(_all(v.tenants for v in views), "id"), key=busiest)),
        keys=tuple(sorted(_together(_all(v.keys for v in views), "id"), key=busiest)),
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
            served_tokens=max(view.served_tokens for view in each),
            share_score=max(view.share_score for view in each),
        )
        for each in found.values()
    ]


def _summed(views: Sequence[Counts]) -> dict[str, int]:
    return {
        field: sum(getattr(view, field) for view in views)
        for field in ("in_flight", "queued", "held")
    }


def _all(parts: Iterable[Iterable[V]]) -> Iterable[V]:
    return (each for part in parts for each in part)


def _name(view: GroupView) -> str:
    return view.name
