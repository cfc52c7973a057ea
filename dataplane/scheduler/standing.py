"""What a replica tells of its best waiter, so that the fleet can say whose turn it is, and what it
is told back.

Scores are in tokens a unit of weight. A *floor* is the level at which a node last came back: the
fleet's score of it, which the books keep, is never below.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Rank(NamedTuple):
    """A group, tenant or key as one replica knows it."""

    id: str
    floor: float
    share: int | None = None
    """Slots of its fair share; None where shares do not count."""
    cap: int | None = None


@dataclass(frozen=True, slots=True)
class Cuts:
    """Shares for each number of slots that the ceiling may leave a pool, `first` of them and each
    one more. How many it leaves is for the fleet to say, when it decides."""

    first: int
    size: int
    """The pool's slots."""
    ceiling: int
    group: tuple[int, ...]
    tenant: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a waiter stands among all that want a slot of its pool."""

    group: Rank
    tenant: Rank
    key: Rank
    waited: float
    """Seconds since it arrived."""
    cuts: Cuts | None = None
    """Where the ceiling may leave the pool less than its size: in place of the shares above."""


class Charges(NamedTuple):
    """What an admission raises the scores of its group, tenant and key by."""

    group: float
    tenant: float
    key: float


@dataclass(frozen=True, slots=True)
class Turn:
    """What goes with a claim: how it stands, what it costs, and who else may come first."""

    standing: Standing
    charges: Charges
    others: tuple[Standing, ...] = ()
    """Those of this replica's waiters that may come first after it, or before it after all."""


@dataclass(frozen=True, slots=True)
class Told:
    """What the books know of the nodes a claim is for, whether it was granted or not."""

    scores: tuple[float, float, float]
    """Of the group, the tenant and the key, over the whole fleet."""
    taken: tuple[int, int]
    """Slots that the group and the tenant take up, over the whole fleet."""


@dataclass(frozen=True, slots=True)
class Sibling:
    """A node with work on other replicas."""

    name: str
    weight: int
    taken: int = 0
    """Slots it takes up there."""
    waits: bool = False


@dataclass(frozen=True, slots=True)
class LevelElsewhere:
    """The nodes of one level that have work on other replicas."""

    siblings: Mapping[str, Sibling] = field(default_factory=dict)
    lowest: float | None = None
    """The lowest score of one that could go if a slot were free."""
    top: float = 0.0
    """How far this level has come there."""


@dataclass(frozen=True, slots=True)
class PoolElsewhere:
    """One pool as the other replicas have it."""

    taken: int = 0
    groups: LevelElsewhere = LevelElsewhere()
    tenants: Mapping[str, LevelElsewhere] = field(default_factory=dict)
    """By group."""
    keys: Mapping[str, LevelElsewhere] = field(default_factory=dict)
    """By tenant."""


@dataclass(frozen=True, slots=True)
class Served:
    """The fleet's scores of nodes of one pool, by id; of those that were not served zero."""

    groups: Mapping[str, float] = field(default_factory=dict)
    tenants: Mapping[str, float] = field(default_factory=dict)
    keys: Mapping[str, float] = field(default_factory=dict)
