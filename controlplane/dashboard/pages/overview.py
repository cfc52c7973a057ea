"""The first page: is anything full, who waits below their share, what changed."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from controlplane.dashboard.live import Live
from controlplane.dashboard.visit import Visit

POOLS: Final = 6
CHANGES: Final = 6


async def show(visit: Visit) -> Response:
    live = await Live.of(visit.api)
    audit = await visit.api.get("/audit", limit=CHANGES)
    return visit.page("overview.html", live=live, pools=live.pools[:POOLS], changes=audit["items"])
