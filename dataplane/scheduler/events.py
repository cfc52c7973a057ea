"""What can happen to the scheduler. Times are seconds on the caller's monotonic clock and come with
each event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from dataplane.scheduler.standing import PoolElsewhere, Served, Told
from shared.policy import KeyPolicy


@dataclass(frozen=True, slots=True)
class AffinityRules:
    """Session affinity as it is in force for one pool. Times in seconds."""

    warm_secs: float = 120
    """How long after its last step a session counts as warm."""
    hold_secs: float = 3
    """How long a slot is held, and the longest gap between the steps of a loop; 0 holds nothing."""
    max_jumps: int = 8
    """How often a request that waits may be passed by later ones of its key."""
    max_bypass_secs: float = 30
    """The wait after which nothing passes a request any more."""
    max_held_percent: int = 25
    """The most of the pool's slots that are held at once, rounded up."""


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """One pool as configured now."""

    id: str
    """The model's id; a model that is deleted and made again is another pool."""
    model: str
    """The model's name, for people and labels."""
    size: int
    """Slots, at least 0. A pool of size 0 queues."""
    size_source: str = "default"
    admission_weight: int = 100
    affinity: AffinityRules | None = None
    """None: sessions count for nothing here."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A request wants a slot. Its policies are in force for its whole hierarchy from now on."""

    request: int
    """Unique for the life of the scheduler, and rising: an older request has a lower number."""
    pool: PoolPolicy
    key: KeyPolicy
    tokens: int
    """The estimate it is charged at admission; 0 counts as 1."""
    session: str | None = None
    """Whose step it is; ids of different keys have nothing to do with each other."""


@dataclass(frozen=True, slots=True)
class Left:
    """A request's client is gone, or its gateway refused it: it never ran, and what it was charged
    is given back."""

    request: int


@dataclass(frozen=True, slots=True)
class Finished:
    """An admitted request has ended; its slot is free, or held for its session's next step."""

    request: int
    failed: bool = False
    """It did not end well: nothing is held for its session."""


@dataclass(frozen=True, slots=True)
class PoolChanged:
    """A pool's configuration changed. Nothing happens where nobody uses it."""

    pool: PoolPolicy


@dataclass(frozen=True, slots=True)
class PoolGone:
    """A model is deleted or disabled: its waiters are rejected, what runs finishes, and the pool is
    dropped."""

    pool: str


@dataclass(frozen=True, slots=True)
class KeyChanged:
    """A key, its tenant or its group changed; requests that wait under it follow at once."""

    key: KeyPolicy


@dataclass(frozen=True, slots=True)
class KeyGone:
    """A key may not be used any more: what waits under it is rejected, what runs finishes."""

    key: str
    but: frozenset[int] = frozenset()
    """Requests of it that may go on waiting: they came with the secret it has now."""


@dataclass(frozen=True, slots=True)
class CeilingChanged:
    """The limit over all pools changed."""

    ceiling: int


@dataclass(frozen=True, slots=True)
class RegimeChanged:
    """How limits hold over the fleet from now on."""

    claims: bool
    """Whether a slot must be claimed from the fleet before a request runs in it."""
    divide_by: int = 1
    """The number of replicas that each take an equal part of every limit, rounded up; at least 1.
    """
    paused: bool = False
    """Nobody is admitted and nothing is claimed for now; what runs goes on."""


class RefusedBy(StrEnum):
    """The limit that stood against a claim."""

    POOL = "pool"
    CEILING = "ceiling"
    TENANT = "tenant"
    KEY = "key"
    TURN = "turn"
    """The ceiling, under which pools take turns: the pool is called when it is its."""
    NOBODY = "nobody"
    """No limit: the fleet did not answer, or the replica may not claim now."""
    NO_HOLD = "no_hold"
    """No limit: it was for the slot held for its session alone, and none is."""


@dataclass(frozen=True, slots=True)
class ClaimGranted:
    """The fleet has granted the slot claimed for a request."""

    request: int
    told: Told | None = None
    more_at: float | None = None
    """When the pool may claim again if nothing is heard before; None: at once."""
    more_by: RefusedBy = RefusedBy.POOL
    """What stands against its claims until then."""
    held: bool = False
    """It is the slot that was held for the request's session."""


@dataclass(frozen=True, slots=True)
class ClaimRefused:
    """The fleet has refused the slot claimed for a request, which goes back to its place."""

    request: int
    by: RefusedBy
    retry_at: float
    """When whoever was refused may claim again if nothing is heard before."""
    told: Told | None = None
    turn_of: tuple[str, str] | None = None
    """The tenant and key of this replica that are to claim instead, at once."""


@dataclass(frozen=True, slots=True)
class HoldAnswered:
    """The fleet has held a slot that was given back, for the next step of its session, or would
    have but for a limit."""

    pool: str
    session: tuple[str, str]
    """The key's id and the session's."""
    held_secs: float | None
    """For how long; None: it was released."""
    key: KeyPolicy


@dataclass(frozen=True, slots=True)
class HoldEnded:
    """A slot that this replica had the fleet hold is not held any more."""

    pool: str
    session: tuple[str, str]
    why: str
    """An `AffinityEvent`, or something else that is not counted here."""


@dataclass(frozen=True, slots=True)
class HoldMade:
    """The fleet holds a slot for a session, whichever replica gave it back."""

    pool: str
    session: tuple[str, str]


@dataclass(frozen=True, slots=True)
class TurnCome:
    """A slot is free, and it is the turn of somebody who waits here."""

    pool: str
    turn_of: tuple[str, str]
    """A tenant and a key of it."""


@dataclass(frozen=True, slots=True)
class OtherCalled:
    """It is another replica's turn; if it has not come by then, this one tries at `look_at`."""

    pool: str
    replica: str
    look_at: float


@dataclass(frozen=True, slots=True)
class OtherCame:
    """A replica whose turn it was has its slot."""

    pool: str
    replica: str


@dataclass(frozen=True, slots=True)
class FleetSeen:
    """What the other replicas have in their pools, and what the books say of this one's waiters."""

    taken: int = 0
    """Slots taken up there, over all pools."""
    pools: Mapping[str, PoolElsewhere] = field(default_factory=dict)
    """By pool; what is not here has nothing elsewhere."""
    served: Mapping[str, Served] = field(default_factory=dict)
    """By pool: of the nodes that wait here."""


@dataclass(frozen=True, slots=True)
class SlotsFreed:
    """Another replica gave back a slot of this pool; None: one that counted against the ceiling."""

    pool: str | None


@dataclass(frozen=True, slots=True)
class Closing:
    """No more requests will come: what is held is freed, and nothing is held any more."""


@dataclass(frozen=True, slots=True)
class Woken:
    """Nothing but time has passed."""


Event = (
    Arrived
    | Left
    | Finished
    | PoolChanged
    | PoolGone
    | KeyChanged
    | KeyGone
    | CeilingChanged
    | RegimeChanged
    | ClaimGranted
    | ClaimRefused
    | HoldAnswered
    | HoldEnded
    | HoldMade
    | SlotsFreed
    | Closing
    | TurnCome
    | OtherCalled
    | OtherCame
    | FleetSeen
    | Woken
)
