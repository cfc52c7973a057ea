"""Which cached policy a change has made stale, told by generations.

Each change raises the generation. An entry carries the generation at which its *load began*; it is
stale when something it depends on changed later. So a load that was under way when the change came
arrives stale by itself, in whatever order things end: what a change took away cannot come back.
Pure, and O(1) a change: nothing walks over the cached entries.
"""

from __future__ import annotations

from typing import Final

from shared.invalidation import Invalidation, Kind
from shared.policy import KeyPolicy

REMEMBERED_MAX: Final = 10_000
"""Changed things told apart. Beyond it they are forgotten and everything counts as changed."""


class Changes:
    """When each key, tenant and group, and the models, last changed."""

    def __init__(self) -> None:
        self.generation = 0
        self._changed: dict[tuple[Kind, str], int] = {}
        self._everything = 0
        self._any_key = 0
        self._models = 0

    def note(self, change: Invalidation) -> None:
        """Something changed: what was loaded before now is stale if it depends on it."""
        self.generation += 1
        match change.kind:
            case Kind.MODEL:
                self._models = self.generation
            case Kind.ALL:
                self._all()
            case Kind.KEY | Kind.TENANT | Kind.GROUP:
                if len(self._changed) >= REMEMBERED_MAX:
                    self._all()
                self._changed[change.kind, change.id] = self.generation
                if change.kind is Kind.KEY:
                    self._any_key = self.generation

    def key_is_current(self, key: KeyPolicy, since: int) -> bool:
        """Whether `key`, whose load began at generation `since`, still stands."""
        if since < self._everything:
            return False
        changed = self._changed
        return (
            changed.get((Kind.KEY, key.id), 0) <= since
            and changed.get((Kind.TENANT, key.tenant.id), 0) <= since
            and changed.get((Kind.GROUP, key.tenant.group.name), 0) <= since
        )

    def absence_is_current(self, since: int) -> bool:
        """Whether a key not found at generation `since` cannot have been made since then."""
        return since >= max(self._everything, self._any_key)

    def models_are_current(self, since: int) -> bool:
        """Whether models whose load began at generation `since` still stand."""
        return since >= max(self._everything, self._models)

    def _all(self) -> None:
        self._changed.clear()
        self._everything = self._any_key = self._models = self.generation
