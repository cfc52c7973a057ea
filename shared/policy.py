"""Policy records: what is allowed, as it travels with a request.

Frozen, standard library only: the scheduler core imports this module. The control plane writes the
rows these are read from; the data plane's policy cache builds them; from then on they only travel.
Weights are ratios (1…1,000,000), caps are running requests per pool (None = no cap), budgets are
tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

DEFAULT_WEIGHT: Final = 100
WEIGHT_MAX: Final = 1_000_000
MAX_IN_FLIGHT_MAX: Final = 100_000
ADMISSION_WEIGHT_MAX: Final = 10_000
DEFAULT_GROUP: Final = "default"
UNROUTED: Final = "(unrouted)"
"""The name, and the metric label, of the one pool that unregistered model names share."""


class BudgetPeriod(StrEnum):
    """When a token budget starts again.

    `TERM` runs from `budget_started_at` until an operator moves it.
    """

    DAY = "day"
    MONTH = "month"
    TERM = "term"
    LIFETIME = "lifetime"


class LoadBalancing(StrEnum):
    """How a model with several endpoints spreads its requests."""

    FAILOVER = "failover"
    ROUND_ROBIN = "round_robin"
    LEAST_IN_FLIGHT = "least_in_flight"


@dataclass(frozen=True, slots=True)
class Budget:
    """A token budget and the period it is counted over; `tokens` None means no budget."""

    tokens: int | None = None
    period: BudgetPeriod = BudgetPeriod.MONTH
    started_at: float | None = None
    """Unix seconds; where a `term` or `lifetime` began. None: from the first use."""


@dataclass(frozen=True, slots=True)
class GroupPolicy:
    name: str = DEFAULT_GROUP
    weight: int = DEFAULT_WEIGHT


@dataclass(frozen=True, slots=True)
class TenantPolicy:
    id: str
    name: str
    group: GroupPolicy = GroupPolicy()
    weight: int = DEFAULT_WEIGHT
    max_in_flight: int | None = None
    tokens_per_minute: int | None = None
    budget: Budget = Budget()
    suspended: bool = False
    allowed_models: frozenset[str] | None = None
    """Registered model names (never aliases); None allows all."""


@dataclass(frozen=True, slots=True)
class KeyPolicy:
    id: str
    name: str
    tenant: TenantPolicy
    weight: int = DEFAULT_WEIGHT
    max_in_flight: int | None = None
    budget: Budget = Budget()
    disabled: bool = False
    expires_at: float | None = None
    """Unix seconds; None: never."""
    digest: str = field(default="", repr=False, compare=False)
    """What the key is looked up by, so that its policy can be renewed while a request waits."""


@dataclass(frozen=True, slots=True)
class AffinityPolicy:
    """Session affinity in force for one model."""

    enabled: bool = False
    hold_ms: int = 3000
    max_held_percent: int = 25
    max_bypass_secs: int = 30


@dataclass(frozen=True, slots=True)
class AffinityOverride:
    """What a model sets for itself; None follows the gateway."""

    enabled: bool | None = None
    hold_ms: int | None = None
    max_held_percent: int | None = None
    max_bypass_secs: int | None = None

    def resolve(self, gateway: AffinityPolicy) -> AffinityPolicy:
        """The gateway's values, overridden by the model's own, field by field."""
        return AffinityPolicy(
            enabled=gateway.enabled if self.enabled is None else self.enabled,
            hold_ms=gateway.hold_ms if self.hold_ms is None else self.hold_ms,
            max_held_percent=(
                gateway.max_held_percent if self.max_held_percent is None else self.max_held_percent
            ),
            max_bypass_secs=(
                gateway.max_bypass_secs if self.max_bypass_secs is None else self.max_bypass_secs
            ),
        )


@dataclass(frozen=True, slots=True)
class EndpointPolicy:
    """One place a model is served from.

    `url` is a base as SDKs take it, with `/v1` and without a trailing slash.
    """

    id: str
    url: str
    api_key: str | None = field(default=None, repr=False)
    weight: int = DEFAULT_WEIGHT
    priority: int = 0
    """Lower is tried first."""
    enabled: bool = True
    max_in_flight: int | None = None


class CapacitySource(StrEnum):
    """Where it is read how many backends of a model are ready."""

    ENDPOINTS = "endpoints"
    DNS = "dns"
    KUBERNETES = "kubernetes"


@dataclass(frozen=True, slots=True)
class CapacityPolicy:
    """A pool sized by the backends that are ready."""

    source: CapacitySource
    per_replica_max_in_flight: int
    """Slots of one backend; an endpoint's own `max_in_flight` goes before it."""
    headroom: float = 1.0
    """What the slots of all backends together are multiplied by."""
    dns_name: str | None = None
    service: str | None = None
    namespace: str | None = None
    """None: the gateway's own."""


@dataclass(frozen=True, slots=True)
class ModelPolicy:
    id: str
    name: str
    aliases: tuple[str, ...] = ()
    upstream_model: str | None = None
    """The name sent upstream; None: the name the client used is replaced by `name`."""
    enabled: bool = True
    max_in_flight: int | None = None
    capacity: CapacityPolicy | None = None
    """How the pool's size is discovered; None: it is `max_in_flight` or the gateway's default."""
    admission_weight: int = 100
    """Percent by which tenants' weights count in this model's pool."""
    load_balancing: LoadBalancing = LoadBalancing.FAILOVER
    affinity: AffinityOverride = AffinityOverride()
    request_timeout_secs: float = 600
    max_retries: int = 1
    endpoints: tuple[EndpointPolicy, ...] = ()


def effective_weight(weight: int, admission_weight: int) -> int:
    """A tenant's weight in a pool: weight × admission weight / 100, rounded half up, at least 1."""
    return max(1, (weight * admission_weight + 50) // 100)


def split(slots: int, weights: Mapping[str, int]) -> dict[str, int]:
    """Each name's whole slots out of `slots`; the parts add up to `slots` unless there are no
    names.

    By largest remainder; where there is room, whoever is worth less than a slot gets exactly one.
    `dataplane.scheduler.shares` has the rule in full.
    """
    shares: dict[str, int] = {}
    left, total = slots, sum(weights.values())
    contest = sorted(weights)
    if len(weights) <= slots:
        for name in sorted(weights, key=weights.__getitem__):
            if weights[name] * left >= total:
                break
            shares[name] = 1
            left, total = left - 1, total - weights[name]
        contest = [name for name in contest if name not in shares]
    parts = {name: divmod(weights[name] * left, total) for name in contest}
    leftover = left - sum(whole for whole, _ in parts.values())
    by_remainder = sorted(contest, key=lambda name: -parts[name][1])
    for rank, name in enumerate(by_remainder):
        shares[name] = parts[name][0] + (1 if rank < leftover else 0)
    return shares
