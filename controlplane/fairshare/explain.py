"""Why a request of this key to this model would wait now, or be refused, or not."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from pydantic import BaseModel, Field
from sqlalchemy import or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from controlplane.fairshare.source import LiveSource
from controlplane.keys import secret
from controlplane.models.repository import ModelRepository
from controlplane.problems import NotFound
from shared.live_state import Cause, LiveState, Newcomer, Outlook
from shared.policy import UNROUTED, effective_weight
from shared.tables import GroupRow, KeyRow, ModelRow, TenantRow


class Explanation(BaseModel):
    """What would become of a request sent now. Its budgets are not looked at."""

    outcome: Literal["refused", "admitted", "waits"]
    code: str | None = Field(None, description="Of a refusal, as the gateway answers it.")
    cause: Cause | None = Field(None, description="Why it would wait.")
    detail: str = Field(description="The same in words.")
    key_id: str
    key: str
    tenant_id: str
    tenant: str
    group: str
    model: str
    outlook: Outlook | None = Field(None, description="The figures; null for a refusal.")
    scope: str | None = Field(None, description="Of the live state that was judged.")
    scope_reason: str | None = None


class _Refused(Exception):
    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code: Final = code


@dataclass(frozen=True, slots=True)
class Asked:
    """Who would send, and what to."""

    key: KeyRow
    tenant: TenantRow
    group: GroupRow
    wanted: str
    model: ModelRow | None
    """None: it is not registered."""

    @property
    def name(self) -> str:
        return self.wanted if self.model is None else self.model.name

    def named(self) -> dict[str, str]:
        return {
            "key_id": self.key.id,
            "key": self.key.name,
            "tenant_id": self.tenant.id,
            "tenant": self.tenant.name,
            "group": self.group.name,
            "model": self.name,
        }


class Explainer:
    """Looks up who would send and what to. `default_size` is the slots of a model that sets none;
    `any_model`: names that are not registered go to the default upstream."""

    def __init__(self, *, default_size: int, any_model: bool) -> None:
        self._default_size: Final = default_size
        self._any_model: Final = any_model

    async def find(self, session: AsyncSession, key: str, model: str) -> Asked:
        """`key` is an id, or how a secret begins; `model` a name or an alias.

        Raises `NotFound` for the key.
        """
        key_row, tenant, group = await _sender(session, key)
        return Asked(key_row, tenant, group, model, await _model(session, model))

    async def explain(self, live: LiveSource, asked: Asked) -> Explanation:
        """Raises what `LiveSource.state` raises."""
        who = asked.named()
        try:
            self._check(asked)
        except _Refused as refused:
            return Explanation(outcome="refused", code=refused.code, detail=str(refused), **who)
        newcomer = self._newcomer(asked)
        state = await live.state(None)
        outlook = live.outlook(state, newcomer)
        return Explanation(
            outcome="admitted" if outlook.is_admitted else "waits",
            cause=None if outlook.is_admitted else outlook.cause,
            detail=in_words(outlook, newcomer, state),
            outlook=outlook,
            scope=state.scope,
            scope_reason=state.scope_reason,
            **who,
        )

    def _check(self, asked: Asked) -> None:
        """In the order in which the gateway does. Raises `_Refused`."""
        key, tenant, model, name = asked.key, asked.tenant, asked.model, asked.name
        if key.disabled:
            raise _Refused("invalid_api_key", f"key {key.name} is disabled")
        if key.expires_at is not None and _as_utc(key.expires_at) <= datetime.now(UTC):
            raise _Refused("invalid_api_key", f"key {key.name} has expired")
        if tenant.status != "active":
            raise _Refused("tenant_suspended", f"tenant {tenant.name} is suspended")
        if model is None and not self._any_model:
            raise _Refused("model_not_found", f"there is no model {name}")
        if model is not None and not model.enabled:
            raise _Refused("model_not_found", f"model {name} is disabled")
        if tenant.allowed_models is not None and name not in tenant.allowed_models:
            raise _Refused("model_not_allowed", f"tenant {tenant.name} may not use {name}")

    def _newcomer(self, asked: Asked) -> Newcomer:
        key, tenant, group, model = asked.key, asked.tenant, asked.group, asked.model
        admission_weight = 100 if model is None else model.admission_weight
        size = self._default_size if model is None else model.max_in_flight or self._default_size
        return Newcomer(
            pool_id=UNROUTED if model is None else model.id,
            model=UNROUTED if model is None else model.name,
            size=size,
            group=group.name,
            group_weight=group.weight,
            tenant_id=tenant.id,
            tenant=tenant.name,
            tenant_weight=effective_weight(tenant.weight, admission_weight),
            tenant_cap=tenant.max_in_flight,
            key_id=key.id,
            key=key.name,
            key_weight=key.weight,
            key_cap=key.max_in_flight,
        )


def in_words(outlook: Outlook, newcomer: Newcomer, state: LiveState) -> str:
    """What an outlook means, with its figures."""
    used = outlook.in_flight + outlook.held
    slots = f"{used} of {outlook.size} slots of {newcomer.model} are in use"
    if outlook.is_admitted:
        return f"{slots}: it would be admitted at once"
    tenant = f"tenant {newcomer.tenant}"
    fair = f"{outlook.fair_slots:.1f}"
    match outlook.cause:
        case Cause.AT_TENANT_CAP:
            return (
                f"{tenant} runs {outlook.tenant_slots} of the {newcomer.tenant_cap} at once that"
                " its max_in_flight allows in this pool"
            )
        case Cause.AT_KEY_CAP:
            return (
                f"key {newcomer.key} runs {outlook.key_slots} of the {newcomer.key_cap} at once"
                " that its max_in_flight allows in this pool"
            )
        case Cause.NO_READY_BACKEND:
            return f"{newcomer.model} has no slots: none of its backends is ready"
        case Cause.GLOBAL_CEILING:
            everywhere = state.in_flight + state.held
            return (
                f"{slots}, but over all pools {everywhere} of {state.global_max_in_flight}"
                " (OBLETH_GLOBAL_MAX_IN_FLIGHT)"
            )
        case Cause.BELOW_SHARE:
            return (
                f"{slots}; {tenant} has {outlook.tenant_slots} of its fair {fair} while another"
                " has a slot more than its own: nothing is taken back, so it is among the first to"
                " get one that is freed"
            )
        case Cause.AHEAD_OF_SHARE:
            return (
                f"{slots}; {tenant} has {outlook.tenant_slots}, a slot more than its fair {fair},"
                " and others wait, who go first"
            )
        case Cause.PASSED_BY_WARM_SESSION:
            return f"{slots}; a warm session's request goes ahead in key {newcomer.key}"
        case _:
            return (
                f"{slots}, shared as the weights say; {outlook.queued} requests wait, and {tenant}"
                f" has {outlook.tenant_slots} of its fair {fair}"
            )


async def _sender(session: AsyncSession, key: str) -> tuple[KeyRow, TenantRow, GroupRow]:
    # Of a secret only its beginning is looked at, which is all of it that is stored.
    is_it = or_(KeyRow.id == key, KeyRow.prefix == secret.prefix(key))
    found = await session.execute(
        select(KeyRow, TenantRow, GroupRow)
        .join(TenantRow, TenantRow.id == KeyRow.tenant_id)
        .join(GroupRow, GroupRow.name == TenantRow.group_name)
        .where(is_it)
        .order_by(KeyRow.id)
        .limit(1)
    )
    row = found.one_or_none()
    if row is None:
        raise NotFound("key", secret.prefix(key) if key.startswith("sk-") else key)
    key_row, tenant, group = row
    return key_row, tenant, group


async def _model(session: AsyncSession, name: str) -> ModelRow | None:
    models = ModelRepository(session)
    owner = (await models.owners([name])).get(name)
    return None if owner is None else await models.get(owner)


def _as_utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
