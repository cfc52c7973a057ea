"""What session affinity remembers in one pool: sessions, their steps, slots held for the next, and
who went ahead in the queue of a key."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from sortedcontainers import SortedList

if TYPE_CHECKING:
    from dataplane.scheduler.affinity import Affinity
    from dataplane.scheduler.state import Key, Waiter


class Step:
    """One request of a session."""

    __slots__ = ("affinity", "arrived_at", "follows", "request", "session")

    def __init__(
        self, affinity: Affinity, session: Session, request: int, arrived_at: float, follows: bool
    ) -> None:
        self.affinity: Final = affinity
        """The memory it belongs to; a pool whose affinity is turned off and on has a new one."""
        self.session: Final = session
        self.request: Final = request
        self.arrived_at: Final = arrived_at
        self.follows = follows
        """Whether it arrived within the hold time of the previous step's end."""


class Session:
    """What is known of one session in one pool."""

    __slots__ = (
        "finished_at",
        "hold",
        "is_recent",
        "latest",
        "name",
        "place",
        "running",
        "steps",
        "waiting",
    )

    def __init__(self, name: tuple[str, str]) -> None:
        self.name: Final = name
        """The key's id and the session's."""
        self.steps = 0
        """Its steps that have not ended yet."""
        self.running = 0
        self.waiting: OrderedDict[int, Waiter] = OrderedDict()
        """Its steps in the queue of its key, oldest first."""
        self.finished_at: float | None = None
        """When its last step finished."""
        self.is_recent = False
        """Whether that is so short a time ago that it is warm."""
        self.latest: Step | None = None
        """The step that arrived last."""
        self.hold: Hold | None = None
        self.place: int | None = None
        """The request it stands for among the warm of its key."""

    @property
    def is_warm(self) -> bool:
        return self.running > 0 or self.is_recent

    @property
    def is_idle(self) -> bool:
        return not (self.steps or self.is_recent or self.hold)


class Hold:
    """A slot kept for a session's next step."""

    __slots__ = ("ends", "key", "session")

    def __init__(self, session: Session, key: Key, ends: float) -> None:
        self.session: Final = session
        self.key: Final = key
        self.ends: Final = ends


class Line:
    """What affinity knows of the queue of one key."""

    __slots__ = ("passers", "warm")

    def __init__(self) -> None:
        self.warm: SortedList[tuple[int, Session]] = SortedList()
        """Warm sessions with requests in the queue, by the oldest of each."""
        self.passers: SortedList[int] = SortedList()
        """Requests that passed one that still waits."""
