"""Telling the data plane what changed, once it is committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from shared.invalidation import Invalidation


class InvalidationPublisher(Protocol):
    """Brings invalidations to every replica, as well as it can.

    Called after the commit, so the change stands whatever happens here: an adapter keeps its
    errors to itself (and logs them) and does not wait long. Whoever is missed finds out from the
    revision number in the database.
    """

    async def publish(self, changes: Sequence[Invalidation]) -> None: ...


class NobodyListens:
    """No way to reach any replica: they find out from the database alone."""

    async def publish(self, changes: Sequence[Invalidation]) -> None:
        """Tell nobody."""
