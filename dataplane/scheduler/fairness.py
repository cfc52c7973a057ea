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
when its cap is lifted it is raised, or it would crowd the others out for all it did without. So
are those above it that had nobody else who could go.

Where this departs from the textbook: the score is kept, not the count of tokens, as an integer
in units of `1 / SCORE_UNIT` token per weight. So scores compare exactly however long a pool
stays busy, and a weight that changes while a node has work changes what it is charged from then
on and not where it stands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from typing import Any, Final, Generic, TypeVar

from sortedcontainers import SortedList

from dataplane.scheduler.shares import Shares
from dataplane.scheduler.standing import LevelElsewhere, Sibling

SCORE_UNIT: Final = 1 << 32
"""One token per unit of weight, as scores are counted: fine enough for the largest weight times the
largest scale."""


def units(score: float) -> int:
    """A score in tokens a unit of weight, as it is counted."""
    return round(score * SCORE_UNIT)


class Node:
    """One group, tenant or key as it stands in one pool."""

    __slots__ = (
        "at_cap",
        "blocked",
        "cap",
        "configured_cap",
        "entry",
        "floor",
        "held",
        "id",
        "level",
        "name",
        "pending",
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
        self.at_cap = False
        """That is what the fleet said last, held slots included."""
        self.level = level
        """The siblings it stands among."""
        self.score = 0
        self.floor = 0
        """The level at which it last came back."""
        self.pending = 0
        """What it is charged for claims that are not answered yet; part of its score."""
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
    def taken(self) -> int:
        """Slots it takes up over the whole fleet, as far as is known here."""
        elsewhere = self.level.elsewhere.get(self.id)
        return self.running + self.held + (0 if elsewhere is None else elsewhere.taken)

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

    __slots__ = (
        "_lowest_elsewhere",
        "_resting",
        "_top_admitted",
        "contenders",
        "elsewhere",
        "nodes",
        "shares",
        "virtual_time",
    )

    def __init__(self) -> None:
        self.nodes: dict[str, N] = {}
        self.shares = Shares()
        self.contenders: SortedList[tuple[int, int, N]] = SortedList()
        self.elsewhere: dict[str, Sibling] = {}
        """Those with work on other replicas, by id. They share, with or without a node here."""
        self._lowest_elsewhere: int | None = None
        self.virtual_time = 0
        self._top_admitted = 0
        self._resting: list[tuple[int, str]] = []
        """Nodes without work that would lose a debt if they were forgotten now, by score."""

    def first(self) -> N | None:
        """The contender with the lowest score; of equals, the one whose next request is older."""
        return self.contenders[0][2] if self.contenders else None

    @property
    def lowest(self) -> int | None:
        """The lowest score of those that contend here."""
        return self.contenders[0][0] if self.contenders else None

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
        """Raise a node that comes back to the level of the others. `place` it afterwards.

        One that has waiters on another replica never was away.
        """
        elsewhere = self.elsewhere.get(node.id)
        if elsewhere is None or not elsewhere.waits:
            self.catch_up(node)

    def catch_up(self, node: N) -> None:
        """Raise a node to the level of the others, wherever it waits: what it did without is no
        credit. `place` it afterwards."""
        self._raise(node, self.virtual_time)

    def charge(self, node: N, tokens: int) -> int:
        """Raise a node's score by what its admission costs, and say by how much. `place` it
        afterwards."""
        self._top_admitted = max(self._top_admitted, node.score)
        amount = tokens * SCORE_UNIT // node.weight
        node.score += amount
        return amount

    def begin_work(self, node: N) -> None:
        """A node has work again: it shares."""
        elsewhere = self.elsewhere.get(node.id)
        if elsewhere is not None:
            self.shares.remove(elsewhere.weight, elsewhere.name)
        self.shares.add(node.weight, node.name)

    def end_work(self, node: N) -> None:
        """A node has no work left: it does not share.

        It is forgotten as soon as its return would raise its score anyway.
        """
        self._share_no_more(node)
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
            self._share_no_more(node)
        del self.nodes[node.id]
        node.resting = False

    def take_in(self, node: N) -> None:
        """A node comes from other siblings: it starts level with these, whatever it was owed or
        owed there."""
        known = self.nodes.get(node.id)
        node.score = self.virtual_time if known is None else max(known.score, self.virtual_time)
        node.floor = node.score - node.pending
        self.nodes[node.id] = node
        node.level = self
        if node.has_work:
            self.begin_work(node)

    # A fleet that goes by one order

    def restart(self) -> None:
        """Forget every score: they say nothing to those of other replicas."""
        for node in [node for node in self.nodes.values() if not node.has_work]:
            del self.nodes[node.id]
        self._resting.clear()
        self.virtual_time = self._top_admitted = 0
        again = [(node, head) for _, head, node in self.contenders]
        self.contenders.clear()
        for node in self.nodes.values():
            node.score, node.floor, node.resting, node.entry = node.pending, 0, False, None
        for node, head in again:
            self.place(node, head)

    def see(self, others: LevelElsewhere) -> None:
        """This is what the other replicas have at this level now."""
        if not (self.elsewhere or others.siblings or others.top or self._lowest_elsewhere):
            return
        for id in self.elsewhere.keys() | others.siblings.keys():
            node = self.nodes.get(id)
            if node is None or not node.has_work:
                self._reshare(self.elsewhere.get(id), others.siblings.get(id))
        self.elsewhere = dict(others.siblings)
        self._lowest_elsewhere = None if others.lowest is None else units(others.lowest)
        self._top_admitted = max(self._top_admitted, units(others.top))
        self._advance()

    def learn(self, node: Node, score: float) -> None:
        """The books have this score of a node. `place` it afterwards."""
        node.score = max(units(score), node.floor) + node.pending

    def align(self, known: Mapping[str, float]) -> None:
        """The books have these scores; nodes that were not served yet come in level with those that
        were. `place` all afterwards."""
        known = {id: score for id, score in known.items() if score > 0}
        for id, score in known.items():
            if id in self.nodes:
                self.learn(self.nodes[id], score)
        lows = [node.score for id, node in self.nodes.items() if id in known and node.entry]
        if self._lowest_elsewhere is not None:
            lows.append(self._lowest_elsewhere)
        tops = [self._top_admitted, *(node.score for id, node in self.nodes.items() if id in known)]
        level = min(lows) if lows else max(tops)
        for id, node in self.nodes.items():
            if id not in known:
                self._raise(node, level)

    def count_elsewhere(self, node: Node, taken: int) -> None:
        """The books count this many slots of a node over the whole fleet."""
        elsewhere = self.elsewhere.get(node.id)
        rest = max(0, taken - node.occupied)
        if elsewhere is None and (rest == 0 or not node.has_work):
            return
        waits = elsewhere is not None and elsewhere.waits
        was = elsewhere or Sibling(node.name, node.weight)
        self.elsewhere[node.id] = Sibling(was.name, was.weight, rest, waits)

    def _raise(self, node: Node, level: int) -> None:
        if node.score < level:
            node.score = level
            node.floor = level - node.pending

    def _share_no_more(self, node: Node) -> None:
        self.shares.remove(node.weight, node.name)
        elsewhere = self.elsewhere.get(node.id)
        if elsewhere is not None:
            self.shares.add(elsewhere.weight, elsewhere.name)

    def _reshare(self, before: Sibling | None, after: Sibling | None) -> None:
        if before and after and (before.weight, before.name) == (after.weight, after.name):
            return
        if before is not None:
            self.shares.remove(before.weight, before.name)
        if after is not None:
            self.shares.add(after.weight, after.name)

    def _advance(self) -> None:
        lows = [low for low in (self.lowest, self._lowest_elsewhere) if low is not None]
        level = min(lows, default=self._top_admitted)
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
