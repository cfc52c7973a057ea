"""In which words a request is refused that a budget does not cover."""

from __future__ import annotations

from dataplane.budgets.bucket import TokenBucket, whole_secs
from dataplane.budgets.port import RateLimitState
from dataplane.budgets.terms import TermCount, TermLimit
from dataplane.errors import BudgetExhausted, RateLimited


def state_of(bucket: TokenBucket) -> RateLimitState:
    """A bucket as the headers of an answer state it."""
    return RateLimitState(bucket.size, bucket.remaining, bucket.reset_ms / 1000)


def limited(bucket: TokenBucket, estimate: int) -> RateLimited:
    """The refusal of a request that has to wait for the minute's budget."""
    return RateLimited(
        f"This request needs about {estimate:,} tokens and the tenant's budget of "
        f"{bucket.size:,} tokens a minute has {bucket.remaining:,} left.",
        retry_after_secs=whole_secs(bucket.wait_ms(estimate)),
        tokens=(bucket.size, bucket.remaining, bucket.reset_ms / 1000),
    )


def spent(
    limit: TermLimit, count: TermCount, estimate: int, *, part: int | None = None
) -> BudgetExhausted:
    """The refusal of a request that the rest of a term's budget does not cover.

    `part` is what of the rest may be used here while replicas cannot agree; None: all of it.
    """
    running = f" and {count.reserved:,} reserved by running requests" if count.reserved else ""
    here = "" if part is None else f" This replica, cut off from the others, may use {part:,} more."
    return BudgetExhausted(
        f"The {limit.term.scope}'s budget of {limit.tokens:,} tokens ({limit.period}) does not "
        f"cover this request of about {estimate:,}: {count.committed:,} used{running}.{here}"
    )
