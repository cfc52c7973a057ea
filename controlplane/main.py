"""The control plane put together: the only place of this plane that builds objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request, Security
from fastapi.security import HTTPBearer
from starlette._utils import get_route_path
from starlette.routing import Match, Mount
from starlette.types import Scope
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from controlplane import metrics, problems
from controlplane.admin_auth import AdminAuth, Tokens
from controlplane.audit.router import router as audit_router
from controlplane.dashboard.app import Dashboard
from controlplane.dependencies import Provided
from controlplane.endpoints.health import EndpointHealth, NobodyKnows, PublishedHealth
from controlplane.endpoints.router import router as endpoints_router
from controlplane.endpoints.service import EndpointService
from controlplane.fairshare.explain import Explainer
from controlplane.fairshare.router import router as fairshare_router
from controlplane.fairshare.source import LiveSource, NoReplicas
from controlplane.groups.router import router as groups_router
from controlplane.groups.service import GroupService
from controlplane.invalidation import (
    InTurn,
    InvalidationPublisher,
    NobodyListens,
    RedisPublisher,
)
from controlplane.keys.router import router as keys_router
from controlplane.keys.service import KeyService
from controlplane.models.router import router as models_router
from controlplane.models.service import ModelService
from controlplane.models.transfer import TransferService
from controlplane.policy_store import PolicyStore
from controlplane.routes import HeadAsGet
from controlplane.settings import ControlPlaneSettings
from controlplane.status.router import DISTRIBUTION, EffectiveSettings
from controlplane.status.router import router as status_router
from controlplane.tenants.router import router as tenants_router
from controlplane.tenants.service import TenantService
from controlplane.usage.router import router as usage_router
from migrations import schema
from shared.database import Database
from shared.network import NetworkRules
from shared.settings import described, variable_name

API: Final = "/api/v1"
PUBLIC: Final = ("/health", "/version", "/openapi.json")
ROUTERS: Final = (
    groups_router,
    tenants_router,
    keys_router,
    # Longer paths go first: a model's endpoints are no models.
    endpoints_router,
    models_router,
    fairshare_router,
    usage_router,
    audit_router,
    status_router,
)
"""The API's resources."""


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """The app, and what must be called around serving it."""

    app: FastAPI
    database: Database
    live: LiveSource
    announcer: RedisPublisher | None = None
    """What tells the replicas of changes, where there is Redis."""
    published_health: PublishedHealth | None = None

    async def start(self) -> None:
        """Bring the database up to this build's schema.

        Raises `migrations.schema.SchemaIsNewer` and `shared.database.DatabaseUnavailable`.
        """
        await schema.migrate(self.database.url)

    async def stop(self) -> None:
        """Close what is connected. Call it once, when nothing is served any more."""
        if self.announcer is not None:
            await self.announcer.stop()
        if self.published_health is not None:
            await self.published_health.stop()
        await self.live.stop()
        await self.database.close()


def build(
    settings: ControlPlaneSettings,
    *,
    publisher: InvalidationPublisher | None = None,
    live: LiveSource | None = None,
    endpoint_health: EndpointHealth | None = None,
    effective: Mapping[str, Any] | None = None,
) -> ControlPlane:
    """The control plane under `settings`. Nothing is connected to before `start`.

    With Redis, changes are announced to every replica there. `publisher` tells a data plane that is
    reached otherwise; one that is not told finds out from the database.
    Replicas say in Redis how endpoints are; without it `endpoint_health` is asked.
    `live` answers for the data plane; without, there is no live picture.
    `effective` is what `/settings` shows, by field, if that is more than these settings.
    """
    database = Database(settings.database_url)
    announcer, published_health = None, None
    publishers = [publisher or NobodyListens()]
    if settings.redis_url is not None:
        answer_secs = settings.redis_response_timeout_ms / 1000
        announcer = RedisPublisher(settings.redis_url, answer_secs=answer_secs)
        publishers.append(announcer)
        published_health = PublishedHealth(settings.redis_url, answer_secs=answer_secs)
    store = PolicyStore(database, InTurn(*publishers))
    tenants = TenantService(any_model=settings.upstream_base_url is not None)
    endpoints = EndpointService(
        NetworkRules(settings.block_private_networks, settings.allowed_private_cidrs),
        encryption_keys=settings.encryption_keys(),
        health=published_health or endpoint_health or NobodyKnows(),
    )
    models = ModelService(tenants, endpoints, gateway=settings.affinity())
    shown = described(settings) if effective is None else effective
    admin_token = settings.admin_token.get_secret_value()
    viewer = settings.viewer_token
    viewer_token = None if viewer is None else viewer.get_secret_value()
    app = _app(Tokens(admin_token, viewer_token))
    dashboard = Dashboard(
        app, admin_token=admin_token, viewer_token=viewer_token, version=app.version
    )
    app.router.routes.append(_Pages("", dashboard.app))
    trusted = [str(network) for network in settings.admin_trusted_proxies]
    app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=trusted)
    app.state.provided = Provided(
        database,
        store,
        GroupService(),
        tenants,
        KeyService(pepper=settings.api_key_pepper.get_secret_value()),
        models,
        endpoints,
        TransferService(models, endpoints),
        Explainer(
            default_size=settings.default_model_max_in_flight,
            any_model=settings.upstream_base_url is not None,
        ),
        EffectiveSettings({variable_name(name): value for name, value in shown.items()}),
    )
    app.state.live = live = live or NoReplicas()
    return ControlPlane(app, database, live, announcer, published_health)


def _app(tokens: Tokens) -> FastAPI:
    app = FastAPI(
        title="obleth Management API",
        summary="What is allowed: groups, tenants, keys, models and their endpoints.",
        version=version(DISTRIBUTION),
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    problems.install(app)
    app.add_middleware(HeadAsGet)
    app.add_middleware(AdminAuth, tokens=tokens, prefix=API, public=PUBLIC, also=(metrics.PATH,))
    app.state.metrics = metrics.ControlPlaneMetrics()
    app.add_middleware(metrics.CountAnswers, metrics=app.state.metrics)
    # Only described here: `AdminAuth` asks for the token, in front of every route.
    bearer = HTTPBearer(auto_error=False, description="The admin token, or the viewer's to read.")
    api = APIRouter(prefix=API, dependencies=[Security(bearer)], responses=problems.RESPONSES)
    for router in ROUTERS:
        api.include_router(router)

    @api.get("/openapi.json", include_in_schema=False)
    async def openapi(request: Request) -> dict[str, Any]:
        return app.openapi()

    app.include_router(api)
    app.include_router(metrics.router)
    return app


class _Pages(Mount):
    """The dashboard: every path that is not the API's, whose unknown paths stay its own."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        path = get_route_path(scope)
        if path == API or path.startswith(f"{API}/"):
            return Match.NONE, {}
        return super().matches(scope)
