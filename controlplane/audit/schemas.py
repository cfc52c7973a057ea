"""What the audit log looks like in the API."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, Field

from controlplane.fields import plain, takes
from controlplane.paging import PageQuery
from shared import tables


class AuditQuery(PageQuery):
    kind: (
        Annotated[
            str, Field(max_length=32), AfterValidator(plain), takes("a kind of thing, as `tenant`")
        ]
        | None
    ) = None
    subject_id: (
        Annotated[str, Field(max_length=tables.NAME_MAX), AfterValidator(plain), takes("an id")]
        | None
    ) = None


class AuditView(BaseModel):
    id: str
    at: datetime
    revision: int
    actor: str
    client: str | None
    action: str
    kind: str
    subject_id: str
    subject_name: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None

    @classmethod
    def of(cls, row: tables.AuditRow) -> Self:
        return cls(
            id=row.id,
            at=row.at,
            revision=row.revision,
            actor=row.actor,
            client=row.client,
            action=row.action,
            kind=row.kind,
            subject_id=row.subject_id,
            subject_name=row.subject_name,
            before=row.before,
            after=row.after,
        )
