"""/audit."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from controlplane.audit.repository import AuditRepository
from controlplane.audit.schemas import AuditQuery, AuditView
from controlplane.dependencies import Store
from controlplane.paging import Page
from controlplane.routes import ApiRoute

router = APIRouter(prefix="/audit", tags=["audit"], route_class=ApiRoute)


@router.get("")
async def list_changes(query: Annotated[AuditQuery, Query()], store: Store) -> Page[AuditView]:
    """Every change to policy, newest first."""
    async with store.reading() as session:
        rows, cursor = await AuditRepository(session).page(query)
    return Page(items=[AuditView.of(row) for row in rows], next_cursor=cursor)
