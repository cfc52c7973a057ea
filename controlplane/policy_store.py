"""Policy as it is stored, and the one way to change it.

A change is a transaction that begins by raising the revision number. That makes changes happen one
after another, on either database, so that what a service has read (no such name yet, the group is
empty, the tag matches) still holds when it writes. What changed goes to the audit log in the same
transaction and, once that is committed, to the replicas.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

from controlplane.admin_auth import Caller
from controlplane.invalidation import InvalidationPublisher
from controlplane.preconditions import ANYTHING, Precondition
from shared import tables
from shared.database import Database
from shared.invalidation import Invalidation, Kind

Action = Literal["create", "update", "delete", "rotate"]
Stamped = tables.GroupRow | tables.TenantRow | tables.KeyRow | tables.ModelRow | tables.EndpointRow


def _now() -> datetime:
    return datetime.now(UTC)


class Change:
    """A change under way. It is committed only if something was recorded."""

    def __init__(
        self,
        session: AsyncSession,
        caller: Caller,
        precondition: Precondition,
        at: datetime,
        revision: int,
    ) -> None:
        self.session = session
        self.at = at
        self.revision = revision
        self.invalidations: list[Invalidation] = []
        self._caller = caller
        self._precondition = precondition

    def check(self, row: Stamped) -> None:
        """Raises PreconditionFailed unless the caller has seen the row as it is."""
        self._precondition.check(row.revision)

    def created(self, row: Stamped) -> None:
        """Add a new row with its times and revision."""
        row.created_at = self.at
        self.touched(row)
        self.session.add(row)

    def touched(self, row: Stamped) -> None:
        """Note on a row that this change wrote it."""
        row.updated_at = self.at
        row.revision = self.revision

    def assign(self, row: Stamped, values: Mapping[str, Any]) -> bool:
        """Give columns their new values. False, and nothing touched, if they have them already."""
        different = {name: new for name, new in values.items() if getattr(row, name) != new}
        for name, new in different.items():
            setattr(row, name, new)
        if different:
            self.touched(row)
        return bool(different)

    def record(
        self,
        action: Action,
        kind: str,
        subject_id: str,
        name: str,
        before: BaseModel | None,
        after: BaseModel | None,
    ) -> None:
        """Write to the audit log what a thing looked like before and after."""
        self.session.add(
            tables.AuditRow(
                id=tables.new_id(),
                at=self.at,
                revision=self.revision,
                actor=self._caller.role,
                client=self._caller.client,
                action=action,
                kind=kind,
                subject_id=subject_id,
                subject_name=name,
                before=None if before is None else before.model_dump(mode="json"),
                after=None if after is None else after.model_dump(mode="json"),
            )
        )

    def invalidate(self, kind: Kind, subject_id: str) -> None:
        """Have replicas forget what they cached about this once the change is committed."""
        self.invalidations.append(Invalidation(kind, subject_id, self.revision))


class PolicyStore:
    """Reading and changing policy. `now` is the clock that rows are stamped by."""

    def __init__(
        self,
        database: Database,
        publisher: InvalidationPublisher,
        now: Callable[[], datetime] = _now,
    ) -> None:
        self._database = database
        self._publisher = publisher
        self._now = now

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncSession]:
        """A session for queries. Raises DatabaseUnavailable."""
        async with self._database.reading() as session:
            yield session

    @asynccontextmanager
    async def change(
        self, caller: Caller, precondition: Precondition = ANYTHING
    ) -> AsyncIterator[Change]:
        """One change, committed and told to the replicas when the block ends without an error.

        Raises DatabaseUnavailable; then, as after any error, nothing was changed.
        """
        async with self._database.transaction() as session:
            counter = tables.RevisionRow
            revision = await session.scalar(
                update(counter)
                .where(counter.id == tables.REVISION_ID)
                .values(value=counter.value + 1)
                .returning(counter.value)
            )
            assert revision is not None, "the migrations insert the counter"
            change = Change(session, caller, precondition, self._now(), revision)
            yield change
            if not change.invalidations:
                await session.rollback()
        if change.invalidations:
            await self._publisher.publish(change.invalidations)
