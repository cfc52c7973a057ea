"""The operations listener's ASGI app: `/healthz`, `/readyz`, `/metrics`, `/internal/fairshare`."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response

from dataplane.live.replica import Live
from dataplane.metrics import Metrics
from dataplane.ops import fairshare
from dataplane.ops.readiness import Assess


def build(*, assess: Assess, metrics: Metrics, live: Live, internal_token: str | None) -> FastAPI:
    """The app. All handlers are coroutines: what they read lives on the event loop."""
    app = FastAPI(title="obleth operations", docs_url=None, redoc_url=None, openapi_url=None)

    @app.api_route("/healthz", methods=["GET", "HEAD"])
    async def healthz() -> dict[str, str]:
        """200 as long as the loop turns; depends on nothing else."""
        return {"status": "ok"}

    @app.api_route("/readyz", methods=["GET", "HEAD"])
    async def readyz(response: Response) -> dict[str, Any]:
        """200 when requests should be sent here, else 503 with what stands in the way."""
        readiness = assess()
        response.status_code = 200 if readiness.is_ready else 503
        return {
            "ready": readiness.is_ready,
            "mode": readiness.mode,
            "problems": list(readiness.problems),
        }

    @app.api_route("/metrics", methods=["GET", "HEAD"])
    async def metrics_(request: Request) -> Response:
        """Prometheus' text format, or OpenMetrics where it is asked for."""
        body, media_type = metrics.exposition(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": media_type})

    app.include_router(fairshare.build(live, internal_token))
    return app
