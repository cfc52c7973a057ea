"""What the request path asks of budgets, whoever keeps the counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from dataplane.budgets.terms import Term
from shared.policy import KeyPolicy

ACTUAL_TOKENS_MAX: Final = 100_000_000
"""More than any body that is accepted could hold: a larger figure is the upstream's mistake."""


@dataclass(frozen=True, slots=True)
class RateLimitState:
    """A tenant's per-minute budget as the `x-ratelimit-*-tokens` response headers state it."""

    limit: int
    remaining: int
    reset_secs: float
    """Until the whole limit is there again."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """An estimate taken from every budget it counts against; settled once, by its id."""

    id: str
    tenant_id: str
    estimate: int
    """Tokens."""
    tokens_per_minute: int | None
    """The bucket it was taken from; None: the tenant had no per-minute budget."""
    terms: tuple[Term, ...]
    rate_limit: RateLimitState | None
    """The bucket just after the estimate was taken; None without a per-minute budget."""


class Budgets(Protocol):
    """Raises, from `check` and `reserve`: `BudgetExhausted` (403) when the budget of the term is
    spent, `RateLimited` (429) with the true wait when the minute's is, `PolicyUnavailable` (503)
    when what a term has used cannot be read. Never lets a request pass because it cannot tell.
    """

    async def check(self, key: KeyPolicy, estimate: int) -> None:
        """Refuse, before any queue, what `reserve` would refuse now. Reserves nothing."""

    async def reserve(self, key: KeyPolicy, estimate: int) -> Reservation:
        """Take `estimate` tokens from the tenant's and the key's budgets: from all or from none.

        Whoever gets a reservation settles it, on every path.
        """

    async def settle(self, reservation: Reservation, actual: int | None) -> None:
        """Replace the estimate by the tokens really used; None gives it back whole.

        Safe to repeat: only the first call counts. Never raises. A figure no request can reach
        (negative, above `ACTUAL_TOKENS_MAX`) leaves the estimate standing.
        """


class TermStore(Protocol):
    """Where what terms have used outlives the process. Raises `TermStoreUnavailable`."""

    async def load(self, terms: Sequence[Term]) -> Mapping[Term, int]:
        """Tokens used in each term; terms without a record are left out."""

    async def save(self, used: Mapping[Term, int]) -> None:
        """Record tokens used, as totals, so that a repeated call changes nothing."""

    async def add(self, used: Mapping[Term, int]) -> Mapping[Term, int]:
        """Add tokens used to what is recorded, and tell the totals: for several that write at once.

        After an error it may have been done all the same, if the database went away at its end.
        """


class TermStoreUnavailable(Exception):
    """What terms have used can be neither read nor written at the moment."""


def counted(estimate: int, actual: int | None) -> int:
    """The tokens a settlement counts: the truth where it is believable, else the estimate."""
    if actual is None:
        return 0
    return actual if 0 <= actual <= ACTUAL_TOKENS_MAX else estimate
