"""What this replica's requests have used, on its way into the database's sums."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import structlog

from dataplane.budgets.port import TermStore, TermStoreUnavailable
from dataplane.budgets.terms import Term

log = structlog.stdlib.get_logger(__name__)

SAVED_AT_A_TIME: Final = 500
"""Terms in one write."""


class UsageSums:
    """Tokens used and not added to the database yet, and the totals that came back from there.

    What a write that failed had been about is added again with the next: in the rare case that the
    database took it and went away before saying so, it is counted twice rather than never.
    """

    def __init__(self, store: TermStore) -> None:
        self._store: Final = store
        self._unsaved: dict[Term, int] = {}
        self._totals: dict[Term, int] = {}

    def __len__(self) -> int:
        """Terms with tokens not saved yet."""
        return len(self._unsaved)

    def add(self, term: Term, used: int) -> None:
        self._unsaved[term] = self._unsaved.get(term, 0) + used

    def unsaved(self, term: Term) -> int:
        """Tokens used here that the database does not have yet."""
        return self._unsaved.get(term, 0)

    async def save(self) -> bool:
        """Add everything; False when something could not be added. One call at a time, and not to
        be cancelled.
        """
        waiting = list(self._unsaved)
        for start in range(0, len(waiting), SAVED_AT_A_TIME):
            batch = {term: self._unsaved[term] for term in waiting[start : start + SAVED_AT_A_TIME]}
            try:
                self._totals |= await self._store.add(batch)
            except TermStoreUnavailable as error:
                log.warning("budget_usage_not_saved", terms=len(self._unsaved), error=str(error))
                return False
            except Exception:
                # A fault of ours in one write, and no reason to write nothing from then on.
                log.exception("budget_usage_save_failed")
                return False
            for term, used in batch.items():
                self._unsaved[term] -= used
                if not self._unsaved[term]:
                    del self._unsaved[term]
        return True

    def untold(self) -> dict[Term, int]:
        """Totals that came back from the database and that Redis was not told of."""
        return dict(self._totals)

    def told(self, totals: Mapping[Term, int]) -> None:
        """Redis has these totals now."""
        for term, total in totals.items():
            if self._totals.get(term) == total:
                del self._totals[term]
