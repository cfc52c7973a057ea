"""API keys: the list, one, and making one, whose secret is shown in the answer and never again."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from controlplane.dashboard import forms
from controlplane.dashboard.api import Json, Refused, segment
from controlplane.dashboard.forms import Form, Takes
from controlplane.dashboard.visit import Visit
from shared.policy import DEFAULT_WEIGHT, BudgetPeriod

A_PAGE: Final = 50
FIELDS: Final[forms.Fields] = {
    "name": Takes.TEXT,
    "weight": Takes.WHOLE,
    "max_in_flight": Takes.WHOLE,
    "budget_tokens": Takes.WHOLE,
    "budget_period": Takes.OPTIONAL_TEXT,
    "expires_at": Takes.MOMENT,
    "disabled": Takes.FLAG,
}
NEW: Final = {"weight": str(DEFAULT_WEIGHT), "budget_period": BudgetPeriod.MONTH}


async def show_all(visit: Visit) -> Response:
    search = visit.query("search")
    found = await visit.api.get("/keys", limit=A_PAGE, cursor=visit.query("cursor"), search=search)
    ids = sorted({key["tenant_id"] for key in found["items"]})
    tenants = await visit.api.get("/tenants", id=ids, limit=A_PAGE) if ids else {"items": ()}
    names = {tenant["id"]: tenant["name"] for tenant in tenants["items"]}
    return visit.page("keys.html", found=found, search=search, names=names)


async def show_new(visit: Visit) -> Response:
    return await _new(visit, Form(NEW))


async def create(visit: Visit) -> Response:
    tenant_id = visit.path("id")
    try:
        wanted = forms.to_json(FIELDS, visit.form)
        made = await visit.api.send("POST", f"/tenants/{segment(tenant_id)}/keys", wanted)
    except Refused as refused:
        return await _new(visit, Form(visit.form).refused(refused, FIELDS), refused.status)
    return visit.page("key_secret.html", key=made, tenant=await _tenant(visit, tenant_id))


async def show(visit: Visit) -> Response:
    key = await visit.api.get(_path(visit))
    return await _one(visit, key, Form(forms.to_text(FIELDS, key)))


async def change(visit: Visit) -> Response:
    """Save, or rotate or delete when the form says so."""
    revision = visit.form.get("revision")
    key = await visit.api.get(_path(visit))
    try:
        match visit.form.get("action"):
            case "delete":
                await visit.api.send("DELETE", _path(visit), revision=revision)
                return visit.go(f"/tenants/{key['tenant_id']}", "deleted")
            case "rotate":
                made = await visit.api.send("POST", f"{_path(visit)}/rotate", revision=revision)
                tenant = await _tenant(visit, key["tenant_id"])
                return visit.page("key_secret.html", key=made, tenant=tenant)
            case _:
                wanted = forms.to_json(FIELDS, visit.form, key)
                await visit.api.send("PATCH", _path(visit), wanted, revision=revision)
    except Refused as refused:
        form = Form(visit.form).refused(refused, FIELDS)
        return await _one(visit, key, form, refused.status)
    return visit.go(f"/keys/{key['id']}", "saved")


async def _new(visit: Visit, form: Form, status: int = 200) -> Response:
    tenant = await _tenant(visit, visit.path("id"))
    return visit.page("key_new.html", status, tenant=tenant, form=form, periods=list(BudgetPeriod))


async def _one(visit: Visit, key: Json, form: Form, status: int = 200) -> Response:
    tenant = await _tenant(visit, key["tenant_id"])
    periods = list(BudgetPeriod)
    return visit.page("key.html", status, key=key, tenant=tenant, form=form, periods=periods)


async def _tenant(visit: Visit, tenant_id: str) -> Json:
    return await visit.api.get(f"/tenants/{segment(tenant_id)}")


def _path(visit: Visit) -> str:
    return f"/keys/{segment(visit.path('id'))}"
