"""Policy read from the database the control plane writes. Reads only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields
from datetime import datetime
from typing import Any, Final

import structlog
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession

from dataplane.policy.source import SourceUnavailable
from migrations import schema
from shared.database import Database, DatabaseUnavailable
from shared.policy import (
    AffinityOverride,
    Budget,
    BudgetPeriod,
    CapacityPolicy,
    CapacitySource,
    EndpointPolicy,
    GroupPolicy,
    KeyPolicy,
    LoadBalancing,
    ModelPolicy,
    TenantPolicy,
)
from shared.secrets import CannotUnseal, unseal
from shared.tables import (
    REVISION_ID,
    EndpointRow,
    GroupRow,
    KeyRow,
    ModelNameRow,
    ModelRow,
    RevisionRow,
    TenantRow,
)

log = structlog.stdlib.get_logger(__name__)

_ACTIVE: Final = "active"
_OVERRIDES: Final = frozenset(field.name for field in fields(AffinityOverride))
_CAPACITY: Final = frozenset(field.name for field in fields(CapacityPolicy))


class DatabasePolicySource:
    """`PolicySource` on SQLite or PostgreSQL. `encryption_keys` open endpoints' API keys."""

    def __init__(self, database: Database, *, encryption_keys: Sequence[str] = ()) -> None:
        self._database = database
        self._encryption_keys = encryption_keys
        self._schema: schema.Schema | None = None

    async def revision(self) -> int:
        """See `PolicySource.revision`."""
        async with self._reading() as session:
            stored = await session.scalar(
                select(RevisionRow.value).where(RevisionRow.id == REVISION_ID)
            )
        return stored or 0

    async def schema_problem(self) -> str | None:
        """See `PolicySource.schema_problem`."""
        async with self._reading() as session:
            connection = await session.connection()
            found = await connection.run_sync(_version)
        if self._schema is None or self._schema.found != found:
            # Reading the migrations takes milliseconds off the loop: only when there is news.
            try:
                self._schema = await schema.inspect(self._database)
            except DatabaseUnavailable as error:
                raise SourceUnavailable(str(error)) from error
        return self._schema.problem

    async def key(self, digest: str) -> KeyPolicy | None:
        """See `PolicySource.key`."""
        async with self._reading() as session:
            found = await session.execute(
                select(KeyRow, TenantRow, GroupRow)
                .join(TenantRow, TenantRow.id == KeyRow.tenant_id)
                .join(GroupRow, GroupRow.name == TenantRow.group_name)
                .where(KeyRow.digest == digest)
            )
            row = found.one_or_none()
            return None if row is None else _key(*row)

    async def models(self) -> Sequence[ModelPolicy]:
        """See `PolicySource.models`."""
        names: dict[str, list[str]] = defaultdict(list)
        endpoints: dict[str, list[EndpointPolicy]] = defaultdict(list)
        async with self._reading() as session:
            rows = (await session.scalars(select(ModelRow).order_by(ModelRow.name))).all()
            for name in await session.scalars(
                select(ModelNameRow)
                .where(ModelNameRow.position > 0)
                .order_by(ModelNameRow.position)
            ):
                names[name.model_id].append(name.name)
            for endpoint in await session.scalars(
                select(EndpointRow).order_by(EndpointRow.priority, EndpointRow.id)
            ):
                opened = self._endpoint(endpoint)
                if opened is not None:
                    endpoints[endpoint.model_id].append(opened)
            return [_model(row, names[row.id], endpoints[row.id]) for row in rows]

    def _endpoint(self, row: EndpointRow) -> EndpointPolicy | None:
        try:
            api_key = (
                None
                if row.sealed_api_key is None
                else unseal(row.sealed_api_key, self._encryption_keys)
            )
        except CannotUnseal as error:
            # Calling it without its key would only look like the upstream's fault.
            log.warning("endpoint_left_out", endpoint=row.id, url=row.url, error=str(error))
            return None
        return EndpointPolicy(
            id=row.id,
            url=row.url,
            api_key=api_key,
            weight=row.weight,
            priority=row.priority,
            enabled=row.enabled,
            max_in_flight=row.max_in_flight,
        )

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[AsyncSession]:
        try:
            async with self._database.reading() as session:
                yield session
        except DatabaseUnavailable as error:
            raise SourceUnavailable(str(error)) from error
        except (SQLAlchemyError, ValueError) as error:
            # A schema or a value that this version does not know.
            log.warning("policy_unreadable", error=f"{type(error).__name__}: {error}")
            raise SourceUnavailable("the database holds what cannot be read") from error


def _version(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _key(key: KeyRow, tenant: TenantRow, group: GroupRow) -> KeyPolicy:
    # A key has no start of its own: its terms are its tenant's.
    term = key.budget_period == BudgetPeriod.TERM
    return KeyPolicy(
        id=key.id,
        name=key.name,
        tenant=_tenant(tenant, group),
        weight=key.weight,
        max_in_flight=key.max_in_flight,
        budget=_budget(
            key.budget_tokens, key.budget_period, tenant.budget_started_at if term else None
        ),
        disabled=key.disabled,
        expires_at=_unix_secs(key.expires_at),
        digest=key.digest,
    )


def _tenant(tenant: TenantRow, group: GroupRow) -> TenantPolicy:
    return TenantPolicy(
        id=tenant.id,
        name=tenant.name,
        group=GroupPolicy(name=group.name, weight=group.weight),
        weight=tenant.weight,
        max_in_flight=tenant.max_in_flight,
        tokens_per_minute=tenant.tokens_per_minute,
        budget=_budget(tenant.budget_tokens, tenant.budget_period, tenant.budget_started_at),
        suspended=tenant.status != _ACTIVE,
        allowed_models=None if tenant.allowed_models is None else frozenset(tenant.allowed_models),
    )


def _budget(tokens: int | None, period: str, started_at: datetime | None) -> Budget:
    return Budget(tokens=tokens, period=BudgetPeriod(period), started_at=_unix_secs(started_at))


def _model(row: ModelRow, aliases: list[str], endpoints: list[EndpointPolicy]) -> ModelPolicy:
    return ModelPolicy(
        id=row.id,
        name=row.name,
        aliases=tuple(aliases),
        upstream_model=row.upstream_model,
        enabled=row.enabled,
        max_in_flight=row.max_in_flight,
        capacity=_capacity(row.capacity),
        admission_weight=row.admission_weight,
        load_balancing=LoadBalancing(row.load_balancing),
        affinity=AffinityOverride(
            **{name: value for name, value in row.session_affinity.items() if name in _OVERRIDES}
        ),
        request_timeout_secs=row.request_timeout_secs,
        max_retries=row.max_retries,
        endpoints=tuple(endpoints),
    )


def _capacity(stored: dict[str, Any] | None) -> CapacityPolicy | None:
    if stored is None:
        return None
    fields = {name: value for name, value in stored.items() if name in _CAPACITY}
    return CapacityPolicy(**{**fields, "source": CapacitySource(stored["source"])})


def _unix_secs(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()
