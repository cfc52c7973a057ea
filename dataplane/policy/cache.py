"""The cache between every request and the policy database.

What it promises: a key in it costs a request no query and no task switch; a hundred requests of a
new key cost one query; a change it has heard of is in force at the next request; a key that was
taken away does not come back, whatever loads were under way; and while the database is away it
serves what it has for `stale_secs`, then nothing.

An entry is used under three conditions, all looked at on each use: nothing it depends on has
changed since its load began (`changes`), the database has not been away too long, and the key is
neither disabled nor past its end.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import structlog

from dataplane.errors import InvalidApiKey, PolicyUnavailable
from dataplane.policy.catalogue import Catalogue
from dataplane.policy.changes import Changes
from dataplane.policy.revisions import Revisions
from dataplane.policy.source import PolicySource, SourceUnavailable
from dataplane.single_flight import SingleFlight
from shared.invalidation import Invalidation, Kind
from shared.policy import KeyPolicy, ModelPolicy
from shared.secrets import key_digest

log = structlog.stdlib.get_logger(__name__)

ATTEMPTS_MAX: Final = 3
"""Loads for one request, when a change overtakes each of them."""
KEY_LOADS_MAX: Final = 3
"""Key loads at once: a flood of unknown keys leaves the database's other connections alone."""
UNKNOWN_KEYS_MAX: Final = 10_000
UNKNOWN_SECS: Final = 5.0
"""How many keys that do not exist are remembered, and for how long."""
ANSWER_SECS: Final = 5.0
"""The database is away when it has not answered by then."""
RETRY_SECS: Final = 1.0
"""While it is away, at most one request in this time waits for it."""

MODELS: Final = "models"
REFRESH: Final = "refresh"
"""Names among the loads under way, where the others are digests of keys."""

T = TypeVar("T")
Clock = Callable[[], float]
Callback = Callable[[Invalidation], None]


@dataclass(slots=True)
class _Entry:
    key: KeyPolicy
    since: int
    """Generation at which its load began."""
    looked_at: int
    """Generation at which it was last found current."""
    stale_since: float | None = None


@dataclass(frozen=True, slots=True)
class _Absence:
    since: int
    until: float


class PolicyCache:
    """Policy of keys and models. Lives on one event loop; only `poll` and loads touch the source.

    `capacity` bounds the keys held, the least recently used going first. `clock` is monotonic
    seconds, `wall` Unix seconds (for `expires_at`).
    """

    def __init__(
        self,
        source: PolicySource,
        *,
        pepper: str,
        capacity: int,
        stale_secs: float,
        poll_secs: float = 5.0,
        clock: Clock = time.monotonic,
        wall: Clock = time.time,
        answer_secs: float = ANSWER_SECS,
    ) -> None:
        self._source = source
        self._pepper = pepper
        self._capacity = capacity
        self._stale_secs = stale_secs
        self._poll_secs = poll_secs
        self._clock = clock
        self._wall = wall
        self._answer_secs = answer_secs
        self._changes = Changes()
        self._revisions = Revisions()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._absent: OrderedDict[str, _Absence] = OrderedDict()
        self._catalogue: Catalogue | None = None
        self._catalogue_since = 0
        self._catalogue_stale_since: float | None = None
        self._loads: SingleFlight[str, None] = SingleFlight()
        self._key_loads = asyncio.Semaphore(KEY_LOADS_MAX)
        self._away_since: float | None = None
        self._retry_at = 0.0
        self._schema_problem: str | None = None
        self._subscribers: list[Callback] = []
        self._untold: list[Invalidation] = []
        self._poller: asyncio.Task[None] | None = None

    # Life

    async def start(self) -> None:
        """Load what every request needs and keep looking for changes.

        Without a database it still starts: requests get 503 until policy could be loaded.
        """
        await self.poll()
        self._poller = asyncio.create_task(self._poll_regularly())

    async def stop(self) -> None:
        """End what runs in the background."""
        if self._poller is not None:
            self._poller.cancel()
            await asyncio.gather(self._poller, return_exceptions=True)
        await self._loads.stop()

    @property
    def loaded(self) -> bool:
        """Whether policy has been loaded at least once."""
        return self._catalogue is not None

    @property
    def schema_problem(self) -> str | None:
        """Why the database's schema does not suit this build; None: it does, as last looked."""
        return self._schema_problem

    @property
    def is_away(self) -> bool:
        """Whether the database did not answer when it was last asked."""
        return self._away_since is not None

    @property
    def remembered(self) -> tuple[int, int]:
        """How many keys are in memory, and how many digests that belong to none."""
        return len(self._entries), len(self._absent)

    # For requests

    def cached_key(self, secret: str) -> KeyPolicy | None:
        """The key's policy when it is at hand and may be used at once. None says nothing about the
        key: ask `key`.
        """
        if not self._models_are_current() or self._is_away_too_long():
            return None
        entry = self._current(key_digest(secret, self._pepper))
        return entry.key if entry is not None and self._is_usable(entry.key) else None

    async def key(self, secret: str) -> KeyPolicy:
        """The key's policy, loaded if need be; the models are then up to date too.

        Raises `InvalidApiKey` alike for a key that is unknown, disabled or past its end, and
        `PolicyUnavailable` when the database is away and memory does not tell.
        """
        return await self._key(key_digest(secret, self._pepper))

    async def renewed(self, key: KeyPolicy) -> KeyPolicy:
        """The policy now in force for a key admitted earlier. Raises as `key` does."""
        return await self._key(key.digest)

    def model(self, name: str) -> ModelPolicy | None:
        """The enabled model of this name or alias."""
        return None if self._catalogue is None else self._catalogue.find(name)

    def models(self) -> Sequence[ModelPolicy]:
        """The enabled models."""
        return () if self._catalogue is None else self._catalogue.enabled

    # For changes

    def invalidate(self, change: Invalidation) -> None:
        """Something was changed and committed: forget what depends on it. Call it on the loop.

        For a lost subscription, where anything may have changed: kind `all`, revision 0.
        """
        self._revisions.heard(change)
        self._forget(change)
        if self._untold:
            self._loads.start(REFRESH, self._refresh_models)

    def subscribe(self, callback: Callback) -> None:
        """Call `callback` after each change, once what it changed is to be had: `renewed` reloads a
        key's policy, and `models` already answers with the new ones.
        """
        self._subscribers.append(callback)

    async def poll(self) -> None:
        """One look at the revision: whether a change went unheard, and whether models are due."""
        known_before = self._revisions.known
        try:
            self._schema_problem = await self._ask(self._source.schema_problem())
            stored = await self._ask(self._source.revision())
        except SourceUnavailable:
            return
        if self._revisions.missed(stored, known_before):
            log.info("policy_reloaded", because="a change went unheard", revision=stored)
            self._forget(Invalidation(Kind.ALL, "", stored))
        await self._refresh_models()

    # Keys

    async def _key(self, digest: str) -> KeyPolicy:
        for _ in range(ATTEMPTS_MAX):
            if not self._models_are_current() and self._may_ask():
                await self._refresh_models()
            entry = self._current(digest)
            if entry is not None and not self._is_away_too_long():
                break
            if not self._may_ask() or self._is_known_absent(digest):
                break
            try:
                await self._loads.run(digest, partial(self._load_key, digest))
            except SourceUnavailable:
                break
        return self._served(digest)

    def _served(self, digest: str) -> KeyPolicy:
        """What memory allows: the current entry, or a stale one that could not be replaced."""
        entry = self._entries.get(digest)
        if self._is_known_absent(digest) or (entry and not self._is_usable(entry.key)):
            raise InvalidApiKey
        if entry is None or self._catalogue is None or self._is_away_too_long():
            raise PolicyUnavailable
        if self._is_over(entry.stale_since) or self._is_over(self._catalogue_stale_since):
            raise PolicyUnavailable
        return entry.key

    def _current(self, digest: str) -> _Entry | None:
        entry = self._entries.get(digest)
        if entry is None:
            return None
        if entry.looked_at != self._changes.generation:
            if not self._changes.key_is_current(entry.key, entry.since):
                if entry.stale_since is None:
                    entry.stale_since = self._clock()
                return None
            entry.looked_at = self._changes.generation
        self._entries.move_to_end(digest)
        return entry

    def _is_usable(self, key: KeyPolicy) -> bool:
        return not key.disabled and (key.expires_at is None or self._wall() < key.expires_at)

    def _is_known_absent(self, digest: str) -> bool:
        absence = self._absent.get(digest)
        return (
            absence is not None
            and self._clock() < absence.until
            and self._changes.absence_is_current(absence.since)
        )

    async def _load_key(self, digest: str) -> None:
        async with self._key_loads:
            if not self._may_ask():  # it went away while this load waited for its turn
                raise SourceUnavailable
            since = self._changes.generation
            key = await self._ask(self._source.key(digest))
        if key is None or not hmac.compare_digest(key.digest, digest):
            self._entries.pop(digest, None)
            self._absent[digest] = _Absence(since, self._clock() + UNKNOWN_SECS)
            self._absent.move_to_end(digest)
            if len(self._absent) > UNKNOWN_KEYS_MAX:
                self._absent.popitem(last=False)
        else:
            self._absent.pop(digest, None)
            self._entries[digest] = _Entry(key, since, since)
            self._entries.move_to_end(digest)
            if len(self._entries) > self._capacity:
                self._entries.popitem(last=False)

    # Models

    def _models_are_current(self) -> bool:
        if self._catalogue is None:
            return False
        if self._changes.models_are_current(self._catalogue_since):
            return True
        if self._catalogue_stale_since is None:
            self._catalogue_stale_since = self._clock()
        return False

    async def _refresh_models(self) -> None:
        for _ in range(ATTEMPTS_MAX):
            if self._models_are_current():
                return
            try:
                await self._loads.run(MODELS, self._load_models)
            except SourceUnavailable:
                return

    async def _load_models(self) -> None:
        since = self._changes.generation
        models = await self._ask(self._source.models())
        self._catalogue = Catalogue(models)
        self._catalogue_since = since
        self._catalogue_stale_since = None
        if self._models_are_current():
            told, self._untold = self._untold, []
            for change in told:
                self._tell(change)

    # Changes

    def _forget(self, change: Invalidation) -> None:
        self._changes.note(change)
        if change.kind in (Kind.MODEL, Kind.ALL):
            if change.kind is Kind.ALL:
                self._untold.clear()
            self._untold.append(change)
        else:
            self._tell(change)

    def _tell(self, change: Invalidation) -> None:
        for callback in self._subscribers:
            callback(change)

    async def _poll_regularly(self) -> None:
        while True:
            wait_secs = min(self._poll_secs, RETRY_SECS) if self.is_away else self._poll_secs
            await asyncio.sleep(wait_secs)
            try:
                await self.poll()
            except Exception as error:
                # Whatever went wrong, this loop goes on: without it a lost invalidation is never
                # noticed. It counts as an outage, so that what is cached does not live for ever.
                log.exception("policy_poll_failed")
                self._went_away(error)

    # The source

    async def _ask(self, question: Coroutine[Any, Any, T]) -> T:
        if self._away_since is not None:  # nobody else waits while this one finds out
            self._retry_at = self._clock() + self._answer_secs
        try:
            async with asyncio.timeout(self._answer_secs):
                answer = await question
        except (SourceUnavailable, TimeoutError) as error:
            self._went_away(error)
            raise SourceUnavailable("policy cannot be read") from error
        if self._away_since is not None:
            self._away_since = None
            log.info("policy_database_back")
        return answer

    def _went_away(self, error: Exception) -> None:
        self._retry_at = self._clock() + RETRY_SECS
        if self._away_since is None:
            self._away_since = self._clock()
            log.warning("policy_database_away", error=str(error) or type(error).__name__)

    def _may_ask(self) -> bool:
        return self._away_since is None or self._clock() >= self._retry_at

    def _is_away_too_long(self) -> bool:
        return self._is_over(self._away_since)

    def _is_over(self, since: float | None) -> bool:
        return since is not None and self._clock() - since >= self._stale_secs
