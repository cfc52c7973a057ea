"""What a group looks like in the API."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, Field
from pydantic_core import PydanticCustomError

from controlplane.fields import Input, Name, Weight, kept
from shared import policy, tables


def _is_a_path_segment(value: str) -> str:
    if value in (".", ".."):
        # Clients and proxies take these out of a path, so nobody could ever reach the group.
        raise PydanticCustomError("takes", "must be other than `.` and `..`")
    return value


GroupName = Annotated[Name, AfterValidator(_is_a_path_segment)]


class GroupCreate(Input):
    name: GroupName
    weight: Weight = policy.DEFAULT_WEIGHT


class GroupPatch(Input):
    name: GroupName = Field(default_factory=kept)
    weight: Weight = policy.DEFAULT_WEIGHT


class GroupView(BaseModel):
    name: str
    weight: int
    created_at: datetime
    updated_at: datetime
    revision: int

    @classmethod
    def of(cls, row: tables.GroupRow) -> Self:
        return cls(
            name=row.name,
            weight=row.weight,
            created_at=row.created_at,
            updated_at=row.updated_at,
            revision=row.revision,
        )
