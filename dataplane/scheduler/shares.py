"""How shares are cut: weights → whole slots, by largest remainder.

The quota of a sibling is `slots × weight ÷ total weight`. Everyone gets the whole part of its
quota; the slots left over go one each to the largest fractional parts, ties to the first in name
order (Hamilton's method). Two rules on top:

* **Room** (no more siblings than slots): a sibling whose quota is below one slot gets exactly one,
  and the others share what is left by the same method. A sibling thus never loses its only slot to
  rounding.
* **No room** (more siblings than slots): plain largest remainder; some shares are zero. The order
  in `order.py` keeps those from being shut out.

All arithmetic is on integers: quotas are compared by their numerators, so no rounding error can
move a slot.

`shared.policy.split` is the definition, linear in the number of siblings. `Shares` answers for one
sibling at a time and stays fast while siblings come and go: its work grows with the distinct
weights worth a whole slot, of which there are never more than slots, and with the logarithm of the
number of siblings.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sortedcontainers import SortedList


@dataclass(frozen=True, slots=True)
class _WeightClass:
    """Siblings of one weight that take part in the contest for the slots left over."""

    weight: int
    count: int
    remainder: int


@dataclass(frozen=True, slots=True)
class _Cut:
    """What the shares of one number of slots have in common."""

    room: bool
    smallest: int
    """Weights from here on have a quota of one slot or more."""
    slots: int
    """Slots the contest is over: all of them, less one for each sibling fixed at one."""
    total: int
    """The total weight that contests them."""
    classes: tuple[_WeightClass, ...]
    leftover: int
    known: dict[tuple[int, str], int] = field(default_factory=dict)
    """Shares that were asked for, by weight and name. A claim near the ceiling asks for the same
    ones again and again."""


class Shares:
    """The siblings that have work, and each one's share of a number of slots."""

    __slots__ = ("_cuts", "_members", "_total")

    def __init__(self) -> None:
        self._members: SortedList[tuple[int, str]] = SortedList()
        self._total = 0
        self._cuts: dict[int, _Cut] = {}

    def __len__(self) -> int:
        return len(self._members)

    @property
    def total_weight(self) -> int:
        return self._total

    def add(self, weight: int, name: str) -> None:
        self._members.add((weight, name))
        self._total += weight
        self._cuts.clear()

    def remove(self, weight: int, name: str) -> None:
        self._members.remove((weight, name))
        self._total -= weight
        self._cuts.clear()

    def of(self, weight: int, name: str, slots: int) -> int:
        """The share of one member in `slots`; the same number that `split` gives it."""
        cut = self._cut(slots)
        share = cut.known.get((weight, name))
        if share is None:
            whole, remainder = self._quota(cut, weight)
            share = cut.known[weight, name] = whole + self._extra(cut, remainder, name)
        return share

    def under(self, weight: int, name: str, slots: int, occupied: int) -> bool:
        """Whether a member that occupies `occupied` slots is under its share.

        A member that occupies nothing always is: where there is room its share is at least one, and
        where there is none a share rounded to zero must not shut it out.
        """
        if occupied == 0:
            return True
        cut = self._cut(slots)
        whole, remainder = self._quota(cut, weight)
        if occupied != whole:
            return occupied < whole
        return self._extra(cut, remainder, name) > 0

    def _quota(self, cut: _Cut, weight: int) -> tuple[int, int]:
        if weight < cut.smallest:
            return (1, 0) if cut.room else (0, weight * cut.slots)
        return divmod(weight * cut.slots, cut.total)

    def _extra(self, cut: _Cut, remainder: int, name: str) -> int:
        """1 if the member is among the `leftover` largest remainders, else 0."""
        if not cut.leftover or not remainder:
            return 0
        ahead = 0
        for each in cut.classes:
            if each.remainder > remainder:
                ahead += each.count
            elif each.remainder == remainder:
                ahead += self._named_before(each.weight, name)
        if not cut.room:
            ahead += self._small_ahead(cut, remainder, name)
        return 1 if ahead < cut.leftover else 0

    def _small_ahead(self, cut: _Cut, remainder: int, name: str) -> int:
        """Members worth less than a slot whose whole quota is a larger remainder, or the same one
        and named before."""
        same, odd = divmod(remainder, cut.slots)
        larger = self._first(cut.smallest) - self._first(min(same + 1, cut.smallest))
        if odd or same >= cut.smallest:
            return larger
        return larger + self._named_before(same, name)

    def _named_before(self, weight: int, name: str) -> int:
        return self._members.bisect_left((weight, name)) - self._first(weight)

    def _first(self, weight: int) -> int:
        """The index of the first member of at least this weight."""
        return self._members.bisect_left((weight, ""))

    def _cut(self, slots: int) -> _Cut:
        cut = self._cuts.get(slots)
        if cut is None:
            cut = self._cuts[slots] = self._make_cut(slots)
        return cut

    def _make_cut(self, slots: int) -> _Cut:
        members, count = self._members, len(self._members)
        room = count <= slots
        left, total, start = slots, self._total, 0
        if room:
            while start < count and (weight := members[start][0]) * left < total:
                end = self._first(weight + 1)
                left, total, start = left - (end - start), total - weight * (end - start), end
        else:
            start = self._first(-(-total // slots)) if slots else count
        smallest = members[start][0] if start < count else self._beyond_all()
        classes = []
        leftover = left
        while start < count:
            weight = members[start][0]
            end = self._first(weight + 1)
            whole, remainder = divmod(weight * left, total)
            classes.append(_WeightClass(weight, end - start, remainder))
            leftover -= whole * (end - start)
            start = end
        return _Cut(room, smallest, left, total, tuple(classes), leftover)

    def _beyond_all(self) -> int:
        return self._members[-1][0] + 1 if self._members else 1


def are_under(shares: tuple[int, int], taken: tuple[int, int]) -> bool:
    """Whether both a group and its tenant, in this order, are under the shares cut for them."""
    return all(each == 0 or each < share for share, each in zip(shares, taken, strict=True))
