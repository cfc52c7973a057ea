"""Budgets counted in this process: the whole truth where one process serves everything.

Buckets live in memory alone: a restart starts them full. What terms have used is written to a store
about once a second and read back at a tenant's or key's first request, so a crash forgets at most
what was used since the last write. Between its checks and its changes nothing awaits, so requests
that run at once cannot pass each other.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import structlog

from dataplane.budgets.bucket import TokenBucket
from dataplane.budgets.buckets import FORGOTTEN_AT_A_TIME, Buckets
from dataplane.budgets.port import (
    Reservation,
    TermStore,
    TermStoreUnavailable,
    counted,
)
from dataplane.budgets.refusals import limited, spent, state_of
from dataplane.budgets.terms import Term, TermCount, TermLimit, limits_of
from dataplane.errors import PolicyUnavailable
from dataplane.single_flight import SingleFlight
from shared.policy import KeyPolicy

log = structlog.stdlib.get_logger(__name__)

SAVED_AT_A_TIME: Final = 500
"""Terms in one write."""

Clock = Callable[[], float]


class LocalBudgets:
    """`Budgets` for one process.

    `clock` is monotonic and fills the buckets; `wall` is Unix time and says which term it is.
    `term_capacity` bounds the terms remembered; idle ones beyond it are read back when needed.
    """

    def __init__(
        self,
        store: TermStore,
        *,
        clock: Clock = time.monotonic,
        wall: Clock = time.time,
        save_every_secs: float = 1.0,
        term_capacity: int = 100_000,
    ) -> None:
        self._store = store
        self._clock = clock
        self._wall = wall
        self._save_every_secs = save_every_secs
        self._term_capacity = max(term_capacity, 2)  # a request may count against two
        self._buckets = Buckets()
        self._counts: OrderedDict[Term, TermCount] = OrderedDict()
        self._unsaved: set[Term] = set()
        self._open: set[str] = set()
        self._ids = itertools.count(1)
        self._loads: SingleFlight[Term, None] = SingleFlight()
        # Whoever has counted everything since before a term began, and forgotten none of it, knows
        # that a term without a count is unused: midnight needs no store.
        self._complete_since = wall()
        self._saver: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to write what terms have used."""
        self._saver = asyncio.create_task(self._save_regularly())

    async def stop(self) -> None:
        """Write what is left and end. What cannot be written now is lost, and logged."""
        if self._saver is not None:
            self._saver.cancel()
            await asyncio.gather(self._saver, return_exceptions=True)
        await self._loads.stop()
        if not await self.save():
            log.error("budget_usage_lost", terms=len(self._unsaved))

    async def check(self, key: KeyPolicy, estimate: int) -> None:
        """See `Budgets.check`."""
        limits = await self._counted_limits(key)
        self._refuse_or_pass(key, limits, estimate)

    async def reserve(self, key: KeyPolicy, estimate: int) -> Reservation:
        """See `Budgets.reserve`."""
        limits = await self._counted_limits(key)
        bucket = self._refuse_or_pass(key, limits, estimate)
        if bucket is not None:
            bucket.take(estimate)
        for limit in limits:
            self._counts[limit.term].reserve(estimate)
        reservation = Reservation(
            id=str(next(self._ids)),
            tenant_id=key.tenant.id,
            estimate=estimate,
            tokens_per_minute=None if bucket is None else bucket.size,
            terms=tuple(limit.term for limit in limits),
            rate_limit=None if bucket is None else state_of(bucket),
        )
        self._open.add(reservation.id)
        return reservation

    async def settle(self, reservation: Reservation, actual: int | None) -> None:
        """See `Budgets.settle`."""
        if reservation.id not in self._open:
            return
        self._open.remove(reservation.id)
        estimate, used = reservation.estimate, counted(reservation.estimate, actual)
        if reservation.tokens_per_minute is not None:
            # The tenant's limit may have moved meanwhile: the bucket knows its size by now. One
            # that was forgotten was full.
            known = self._buckets.size_of(reservation.tenant_id)
            size = reservation.tokens_per_minute if known is None else known
            self._bucket(reservation.tenant_id, size).correct(estimate, used)
        for term in reservation.terms:
            self._counts[term].settle(estimate, used)
            if used:
                self._unsaved.add(term)

    async def save(self) -> bool:
        """Write what terms have used since the last time; False when some could not be written."""
        waiting = list(self._unsaved)
        for start in range(0, len(waiting), SAVED_AT_A_TIME):
            batch = waiting[start : start + SAVED_AT_A_TIME]
            totals = {term: self._counts[term].committed for term in batch}
            try:
                await self._store.save(totals)
            except TermStoreUnavailable as error:
                log.warning("budget_usage_not_saved", terms=len(self._unsaved), error=str(error))
                return False
            except Exception:
                # A fault of ours in one write, and no reason to write nothing from then on.
                log.exception("budget_usage_save_failed")
                return False
            self._unsaved -= {
                term for term, used in totals.items() if self._counts[term].committed == used
            }
        return True

    @property
    def remembered(self) -> tuple[int, int, int]:
        """How many buckets, terms and open reservations are held in memory."""
        return len(self._buckets), len(self._counts), len(self._open)

    def _refuse_or_pass(
        self, key: KeyPolicy, limits: Sequence[TermLimit], estimate: int
    ) -> TokenBucket | None:
        """Raise what stands in the way; else the tenant's bucket, brought up to date."""
        for limit in limits:
            count = self._counts[limit.term]
            if not count.allows(estimate, limit.tokens):
                raise spent(limit, count, estimate)
        size = key.tenant.tokens_per_minute
        if size is None:
            return None
        bucket = self._bucket(key.tenant.id, size)
        if bucket.wait_ms(estimate):
            raise limited(bucket, estimate)
        return bucket

    def _bucket(self, tenant_id: str, size: int) -> TokenBucket:
        return self._buckets.at(tenant_id, size, int(self._clock() * 1000))

    async def _counted_limits(self, key: KeyPolicy) -> list[TermLimit]:
        """The term budgets in force, each with its count in memory. Awaits only to read counts."""
        if key.budget.tokens is None and key.tenant.budget.tokens is None:
            return []
        while True:
            limits = list(limits_of(key, self._wall()))
            unknown = [one.term for one in limits if not self._is_counted(one.term)]
            if not unknown:
                return limits
            for term in unknown:
                try:
                    await self._loads.run(term, partial(self._load, term))
                except TermStoreUnavailable as error:
                    log.warning("budget_usage_not_read", scope=term.scope, error=str(error))
                    raise PolicyUnavailable from error

    def _is_counted(self, term: Term) -> bool:
        if term in self._counts:
            self._counts.move_to_end(term)
            return True
        if term.calendar and term.starts_ms >= self._complete_since * 1000:
            self._remember(term, 0)
            return True
        return False

    async def _load(self, term: Term) -> None:
        self._remember(term, (await self._store.load([term])).get(term, 0))

    def _remember(self, term: Term, committed: int) -> None:
        for _ in range(FORGOTTEN_AT_A_TIME):
            if len(self._counts) < self._term_capacity:
                break
            oldest, count = next(iter(self._counts.items()))
            if count.reserved or oldest in self._unsaved:
                self._counts.move_to_end(oldest)
            else:
                del self._counts[oldest]
                self._complete_since = self._wall()
        self._counts[term] = TermCount(committed)

    async def _save_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._save_every_secs)
            await self.save()
