"""What would become of one more request now."""

from __future__ import annotations

from typing import Any

import pytest

from dataplane.live.assembly import assemble
from dataplane.live.what_if import outlook
from dataplane.live_view import PoolView, ReplicaView
from shared.live_state import Newcomer
from tests.live.views import key, pool, replica, tenant


def newcomer(tenant_id: str = "a", **fields: Any) -> Newcomer:
    return Newcomer(
        **{
            **{"pool_id": "m", "model": "m", "size": 4, "group": "default", "group_weight": 100},
            **{"tenant_id": tenant_id, "tenant": tenant_id, "tenant_weight": 100},
            **{"tenant_cap": None, "key_id": f"{tenant_id}/k", "key": "k", "key_weight": 100},
            **{"key_cap": None},
            **fields,
        }
    )


def judged(of: PoolView | ReplicaView | None, new: Newcomer) -> str:
    view = of if isinstance(of, ReplicaView) else replica(*([of] if of else []))
    found = outlook(assemble(view), new)
    return "admitted" if found.is_admitted else str(found.cause)


@pytest.mark.parametrize(
    ("of", "new", "expected"),
    [
        (None, newcomer(), "admitted"),
        (None, newcomer(size=0), "no_ready_backend"),
        (pool(4, tenant("a", 3)), newcomer(), "admitted"),
        (pool(4, tenant("a", 4)), newcomer(), "pool_full"),
        # Who waits behind a cap of its own stands in nobody's way.
        (pool(4, tenant("b", 1, 3, max_in_flight=1)), newcomer(), "admitted"),
        # A slot is free, but somebody was there before and will have it.
        (pool(4, tenant("b", 2, 1), tenant("c", 1)), newcomer(), "pool_full"),
        (pool(4, tenant("a", 2)), newcomer(tenant_cap=2), "admitted"),
        (pool(4, tenant("a", 2, max_in_flight=2)), newcomer(tenant_cap=2), "at_tenant_cap"),
        (
            pool(4, tenant("a", 2), keys=(key("a/k", 2, max_in_flight=2),)),
            newcomer(key_cap=2),
            "at_key_cap",
        ),
        # A newcomer counts for the shares it would change.
        (pool(4, tenant("b", 4)), newcomer(), "below_share"),
        (pool(4, tenant("b", 4, group="g"), weights={"g": 900}), newcomer(), "pool_full"),
        (pool(4, tenant("b", 1, 2), tenant("a", 3)), newcomer(), "ahead_of_share"),
        (
            replica(pool(4, tenant("a", 1)), global_max_in_flight=1),
            newcomer(),
            "global_ceiling",
        ),
        (
            replica(pool(4, tenant("b", 1), id="other"), global_max_in_flight=1),
            newcomer(),
            "global_ceiling",
        ),
    ],
)
def test_a_request_is_judged_like_those_that_wait(
    of: PoolView | ReplicaView | None, new: Newcomer, expected: str
) -> None:
    assert judged(of, new) == expected


def test_the_figures_are_the_pools_without_it() -> None:
    of = pool(4, tenant("a", 2, 1, held=1), tenant("b", 1, 3), keys=(key("a/k", 1, 1),))
    found = outlook(assemble(replica(of)), newcomer())
    assert (found.in_flight, found.queued, found.held, found.size) == (3, 4, 1, 4)
    assert (found.tenant_slots, found.key_slots, found.fair_slots) == (3, 1, 2.0)
