"""The budget of a term, of a tenant or of a key: what has been spent since the term began.

A term is named by whose it is and when it began. A new day or month (UTC), or an operator moving
where a `term` or `lifetime` began, is simply another term, with a count of its own from zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple, assert_never

from shared.policy import Budget, BudgetPeriod, KeyPolicy

_DAY_SECS: Final = 86_400


class Scope(StrEnum):
    """Whose budget it is."""

    TENANT = "tenant"
    KEY = "key"


class Term(NamedTuple):
    """One budget period of one tenant or key. A tuple, because it is looked up some twenty times a
    request.
    """

    scope: Scope
    subject_id: str
    starts_ms: int
    """Unix milliseconds; 0 where a `term` or `lifetime` counts from the first use."""
    calendar: bool
    """Whether the calendar began it, rather than an operator."""


@dataclass(frozen=True, slots=True)
class TermLimit:
    """A term and the tokens allowed in it."""

    term: Term
    tokens: int
    period: BudgetPeriod


@dataclass(slots=True)
class TermCount:
    """What a term has used (`committed`) and what runs at the moment may use (`reserved`)."""

    committed: int = 0
    reserved: int = 0

    def allows(self, estimate: int, tokens: int) -> bool:
        """Whether a request of `estimate` tokens still fits into a budget of `tokens`."""
        return self.committed + self.reserved + estimate <= tokens

    def reserve(self, estimate: int) -> None:
        self.reserved += estimate

    def settle(self, estimate: int, actual: int) -> None:
        """Turn a reservation of `estimate` into `actual` tokens used; 0 gives it back whole."""
        self.reserved -= estimate
        assert self.reserved >= 0, "a reservation was settled twice"
        self.committed += actual


def limits_of(key: KeyPolicy, now: float) -> Iterator[TermLimit]:
    """The budgets a request of this key counts against at `now` (Unix seconds): none to two."""
    subjects = (
        (Scope.TENANT, key.tenant.id, key.tenant.budget),
        (Scope.KEY, key.id, key.budget),
    )
    for scope, subject_id, budget in subjects:
        if budget.tokens is not None:
            term = Term(
                scope,
                subject_id,
                starts_ms=_starts_ms(budget, now),
                calendar=budget.period in (BudgetPeriod.DAY, BudgetPeriod.MONTH),
            )
            yield TermLimit(term, budget.tokens, budget.period)


def _starts_ms(budget: Budget, now: float) -> int:
    match budget.period:
        case BudgetPeriod.DAY:
            return _midnight_ms(int(now // _DAY_SECS), first_of_month=False)
        case BudgetPeriod.MONTH:
            return _midnight_ms(int(now // _DAY_SECS), first_of_month=True)
        case BudgetPeriod.TERM | BudgetPeriod.LIFETIME:
            return 0 if budget.started_at is None else round(budget.started_at * 1000)
        case _:
            assert_never(budget.period)


@lru_cache(maxsize=8)  # asked for on every request, and the same all day
def _midnight_ms(day: int, *, first_of_month: bool) -> int:
    """When a day (counted from 1970 in UTC) began, or its month."""
    date = datetime.fromtimestamp(day * _DAY_SECS, UTC)
    return int((date.replace(day=1) if first_of_month else date).timestamp()) * 1000
