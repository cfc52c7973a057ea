"""What a tenant looks like in the API."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import BaseModel, Field

from controlplane.fields import (
    Id,
    Input,
    MaxInFlight,
    Moment,
    Name,
    Period,
    Tokens,
    Weight,
    kept,
    takes,
)
from controlplane.paging import LIMIT_MAX, SearchQuery
from shared import policy, tables
from shared.policy import BudgetPeriod


class TenantStatus(StrEnum):
    ACTIVE = "active"
    SUSPENDED = "suspended"


Status = Annotated[TenantStatus, takes("one of " + ", ".join(TenantStatus))]


class TenantFields(Input):
    group: Name = policy.DEFAULT_GROUP
    weight: Weight = policy.DEFAULT_WEIGHT
    max_in_flight: MaxInFlight | None = Field(None, description="In each pool; null: no cap.")
    tokens_per_minute: Tokens | None = None
    budget_tokens: Tokens | None = Field(None, description="In each budget period.")
    budget_period: Period = BudgetPeriod.MONTH
    budget_started_at: Moment | None = Field(None, description="Where a `term` began.")
    status: Status = TenantStatus.ACTIVE
    allowed_models: Annotated[list[Name], Field(max_length=1000)] | None = Field(
        None, description="Names or aliases of registered models; null: all."
    )


class TenantCreate(TenantFields):
    name: Name


class TenantPatch(TenantFields):
    name: Name = Field(default_factory=kept)


class TenantQuery(SearchQuery):
    id: Annotated[list[Id], Field(max_length=LIMIT_MAX)] | None = Field(
        None, description="Only these; may be given several times."
    )
    group: Name | None = None


class TenantView(BaseModel):
    id: str
    name: str
    group: str
    weight: int
    max_in_flight: int | None
    tokens_per_minute: int | None
    budget_tokens: int | None
    budget_period: BudgetPeriod
    budget_started_at: datetime | None
    status: TenantStatus
    allowed_models: list[str] | None = Field(description="Models' own names, never aliases.")
    created_at: datetime
    updated_at: datetime
    revision: int

    @classmethod
    def of(cls, row: tables.TenantRow, **more: Any) -> Self:
        return cls(
            id=row.id,
            name=row.name,
            group=row.group_name,
            weight=row.weight,
            max_in_flight=row.max_in_flight,
            tokens_per_minute=row.tokens_per_minute,
            budget_tokens=row.budget_tokens,
            budget_period=BudgetPeriod(row.budget_period),
            budget_started_at=row.budget_started_at,
            status=TenantStatus(row.status),
            allowed_models=row.allowed_models,
            created_at=row.created_at,
            updated_at=row.updated_at,
            revision=row.revision,
            **more,
        )


class DeletedTenantView(TenantView):
    """A tenant as the audit log keeps it, with the keys that went with it."""

    keys: list[str]
