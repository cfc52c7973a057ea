"""Policy changes for requests that wait: new weights apply to them, revoked keys end them.

A tenant or a group that changes is followed for what runs, too: its slots count under it, and would
count under a group's old name beside the new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import structlog

from dataplane.errors import InvalidApiKey, PolicyUnavailable, Refusal, TenantSuspended
from shared.invalidation import Invalidation, Kind
from shared.policy import KeyPolicy, ModelPolicy

log = structlog.stdlib.get_logger(__name__)


class Policies(Protocol):
    """What is needed of the policy cache."""

    async def renewed(self, key: KeyPolicy) -> KeyPolicy: ...

    def models(self) -> Sequence[ModelPolicy]: ...


class Waiters(Protocol):
    """What is needed of admission."""

    @property
    def waiting_keys(self) -> list[KeyPolicy]: ...

    @property
    def running_keys(self) -> list[KeyPolicy]: ...

    def key_changed(self, key: KeyPolicy) -> None: ...

    def key_gone(self, key: KeyPolicy, because: Callable[[], Refusal]) -> None: ...

    def models_changed(self, models: Iterable[ModelPolicy]) -> None: ...


class Renewal:
    """Tells admission what changed about keys that wait, and about pools.

    `changed` is to be subscribed to the policy cache. Keys are reloaded by one task, all that are
    due at a time; one that changes meanwhile is due again.
    """

    def __init__(self, policies: Policies, waiters: Waiters) -> None:
        self._policies = policies
        self._waiters = waiters
        self._due: dict[tuple[str, str], KeyPolicy] = {}
        """By id and digest: a key whose secret was replaced may be waited under with both."""
        self._task: asyncio.Task[None] | None = None

    def changed(self, change: Invalidation) -> None:
        """Something changed, and the policy cache knows it already."""
        if change.kind in (Kind.MODEL, Kind.ALL):
            self._waiters.models_changed(self._policies.models())
        if change.kind is Kind.MODEL:
            return
        keys = self._waiters.waiting_keys
        if change.kind in (Kind.TENANT, Kind.GROUP):
            keys += self._waiters.running_keys
        self._due.update(((key.id, key.digest), key) for key in keys if _concerns(change, key))
        if self._due and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._renew_due())

    async def stop(self) -> None:
        """End what is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _renew_due(self) -> None:
        while self._due:
            batch, self._due = self._due, {}
            await asyncio.gather(*(self._renew(key) for key in batch.values()))

    async def _renew(self, key: KeyPolicy) -> None:
        try:
            renewed = await self._policies.renewed(key)
        except InvalidApiKey:
            self._waiters.key_gone(key, InvalidApiKey)
        except PolicyUnavailable:
            log.info("renewal_put_off", key_id=key.id)  # it keeps the policy it was admitted under
        else:
            if renewed.tenant.suspended:
                self._waiters.key_gone(key, TenantSuspended)
            else:
                self._waiters.key_changed(renewed)


def _concerns(change: Invalidation, key: KeyPolicy) -> bool:
    match change.kind:
        case Kind.KEY:
            return key.id == change.id
        case Kind.TENANT:
            return key.tenant.id == change.id
        case Kind.GROUP:
            return key.tenant.group.name == change.id
        case _:
            return True
