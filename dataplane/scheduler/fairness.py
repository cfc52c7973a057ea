"""Served counters, virtual time, and the order siblings stand in.

A node is a group, a tenant or a key of one pool; a level is a set of siblings: the groups of a
pool, the tenants of a group, the keys of a tenant. Each node has a *score*, the tokens it was
charged divided by its weight; whoever has the lowest goes first. This is start-time fair queuing
(Goyal, Vin, Cheng 1996) with the estimate of a request as its length, one level inside the
other.

A node *contends* while it has a waiter that could go if a slot were free: something queued, and
neither it nor all below it at a cap. The *virtual time* of a level is the lowest score among
those that contend; with none, the highest score anyone was admitted at. It never goes back while
the pool has work. A node that had nobody waiting is *raised* to it when it sends again, so nobody
saves up credit by being silent.

A node that waits behind its own cap falls behind the others in score and is not raised: when one
of its slots is free it is its turn, so it always gets what its cap allows. But it does not hold
the virtual time down meanwhile, or newcomers would join far below everybody who is served; and
when its cap is lifted it is raised, or it would crowd the others out for all it did without.

Where this departs from the textbook: the score is kept, not the count of tokens, as an integer
in units of `1 / SCORE_UNIT` token per weight. So scores compare exactly however long a pool
stays busy, and a weight that changes while a node has work changes what it is charged from then
on and not where it stands.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Any, Final, Generic, TypeVar

from sortedcontainers import SortedList

from dataplane.scheduler.shares import Shares

SCORE_UNIT: Final = 1 << 32
"""One token per unit of weight, as scores are counted: fine enough for the largest weight times the
largest scale."""


class Node:
    """One group, tenant or key as it stands in one pool."""

    __slots__ = (
        "blocked",
        "cap",
        "configured_cap",
        "entry",
        "held",
        "id",
        "level",
        "name",
        "resting",
        "running",
        "score",
        "waiting",
        "weight",
    )

    def __init__(self, id: str, name: str, weight: int, level: Level[Any]) -> None:
        self.id = id
        self.name = name
        """Its place in name order; unique among its siblings."""
        self.weight = weight
        self.configured_cap: int | None = None
        self.cap: int | None = None
        """The most slots it may take up here: as configured, or this replica's part of it."""
        self.blocked = False
        """The fleet says it is at its cap; whether that still holds is asked again in a moment."""
        self.level = level
        """The siblings it stands among."""
        self.score = 0
        self.resting = False
        self.running = 0
        self.held = 0
        self.waiting = 0
        self.entry: tuple[int, int] | None = None
        """Where it stands among those that contend: its score, then the arrival of its next
        request."""

    @property
    def occupied(self) -> int:
        """Slots it takes up: running and held alike."""
        return self.running + self.held

    @property
    def has_work(self) -> bool:
        return self.running + self.held + self.waiting > 0

    @property
    def capped(self) -> bool:
        return self.blocked or (self.cap is not None and self.running + self.held >= self.cap)

    @property
    def served_tokens(self) -> int:
        """The score as a count of tokens: what it was charged, or raised to."""
        return (self.score * self.weight + SCORE_UNIT // 2) // SCORE_UNIT


N = TypeVar("N", bound=Node)


class Level(Generic[N]):
    """The siblings under one parent, and who of them comes first."""

    __slots__ = ("_resting", "_top_admitted", "contenders", "nodes", "shares", "virtual_time")

    def __init__(self) -> None:
        self.nodes: dict[str, N] = {}
        self.shares = Shares()
        self.contenders: SortedList[tuple[int, int, N]] = SortedList()
        self.virtual_time = 0
        self._top_admitted = 0
        self._resting: list[tuple[int, str]] = []
        """Nodes without work that would lose a debt if they were forgotten now, by score."""

    def first(self) -> N | None:
        """The contender with the lowest score; of equals, the one whose next request is older."""
        return self.contenders[0][2] if self.contenders else None

    def head(self) -> int | None:
        """The arrival of the first contender's next request; None if nobody contends."""
        return self.contenders[0][1] if self.contenders else None

    def in_order(self) -> Iterator[N]:
        """Those that contend, first to last. The level must not change meanwhile."""
        return (node for _, _, node in self.contenders)

    def place(self, node: N, head: int | None) -> None:
        """Put a node where its score and its next request say; None: it does not contend."""
        if head is None:
            if node.entry is not None:
                self.contenders.remove((*node.entry, node))
                node.entry = None
        else:
            if node.entry == (node.score, head):
                return
            if node.entry is not None:
                self.contenders.remove((*node.entry, node))
            node.entry = (node.score, head)
            self.contenders.add((*node.entry, node))
        self._advance()

    def join(self, node: N) -> None:
        """Raise a node that comes back to the level of the others. `place` it afterwards."""
        node.score = max(node.score, self.virtual_time)

    def charge(self, node: N, tokens: int) -> int:
        """Raise a node's score by what its admission costs, and say by how much. `place` it
        afterwards."""
        self._top_admitted = max(self._top_admitted, node.score)
        amount = tokens * SCORE_UNIT // node.weight
        node.score += amount
        return amount

    def begin_work(self, node: N) -> None:
        """A node has work again: it shares."""
        self.shares.add(node.weight, node.name)

    def end_work(self, node: N) -> None:
        """A node has no work left: it does not share.

        It is forgotten as soon as its return would raise its score anyway.
        """
        self.shares.remove(node.weight, node.name)
        if node.score <= self.virtual_time:
            del self.nodes[node.id]
        elif not node.resting:
            node.resting = True
            heappush(self._resting, (node.score, node.id))

    def rename(self, node: N, name: str, weight: int) -> None:
        """Change name and weight in place.

        The node keeps its score and is charged by its new weight from now on.
        """
        if (name, weight) == (node.name, node.weight):
            return
        if node.has_work:
            self.shares.remove(node.weight, node.name)
            self.shares.add(weight, name)
        node.name, node.weight = name, weight

    def take_out(self, node: N) -> None:
        """A node leaves these siblings for others."""
        self.place(node, None)
        if node.has_work:
            self.shares.remove(node.weight, node.name)
        del self.nodes[node.id]
        node.resting = False

    def take_in(self, node: N) -> None:
        """A node comes from other siblings: it starts level with these, whatever it was owed or
        owed there."""
        known = self.nodes.get(node.id)
        node.score = self.virtual_time if known is None else max(known.score, self.virtual_time)
        self.nodes[node.id] = node
        node.level = self
        if node.has_work:
            self.shares.add(node.weight, node.name)

    def _advance(self) -> None:
        level = self.contenders[0][0] if self.contenders else self._top_admitted
        if level <= self.virtual_time:
            return
        self.virtual_time = level
        resting = self._resting
        while resting and resting[0][0] <= level:
            _, id = heappop(resting)
            node = self.nodes.get(id)
            if node is None or not node.resting:
                continue
            node.resting = False
            if node.has_work:
                continue
            if node.score <= level:
                del self.nodes[id]
            else:
                node.resting = True
                heappush(resting, (node.score, id))
