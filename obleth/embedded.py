"""What each serving command is made of, and both planes in one process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from controlplane import main as controlplane
from controlplane.endpoints import health
from controlplane.endpoints.health import Health
from controlplane.settings import ControlPlaneSettings
from dataplane.live.replica import Live
from dataplane.main import DataPlane
from dataplane.settings import DataPlaneSettings
from migrations import schema
from obleth import server
from obleth.failures import WRONG_USE, Failed
from obleth.fleet_live import FleetLive
from obleth.server import Listener
from obleth.service import Service, run
from obleth.settings import EmbeddedSettings, MigrationSettings
from obleth.workers import Place, supervise
from shared import observability
from shared.database import DatabaseUnavailable
from shared.invalidation import Invalidation
from shared.redis import client
from shared.settings import (
    ListenAddress,
    LogSettings,
    RedisSettings,
    described,
    load,
    unknown_variables,
)

CONTROL_PLANE_GRACE_SECS: Final = 10.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Sockets:
    """The listeners of a process that serves both planes, bound before anything is started."""

    proxy: socket.socket
    admin: socket.socket
    metrics: socket.socket

    @property
    def proxy_address(self) -> ListenAddress:
        return server.bound_address(self.proxy)

    @property
    def admin_address(self) -> ListenAddress:
        return server.bound_address(self.admin)

    @property
    def metrics_address(self) -> ListenAddress:
        return server.bound_address(self.metrics)


class InProcess:
    """Tells the data plane of this process what the control plane has changed, and asks it."""

    def __init__(self, data_plane: DataPlane) -> None:
        self._data_plane = data_plane

    async def publish(self, changes: Sequence[Invalidation]) -> None:
        """In force for the next request when this returns."""
        for change in changes:
            self._data_plane.policy.invalidate(change)

    async def now(self) -> Mapping[str, Health]:
        """How the data plane finds the endpoints."""
        return health.merged([self._data_plane.backends.health.shown()])


class ControlPlane:
    """The control plane as a `service.Plane`. What stops its start is told in one line."""

    def __init__(self, built: controlplane.ControlPlane) -> None:
        self._built = built

    async def start(self) -> None:
        """Migrate the database. Raises Failed."""
        try:
            await self._built.start()
        except (schema.SchemaIsNewer, DatabaseUnavailable) as error:
            await self._built.stop()
            raise Failed(_database_problem(error)) from error

    async def drain(self, grace_secs: float) -> None:
        """Nothing waits here: its listener lets requests end."""

    async def stop(self) -> None:
        await self._built.stop()


def run_embedded(workers: int) -> None:
    """`obleth serve`. Raises Failed."""
    settings = load(EmbeddedSettings)
    prepare(settings)
    _check_sharing(workers, settings)
    if workers > 1:
        raise Failed(
            "`obleth serve` is one process: for several start `obleth controlplane` and"
            f" `obleth dataplane --workers {workers}`",
            WRONG_USE,
        )
    sockets = Sockets(
        server.bind(settings.proxy_listen, "OBLETH_PROXY_LISTEN"),
        server.bind(settings.admin_listen, "OBLETH_ADMIN_LISTEN"),
        server.bind(settings.metrics_listen, "OBLETH_METRICS_LISTEN"),
    )
    server.run(run(lambda: embedded_service(settings, sockets)))


def run_control_plane() -> None:
    """`obleth controlplane`. Raises Failed."""
    settings = load(ControlPlaneSettings)
    prepare(settings)
    bound = server.bind(settings.admin_listen, "OBLETH_ADMIN_LISTEN")

    def make() -> Service:
        built = controlplane.build(settings, live=fleet_live(settings))
        return Service(
            [ControlPlane(built)], [Listener(built.app, bound)], CONTROL_PLANE_GRACE_SECS
        )

    server.run(run(make))


def run_data_plane(workers: int, place: Place | None = None) -> None:
    """`obleth dataplane`: one process, or the supervisor of several, or one of them in its place.

    Raises Failed.
    """
    settings = load(DataPlaneSettings)
    prepare(settings)
    if place is None:
        _check_sharing(workers, settings)
        proxy = server.bind(settings.proxy_listen, "OBLETH_PROXY_LISTEN")
        if workers > 1:
            server.run(supervise(workers, proxy))
            return
    else:
        proxy = place.proxy
        settings = settings.for_worker(place.number, place.count)
    metrics = server.bind(settings.metrics_listen, "OBLETH_METRICS_LISTEN")

    def make() -> Service:
        if place is not None:
            place.follow_supervisor()
        plane = DataPlane(settings)
        return Service(
            [plane],
            [Listener(plane.gateway, proxy, plane.protocol), Listener(plane.operations, metrics)],
            settings.shutdown_grace_secs,
        )

    server.run(run(make))


def run_migrations() -> None:
    """`obleth migrate`. Raises Failed."""
    settings = load(MigrationSettings)
    prepare(settings)
    try:
        asyncio.run(schema.migrate(settings.database_url))
    except (schema.SchemaIsNewer, DatabaseUnavailable) as error:
        raise Failed(_database_problem(error)) from error
    log.info("the schema is up to date")


def embedded_service(settings: EmbeddedSettings, sockets: Sockets) -> Service:
    """Both planes, and the control plane telling the data plane directly. Call it on the loop."""
    data_plane = DataPlane(settings)
    here = InProcess(data_plane)
    control_plane = controlplane.build(
        settings,
        publisher=here,
        live=fleet_live(settings, data_plane.live),
        endpoint_health=here,
        effective=described(settings),
    )
    return Service(
        # The schema first: policy is read from it.
        [ControlPlane(control_plane), data_plane],
        [
            Listener(data_plane.gateway, sockets.proxy, data_plane.protocol),
            Listener(control_plane.app, sockets.admin),
            Listener(data_plane.operations, sockets.metrics),
        ],
        settings.shutdown_grace_secs,
    )


def fleet_live(settings: ControlPlaneSettings, own: Live | None = None) -> FleetLive | None:
    """What answers the control plane's questions; `own` is this process's replica."""
    if settings.redis_url is None and own is None:
        return None
    token = settings.internal_token
    return FleetLive(
        own=own,
        redis=None
        if settings.redis_url is None
        else client(settings.redis_url, connections=4, name="obleth-live"),
        token=None if token is None else token.get_secret_value(),
        answer_secs=settings.redis_response_timeout_ms / 1000,
    )


def prepare(settings: LogSettings) -> None:
    """Logs from here on, without the settings' secrets; and warnings of what may be meant wrong."""
    observability.configure(settings, secrets=observability.configured_secrets(settings))
    for name, similar in unknown_variables(EmbeddedSettings).items():
        hint = f"; is {' or '.join(similar)} meant?" if similar else ""
        log.warning(f"{name} is not a setting of obleth{hint}")


def _check_sharing(workers: int, settings: RedisSettings) -> None:
    """Refuse what would break every limit."""
    if workers > 1 and settings.redis_url is None:
        raise Failed(
            f"{workers} workers need OBLETH_REDIS_URL: without it each would hand out every"
            " model's slots again",
            WRONG_USE,
        )


def _database_problem(error: Exception) -> str:
    if isinstance(error, DatabaseUnavailable):
        cause = error.__cause__
        return f"OBLETH_DATABASE_URL: {error}" + (f": {_first_line(cause)}" if cause else "")
    return str(error)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
