"""Time, a store and tenants for tests of budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from dataplane.budgets.port import TermStoreUnavailable
from dataplane.budgets.terms import Term
from shared.policy import Budget, BudgetPeriod, KeyPolicy, TenantPolicy


@dataclass
class Time:
    """Both clocks, moved by hand."""

    monotonic: float = 1000.0
    wall: float = field(
        default_factory=lambda: datetime(2031, 3, 30, 12, 0, tzinfo=UTC).timestamp()
    )

    def passes(self, secs: float) -> None:
        self.monotonic += secs
        self.wall += secs

    def is_now(self, *date: int) -> None:
        self.wall = datetime(*date, tzinfo=UTC).timestamp()  # type: ignore[misc, arg-type]


@dataclass
class MemoryTermStore:
    """A `TermStore` that can be taken away and tells what was asked of it."""

    used: dict[Term, int] = field(default_factory=dict)
    away: bool = False
    loads: list[list[Term]] = field(default_factory=list)
    saves: list[dict[Term, int]] = field(default_factory=list)

    async def load(self, terms: Sequence[Term]) -> Mapping[Term, int]:
        self.loads.append(list(terms))
        if self.away:
            raise TermStoreUnavailable("away")
        return {term: self.used[term] for term in terms if term in self.used}

    async def save(self, used: Mapping[Term, int]) -> None:
        if self.away:
            raise TermStoreUnavailable("away")
        self.saves.append(dict(used))
        self.used.update(used)

    async def add(self, used: Mapping[Term, int]) -> Mapping[Term, int]:
        if self.away:
            raise TermStoreUnavailable("away")
        for term, tokens in used.items():
            self.used[term] = self.used.get(term, 0) + tokens
        return {term: self.used[term] for term in used}


def tenant(id_: str = "t1", **fields: Any) -> TenantPolicy:
    return TenantPolicy(id=id_, name=f"name of {id_}", **fields)


def key(id_: str = "k1", *, of: TenantPolicy | None = None, **fields: Any) -> KeyPolicy:
    return KeyPolicy(id=id_, name=f"name of {id_}", tenant=of or tenant(), **fields)


def per_minute(tokens: int, id_: str = "k1", tenant_id: str = "t1") -> KeyPolicy:
    """A key of a tenant with this many tokens a minute."""
    return key(id_, of=tenant(tenant_id, tokens_per_minute=tokens))


def month(tokens: int) -> Budget:
    return Budget(tokens, BudgetPeriod.MONTH)
