"""The live picture as the pages show it: the API's figures, and the cells of a pool's bar."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, Self

from controlplane.dashboard.api import Api, Json, Refused
from controlplane.dashboard.rendering import count, milliseconds

CELLS: Final = 128
"""A bar's most cells; in a larger pool each stands for several slots."""
COLOURS: Final = 8
"""Groups with a colour of their own; the others share a ninth."""
FREE: Final = "free"
HELD: Final = "held"


@dataclass(frozen=True, slots=True)
class Bar:
    """The slots of a pool, one after another: each group's, the held ones, the free ones."""

    model: str
    cells: Sequence[str]
    """`g0` to `g8` for a group's colour, `held`, `free`."""
    slots_each: int
    over: int
    """Slots in use beyond the pool's size, while it shrinks or is split."""


@dataclass(frozen=True, slots=True)
class Live:
    """What the API said, or why it said nothing."""

    state: Json | None
    problem: str | None = None
    colours: Mapping[str, int] | None = None

    @classmethod
    async def of(cls, api: Api, replica: str = "") -> Self:
        """Ask for it; a refusal is part of the picture."""
        try:
            state = await api.get("/fairshare/live", replica=replica)
        except Refused as refused:
            return cls(None, refused.detail)
        return cls(state, None, colours(state["pools"]))

    @property
    def pools(self) -> list[Json]:
        pools: list[Json] = self.state["pools"] if self.state else []
        return pools

    @property
    def on_one_of_several(self) -> bool:
        """Whether the counts are those of one gateway while there are others."""
        return (
            self.state is not None
            and self.state["scope"] == "replica"
            and self.state["replicas"] > 1
        )

    @property
    def some_are_missing(self) -> bool:
        """Whether the counts are those of several gateways, but not of all that live."""
        return (
            self.state is not None
            and self.state["scope"] == "cluster"
            and self.state["replicas_reporting"] < self.state["replicas"]
        )

    def pool(self, model: str) -> Json | None:
        return next((pool for pool in self.pools if pool["model"] == model), None)

    def colour(self, group: str) -> int:
        return (self.colours or {}).get(group, COLOURS)

    def bar(self, pool: Json) -> Bar:
        return bar(pool, self.colours or {})

    def figures(self, pool: Json) -> dict[str, str]:
        """What is said of a pool beside its bar."""
        oldest = milliseconds(pool["oldest_wait_ms"] if pool["queued"] else None)
        return {
            **{name: count(pool[name]) for name in ("in_flight", "size", "held", "queued")},
            "oldest": oldest,
            "since": f", the oldest for {oldest}" if pool["queued"] else "",
        }

    def below_share(self) -> list[tuple[Json, Json]]:
        """Pools and tenants below their share in them."""
        return [
            (pool, tenant)
            for pool in self.pools
            for tenant in pool["tenants"]
            if tenant["below_share"]
        ]


def colours(pools: Iterable[Json]) -> dict[str, int]:
    """A colour for each group: by name, so that it stays the same while the same groups work."""
    names = sorted({group["name"] for pool in pools for group in pool["groups"]})
    return {name: min(index, COLOURS) for index, name in enumerate(names)}


def bar(pool: Json, colours: Mapping[str, int]) -> Bar:
    """A pool's slots as cells. Beyond `CELLS` slots a cell is coloured by its first slot."""
    size = pool["size"]
    used = [
        (f"g{colours.get(group['name'], COLOURS)}", group["in_flight"]) for group in pool["groups"]
    ]
    used.append((HELD, pool["held"]))
    taken = sum(number for _, number in used)
    used.append((FREE, max(0, size - taken)))
    slots_each = -(-size // CELLS) or 1
    slots = list(chain.from_iterable([kind] * number for kind, number in used))[:size]
    return Bar(pool["model"], slots[::slots_each], slots_each, max(0, taken - size))
