"""The schema: what the control plane writes and the data plane reads.

The one description of it; `migrations/` is checked against it. Ids are UUIDv7 in text, so that
they sort by creation. Every policy row carries `revision`, the number of the change that last
wrote it: unique over all rows and all time, it serves as the row's version. A row that lives
longer than what it tells of (audit, usage) refers to it by id without a foreign key.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import uuid_utils
from sqlalchemy import (
    JSON,
    BigInteger,
    DateTime,
    Dialect,
    ForeignKey,
    Index,
    MetaData,
    String,
    Text,
    TypeDecorator,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from shared import policy

NAME_MAX: Final = 200
"""Code points in the name of a group, tenant, key or model."""
URL_MAX: Final = 2048

REVISION_ID: Final = 1
"""The only row of `revision`."""


def new_id() -> str:
    """A fresh UUIDv7. Ids made in one process sort in the order in which they were made."""
    return str(uuid_utils.uuid7())


class Timestamp(TypeDecorator[datetime]):
    """A moment, always aware and in UTC; SQLite keeps none of that, so it is put on here."""

    impl = DateTime(timezone=True)
    cache_ok = True

    @property
    def python_type(self) -> type[datetime]:
        return datetime

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a moment without a time zone cannot be stored")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Row(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012 - read by SQLAlchemy when the class is made
        datetime: Timestamp,
        dict[str, Any]: JSON(none_as_null=True),
        list[str]: JSON(none_as_null=True),
    }


class RevisionRow(Row):
    """How often policy has changed.

    Raising it is the first statement of every change, so that changes happen one after another and
    a higher number is never visible before a lower one.
    """

    __tablename__ = "revision"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    value: Mapped[int] = mapped_column(BigInteger)


class GroupRow(Row):
    __tablename__ = "groups"

    name: Mapped[str] = mapped_column(String(NAME_MAX), primary_key=True)
    weight: Mapped[int] = mapped_column(default=policy.DEFAULT_WEIGHT)
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    revision: Mapped[int] = mapped_column(BigInteger)


class TenantRow(Row):
    __tablename__ = "tenants"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    name: Mapped[str] = mapped_column(String(NAME_MAX), unique=True)
    group_name: Mapped[str] = mapped_column(
        ForeignKey("groups.name", ondelete="RESTRICT", onupdate="CASCADE"), index=True
    )
    weight: Mapped[int] = mapped_column(default=policy.DEFAULT_WEIGHT)
    max_in_flight: Mapped[int | None]
    tokens_per_minute: Mapped[int | None] = mapped_column(BigInteger)
    budget_tokens: Mapped[int | None] = mapped_column(BigInteger)
    budget_period: Mapped[str] = mapped_column(String(16))
    """A `policy.BudgetPeriod`."""
    budget_started_at: Mapped[datetime | None]
    status: Mapped[str] = mapped_column(String(16))
    """`active` or `suspended`."""
    allowed_models: Mapped[list[str] | None]
    """Models' own names, never aliases; NULL allows all."""
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    revision: Mapped[int] = mapped_column(BigInteger)


class KeyRow(Row):
    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"), index=True)
    name: Mapped[str] = mapped_column(String(NAME_MAX))
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    """See `shared.secrets.key_digest`; the secret itself is stored nowhere."""
    prefix: Mapped[str] = mapped_column(String(16))
    """How the secret begins, for people to recognise it by."""
    weight: Mapped[int] = mapped_column(default=policy.DEFAULT_WEIGHT)
    max_in_flight: Mapped[int | None]
    budget_tokens: Mapped[int | None] = mapped_column(BigInteger)
    budget_period: Mapped[str] = mapped_column(String(16))
    """A `policy.BudgetPeriod`; a `term` is the tenant's."""
    disabled: Mapped[bool]
    expires_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    """Written by the data plane along with usage; no policy change, so it leaves `revision` be."""
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    revision: Mapped[int] = mapped_column(BigInteger)


class ModelRow(Row):
    __tablename__ = "models"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    name: Mapped[str] = mapped_column(String(NAME_MAX), unique=True)
    upstream_model: Mapped[str | None] = mapped_column(String(NAME_MAX))
    enabled: Mapped[bool]
    max_in_flight: Mapped[int | None]
    admission_weight: Mapped[int]
    capacity: Mapped[dict[str, Any] | None]
    """How the pool's size is discovered; NULL: configured by `max_in_flight` or the default."""
    load_balancing: Mapped[str] = mapped_column(String(32))
    """A `policy.LoadBalancing`."""
    session_affinity: Mapped[dict[str, Any]]
    """Fields of `policy.AffinityOverride` that the model sets itself; the others are left out."""
    request_timeout_secs: Mapped[float]
    max_retries: Mapped[int]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    revision: Mapped[int] = mapped_column(BigInteger)


class ModelNameRow(Row):
    """Every name a model answers to, so that the database itself keeps them all distinct."""

    __tablename__ = "model_names"

    name: Mapped[str] = mapped_column(String(NAME_MAX), primary_key=True)
    model_id: Mapped[str] = mapped_column(ForeignKey("models.id", ondelete="CASCADE"), index=True)
    position: Mapped[int]
    """0: the model's own name; from 1 on: its aliases in order."""


class EndpointRow(Row):
    __tablename__ = "endpoints"
    __table_args__ = (UniqueConstraint("model_id", "url"),)

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    model_id: Mapped[str] = mapped_column(ForeignKey("models.id", ondelete="CASCADE"), index=True)
    url: Mapped[str] = mapped_column(String(URL_MAX))
    sealed_api_key: Mapped[str | None] = mapped_column(Text)
    """See `shared.secrets.seal`."""
    weight: Mapped[int] = mapped_column(default=policy.DEFAULT_WEIGHT)
    priority: Mapped[int]
    enabled: Mapped[bool]
    max_in_flight: Mapped[int | None]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    revision: Mapped[int] = mapped_column(BigInteger)


class AuditRow(Row):
    """One change to one thing, written in the transaction that made it."""

    __tablename__ = "audit_log"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    at: Mapped[datetime]
    revision: Mapped[int] = mapped_column(BigInteger)
    actor: Mapped[str] = mapped_column(String(NAME_MAX))
    client: Mapped[str | None] = mapped_column(String(64))
    """The network address the change was asked for from."""
    action: Mapped[str] = mapped_column(String(32))
    kind: Mapped[str] = mapped_column(String(32))
    subject_id: Mapped[str] = mapped_column(String(NAME_MAX))
    subject_name: Mapped[str] = mapped_column(String(URL_MAX))
    before: Mapped[dict[str, Any] | None]
    after: Mapped[dict[str, Any] | None]

    __table_args__ = (
        Index(None, "revision", "id"),
        Index(None, "kind", "subject_id"),
    )


class UsageRow(Row):
    """One finished request. Names are those of the time, so that they outlive what they name."""

    __tablename__ = "usage_requests"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    request_id: Mapped[str] = mapped_column(String(NAME_MAX))
    started_at: Mapped[datetime]
    group_name: Mapped[str] = mapped_column(String(NAME_MAX))
    tenant_id: Mapped[str] = mapped_column(String(36))
    tenant: Mapped[str] = mapped_column(String(NAME_MAX))
    key_id: Mapped[str] = mapped_column(String(36))
    key: Mapped[str] = mapped_column(String(NAME_MAX))
    model: Mapped[str] = mapped_column(String(NAME_MAX))
    """The registered model's own name, or `policy.UNROUTED`."""
    admission: Mapped[str] = mapped_column(String(16))
    """`fast`, `queued` or `rejected`."""
    status: Mapped[int]
    """The HTTP status; 499 when the client left before there was one."""
    partial: Mapped[bool]
    """The answer was cut short, by either side."""
    queue_ms: Mapped[float]
    ttfb_ms: Mapped[float | None]
    duration_ms: Mapped[float]
    input_tokens: Mapped[int | None] = mapped_column(BigInteger)
    output_tokens: Mapped[int | None] = mapped_column(BigInteger)
    cached_tokens: Mapped[int | None] = mapped_column(BigInteger)
    estimated: Mapped[bool]
    """The upstream did not report all of the tokens: the gateway estimated what was missing."""
    session: Mapped[str | None] = mapped_column(String(64))
    """A keyed hash of the session id."""

    __table_args__ = (
        Index(None, "started_at", "id"),
        Index(None, "tenant_id", "started_at"),
        Index(None, "key_id", "started_at"),
        Index(None, "model", "started_at"),
    )


class BudgetUsageRow(Row):
    """Tokens committed against a term budget, so that they outlive the process that counted."""

    __tablename__ = "budget_usage"

    scope: Mapped[str] = mapped_column(String(16), primary_key=True)
    """`tenant` or `key`."""
    scope_id: Mapped[str] = mapped_column(String(36), primary_key=True)
    period_started_at: Mapped[datetime] = mapped_column(primary_key=True)
    committed_tokens: Mapped[int] = mapped_column(BigInteger)
    calendar: Mapped[bool]
    """The period was a day or a month, which end by themselves, so that the row can go later."""
    updated_at: Mapped[datetime]
