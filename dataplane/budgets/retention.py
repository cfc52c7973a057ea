"""Deletes what days and months have used once nobody can ask for it any more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

import structlog

from dataplane.budgets.port import TermStoreUnavailable

log = structlog.stdlib.get_logger(__name__)

KEPT_SECS: Final = 62 * 86_400
"""From the beginning of a day or month: a month, and then at least another."""
EVERY_SECS: Final = 3600.0
AT_A_TIME: Final = 2_000


class PurgedStore(Protocol):
    async def purge(self, before: float, at_most: int) -> int:
        """Delete up to `at_most` days and months that began before this (Unix seconds); how many.

        What an operator began, a `term` or `lifetime`, stays. Raises `TermStoreUnavailable`.
        """


class TermRetention:
    """Purges a store now and then. `wall` is Unix time."""

    def __init__(
        self,
        store: PurgedStore,
        *,
        every_secs: float = EVERY_SECS,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._store: Final = store
        self._every_secs: Final = every_secs
        self._wall: Final = wall
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to purge."""
        self._task = asyncio.create_task(self._run(), name="term retention")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def purge(self) -> int:
        """Delete all that is due; how many terms that were."""
        total, before = 0, self._wall() - KEPT_SECS
        while True:
            deleted = await self._store.purge(before, AT_A_TIME)
            total += deleted
            if deleted < AT_A_TIME:
                return total

    async def _run(self) -> None:
        while True:
            try:
                if purged := await self.purge():
                    log.info("budget_usage_purged", terms=purged)
            except TermStoreUnavailable as error:
                log.warning("budget_usage_not_purged", error=str(error))
            except Exception:
                # A fault of ours, and no reason to keep everything from then on.
                log.exception("budget_usage_purge_failed")
            await asyncio.sleep(self._every_secs)
