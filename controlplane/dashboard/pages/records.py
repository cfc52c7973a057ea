"""What was used, what was changed, and what is in force: pages to read."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from controlplane.dashboard.visit import Visit

A_PAGE: Final = 50
BY: Final = ("tenant", "key", "model", "group", "day")
KINDS: Final = ("group", "tenant", "key", "model", "endpoint")


async def usage(visit: Visit) -> Response:
    by = visit.query("by") or BY[0]
    found = await visit.api.get("/usage", by=by, limit=A_PAGE, cursor=visit.query("cursor"))
    return visit.page("usage.html", found=found, by=by, choices=BY)


async def requests(visit: Visit) -> Response:
    wanted = {name: visit.query(name) for name in ("tenant_id", "key_id", "model", "group")}
    found = await visit.api.get(
        "/usage/requests", limit=A_PAGE, cursor=visit.query("cursor"), **wanted
    )
    given = {name: value for name, value in wanted.items() if value}
    return visit.page("usage_requests.html", found=found, wanted=given)


async def sums_file(visit: Visit) -> Response:
    return visit.api.passed_on("/usage/sums.csv")


async def requests_file(visit: Visit) -> Response:
    return visit.api.passed_on("/usage/requests.csv")


async def audit(visit: Visit) -> Response:
    kind, subject_id = visit.query("kind"), visit.query("subject_id")
    found = await visit.api.get(
        "/audit", kind=kind, subject_id=subject_id, limit=A_PAGE, cursor=visit.query("cursor")
    )
    return visit.page("audit.html", found=found, kind=kind, kinds=KINDS, subject_id=subject_id)


async def settings(visit: Visit) -> Response:
    found = await visit.api.get("/settings")
    return visit.page("settings.html", settings=found["settings"])
