"""How many slots a pool has. Pure: policy and the last answers in, a size and its reason out.

* A model with `capacity` has the slots of its ready backends together times its headroom, rounded
  up; no backend ready is a size of 0, which queues.
* While nobody has ever answered for it, and for a model without `capacity`, it is `max_in_flight`
  or the gateway's default; never more than the own caps together of the endpoints that requests go
  to, if all of these have one. Else those of an endpoint that is down would crowd the others.

In a fleet each replica works this out by itself and claims slots against its own result. So a pool
never runs more than the largest size that any live replica has found. Replicas differ for at most
one interval of discovery after backends came or went, and as long as they see different backends.
A smallest size over all of them would be no safer where it counts, since each replica is equally
late to notice a loss, and one replica that sees nothing would stop the whole fleet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Final

from shared.policy import MAX_IN_FLIGHT_MAX, CapacityPolicy, EndpointPolicy, ModelPolicy

Ready = Sequence[int | None]
"""One entry a ready backend: the slots it has of its own, or None."""

CONFIGURED: Final = "configured"
DEFAULT: Final = "default"


@dataclass(frozen=True, slots=True)
class Answer:
    """What was last heard of a model's backends."""

    ready: Ready
    is_stale: bool = False
    """It has been asked again since, without an answer."""


@dataclass(frozen=True, slots=True)
class PoolSize:
    size: int
    source: str
    """`configured`, `default`, `discovered:<source>`, or that and `:stale`."""


def pool_size(
    model: ModelPolicy,
    answer: Answer | None,
    *,
    default: int,
    is_usable: Callable[[EndpointPolicy], bool] = lambda endpoint: True,
) -> PoolSize:
    """The size of a model's pool. `is_usable` is the health of its endpoints."""
    if model.capacity is not None and answer is not None:
        stale = ":stale" if answer.is_stale else ""
        source = f"discovered:{model.capacity.source}{stale}"
        return PoolSize(discovered(model.capacity, answer.ready), source)
    size, source = default, DEFAULT
    if model.max_in_flight is not None:
        size, source = model.max_in_flight, CONFIGURED
    together = _caps_together(model, is_usable)
    if together is not None and together < size:
        return PoolSize(together, CONFIGURED)
    return PoolSize(size, source)


def discovered(capacity: CapacityPolicy, ready: Ready) -> int:
    """Slots of the ready backends × headroom, rounded up; at most what a pool may have."""
    each = capacity.per_replica_max_in_flight
    slots = sum(each if own is None else own for own in ready)
    # 1.1 is meant, and not the float a little above it, by which 100 slots would become 111.
    return min(ceil(slots * Fraction(str(capacity.headroom))), MAX_IN_FLIGHT_MAX)


def _caps_together(model: ModelPolicy, is_usable: Callable[[EndpointPolicy], bool]) -> int | None:
    enabled = [endpoint for endpoint in model.endpoints if endpoint.enabled]
    # With none that is usable all are tried.
    called = list(filter(is_usable, enabled)) or enabled
    known = [each.max_in_flight for each in called if each.max_in_flight is not None]
    return sum(known) if called and len(known) == len(called) else None
