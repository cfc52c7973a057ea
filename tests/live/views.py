"""Views as replicas would publish them, with only what a test is about."""

from __future__ import annotations

from typing import Any

from dataplane.live_view import GroupView, KeyView, PickView, PoolView, ReplicaView, TenantView


def tenant(
    id: str, in_flight: int = 0, queued: int = 0, *, group: str = "default", **fields: Any
) -> TenantView:
    return TenantView(
        id=id,
        in_flight=in_flight,
        queued=queued,
        group=group,
        **{
            **{"name": id, "weight": 100, "max_in_flight": None},
            **{"served_tokens": 0, "share_score": 0.0},
            **fields,
        },
    )


def key(id: str, in_flight: int = 0, queued: int = 0, **fields: Any) -> KeyView:
    """A key called `tenant/name`."""
    return KeyView(
        id=id,
        in_flight=in_flight,
        queued=queued,
        **{
            **{"tenant_id": id.partition("/")[0], "name": id, "weight": 100},
            **{"max_in_flight": None, "served_tokens": 0, "share_score": 0.0},
            **fields,
        },
    )


def pool(
    size: int, *tenants: TenantView, weights: dict[str, int] | None = None, **fields: Any
) -> PoolView:
    """A pool with its tenants' groups; `weights` are the groups' where they are not 100."""
    groups: dict[str, list[TenantView]] = {}
    for each in tenants:
        groups.setdefault(each.group, []).append(each)
    return PoolView(
        size=size,
        in_flight=sum(each.in_flight for each in tenants),
        queued=sum(each.queued for each in tenants),
        held=sum(each.held for each in tenants),
        groups=tuple(
            GroupView(
                name=name,
                weight=(weights or {}).get(name, 100),
                in_flight=sum(each.in_flight for each in members),
                queued=sum(each.queued for each in members),
                held=sum(each.held for each in members),
                tenants=len(members),
                tenant_weight=sum(each.weight for each in members),
            )
            for name, members in sorted(groups.items())
        ),
        tenants=tenants,
        **{
            **{"id": "m", "model": "m", "configured_size": size, "size_source": "configured"},
            **{"virtual_time": 0.0, "oldest_wait_ms": 0, "keys": ()},
            **fields,
        },
    )


def pick(tenant_id: str, score: float, *, waited_ms: int = 0) -> PickView:
    return PickView(
        group="g",
        tenant_id=tenant_id,
        tenant=tenant_id,
        key_id=f"{tenant_id}/k",
        key="k",
        under_share=None,
        group_score=0.0,
        tenant_score=score,
        key_score=0.0,
        waited_ms=waited_ms,
        tokens=1,
        start_scores=(0.0, score, 0.0),
    )


def replica(*pools: PoolView, **fields: Any) -> ReplicaView:
    return ReplicaView(
        pools=pools,
        in_flight=sum(each.in_flight for each in pools),
        queued=sum(each.queued for each in pools),
        held=sum(each.held for each in pools),
        **{
            **{"instance": "r1", "url": "http://r1:9091", "version": "1", "mode": "local"},
            **{"algorithm": "hierarchical", "replicas": 1, "started_at": 0.0, "taken_at": 0.0},
            **{"global_max_in_flight": 4096, "configured_global_max_in_flight": 4096},
            **fields,
        },
    )
