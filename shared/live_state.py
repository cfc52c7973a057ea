"""The live picture as the API gives it: pools, who runs and waits in them, and why.

A replica makes it out of views; the control plane passes it on; pages show it. Counts are requests.
A *score* is served tokens a unit of weight: among siblings the lowest goes first. Times are
milliseconds, and `_ts_ms` Unix milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final, Literal

NEXT_IN_LINE: Final = 5
"""How many picks ahead are told."""


class Cause(StrEnum):
    """Why a tenant or a key waits. The list is closed."""

    IDLE = "idle"
    """It does not: nothing of it is queued."""
    NO_READY_BACKEND = "no_ready_backend"
    """The pool has no slots at all: no replica of its backend is ready."""
    AT_TENANT_CAP = "at_tenant_cap"
    """The tenant runs as many requests in this pool as its `max_in_flight` allows."""
    AT_KEY_CAP = "at_key_cap"
    """The key does; for a tenant: every key of it that waits does."""
    GLOBAL_CEILING = "global_ceiling"
    """The pool has a free slot, but the limit over all pools is reached."""
    PASSED_BY_WARM_SESSION = "passed_by_warm_session"
    """Of a key: a request of a warm session goes ahead of the one that has waited for longest."""
    BELOW_SHARE = "below_share"
    """It has less than its share, and another has a slot more than its own: nothing is taken back,
    so it waits for one of those to end."""
    AHEAD_OF_SHARE = "ahead_of_share"
    """It has a slot more than its share already, and others wait."""
    POOL_FULL = "pool_full"
    """Every slot is in use, shared as the weights say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Requests that run, wait, and slots held for a session's next step."""

    in_flight: int = 0
    queued: int = 0
    held: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveGroup(Counts):
    """A group in one pool."""

    name: str
    weight: int
    weight_share: float
    """Its part of the pool, as a fraction of 1."""
    fair_slots: float
    slot_cap: int | None
    """Its share in whole slots; null where groups do not count."""
    borrowed: int
    """Slots it uses beyond that share, because others leave them idle."""
    served_tokens: int
    share_score: float
    tenants: int
    """How many of its tenants have work here, those that are not listed included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTenant(Counts):
    """A tenant in one pool."""

    id: str
    name: str
    group: str
    weight: int
    """Effective: scaled by the model's admission weight."""
    max_in_flight: int | None
    fair_slots: float
    """Its exact part of the pool, by the weights of all who have work there."""
    served_tokens: int
    share_score: float
    below_share: bool
    cause: Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveKey(Counts):
    """A key in one pool; its shares are parts of its tenant's."""

    id: str
    tenant_id: str
    name: str
    weight: int
    max_in_flight: int | None
    fair_slots: float
    served_tokens: int
    share_score: float
    below_share: bool
    cause: Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class NextPick:
    """A waiting request that would be admitted, were slots freed one after another now."""

    instance: str
    """The replica it waits on."""
    group: str
    tenant_id: str
    tenant: str
    key_id: str
    key: str
    under_share: bool | None
    """Whether its tenant and group are under their shares then, which goes before any score; null
    where groups do not count."""
    group_score: float
    tenant_score: float
    key_score: float
    waited_ms: int
    tokens: int
    """The estimate it will be charged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePool(Counts):
    """The slots of one model, and everyone who uses or wants one."""

    id: str
    model: str
    size: int
    """As enforced now."""
    configured_size: int
    size_source: str
    borrowed: int
    replica_in_flight: int
    replica_queued: int
    cluster_in_flight: int | None
    virtual_time: float
    oldest_wait_ms: int
    groups: tuple[LiveGroup, ...]
    """All of them, in name order."""
    tenants: tuple[LiveTenant, ...]
    """The busiest first; a very long list is cut."""
    keys: tuple[LiveKey, ...]
    next_in_line: tuple[NextPick, ...]
    affinity: dict[str, int]
    """What session affinity did since the pool came to be, by event, as the metrics name them:
    `warm`, `hold`, `redeem`, `expire`, `refused`, `freed_starving`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState(Counts):
    """Everything at one moment, as one replica answers it."""

    instance: str
    mode: str
    algorithm: str
    scope: Literal["cluster", "replica"]
    """`cluster`: every live replica's counts together; `replica`: the answering one's alone."""
    scope_reason: str | None
    """Why it is not the cluster's."""
    source: Literal["replica", "views"] = "replica"
    """`views`: no replica was asked; this is put together from what they publish."""
    source_reason: str | None = None
    replicas: int
    replicas_reporting: int
    replica_ttl_secs: float | None = None
    """How long a replica counts after its last heartbeat; null where there is no fleet."""
    state_age_ms: int
    """Of the oldest view in it."""
    global_max_in_flight: int
    configured_global_max_in_flight: int
    replica_in_flight: int
    replica_queued: int
    cluster_in_flight: int | None
    """Null unless the scope is the cluster."""
    pools: tuple[LivePool, ...] = ()
    """Those with work, fullest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPoint(Counts):
    """One sample."""

    ts_ms: int
    groups: dict[str, int] = field(default_factory=dict)
    """Requests running by group; those that run nothing are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What one replica remembers of one model, or of all together, oldest first."""

    instance: str
    interval_ms: int
    retention_ms: int
    """0: history is switched off."""
    oldest_ts_ms: int | None
    points: tuple[HistoryPoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """One live replica. What it has not published yet is null."""

    instance: str
    url: str | None
    mode: str | None
    heartbeat_age_ms: int | None
    """Null where it is not known, and where there is no fleet."""
    in_flight: int | None
    queued: int | None
    held: int | None
    started_at: datetime | None
    version: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Newcomer:
    """A request that might be sent now, by who would send it and to which model."""

    pool_id: str
    model: str
    size: int
    """Of the pool, where nothing says how large it is now."""
    group: str
    group_weight: int
    tenant_id: str
    tenant: str
    tenant_weight: int
    """Effective."""
    tenant_cap: int | None
    key_id: str
    key: str
    key_weight: int
    key_cap: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook(Counts):
    """What would become of such a request. The counts are the pool's, as it is without it."""

    is_admitted: bool
    """At once; otherwise it waits, for `cause`."""
    cause: Cause
    size: int
    tenant_slots: int
    """In use by its tenant in this pool, held ones included."""
    fair_slots: float
    """Its tenant's, were it to wait."""
    key_slots: int
