"""The buckets of many tenants in memory, those that are full again forgotten."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from dataplane.budgets.bucket import TokenBucket

FORGOTTEN_AT_A_TIME: Final = 2
"""How many idle records each new one looks for: more than one, so that idle ones run out."""


class Buckets:
    """Token buckets by tenant. A bucket that is not here is full. Times are whole milliseconds."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def size_of(self, tenant_id: str) -> int | None:
        """The size of the tenant's bucket; None: it is not here."""
        bucket = self._buckets.get(tenant_id)
        return None if bucket is None else bucket.size

    def at(self, tenant_id: str, size: int, now_ms: int) -> TokenBucket:
        """The tenant's bucket, brought up to date."""
        bucket = self._buckets.get(tenant_id)
        if bucket is None:
            self._forget_full(now_ms)
            bucket = self._buckets[tenant_id] = TokenBucket.full(size, now_ms)
        else:
            self._buckets.move_to_end(tenant_id)
            bucket.advance(now_ms, size)
        return bucket

    def put(self, tenant_id: str, bucket: TokenBucket) -> None:
        """Have this bucket from now on."""
        if tenant_id not in self._buckets:
            self._forget_full(bucket.at_ms)
        self._buckets[tenant_id] = bucket
        self._buckets.move_to_end(tenant_id)

    def clear(self) -> None:
        self._buckets.clear()

    def _forget_full(self, now_ms: int) -> None:
        for _ in range(min(FORGOTTEN_AT_A_TIME, len(self._buckets))):
            tenant_id, bucket = next(iter(self._buckets.items()))
            bucket.advance(now_ms, bucket.size)
            if bucket.is_full:
                del self._buckets[tenant_id]
            else:
                self._buckets.move_to_end(tenant_id)
