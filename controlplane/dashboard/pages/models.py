"""Models: the list, one with its capacity, session affinity and endpoints, and making one."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from controlplane.dashboard import forms
from controlplane.dashboard.api import Json, Refused, segment
from controlplane.dashboard.forms import Form, Takes
from controlplane.dashboard.visit import Visit
from shared.policy import LoadBalancing

A_PAGE: Final = 50
SOURCES: Final = ("endpoints", "dns", "kubernetes")
FIELDS: Final[forms.Fields] = {
    "name": Takes.TEXT,
    "aliases": Takes.LINES,
    "upstream_model": Takes.OPTIONAL_TEXT,
    "enabled": Takes.FLAG,
    "max_in_flight": Takes.WHOLE,
    "admission_weight": Takes.WHOLE,
    "load_balancing": Takes.OPTIONAL_TEXT,
    "request_timeout_secs": Takes.NUMBER,
    "max_retries": Takes.WHOLE,
    "capacity.source": Takes.OPTIONAL_TEXT,
    "capacity.per_replica_max_in_flight": Takes.WHOLE,
    "capacity.headroom": Takes.NUMBER,
    "capacity.dns_name": Takes.OPTIONAL_TEXT,
    "capacity.service": Takes.OPTIONAL_TEXT,
    "capacity.namespace": Takes.OPTIONAL_TEXT,
}
NEW: Final = {
    "enabled": "true",
    "admission_weight": "100",
    "load_balancing": LoadBalancing.FAILOVER,
    "request_timeout_secs": "600",
    "max_retries": "1",
}
AFFINITY: Final[forms.Fields] = {
    "enabled": Takes.OPTIONAL_TEXT,
    "hold_ms": Takes.WHOLE,
    "max_held_percent": Takes.WHOLE,
    "max_bypass_secs": Takes.WHOLE,
}
GATEWAY: Final = {
    "enabled": "OBLETH_FAIRSHARE_SESSION_AFFINITY",
    "hold_ms": "OBLETH_FAIRSHARE_SESSION_AFFINITY_HOLD_MS",
    "max_held_percent": "OBLETH_FAIRSHARE_SESSION_AFFINITY_MAX_HELD_PERCENT",
    "max_bypass_secs": "OBLETH_FAIRSHARE_SESSION_AFFINITY_MAX_BYPASS_SECS",
}
"""Which setting each follows where the model has none of its own."""


async def show_all(visit: Visit) -> Response:
    search = visit.query("search")
    found = await visit.api.get(
        "/models", limit=A_PAGE, cursor=visit.query("cursor"), search=search
    )
    return visit.page("models.html", found=found, search=search)


async def show_new(visit: Visit) -> Response:
    return _new(visit, Form(NEW))


async def create(visit: Visit) -> Response:
    try:
        made = await visit.api.send("POST", "/models", _wanted(visit))
    except Refused as refused:
        return _new(visit, Form(visit.form).refused(refused, FIELDS), refused.status)
    return visit.go(f"/models/{made['id']}", "created")


async def show(visit: Visit) -> Response:
    model = await visit.api.get(_path(visit))
    return await _one(visit, model)


async def change(visit: Visit) -> Response:
    """Save, or delete when the form says so."""
    revision = visit.form.get("revision")
    try:
        if visit.form.get("action") == "delete":
            await visit.api.send("DELETE", _path(visit), revision=revision)
            return visit.go("/models", "deleted")
        wanted = _wanted(visit, await visit.api.get(_path(visit)))
        await visit.api.send("PATCH", _path(visit), wanted, revision=revision)
    except Refused as refused:
        model = await visit.api.get(_path(visit))
        form = Form(visit.form).refused(refused, FIELDS)
        return await _one(visit, model, form=form, status=refused.status)
    return visit.go(f"/models/{visit.path('id')}", "saved")


async def set_affinity(visit: Visit) -> Response:
    revision = visit.form.get("revision")
    given = forms.to_json(AFFINITY, visit.form)
    if given["enabled"] is not None:
        given["enabled"] = given["enabled"] == "true"
    own = {name: value for name, value in given.items() if value is not None}
    try:
        await visit.api.send("PUT", f"{_path(visit)}/session-affinity", own, revision=revision)
    except Refused as refused:
        model = await visit.api.get(_path(visit))
        form = Form(visit.form).refused(refused, AFFINITY)
        return await _one(visit, model, affinity=form, status=refused.status)
    return visit.go(f"/models/{visit.path('id')}", "saved")


def _new(visit: Visit, form: Form, status: int = 200) -> Response:
    return visit.page("model_new.html", status, form=form, **_choices())


async def _one(
    visit: Visit,
    model: Json,
    *,
    form: Form | None = None,
    affinity: Form | None = None,
    status: int = 200,
) -> Response:
    endpoints = await visit.api.everything(f"{_path(visit)}/endpoints")
    settings = (await visit.api.get("/settings"))["settings"]
    own = model["session_affinity"]
    shown = forms.to_text(AFFINITY, own)
    shown["enabled"] = {True: "true", False: "false"}.get(own.get("enabled"), "")
    return visit.page(
        "model.html",
        status,
        model=model,
        endpoints=endpoints,
        form=form or Form(forms.to_text(FIELDS, model)),
        affinity=affinity or Form(shown),
        gateway={name: settings[variable] for name, variable in GATEWAY.items()},
        **_choices(),
    )


def _wanted(visit: Visit, model: Json | None = None) -> Json:
    """The model a form describes. One without a source has a pool of fixed size."""
    wanted = forms.to_json(FIELDS, visit.form, model)
    capacity = wanted["capacity"]
    if model is None:
        capacity = {name: value for name, value in capacity.items() if value is not None}
    is_discovered = capacity.get("source") is not None
    wanted["capacity"] = {"mode": "discovered", **capacity} if is_discovered else None
    return wanted


def _choices() -> Json:
    return {"balancings": list(LoadBalancing), "sources": SOURCES}


def _path(visit: Visit) -> str:
    return f"/models/{segment(visit.path('id'))}"
