"""/fairshare/live, /fairshare/history, /fairshare/explain and /replicas."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from controlplane import paging
from controlplane.dependencies import Store, provided
from controlplane.fairshare.explain import Explainer, Explanation
from controlplane.fairshare.source import LiveSource, NobodyAnswers, UnknownModel, UnknownReplica
from controlplane.fields import Name, takes_whole
from controlplane.paging import Page, PageQuery
from controlplane.problems import NotFound, Problem
from controlplane.routes import ApiRoute
from shared.live_state import History, LiveState, ReplicaState

_LATEST_MS = 10**15

router = APIRouter(tags=["fairshare"], route_class=ApiRoute)


def _source(request: Request) -> Any:
    return request.app.state.live


Source = Annotated[LiveSource, Depends(_source)]
Explaining = Annotated[Explainer, provided(Explainer)]


class LiveQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    replica: Name | None = Field(None, description="The instance to ask; left out, one of them is.")


class HistoryQuery(LiveQuery):
    model: Name | None = Field(None, description="Left out, all pools together.")
    since_ms: Annotated[int, Field(ge=0, le=_LATEST_MS), takes_whole(0, _LATEST_MS)] = Field(
        0, description="Unix time in milliseconds; samples at or after it."
    )


class ExplainQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    key: Name = Field(description="Its id, or how its secret begins: `sk-` and eight more.")
    model: Name = Field(description="A name or an alias.")


class ReplicaList(Page[ReplicaState]):
    reason: str | None = Field(None, description="Why this may not be all there is to know.")


@router.get("/fairshare/live", response_model=LiveState)
async def live(query: Annotated[LiveQuery, Query()], source: Source) -> Response:
    """Who runs, who waits and why: by pool, group, tenant and key, fullest pool first."""
    with _told(query.replica):
        return _json(await source.state(query.replica))


@router.get("/fairshare/history", response_model=History)
async def history(query: Annotated[HistoryQuery, Query()], source: Source) -> Response:
    """Samples of one model, or of all together. They are the answering replica's own."""
    with _told(query.replica, query.model):
        return _json(await source.history(query.replica, query.model, query.since_ms))


@router.get("/fairshare/explain")
async def explain(
    query: Annotated[ExplainQuery, Query()], source: Source, store: Store, explainer: Explaining
) -> Explanation:
    """Why a request of this key to this model would wait now, or be refused, or neither."""
    async with store.reading() as session:
        asked = await explainer.find(session, query.key, query.model)
    with _told():
        return await explainer.explain(source, asked)


@router.get("/replicas")
async def replicas(query: Annotated[PageQuery, Query()], source: Source) -> ReplicaList:
    """The live replicas and how they share limits, by name."""
    with _told():
        fleet = await source.fleet()
    items, cursor = paging.part(fleet.replicas, lambda each: each.instance, query)
    return ReplicaList(items=list(items), next_cursor=cursor, reason=fleet.reason)


@contextmanager
def _told(replica: str | None = None, model: str | None = None) -> Iterator[None]:
    """What keeps a question from being answered, as a problem."""
    try:
        yield
    except UnknownReplica:
        raise NotFound("live replica", replica or "") from None
    except UnknownModel:
        raise NotFound("model", model or "") from None
    except NobodyAnswers as error:
        raise Problem(503, "live-unavailable", str(error)) from error


def _json(answer: object) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")
