"""Endpoints of a model."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from controlplane.dashboard import forms
from controlplane.dashboard.api import Json, Refused, segment
from controlplane.dashboard.forms import Form, Takes
from controlplane.dashboard.visit import Visit
from shared.policy import DEFAULT_WEIGHT

FIELDS: Final[forms.Fields] = {
    "url": Takes.TEXT,
    "api_key": Takes.OPTIONAL_TEXT,
    "weight": Takes.WHOLE,
    "priority": Takes.WHOLE,
    "max_in_flight": Takes.WHOLE,
    "enabled": Takes.FLAG,
}
NEW: Final = {"weight": str(DEFAULT_WEIGHT), "priority": "0", "enabled": "true"}


async def show_new(visit: Visit) -> Response:
    return await _page(visit, "endpoint_new.html", Form(NEW))


async def create(visit: Visit) -> Response:
    try:
        wanted = forms.to_json(FIELDS, visit.form)
        await visit.api.send("POST", f"{_model(visit)}/endpoints", wanted)
    except Refused as refused:
        form = _shown_again(visit, refused)
        return await _page(visit, "endpoint_new.html", form, refused.status)
    return visit.go(f"/models/{visit.path('id')}", "created")


async def show(visit: Visit) -> Response:
    endpoint = await visit.api.get(_path(visit))
    form = Form(forms.to_text(FIELDS, endpoint))
    return await _page(visit, "endpoint.html", form, endpoint=endpoint)


async def change(visit: Visit) -> Response:
    """Save, or delete when the form says so. A blank API key stays as it is."""
    revision = visit.form.get("revision")
    try:
        if visit.form.get("action") == "delete":
            await visit.api.send("DELETE", _path(visit), revision=revision)
            return visit.go(f"/models/{visit.path('id')}", "deleted")
        wanted = forms.to_json(FIELDS, visit.form)
        if wanted["api_key"] is None and not visit.form.get("forget_api_key"):
            del wanted["api_key"]
        await visit.api.send("PATCH", _path(visit), wanted, revision=revision)
    except Refused as refused:
        endpoint = await visit.api.get(_path(visit))
        form = _shown_again(visit, refused)
        return await _page(visit, "endpoint.html", form, refused.status, endpoint=endpoint)
    return visit.go(f"/models/{visit.path('id')}", "saved")


def _shown_again(visit: Visit, refused: Refused) -> Form:
    """The form without the secret: that is to be typed again."""
    return Form({**visit.form, "api_key": ""}).refused(refused, FIELDS)


async def _page(
    visit: Visit, template: str, form: Form, status: int = 200, endpoint: Json | None = None
) -> Response:
    model = await visit.api.get(_model(visit))
    return visit.page(template, status, model=model, endpoint=endpoint, form=form)


def _model(visit: Visit) -> str:
    return f"/models/{segment(visit.path('id'))}"


def _path(visit: Visit) -> str:
    return f"{_model(visit)}/endpoints/{segment(visit.path('endpoint'))}"
