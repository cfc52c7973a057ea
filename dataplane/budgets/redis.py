"""The fleet's budgets in Redis: what a minute has left, and what terms have used and reserved.

Each question is one script call, and all that falls due while a call is under way travels together
with the next: however many requests ask at once, they wait for two round trips at most, and calls
are carried out in the order in which they were made. A call is sent once. One that is not answered
in time fails, and with it all that wait behind it: an outage costs one stall.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import structlog
from redis.asyncio import Redis

from dataplane.budgets.bucket import TokenBucket
from dataplane.budgets.port import Reservation
from dataplane.budgets.terms import Term, TermCount, TermLimit
from dataplane.scripts import RedisScripts, ScriptCall
from shared.redis import RedisUnavailable
from shared.redis_keys import BudgetKeys

log = structlog.stdlib.get_logger(__name__)

AT_A_TIME: Final = 200
"""Script calls in one round trip."""
PER_CALL: Final = 64
"""What one call deals with at most: what bounds how long it holds up the server."""
LEASE_SECS: Final = 60.0
"""How long a reservation outlives the replica that made it."""
COUNT_MS: Final = 86_400_000
"""How long Redis keeps a count that nobody uses; the database has it for longer."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Looked:
    """What stands for a request. `counts` are in the order of the limits; None: not known."""

    passes: bool
    bucket: TokenBucket | None
    """The minute, after the estimate was taken if it was; as of the moment of the answer."""
    counts: tuple[TermCount | None, ...]


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of one term of a reservation."""

    was_booked: bool
    committed: int | None
    """None: the term is not known."""


class RedisBooks:
    """The scripts of this package, by name. Every method raises `RedisUnavailable`: then what was
    asked for may have been done, or may yet be. Close it with `close`.

    A reservation that is not renewed for `lease_secs` lapses.
    """

    def __init__(
        self,
        redis: Redis,
        scripts: RedisScripts,
        *,
        keys: BudgetKeys | None = None,
        lease_secs: float = LEASE_SECS,
    ) -> None:
        self.lease_secs: Final = lease_secs
        self._lease_ms: Final = str(round(lease_secs * 1000))
        self._redis: Final = redis
        self._trips: Final = _Trips(scripts)
        self._keys: Final = BudgetKeys() if keys is None else keys

    async def check(
        self, tenant_id: str, size: int | None, limits: Sequence[TermLimit], estimate: int
    ) -> Looked:
        """What stands for a request of so many tokens; nothing is taken."""
        call = ScriptCall(
            "check", self._looked_at(tenant_id, limits), self._asked(size, limits, estimate)
        )
        return _looked(await self._trips.make(call), size)

    async def reserve(
        self, tenant_id: str, size: int | None, limits: Sequence[TermLimit], estimate: int, id: str
    ) -> Looked:
        """Take the estimate if the request passes; its reservation is on the books then."""
        call = ScriptCall(
            "reserve",
            self._looked_at(tenant_id, limits),
            (*self._asked(size, limits, estimate), id),
        )
        return _looked(await self._trips.make(call), size)

    async def settle(
        self, reservation: Reservation, used: int, *, with_minute: bool
    ) -> list[Settled]:
        """Replace a reservation by what was used; for each of its terms what became of it."""
        size = reservation.tokens_per_minute if with_minute else None
        keys = [self._keys.minute(reservation.tenant_id)]
        for term in reservation.terms:
            keys += self._term(term)
        args = (reservation.id, str(reservation.estimate), str(used), _or_empty(size))
        reply = await self._trips.make(ScriptCall("settle", tuple(keys), (*args, str(COUNT_MS))))
        return [
            Settled(booked == 1, int(committed) if committed else None)
            for booked, committed in zip(reply[::2], reply[1::2], strict=True)
        ]

    async def found(self, totals: Mapping[Term, int]) -> None:
        """Have these terms known, with at least these totals."""
        for batch in _batches(list(totals.items())):
            keys = [key for term, _ in batch for key in self._term(term)]
            args = (str(COUNT_MS), *(str(total) for _, total in batch))
            await self._trips.make(ScriptCall("found", tuple(keys), args))

    async def renew(self, reservations: Sequence[Reservation]) -> set[Term]:
        """Renew leases, and write down again what is missing; the terms that are not known, in
        which nothing can be written down. Without reservations, it asks whether the books can be
        written at all.
        """
        each = [(one, term) for one in reservations for term in one.terms]
        unknown: set[Term] = set()
        for batch in _batches(each) or [[]]:
            keys = [self._keys.mark]
            args = [self._lease_ms]
            for reservation, term in batch:
                keys += self._term(term)
                args += (str(reservation.estimate), reservation.id)
            known = await self._trips.make(ScriptCall("renew", tuple(keys), tuple(args)))
            unknown |= {
                term for (_, term), is_known in zip(batch, known, strict=True) if not is_known
            }
        return unknown

    async def close(self) -> None:
        await self._trips.stop()
        await self._redis.aclose()

    def _looked_at(self, tenant_id: str, limits: Sequence[TermLimit]) -> tuple[str, ...]:
        keys = [self._keys.minute(tenant_id)]
        for limit in limits:
            keys += self._term(limit.term)
        return tuple(keys)

    def _asked(
        self, size: int | None, limits: Sequence[TermLimit], estimate: int
    ) -> tuple[str, ...]:
        allowed = (str(limit.tokens) for limit in limits)
        return (str(estimate), _or_empty(size), self._lease_ms, *allowed)

    def _term(self, term: Term) -> tuple[str, str]:
        return self._keys.term(term.scope, term.subject_id, term.starts_ms)


class _Trips:
    """Script calls on their way: one round trip at a time."""

    def __init__(self, scripts: RedisScripts) -> None:
        self._scripts: Final = scripts
        self._waiting: list[tuple[ScriptCall, asyncio.Future[Any]]] = []
        self._task: asyncio.Task[None] | None = None

    async def make(self, call: ScriptCall) -> Any:
        """The answer to a call. Whoever is cancelled while it waits does not take it back."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        self._waiting.append((call, answer))
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._carry(), name="budgets")
        return await answer

    async def stop(self) -> None:
        """Returns when everything on its way has been answered, or was not in time."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _carry(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:AT_A_TIME], self._waiting[AT_A_TIME:]
            try:
                replies = await self._scripts.run([call for call, _ in batch])
            except Exception as error:
                if not isinstance(error, RedisUnavailable):
                    # A fault of ours: as good as no answer, which every call must have.
                    log.exception("budget_calls_failed")
                failed, self._waiting = batch + self._waiting, []
                for _, answer in failed:
                    if not answer.done():
                        answer.set_exception(RedisUnavailable(str(error)))
            else:
                for (_, answer), reply in zip(batch, replies, strict=True):
                    if not answer.done():
                        answer.set_result(reply)


def _looked(reply: list[Any], size: int | None) -> Looked:
    passes, level, *numbers = reply
    bucket = None
    if level != "":
        assert size is not None, "a level without a bucket"
        bucket = TokenBucket(size, int(level), 0)
    counts = tuple(
        TermCount(int(committed), int(reserved)) if committed else None
        for committed, reserved in zip(numbers[::2], numbers[1::2], strict=True)
    )
    return Looked(passes == 1, bucket, counts)


def _or_empty(number: int | None) -> str:
    return "" if number is None else str(number)


def _batches(items: Sequence[T]) -> list[Sequence[T]]:
    return [items[at : at + PER_CALL] for at in range(0, len(items), PER_CALL)]
