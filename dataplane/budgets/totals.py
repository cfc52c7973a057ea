"""What terms have used, as far as it is known here: from the database, and from Redis's answers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import structlog

from dataplane.budgets.port import TermStore, TermStoreUnavailable
from dataplane.budgets.terms import Term
from dataplane.errors import PolicyUnavailable
from dataplane.single_flight import SingleFlight

log = structlog.stdlib.get_logger(__name__)


class Totals:
    """Totals of at most `capacity` terms as last heard of; the others are in the store.

    `answers_since` tells since when, in Unix time, Redis has answered without a break.
    """

    def __init__(
        self, store: TermStore, *, answers_since: Callable[[], float], capacity: int
    ) -> None:
        self._store: Final = store
        self._answers_since: Final = answers_since
        self._capacity: Final = capacity
        self._heard: OrderedDict[Term, int] = OrderedDict()
        self._loads: SingleFlight[Term, int] = SingleFlight()

    def __len__(self) -> int:
        return len(self._heard)

    async def stop(self) -> None:
        await self._loads.stop()

    def heard(self, term: Term, committed: int) -> None:
        """What Redis has for a term now."""
        self._heard[term] = committed
        self._heard.move_to_end(term)
        if len(self._heard) > self._capacity:
            self._heard.popitem(last=False)

    async def of(self, term: Term, *, unsaved: int = 0) -> int:
        """What a term has used; `unsaved` is what the database is still to be told of.

        Raises `PolicyUnavailable` where nobody can say.
        """
        try:
            stored = await self.stored(term)
        except TermStoreUnavailable as error:
            if term in self._heard:
                return self._heard[term]
            if term.calendar and term.starts_ms >= self._answers_since() * 1000:
                # Redis was there all the time since the term began, and knows of no use of it.
                return 0
            log.warning("budget_usage_not_read", scope=term.scope, error=str(error))
            raise PolicyUnavailable from error
        return max(stored + unsaved, self._heard.get(term, 0))

    async def stored(self, term: Term) -> int:
        """What a term has used as the database has it. Raises `TermStoreUnavailable`."""
        return await self._loads.run(term, lambda: self._load(term))

    async def _load(self, term: Term) -> int:
        return (await self._store.load([term])).get(term, 0)
