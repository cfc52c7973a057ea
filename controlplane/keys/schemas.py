"""What an API key looks like in the API."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Self

from pydantic import BaseModel, Field

from controlplane.fields import (
    Flag,
    Id,
    Input,
    MaxInFlight,
    Moment,
    Name,
    Period,
    Tokens,
    Weight,
    kept,
)
from controlplane.paging import SearchQuery
from shared import policy, tables
from shared.policy import BudgetPeriod


class KeyFields(Input):
    weight: Weight = policy.DEFAULT_WEIGHT
    max_in_flight: MaxInFlight | None = Field(None, description="In each pool; null: no cap.")
    budget_tokens: Tokens | None = Field(None, description="In each budget period.")
    budget_period: Period = Field(BudgetPeriod.MONTH, description="A `term` is the tenant's.")
    disabled: Flag = False
    expires_at: Moment | None = None


class KeyCreate(KeyFields):
    name: Name


class KeyPatch(KeyFields):
    name: Name = Field(default_factory=kept)


class KeyQuery(SearchQuery):
    tenant_id: Id | None = None


class KeyView(BaseModel):
    id: str
    tenant_id: str
    name: str
    prefix: str
    weight: int
    max_in_flight: int | None
    budget_tokens: int | None
    budget_period: BudgetPeriod
    disabled: bool
    expires_at: datetime | None
    last_used_at: datetime | None
    created_at: datetime
    updated_at: datetime
    revision: int

    @classmethod
    def of(cls, row: tables.KeyRow, **more: Any) -> Self:
        return cls(
            id=row.id,
            tenant_id=row.tenant_id,
            name=row.name,
            prefix=row.prefix,
            weight=row.weight,
            max_in_flight=row.max_in_flight,
            budget_tokens=row.budget_tokens,
            budget_period=BudgetPeriod(row.budget_period),
            disabled=row.disabled,
            expires_at=row.expires_at,
            last_used_at=row.last_used_at,
            created_at=row.created_at,
            updated_at=row.updated_at,
            revision=row.revision,
            **more,
        )


class KeyWithSecret(KeyView):
    secret: str = Field(description="The key itself. It is stored nowhere and shown only here.")
