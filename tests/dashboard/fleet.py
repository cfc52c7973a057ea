"""A fleet of two replicas, its Redis and its control plane on a thread of their own, for browsers
that block the test's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from controlplane import main as controlplane
from controlplane.settings import ControlPlaneSettings
from migrations import schema
from obleth import server as serving
from obleth.embedded import fleet_live
from obleth.server import Listener
from shared.settings import ListenAddress
from tests.dashboard.product import ADMIN, VIEWER
from tests.live.test_fleet_live import TOKEN, Fleet, Replica
from tests.redis_server import server

T = TypeVar("T")


class FleetProduct:
    """`url` of the dashboard; `replicas`, the longest running first, which the API asks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fleet")
        self._stack = AsyncExitStack()
        self.replicas: list[Replica] = []

    def __enter__(self) -> Self:
        self._thread.start()
        self.run(self._start())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.run(self._stack.aclose())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, done on the fleet's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def ask(self, replica: Replica, tenant: str, number: int) -> None:
        """Send requests that never end, once there is room for them."""

        async def send() -> None:
            replica.send(tenant, number)

        self.run(send())

    def stop_redis(self) -> None:
        self.run(self._redis.stop())

    def start_redis(self) -> None:
        self.run(self._redis.start())

    async def _start(self) -> None:
        self._redis = await self._stack.enter_async_context(server(self._folder))
        fleet = Fleet(self._stack, self._redis, self._folder)
        await schema.migrate(fleet.common["database_url"])
        self.replicas = [await fleet.replica(), await fleet.replica()]
        settings = ControlPlaneSettings(
            **fleet.common, admin_token=ADMIN, viewer_token=VIEWER, internal_token=TOKEN
        )
        built = controlplane.build(settings, live=fleet_live(settings))
        self._stack.push_async_callback(built.stop)
        listener = Listener(built.app, serving.bind(ListenAddress("127.0.0.1", 0), "-"))
        await listener.start()
        self._stack.push_async_callback(listener.stop, 1)
        self.url = f"http://{listener.address}"
