"""`/internal/fairshare/live` and `/history`: the live picture for the control plane.

They need `Authorization: Bearer` with `OBLETH_INTERNAL_TOKEN`, and are not there without one set.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Annotated, Final

import msgspec
from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response

from dataplane.live.replica import Live, UnknownModel

NO_SUCH_MODEL: Final = "there is no such model"


def build(live: Live, token: str | None) -> APIRouter:
    """The routes."""

    def opened(request: Request) -> None:
        if not token:
            raise HTTPException(404, "off: OBLETH_INTERNAL_TOKEN is not set")
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        # Of equal length, so that comparing takes as long for any wrong one.
        is_right = hmac.compare_digest(_digest(given.encode("latin-1")), _digest(token.encode()))
        if scheme.lower() != "bearer" or not is_right:
            raise HTTPException(401, "send the internal token as `Authorization: Bearer`")

    router = APIRouter(prefix="/internal/fairshare", dependencies=[Depends(opened)])

    @router.get("/live")
    async def state() -> Response:
        """See `shared.live_state.LiveState`."""
        return _json(await live.state())

    @router.get("/history")
    async def history(
        model: str | None = None, since_ms: Annotated[int, Query(ge=0)] = 0
    ) -> Response:
        """See `shared.live_state.History`."""
        try:
            return _json(live.history(model, since_ms))
        except UnknownModel:
            raise HTTPException(404, NO_SUCH_MODEL) from None

    return router


def _json(answer: object) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()
