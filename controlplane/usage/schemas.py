"""What usage looks like in the API."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from controlplane.fields import Id, Moment, Name, takes
from controlplane.paging import PageQuery
from shared import tables

By = Literal["tenant", "key", "model", "group", "day"]


class UsageConditions(BaseModel):
    """Which requests are meant. Unknown parameters are refused, lest a filter be misspelt."""

    model_config = ConfigDict(extra="forbid")

    since: Moment | None = Field(None, description="Started at or after.")
    until: Moment | None = Field(None, description="Started before.")
    tenant_id: Id | None = None
    key_id: Id | None = None
    model: Name | None = None
    group: Name | None = None


class UsageFilter(PageQuery, UsageConditions):
    """The same, and a page of them."""


class UsageSummed(UsageConditions):
    """The same, and what is added up."""

    by: Annotated[By, takes("one of tenant, key, model, group, day")] = "tenant"


class UsageQuery(PageQuery, UsageSummed):
    """The same, and a page of the sums."""


class UsageSum(BaseModel):
    """What one tenant, key, model or group used, or all together on one day."""

    id: str = Field(
        description="Of a tenant or key; the name of a model or group; a day as 2030-12-31, in UTC."
    )
    name: str = Field(description="The latest name it had.")
    requests: int
    queued: int = Field(description="Of them, those that waited.")
    rejected: int = Field(description="Of them, those that were not admitted.")
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    estimated: int = Field(description="Requests whose tokens the gateway estimated, in part.")
    queue_ms_mean: float
    queue_ms_max: float
    first_at: datetime
    last_at: datetime


class UsageView(BaseModel):
    """One request."""

    id: str
    request_id: str
    started_at: datetime
    group: str
    tenant_id: str
    tenant: str
    key_id: str
    key: str
    model: str
    admission: str
    status: int
    partial: bool
    queue_ms: float
    ttfb_ms: float | None
    duration_ms: float
    input_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    estimated: bool = Field(description="The upstream did not report all of the tokens.")
    session: str | None

    @classmethod
    def of(cls, row: tables.UsageRow) -> Self:
        return cls(
            id=row.id,
            request_id=row.request_id,
            started_at=row.started_at,
            group=row.group_name,
            tenant_id=row.tenant_id,
            tenant=row.tenant,
            key_id=row.key_id,
            key=row.key,
            model=row.model,
            admission=row.admission,
            status=row.status,
            partial=row.partial,
            queue_ms=row.queue_ms,
            ttfb_ms=row.ttfb_ms,
            duration_ms=row.duration_ms,
            input_tokens=row.input_tokens,
            output_tokens=row.output_tokens,
            cached_tokens=row.cached_tokens,
            estimated=row.estimated,
            session=row.session,
        )
