"""Tenants: the list, one with its keys, and making one."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from controlplane.dashboard import forms
from controlplane.dashboard.api import Json, Refused, segment
from controlplane.dashboard.forms import Form, Takes
from controlplane.dashboard.visit import Visit
from controlplane.tenants.schemas import TenantStatus
from shared.policy import DEFAULT_GROUP, DEFAULT_WEIGHT, BudgetPeriod

A_PAGE: Final = 50
FIELDS: Final[forms.Fields] = {
    "name": Takes.TEXT,
    "group": Takes.OPTIONAL_TEXT,
    "weight": Takes.WHOLE,
    "max_in_flight": Takes.WHOLE,
    "tokens_per_minute": Takes.WHOLE,
    "budget_tokens": Takes.WHOLE,
    "budget_period": Takes.OPTIONAL_TEXT,
    "budget_started_at": Takes.MOMENT,
    "status": Takes.OPTIONAL_TEXT,
    "allowed_models": Takes.OPTIONAL_LINES,
}
NEW: Final = {
    "group": DEFAULT_GROUP,
    "weight": str(DEFAULT_WEIGHT),
    "budget_period": BudgetPeriod.MONTH,
    "status": TenantStatus.ACTIVE,
}


async def show_all(visit: Visit) -> Response:
    group, search = visit.query("group"), visit.query("search")
    found = await visit.api.get(
        "/tenants", limit=A_PAGE, cursor=visit.query("cursor"), group=group, search=search
    )
    groups = await visit.api.everything("/groups")
    return visit.page("tenants.html", found=found, group=group, search=search, groups=groups)


async def show_new(visit: Visit) -> Response:
    return await _new(visit, Form({**NEW, "group": visit.query("group") or DEFAULT_GROUP}))


async def create(visit: Visit) -> Response:
    try:
        made = await visit.api.send("POST", "/tenants", forms.to_json(FIELDS, visit.form))
    except Refused as refused:
        return await _new(visit, Form(visit.form).refused(refused, FIELDS), refused.status)
    return visit.go(f"/tenants/{made['id']}", "created")


async def show(visit: Visit) -> Response:
    tenant = await visit.api.get(_path(visit))
    return await _one(visit, tenant, Form(forms.to_text(FIELDS, tenant)))


async def change(visit: Visit) -> Response:
    """Save, or delete when the form says so."""
    revision = visit.form.get("revision")
    try:
        if visit.form.get("action") == "delete":
            await visit.api.send("DELETE", _path(visit), revision=revision)
            return visit.go("/tenants", "deleted")
        wanted = forms.to_json(FIELDS, visit.form, await visit.api.get(_path(visit)))
        await visit.api.send("PATCH", _path(visit), wanted, revision=revision)
    except Refused as refused:
        tenant = await visit.api.get(_path(visit))
        form = Form(visit.form).refused(refused, FIELDS)
        return await _one(visit, tenant, form, refused.status)
    return visit.go(f"/tenants/{visit.path('id')}", "saved")


async def _new(visit: Visit, form: Form, status: int = 200) -> Response:
    return visit.page("tenant_new.html", status, form=form, **await _choices(visit))


async def _one(visit: Visit, tenant: Json, form: Form, status: int = 200) -> Response:
    keys = await visit.api.everything("/keys", tenant_id=tenant["id"])
    choices = await _choices(visit)
    return visit.page("tenant.html", status, tenant=tenant, form=form, keys=keys, **choices)


async def _choices(visit: Visit) -> Json:
    groups = await visit.api.everything("/groups")
    return {
        "groups": [group["name"] for group in groups],
        "periods": list(BudgetPeriod),
        "statuses": list(TenantStatus),
    }


def _path(visit: Visit) -> str:
    return f"/tenants/{segment(visit.path('id'))}"
