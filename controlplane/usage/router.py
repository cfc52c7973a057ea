"""/usage."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import StreamingResponse

from controlplane.dependencies import Store
from controlplane.paging import Page
from controlplane.routes import ApiRoute
from controlplane.usage.export import csv_file
from controlplane.usage.repository import UsageRepository
from controlplane.usage.schemas import (
    UsageConditions,
    UsageFilter,
    UsageQuery,
    UsageSum,
    UsageSummed,
    UsageView,
)

router = APIRouter(prefix="/usage", tags=["usage"], route_class=ApiRoute)


@router.get("")
async def sum_usage(query: Annotated[UsageQuery, Query()], store: Store) -> Page[UsageSum]:
    """Requests, waits and tokens, summed by tenant, key, model, group or day."""
    async with store.reading() as session:
        sums, cursor = await UsageRepository(session).sums(query)
    return Page(items=sums, next_cursor=cursor)


@router.get("/sums.csv", response_class=StreamingResponse)
async def download_sums(query: Annotated[UsageSummed, Query()], store: Store) -> StreamingResponse:
    """All sums as a CSV file."""

    async def read(limit: int, cursor: str | None) -> Page[UsageSum]:
        page = UsageQuery.model_construct(**dict(query), limit=limit, cursor=cursor)
        return await sum_usage(page, store)

    return await csv_file(f"usage-by-{query.by}.csv", UsageSum, read)


@router.get("/requests")
async def list_requests(query: Annotated[UsageFilter, Query()], store: Store) -> Page[UsageView]:
    """Single requests, newest first."""
    async with store.reading() as session:
        rows, cursor = await UsageRepository(session).page(query)
    return Page(items=[UsageView.of(row) for row in rows], next_cursor=cursor)


@router.get("/requests.csv", response_class=StreamingResponse)
async def download_requests(
    query: Annotated[UsageConditions, Query()], store: Store
) -> StreamingResponse:
    """All single requests as a CSV file, newest first."""

    async def read(limit: int, cursor: str | None) -> Page[UsageView]:
        page = UsageFilter.model_construct(**dict(query), limit=limit, cursor=cursor)
        return await list_requests(page, store)

    return await csv_file("usage-requests.csv", UsageView, read)
