"""The first page: is anything full, who waits below their share, what changed."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from controlplane.dashboard.api import Refused
from controlplane.dashboard.live import Live
from controlplane.dashboard.visit import Visit

POOLS: Final = 6
CHANGES: Final = 6


async def show(visit: Visit) -> Response:
    live = await Live.of(visit.api)
    problem = None
    try:
        changes = (await visit.api.get("/audit", limit=CHANGES))["items"]
    except Refused as refused:  # who runs and waits is told without a database
        changes, problem = [], refused.detail
    return visit.page(
        "overview.html", live=live, pools=live.pools[:POOLS], changes=changes, problem=problem
    )
