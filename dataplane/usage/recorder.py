"""Collects usage records and writes them in batches."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final

import structlog

from dataplane.usage.record import UsageRecord, UsageStore, UsageStoreUnavailable

log = structlog.stdlib.get_logger(__name__)

WAITING_MAX: Final = 50_000
"""Records kept in memory while they cannot be written: some 25 MB."""
BATCH_MAX: Final = 500
WRITE_EVERY_SECS: Final = 1.0
PURGE_EVERY_SECS: Final = 3600.0
PURGED_AT_A_TIME: Final = 2_000
"""Few enough that deleting never keeps the database from others for long."""
DAY_SECS: Final = 86_400


class UsageRecorder:
    """Takes records at any time and writes them when a second has passed or a batch is full.

    `on_dropped` is told how many records were lost, whenever some are: memory full, or a record the
    database will not take.
    """

    def __init__(
        self,
        store: UsageStore,
        *,
        retention_days: int,
        on_dropped: Callable[[int], None] = lambda count: None,
        waiting_max: int = WAITING_MAX,
        batch_max: int = BATCH_MAX,
        write_every_secs: float = WRITE_EVERY_SECS,
        purge_every_secs: float = PURGE_EVERY_SECS,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._retention_secs = retention_days * DAY_SECS
        self._on_dropped = on_dropped
        self._waiting_max = waiting_max
        self._batch_max = batch_max
        self._write_every_secs = write_every_secs
        self._purge_every_secs = purge_every_secs
        self._wall = wall
        self._waiting: deque[UsageRecord] = deque()
        self._batch_is_full = asyncio.Event()
        self._dropped = 0
        self._tasks: list[asyncio.Task[None]] = []

    def record(self, record: UsageRecord) -> None:
        """Keep a record for the next write. Never blocks, never raises."""
        if len(self._waiting) >= self._waiting_max:
            self._drop(1)
            return
        self._waiting.append(record)
        if len(self._waiting) >= self._batch_max:
            self._batch_is_full.set()

    async def start(self) -> None:
        """Begin to write, and to delete what is older than is kept."""
        self._tasks = [
            asyncio.create_task(self._write_regularly()),
            asyncio.create_task(self._purge_regularly()),
        ]

    async def stop(self) -> None:
        """Write what waits and end. What cannot be written now is lost, and counted."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if not await self.write():
            self._drop(len(self._waiting))
            self._waiting.clear()

    @property
    def waiting(self) -> int:
        """Records not written yet."""
        return len(self._waiting)

    @property
    def dropped(self) -> int:
        """Records lost since the start."""
        return self._dropped

    async def write(self) -> bool:
        """Write what waits, batch by batch; False when the store could not be had."""
        while self._waiting:
            batch = list(islice(self._waiting, self._batch_max))
            try:
                refused = await self._store.write(batch)
            except UsageStoreUnavailable as error:
                log.warning("usage_not_written", waiting=len(self._waiting), error=str(error))
                return False
            except Exception:
                # A fault of ours over one record must not hold up all that follow it.
                log.exception("usage_batch_failed", records=len(batch))
                refused = len(batch)
            for _ in batch:  # only now: until it is kept, a record is kept here
                self._waiting.popleft()
            if refused:
                self._drop(refused)
        return True

    async def purge(self) -> int:
        """Delete what is older than is kept; how many requests that were."""
        before, total = self._wall() - self._retention_secs, 0
        while True:
            deleted = await self._store.purge(before, PURGED_AT_A_TIME)
            total += deleted
            if deleted < PURGED_AT_A_TIME:
                return total

    def _drop(self, count: int) -> None:
        if self._dropped == 0:
            log.error("usage_dropped", waiting=len(self._waiting))
        self._dropped += count
        self._on_dropped(count)

    async def _write_regularly(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._write_every_secs):
                    await self._batch_is_full.wait()
            except TimeoutError:
                pass
            self._batch_is_full.clear()
            if not await self.write():
                await asyncio.sleep(self._write_every_secs)

    async def _purge_regularly(self) -> None:
        while True:
            try:
                if purged := await self.purge():
                    log.info("usage_purged", requests=purged)
            except UsageStoreUnavailable as error:
                log.warning("usage_not_purged", error=str(error))
            except Exception:
                # A fault of ours, and no reason to keep everything from then on.
                log.exception("usage_purge_failed")
            await asyncio.sleep(self._purge_every_secs)
