"""A fleet of two replicas, its Redis and its control plane, for browsers."""

from __future__ import annotations

from pathlib import Path

from controlplane import main as controlplane
from controlplane.settings import ControlPlaneSettings
from migrations import schema
from obleth import server as serving
from obleth.embedded import fleet_live
from obleth.server import Listener
from shared.settings import ListenAddress
from tests.dashboard.background import Background
from tests.dashboard.product import ADMIN, VIEWER
from tests.live.test_fleet_live import TOKEN, Fleet, Replica
from tests.redis_server import server


class FleetProduct(Background):
    """`url` of the dashboard; `replicas`, the longest running first, which the API asks."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self.replicas: list[Replica] = []

    def ask(self, replica: Replica, tenant: str, number: int) -> None:
        """Send requests that never end, once there is room for them."""

        async def send() -> None:
            replica.send(tenant, number)

        self.run(send())

    def stop_redis(self) -> None:
        self.run(self._redis.stop())

    def start_redis(self) -> None:
        self.run(self._redis.start())

    async def start(self) -> None:
        self._redis = await self.stack.enter_async_context(server(self._folder))
        fleet = Fleet(self.stack, self._redis, self._folder)
        await schema.migrate(fleet.common["database_url"])
        self.replicas = [await fleet.replica(), await fleet.replica()]
        settings = ControlPlaneSettings(
            **fleet.common, admin_token=ADMIN, viewer_token=VIEWER, internal_token=TOKEN
        )
        built = controlplane.build(settings, live=fleet_live(settings))
        self.stack.push_async_callback(built.stop)
        listener = Listener(built.app, serving.bind(ListenAddress("127.0.0.1", 0), "-"))
        await listener.start()
        self.stack.push_async_callback(listener.stop, 1)
        self.url = f"http://{listener.address}"
