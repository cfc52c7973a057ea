"""/usage."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from controlplane.dependencies import Store
from controlplane.paging import Page
from controlplane.routes import ApiRoute
from controlplane.usage.repository import UsageRepository
from controlplane.usage.schemas import UsageFilter, UsageQuery, UsageSum, UsageView

router = APIRouter(prefix="/usage", tags=["usage"], route_class=ApiRoute)


@router.get("")
async def sum_usage(query: Annotated[UsageQuery, Query()], store: Store) -> Page[UsageSum]:
    """Requests and tokens, summed by tenant, key, model or group."""
    async with store.reading() as session:
        sums, cursor = await UsageRepository(session).sums(query)
    return Page(items=sums, next_cursor=cursor)


@router.get("/requests")
async def list_requests(query: Annotated[UsageFilter, Query()], store: Store) -> Page[UsageView]:
    """Single requests, newest first."""
    async with store.reading() as session:
        rows, cursor = await UsageRepository(session).page(query)
    return Page(items=[UsageView.of(row) for row in rows], next_cursor=cursor)
