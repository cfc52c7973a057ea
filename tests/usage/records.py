"""Records, and a store that can be taken away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dataplane.usage.record import UsageRecord, UsageStoreUnavailable
from shared.policy import KeyPolicy, TenantPolicy

STARTED = 1_900_000_000.0
KEY = KeyPolicy("k1", "name of k1", TenantPolicy("t1", "name of t1"))


def record(request_id: str = "r1", **fields: Any) -> UsageRecord:
    plain: dict[str, Any] = {
        "request_id": request_id,
        "started_at": STARTED,
        "key": KEY,
        "model": "m1",
        "admission": "fast",
        "status": 200,
        "is_partial": False,
        "queue_ms": 0.5,
        "ttfb_ms": 12.25,
        "duration_ms": 100.0,
        "input_tokens": 10,
        "output_tokens": 20,
        "cached_tokens": 5,
        "is_estimated": False,
        "session": None,
    }
    return UsageRecord(**{**plain, **fields})


@dataclass
class MemoryUsageStore:
    """A `UsageStore` that keeps by id. Away, it may still have done what was asked of it."""

    kept: dict[str, UsageRecord] = field(default_factory=dict)
    batches: list[int] = field(default_factory=list)
    away: bool = False
    loses_answers: bool = False
    refuses: frozenset[str] = frozenset()
    purges: list[float] = field(default_factory=list)

    async def write(self, records: Sequence[UsageRecord]) -> int:
        if self.away:
            raise UsageStoreUnavailable("away")
        self.batches.append(len(records))
        takes = [one for one in records if one.request_id not in self.refuses]
        for one in takes:
            self.kept.setdefault(one.id, one)
        if self.loses_answers:
            raise UsageStoreUnavailable("no answer")
        return len(records) - len(takes)

    async def purge(self, before: float, at_most: int) -> int:
        if self.away:
            raise UsageStoreUnavailable("away")
        self.purges.append(before)
        old = [id_ for id_, one in self.kept.items() if one.started_at < before][:at_most]
        for id_ in old:
            del self.kept[id_]
        return len(old)
