"""Groups and their weights, with what a change of weights would do to the split of a pool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from starlette.responses import Response

from controlplane.dashboard import forms
from controlplane.dashboard.api import Json, Refused, segment
from controlplane.dashboard.forms import Form, Takes
from controlplane.dashboard.live import Live
from controlplane.dashboard.visit import Visit
from shared import policy

A_PAGE: Final = 100
FIELDS: Final[forms.Fields] = {"name": Takes.TEXT, "weight": Takes.WHOLE}
WEIGHT: Final = "weight:"
REVISION: Final = "revision:"
"""In the form of all weights, what stands before a group's name."""


@dataclass(frozen=True, slots=True)
class Part:
    """A group's part of a pool."""

    name: str
    weight: int
    before: int
    after: int


async def show_all(visit: Visit) -> Response:
    return await _all(visit, Form({"weight": str(policy.DEFAULT_WEIGHT)}))


async def change_all(visit: Visit) -> Response:
    """Save the weights that differ, or make a group when the form says so."""
    if visit.form.get("action") == "create":
        try:
            await visit.api.send("POST", "/groups", forms.to_json(FIELDS, visit.form))
        except Refused as refused:
            form = Form(visit.form).refused(refused, FIELDS)
            return await _all(visit, form, status=refused.status)
        return visit.go("/groups", "created")
    stored = {group["name"]: group for group in await visit.api.everything("/groups")}
    errors: dict[str, str] = {}
    saved = 0
    for field, text in visit.form.items():
        name = field.removeprefix(WEIGHT)
        if name == field or (name in stored and text == str(stored[name]["weight"])):
            continue
        body = forms.to_json({"weight": Takes.WHOLE}, {"weight": text})
        revision = visit.form.get(REVISION + name)
        try:
            await visit.api.send("PATCH", f"/groups/{segment(name)}", body, revision=revision)
            saved += 1
        except Refused as refused:
            errors[name] = refused.fields.get("weight", refused.detail)
    if errors:
        form = Form({"weight": str(policy.DEFAULT_WEIGHT)})
        return await _all(visit, form, errors=errors, status=422)
    return visit.go("/groups", "saved" if saved else "unchanged")


async def show(visit: Visit) -> Response:
    group = await visit.api.get(_path(visit))
    return await _one(visit, group, Form(forms.to_text(FIELDS, group)))


async def change(visit: Visit) -> Response:
    """Save, or delete when the form says so."""
    revision = visit.form.get("revision")
    try:
        if visit.form.get("action") == "delete":
            await visit.api.send("DELETE", _path(visit), revision=revision)
            return visit.go("/groups", "deleted")
        wanted = forms.to_json(FIELDS, visit.form)
        saved = await visit.api.send("PATCH", _path(visit), wanted, revision=revision)
    except Refused as refused:
        group = await visit.api.get(_path(visit))
        form = Form(visit.form).refused(refused, FIELDS)
        return await _one(visit, group, form, refused.status)
    return visit.go(f"/groups/{segment(saved['name'])}", "saved")


async def preview(visit: Visit) -> Response:
    """How a pool is split now and would be with the weights of the form."""
    models = await visit.api.everything("/models")
    chosen = visit.form.get("pool") or (models[0]["name"] if models else "")
    live = await Live.of(visit.api)
    slots = await _slots(visit, live, models, chosen)
    stored = {group["name"]: group["weight"] for group in await visit.api.everything("/groups")}
    only_busy = visit.form.get("who") == "busy"
    pool = live.pool(chosen)
    if only_busy:
        busy = {group["name"] for group in pool["groups"]} if pool else set()
        stored = {name: weight for name, weight in stored.items() if name in busy}
    parts = cut(slots, stored, _typed(visit.form, stored))
    return visit.page(
        "split.html", parts=parts, pool=chosen, slots=slots, only_busy=only_busy, live=live
    )


def cut(slots: int, weights: Mapping[str, int], typed: Mapping[str, int]) -> list[Part]:
    """Each group's slots under the weights in force and with those typed in, largest first."""
    before = policy.split(slots, weights)
    wanted = {**weights, **typed}
    after = policy.split(slots, wanted)
    parts = [Part(name, wanted[name], before[name], after[name]) for name in weights]
    return sorted(parts, key=lambda part: (-part.after, -part.before, part.name))


async def _slots(visit: Visit, live: Live, models: list[Json], chosen: str) -> int:
    """The size of a pool, as enforced now or, where it has no work, as configured."""
    pool = live.pool(chosen)
    if pool is not None:
        return max(1, int(pool["size"]))
    settings = (await visit.api.get("/settings"))["settings"]
    default = int(settings["OBLETH_DEFAULT_MODEL_MAX_IN_FLIGHT"])
    for model in models:
        if model["name"] == chosen:
            return int(model["max_in_flight"] or default)
    return default


def _typed(form: Mapping[str, str], names: Mapping[str, int]) -> dict[str, int]:
    """The weights of a form that are in range; the others are told when they are saved."""
    found = {}
    for name in names:
        text = form.get(WEIGHT + name, "").strip()
        if text.isascii() and text.isdigit() and len(text) < 9:
            weight = int(text)
            if 1 <= weight <= policy.WEIGHT_MAX:
                found[name] = weight
    return found


async def _all(
    visit: Visit, form: Form, *, errors: Mapping[str, str] | None = None, status: int = 200
) -> Response:
    search = visit.query("search")
    found = await visit.api.get(
        "/groups", limit=A_PAGE, cursor=visit.query("cursor"), search=search
    )
    models = await visit.api.everything("/models")
    return visit.page(
        "groups.html",
        status,
        found=found,
        search=search,
        form=form,
        errors=errors or {},
        typed=visit.form,
        pools=[model["name"] for model in models],
    )


async def _one(visit: Visit, group: Json, form: Form, status: int = 200) -> Response:
    found = await visit.api.get("/tenants", group=group["name"], limit=A_PAGE)
    return visit.page("group.html", status, group=group, form=form, found=found)


def _path(visit: Visit) -> str:
    return f"/groups/{segment(visit.path('name'))}"
