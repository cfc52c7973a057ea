"""What one replica may spend while it cannot reach the fleet's budgets: its part of each.

Of a minute: a bucket of its part of the size, filled with its part of what the fleet's bucket had
when it was last heard of. Of a term: its part of what was left when this replica first needed to
know in this outage, so that all replicas together do not spend more than that. What ran on other
replicas at that moment is not known here: by so much, at most, the term can be overrun.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from dataplane.budgets.bucket import TokenBucket
from dataplane.budgets.buckets import Buckets
from dataplane.budgets.refusals import limited, spent
from dataplane.budgets.terms import Term, TermCount, TermLimit


class OwnPart:
    """One replica's part of the budgets. Times are whole milliseconds of a monotonic clock.

    `reserved` is what this replica's open reservations take of each term, kept by the caller.
    """

    def __init__(self, reserved: Mapping[Term, int]) -> None:
        self._reserved: Final = reserved
        self._fleets: Final = Buckets()
        """The fleet's buckets as they were last heard of."""
        self._buckets: Final = Buckets()
        self._bases: dict[Term, int] = {}
        self._used: dict[Term, int] = {}

    def heard(self, tenant_id: str, bucket: TokenBucket, now_ms: int) -> None:
        """What the fleet's bucket of a tenant has now."""
        self._fleets.put(tenant_id, TokenBucket(bucket.size, bucket.level, now_ms))

    def restart(self) -> None:
        """An outage begins, or has ended: nothing of the one before counts."""
        self._buckets.clear()
        self._bases.clear()
        self._used.clear()

    def knows(self, term: Term) -> bool:
        """Whether it is known what a term had used when it first mattered in this outage."""
        return term in self._bases

    @property
    def terms(self) -> tuple[Term, ...]:
        """Those that mattered in this outage."""
        return tuple(self._bases)

    def total(self, term: Term) -> int:
        """What a term has used as far as it is known here."""
        return self._bases[term] + self._used[term]

    def begin(self, term: Term, used: int) -> None:
        """What a term has used, now that it matters."""
        self._bases[term] = used
        self._used[term] = 0

    def refuse_or_pass(
        self,
        tenant_id: str,
        size: int | None,
        limits: Sequence[TermLimit],
        estimate: int,
        *,
        replicas: int,
        now_ms: int,
    ) -> TokenBucket | None:
        """Raise what stands in the way; else the bucket. `begin` was called for each term."""
        for limit in limits:
            base, used = self._bases[limit.term], self._used[limit.term]
            reserved = self._reserved.get(limit.term, 0)
            part = _part(max(0, limit.tokens - base), replicas)
            if used + reserved + estimate > part:
                left = max(0, part - used - reserved)
                raise spent(limit, TermCount(base + used, reserved), estimate, part=left)
        if size is None:
            return None
        bucket = self._bucket(tenant_id, size, replicas, now_ms)
        if bucket.wait_ms(estimate):
            raise limited(bucket, estimate)
        return bucket

    def settle_minute(self, tenant_id: str, estimate: int, used: int, now_ms: int) -> None:
        """Correct what a request took here; a bucket that is not here any more was full."""
        size = self._buckets.size_of(tenant_id)
        if size is not None:
            self._buckets.at(tenant_id, size, now_ms).correct(estimate, used)

    def settle_term(self, term: Term, used: int) -> None:
        """Count what a request used in a term, whoever it had reserved it from."""
        if term in self._used:
            self._used[term] += used

    def _bucket(self, tenant_id: str, size: int, replicas: int, now_ms: int) -> TokenBucket:
        part = _part(size, replicas)
        if self._buckets.size_of(tenant_id) is None and self._fleets.size_of(tenant_id) is not None:
            fleets = self._fleets.at(tenant_id, size, now_ms)
            level = min(fleets.level // replicas, TokenBucket.full(part, now_ms).level)
            self._buckets.put(tenant_id, TokenBucket(part, level, now_ms))
        return self._buckets.at(tenant_id, part, now_ms)


def _part(limit: int, replicas: int) -> int:
    return -(-limit // replicas)
