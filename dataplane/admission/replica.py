"""In which mode a replica is, and what it may do in it. PURE: what happened and the time in, a
`Stance` out.

Five things decide: whether the books answer, who else lives, whether all that this replica holds is
on the books, whether that is so for the others, and the settings. The phases:

* `STARTING`: nothing is known yet; the first heartbeat is under way.
* `ALONE`: nobody else lives, or slots are not shared. No claims, so what it holds is not on the
  books.
* `AWAY`: the books do not answer. Its part of each limit. Tries once a second.
* `APART`: the books answer but have lost replicas that lived a moment ago. Its part, for the time
  in which they would say so if they still did.
* `JOINING`: the books answer and others live. Admits nobody, for the few milliseconds until all it
  holds is on the books: what was admitted without a claim meanwhile would be missing from them.
* `CONVERGING`: all it holds is on the books and stays there, for it claims. Its part of each limit
  still, until every live replica has come as far: nobody is granted more by books that lack
  somebody's holdings.
* `SHARED`: whole limits, by claims.

Once shared, a replica stays so while the books answer and know it. Another that falls back or
starts is on its own part, and does not drag the others down with it.

Leaving `AWAY` takes one answer, but after an outage that came soon after the last one two, then
four, up to `ANSWERS_MAX`, a second apart: so a server that answers just around the limit does not
make the mode flap.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Final, assert_never

from dataplane.admission.slots.port import Heard

RETRY_SECS: Final = 1.0
CALM_HEARTBEATS: Final = 3
"""An outage so many heartbeats after the last one is a new one."""
ANSWERS_MAX: Final = 8


class Mode(StrEnum):
    SHARED = "shared"
    FALLBACK = "fallback"
    SPLIT = "split"
    LOCAL = "local"


class Phase(Enum):
    STARTING = auto()
    ALONE = auto()
    AWAY = auto()
    APART = auto()
    JOINING = auto()
    CONVERGING = auto()
    SHARED = auto()


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """How replicas share limits. Times in seconds."""

    heartbeat: float = 5.0
    shared_slots: bool = True
    replica_aware: bool = True
    expected_replicas: int = 1
    """How many there are if the books have never been seen."""


@dataclass(frozen=True, slots=True)
class Stance:
    """What a replica may do now."""

    mode: Mode
    replicas: int
    """How many there are, this one included, as far as is known."""
    divisor: int
    """Every limit is enforced as its `part` by this."""
    claims: bool
    """Whether a slot must be claimed before anyone is admitted to it."""
    paused: bool
    """Whether nobody may be admitted at all. Lasts as long as one heartbeat takes, or fails to."""

    def part(self, limit: int) -> int:
        """What of a limit this replica may use. Size 0 stays 0."""
        return -(-limit // self.divisor)


class Replica:
    """One replica's mode. Times are seconds of a monotonic clock.

    `begin` before each heartbeat, then `heard` or `unheard` with what came of it; between them and
    at any time `slots_unavailable` and `lapsed` when a claim or release met with that.
    """

    def __init__(self, name: str, settings: ReplicaSettings, now: float) -> None:
        self._name: Final = name
        self._settings: Final = settings
        self._phase = Phase.STARTING
        self._live: frozenset[str] = frozenset({name})
        self._known = settings.expected_replicas
        """How many replicas there were when the books were last seen."""
        self._absent: frozenset[str] = frozenset()
        """Replicas the books lost, which may live all the same."""
        self._absent_until = now
        self._complete = False
        """Whether nothing was admitted without a claim since the last `begin`."""
        self._answers = 0
        self._answers_needed = 1
        self._calm_secs: Final = CALM_HEARTBEATS * settings.heartbeat
        self._returned_at = now - self._calm_secs
        self._next_at = now

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def next_at(self) -> float:
        """When the next heartbeat is due."""
        return self._next_at

    @property
    def tells_holdings(self) -> bool:
        """Whether the books are to have what runs here. Not of one that is alone: nobody would
        look, and each request that ends would have to be taken off them."""
        return self._phase is not Phase.ALONE

    @property
    def stance(self) -> Stance:
        replicas = self._known
        claims = self._phase in (Phase.CONVERGING, Phase.SHARED)
        whole = self._phase is Phase.SHARED or not self._settings.replica_aware
        return Stance(
            mode=self._mode(replicas),
            replicas=replicas,
            divisor=1 if whole else replicas,
            claims=claims,
            paused=self._phase in (Phase.STARTING, Phase.JOINING),
        )

    def _mode(self, replicas: int) -> Mode:
        if replicas == 1:
            return Mode.LOCAL
        if not self._settings.shared_slots:
            return Mode.SPLIT if self._settings.replica_aware else Mode.LOCAL
        return Mode.SHARED if self._phase is Phase.SHARED else Mode.FALLBACK

    # What happens

    def begin(self) -> bool:
        """A heartbeat begins, with what is held at this moment; whether that is `complete`."""
        match self._phase:
            case Phase.ALONE | Phase.AWAY | Phase.APART:
                self._complete = False
            case Phase.STARTING | Phase.JOINING | Phase.CONVERGING | Phase.SHARED:
                self._complete = self._settings.shared_slots
            case _:
                assert_never(self._phase)
        return self._complete

    def heard(self, heard: Heard, now: float) -> None:
        """The heartbeat was answered."""
        self._remember(heard, now)
        if self._known == 1 or not self._settings.shared_slots:
            self._enter(Phase.ALONE, now)
        elif self._phase is Phase.AWAY and self._answers < self._answers_needed:
            self._next_at = now + RETRY_SECS
        elif len(heard.live) == 1:
            self._enter(Phase.APART, now)
        elif not self._complete or self._name not in heard.asserted:
            self._enter(Phase.JOINING, now)
        elif self._phase is Phase.SHARED and not heard.lapsed:
            self._enter(Phase.SHARED, now)
        elif self._absent or set(heard.live) != set(heard.asserted):
            self._enter(Phase.CONVERGING, now)
        else:
            self._enter(Phase.SHARED, now)

    def unheard(self, now: float) -> None:
        """The heartbeat was not answered."""
        self._lose(now)
        self._next_at = now + RETRY_SECS

    def slots_unavailable(self, now: float) -> None:
        """A claim or a release was not answered."""
        if self._phase is not Phase.AWAY:
            self._lose(now)
            self._next_at = now + RETRY_SECS

    def lapsed(self, now: float) -> None:
        """A claim was answered that this replica is not live: the books lost it, or it slept."""
        if self._phase in (Phase.CONVERGING, Phase.SHARED):
            self._enter(Phase.JOINING, now)

    def replicas_changed(self, now: float) -> None:
        """Another replica came, went, or has all it holds on the books now."""
        if self._phase in (Phase.ALONE, Phase.APART, Phase.CONVERGING):
            self._next_at = now

    # Inside

    def _remember(self, heard: Heard, now: float) -> None:
        live = frozenset(heard.live) | {self._name}
        if self._phase is Phase.AWAY:
            self._answers += 1
        missed = self._live - live
        if missed and (heard.lapsed or self._phase is Phase.AWAY):
            # They may have missed it all, and say so with their next heartbeat.
            self._absent |= missed
            self._absent_until = now + self._settings.heartbeat + RETRY_SECS
        self._absent = self._absent - live if now < self._absent_until else frozenset()
        self._live = live
        self._known = len(live | self._absent)

    def _lose(self, now: float) -> None:
        self._complete = False
        self._answers = 0
        if self._phase is not Phase.AWAY:
            soon = now - self._returned_at < self._calm_secs
            more = min(2 * self._answers_needed, ANSWERS_MAX)
            self._answers_needed = more if soon else 1
            self._phase = Phase.AWAY

    def _enter(self, phase: Phase, now: float) -> None:
        if self._phase is Phase.AWAY:
            self._returned_at = now
        self._phase = phase
        match phase:
            case Phase.JOINING:
                self._complete = False
                self._next_at = now
            case Phase.CONVERGING | Phase.APART:
                self._next_at = now + min(RETRY_SECS, self._settings.heartbeat)
            case _:
                self._next_at = now + self._settings.heartbeat
