"""Budgets that hold over all replicas: counted in Redis, kept in the database, divided while Redis
is away.

**Who has the truth.** Redis has it at each moment. The database has the sum of what every replica
has added to it, about once a second: it lags, and is never ahead. So the rule by which both agree
is that a term's total in Redis is never below the database's. A term that Redis does not know
begins there with the database's total; and whenever something was added to the database, Redis is
told the new total. In this way comes whatever it did not hear of or has lost: what was used while
it was away, what was settled after its reservation lapsed, a settlement that never arrived.

**Reservations** in a term are leases, renewed while their requests run: those of a replica that
crashed lapse. Those that Redis lost are written down again.

**Redis away.** The first call that fails says so, for all: from then on every request is decided
here, by this replica's part (`own_part`), and nobody waits for Redis any more. In the background it
is asked each second whether it can be written again; less often when it has only just come back.
When it has answered twice, so that the others had time to write down what runs with them and what
they used, limits are shared again: the first that Redis is told then is what was used meanwhile.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import structlog

from dataplane.budgets.bucket import TokenBucket
from dataplane.budgets.outage import Clock, Outage
from dataplane.budgets.own_part import OwnPart
from dataplane.budgets.port import Reservation, TermStore, TermStoreUnavailable, counted
from dataplane.budgets.redis import Looked, RedisBooks
from dataplane.budgets.refusals import limited, spent, state_of
from dataplane.budgets.terms import Term, TermLimit, limits_of
from dataplane.budgets.totals import Totals
from dataplane.budgets.usage_sums import UsageSums
from dataplane.errors import PolicyUnavailable
from shared.policy import KeyPolicy
from shared.redis import RedisUnavailable

log = structlog.stdlib.get_logger(__name__)

ANSWERS_BEFORE_RETURN: Final = 2
"""In a row. What replicas use without Redis they tell the database each second."""
ATTEMPTS_MAX: Final = 3
"""Questions for one request, when Redis loses a term between them."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Open:
    reservation: Reservation
    is_own_part: bool
    """Taken while Redis was away: its minute was this replica's."""


class FleetBudgets:
    """`Budgets` for one replica of several.

    `replicas` tells how many there are, as far as is known. `clock` is monotonic; `wall` is Unix
    time and says which term it is.
    """

    def __init__(
        self,
        books: RedisBooks,
        store: TermStore,
        *,
        replicas: Callable[[], int],
        clock: Clock = time.monotonic,
        wall: Clock = time.time,
        save_every_secs: float = 1.0,
        term_capacity: int = 100_000,
    ) -> None:
        self._books: Final = books
        self._replicas: Final = replicas
        self._clock: Final = clock
        self._wall: Final = wall
        self._save_every_secs: Final = save_every_secs
        self._outage: Final = Outage(clock, wall)
        self._sums: Final = UsageSums(store)
        self._totals: Final = Totals(
            store, answers_since=lambda: self._outage.answers_since, capacity=term_capacity
        )
        self._reserved: dict[Term, int] = {}
        self._own_part: Final = OwnPart(self._reserved)
        self._open: dict[str, _Open] = {}
        self._name: Final = secrets.token_hex(6)
        self._number = 0
        self._background: set[asyncio.Task[Any]] = set()
        self._saving: Final = asyncio.Lock()
        """So that what is on its way to the database counts neither twice nor not at all."""
        self._renew_now: Final = asyncio.Event()
        self._stopping: Final = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    # Life

    async def start(self) -> None:
        """Begin to renew reservations and to write what terms have used."""
        self._tasks = [
            asyncio.create_task(self._keep_reservations(), name="budget reservations"),
            asyncio.create_task(self._save_regularly(), name="budget usage"),
        ]

    async def stop(self) -> None:
        """Write what is left and end. What cannot be written now is lost, and logged."""
        self._stopping.set()
        self._renew_now.set()
        await asyncio.gather(*self._tasks)
        while self._background:
            await asyncio.gather(*self._background, return_exceptions=True)
        await self._totals.stop()
        if not await self.save():
            log.error("budget_usage_lost", terms=len(self._sums))
        await self._books.close()

    @property
    def is_away(self) -> bool:
        """Whether limits are divided, because Redis did not answer."""
        return self._outage.is_on

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way to Redis."""
        return not self._background

    @property
    def remembered(self) -> tuple[int, int]:
        """How many open reservations and totals are held in memory."""
        return len(self._open), len(self._totals)

    # For requests

    async def check(self, key: KeyPolicy, estimate: int) -> None:
        """See `Budgets.check`."""
        if _has_budgets(key):
            await self._ask(key, estimate, None)

    async def reserve(self, key: KeyPolicy, estimate: int) -> Reservation:
        """See `Budgets.reserve`."""
        if not _has_budgets(key):
            return Reservation("", key.tenant.id, estimate, None, (), None)
        self._number += 1
        id_ = f"{self._name}-{self._number}"
        # Who leaves meanwhile must not leave a reservation behind.
        task = self._do(self._ask(key, estimate, id_))
        try:
            reservation = await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._give_back)
            raise
        assert reservation is not None, "it was asked for one"
        return reservation

    async def settle(self, reservation: Reservation, actual: int | None) -> None:
        """See `Budgets.settle`. Redis is told without anyone waiting for it."""
        opened = self._open.pop(reservation.id, None)
        if opened is None:
            return
        estimate, used = reservation.estimate, counted(reservation.estimate, actual)
        for term in reservation.terms:
            self._reserved[term] -= estimate
            if not self._reserved[term]:
                del self._reserved[term]
            self._own_part.settle_term(term, used)
        if opened.is_own_part:
            self._own_part.settle_minute(reservation.tenant_id, estimate, used, self._now_ms())
        if self._outage.is_on or (opened.is_own_part and not reservation.terms):
            self._count(reservation, used)
        else:
            self._do(self._settle_in_books(reservation, used, with_minute=not opened.is_own_part))

    async def save(self) -> bool:
        """Add to the database what terms have used, and to Redis what it lacks; False when the
        database could not take all of it.
        """
        async with self._saving:
            all_saved = await self._sums.save()
            if not self._outage.is_on:
                await self._tell(self._sums.untold())
        return all_saved

    # Asking

    async def _ask(self, key: KeyPolicy, estimate: int, id_: str | None) -> Reservation | None:
        """Refuse, or reserve under `id_` where there is one."""
        tenant_id, size = key.tenant.id, key.tenant.tokens_per_minute
        for _ in range(ATTEMPTS_MAX):
            if self._outage.is_on:
                break
            limits = list(limits_of(key, self._wall()))
            try:
                if id_ is None:
                    looked = await self._books.check(tenant_id, size, limits, estimate)
                else:
                    looked = await self._books.reserve(tenant_id, size, limits, estimate, id_)
                if None not in looked.counts:
                    return self._answered(key, limits, estimate, id_, looked)
                await self._find(
                    [
                        limit.term
                        for limit, count in zip(limits, looked.counts, strict=True)
                        if count is None
                    ]
                )
            except RedisUnavailable as error:
                self._lose(error)
        return await self._ask_own_part(key, estimate, id_)

    def _answered(
        self,
        key: KeyPolicy,
        limits: Sequence[TermLimit],
        estimate: int,
        id_: str | None,
        looked: Looked,
    ) -> Reservation | None:
        for limit, count in zip(limits, looked.counts, strict=True):
            assert count is not None, "only a term that is known has an answer"
            self._totals.heard(limit.term, count.committed)
            if not looked.passes and not count.allows(estimate, limit.tokens):
                raise spent(limit, count, estimate)
        bucket = looked.bucket
        if bucket is not None:
            self._own_part.heard(key.tenant.id, bucket, self._now_ms())
        if not looked.passes:
            assert bucket is not None, "nothing else can have refused it"
            raise limited(bucket, estimate)
        if id_ is None:
            return None
        terms = tuple(limit.term for limit in limits)
        return self._opened(id_, key, estimate, terms, bucket, is_own_part=False)

    async def _ask_own_part(
        self, key: KeyPolicy, estimate: int, id_: str | None
    ) -> Reservation | None:
        while True:
            limits = list(limits_of(key, self._wall()))
            unknown = [one.term for one in limits if not self._own_part.knows(one.term)]
            if not unknown:
                break
            for term in unknown:
                # What is being saved may count twice: better than not at all, in an outage.
                total = await self._totals.of(term, unsaved=self._sums.unsaved(term))
                if not self._own_part.knows(term):
                    self._own_part.begin(term, total)
        bucket = self._own_part.refuse_or_pass(
            key.tenant.id,
            key.tenant.tokens_per_minute,
            limits,
            estimate,
            replicas=max(1, self._replicas()),
            now_ms=self._now_ms(),
        )
        if id_ is None:
            return None
        if bucket is not None:
            bucket.take(estimate)
        terms = tuple(limit.term for limit in limits)
        return self._opened(id_, key, estimate, terms, bucket, is_own_part=True)

    def _opened(
        self,
        id_: str,
        key: KeyPolicy,
        estimate: int,
        terms: tuple[Term, ...],
        bucket: TokenBucket | None,
        *,
        is_own_part: bool,
    ) -> Reservation:
        size = None if bucket is None else bucket.size
        state = None if bucket is None else state_of(bucket)
        reservation = Reservation(id_, key.tenant.id, estimate, size, terms, state)
        self._open[id_] = _Open(reservation, is_own_part)
        for term in terms:
            self._reserved[term] = self._reserved.get(term, 0) + estimate
        return reservation

    async def _find(self, terms: Sequence[Term]) -> None:
        """Have Redis know terms that it does not know, and what runs in them."""
        await self._books.found({term: await self._totals.of(term) for term in terms})
        self._renew_now.set()

    # Redis

    async def _settle_in_books(
        self, reservation: Reservation, used: int, *, with_minute: bool
    ) -> None:
        try:
            settled = await self._books.settle(reservation, used, with_minute=with_minute)
        except RedisUnavailable as error:
            self._lose(error)
            return
        finally:
            # Not before: Redis would be told of it by way of the database, and then once more.
            self._count(reservation, used)
        for term, became in zip(reservation.terms, settled, strict=True):
            if became.committed is not None:
                self._totals.heard(term, became.committed)
            if not became.was_booked:
                self._renew_now.set()  # then others may be missing too

    def _count(self, reservation: Reservation, used: int) -> None:
        if used:
            for term in reservation.terms:
                self._sums.add(term, used)

    def _lose(self, error: RedisUnavailable) -> None:
        if self._outage.is_on:
            return
        self._outage.begin()
        self._own_part.restart()
        self._renew_now.set()
        log.warning("budgets_divided", replicas=self._replicas(), error=str(error))

    async def _tell(self, totals: Mapping[Term, int]) -> None:
        if not totals:
            return
        try:
            await self._books.found(totals)
        except RedisUnavailable as error:
            self._lose(error)
        else:
            self._sums.told(totals)

    async def _keep_reservations(self) -> None:
        answers = 0
        while not self._stopping.is_set():
            if not self._outage.is_on:
                answers = 0
                await self._renew()
                await self._pause(self._renew_now, self._books.lease_secs / 3)
                self._renew_now.clear()
                continue
            await self._pause(self._stopping, self._outage.retry_secs)
            answers = answers + 1 if await self._renew() else 0
            if answers >= ANSWERS_BEFORE_RETURN:
                await self._return()

    async def _renew(self) -> bool:
        """Have everything that runs on the books; whether Redis answered."""
        reservations = [one.reservation for one in self._open.values() if one.reservation.terms]
        try:
            unknown = await self._books.renew(reservations)
            if unknown:
                await self._books.found({term: await self._totals.of(term) for term in unknown})
                await self._books.renew(reservations)
            for one in reservations:
                if one.id not in self._open:  # it may have been written down after its settlement
                    await self._books.settle(one, 0, with_minute=False)
        except RedisUnavailable as error:
            self._lose(error)
            return False
        except PolicyUnavailable:
            log.info("budget_reservations_not_renewed", because="the database is away")
        except Exception:
            # A fault of ours, and no reason for leases to lapse from then on.
            log.exception("budget_reservations_not_renewed")
            return False
        return True

    async def _return(self) -> None:
        async with self._saving:
            await self._sums.save()
            stored = {}
            for term in self._own_part.terms:
                try:
                    stored[term] = await self._totals.stored(term)
                except TermStoreUnavailable:
                    log.info("budget_usage_told_in_part", scope=term.scope)
            # Nobody else has a turn from here until Redis's first call is on its way: whatever is
            # asked from now on is asked after it, and whatever was used before is in it.
            totals = self._sums.untold()
            for term in self._own_part.terms:
                used_here = self._own_part.total(term)
                totals[term] = max(totals.get(term, 0), stored.get(term, used_here))
            for term in totals:
                if term in stored or not self._own_part.knows(term):
                    totals[term] += self._sums.unsaved(term)
            self._outage.end()
            self._own_part.restart()
            self._renew_now.set()
            log.info("budgets_shared_again")
            await self._tell(totals)

    # Inside

    def _give_back(self, task: asyncio.Task[Reservation | None]) -> None:
        if not task.cancelled() and task.exception() is None:
            reservation = task.result()
            assert reservation is not None, "it was asked for one"
            self._do(self.settle(reservation, None))

    def _do(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Have something done that nobody may cut short."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def _save_regularly(self) -> None:
        while not self._stopping.is_set():
            await self._pause(self._stopping, self._save_every_secs)
            if not self._stopping.is_set():
                await self.save()

    @staticmethod
    async def _pause(until: asyncio.Event, secs: float) -> None:
        try:
            async with asyncio.timeout(secs):
                await until.wait()
        except TimeoutError:
            return

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)


def _has_budgets(key: KeyPolicy) -> bool:
    tenant = key.tenant
    limits = (tenant.tokens_per_minute, tenant.budget.tokens, key.budget.tokens)
    return any(limit is not None for limit in limits)
