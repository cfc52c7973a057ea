"""One finished request as it is kept, and where it is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from shared.policy import KeyPolicy
from shared.tables import new_id


@dataclass(frozen=True, slots=True)
class UsageRecord:
    """What one request used. Holds no text of it and no secret; times are Unix seconds."""

    request_id: str
    """As the client may have chosen it: not unique."""
    started_at: float
    key: KeyPolicy
    model: str
    """The registered model's own name, or the unrouted pool's."""
    admission: str
    """`fast`, `queued` or `rejected`."""
    status: int
    is_partial: bool
    """The answer was cut short, by either side."""
    queue_ms: float
    ttfb_ms: float | None
    duration_ms: float
    input_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    is_estimated: bool
    """The upstream did not report all of the tokens: the gateway estimated what was missing."""
    session: str | None
    """A keyed hash of the session id."""
    id: str = field(default_factory=new_id)
    """Unique; what makes writing the record again harmless."""


class UsageStore(Protocol):
    """Where usage is kept. Raises `UsageStoreUnavailable`; what it wrote then is not known."""

    async def write(self, records: Sequence[UsageRecord]) -> int:
        """Keep these, and note when their keys were last used; records already kept are left.

        Returns how many could not be kept for what is in them, whatever the number of tries.
        """

    async def purge(self, before: float, at_most: int) -> int:
        """Delete up to `at_most` of the requests that started before this; how many it were."""


class UsageStoreUnavailable(Exception):
    """Usage can be neither written nor deleted at the moment."""
