"""Who runs and waits, and why: all pools, one pool, and the replicas that serve them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from starlette.responses import JSONResponse, Response

from controlplane.dashboard.api import Json, Refused
from controlplane.dashboard.live import Live
from controlplane.dashboard.visit import Visit
from controlplane.paging import LIMIT_MAX

TENANTS: Final = 50
"""Of a pool, on one page."""
KEYS: Final = 20
"""Of a tenant in a pool."""


async def show(visit: Visit) -> Response:
    """All pools, or the one that `?pool=` names."""
    live = await Live.of(visit.api, visit.query("replica"))
    problem = None
    try:
        models = await visit.api.everything("/models")
    except Refused as refused:  # who runs and waits is told without a database
        models, problem = [], refused.detail
    chosen = visit.query("pool")
    if chosen:
        return _pool(visit, live, models, chosen, problem)
    busy = {pool["model"] for pool in live.pools}
    idle = [model for model in models if model["name"] not in busy]
    return visit.page("fairshare.html", live=live, idle=idle, problem=problem)


async def bars(visit: Visit) -> Response:
    """Every pool's bar and the figures beside it, for the page to follow."""
    live = await Live.of(visit.api, visit.query("replica"))
    return JSONResponse(
        {
            "problem": live.problem,
            "pools": [
                {**asdict(live.bar(pool)), "figures": live.figures(pool)} for pool in live.pools
            ],
        }
    )


async def history(visit: Visit) -> Response:
    """What the API remembers, with each group's colour, or why it tells nothing."""
    wanted = {name: visit.query(name) for name in ("model", "since_ms", "replica")}
    try:
        found = await visit.api.get("/fairshare/history", **wanted)
    except Refused as refused:
        return JSONResponse({"problem": refused.detail, "points": []})
    live = await Live.of(visit.api, visit.query("replica"))
    names = sorted({name for point in found["points"] for name in point["groups"]})
    return JSONResponse({**found, "colours": [(name, live.colour(name)) for name in names]})


async def replicas(visit: Visit) -> Response:
    """Who serves; what they serve is not known while nobody answers."""
    try:
        found = await visit.api.get("/replicas", limit=LIMIT_MAX)
    except Refused as refused:
        return visit.page("replicas.html", replicas=[], problem=refused.detail)
    return visit.page("replicas.html", replicas=found["items"], problem=found["reason"])


def _pool(
    visit: Visit, live: Live, models: list[Json], chosen: str, problem: str | None
) -> Response:
    pool = live.pool(chosen)
    model = next((model for model in models if model["name"] == chosen), None)
    search = visit.query("search")
    tenants = [
        tenant
        for tenant in (pool["tenants"] if pool else ())
        if search.casefold() in tenant["name"].casefold()
    ]
    start = min(_whole(visit.query("start")), max(0, len(tenants) - 1))
    keys: dict[str, list[Json]] = {}
    for key in pool["keys"] if pool else ():
        keys.setdefault(key["tenant_id"], []).append(key)
    # A page that is open follows what becomes of its pool: that it is gone is no mistake of its.
    is_known = pool or model or problem or not live.state
    status = 200 if is_known or visit.by_htmx else 404
    return visit.page(
        "pool.html",
        status,
        live=live,
        chosen=chosen,
        pool=pool,
        model=model,
        problem=problem,
        search=search,
        tenants=tenants[start : start + TENANTS],
        number=len(tenants),
        start=start,
        keys=keys,
        most_keys=KEYS,
    )


def _whole(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else 0
