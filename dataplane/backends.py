"""What is known of the backends behind models, put together for one replica.

Their health decides which endpoint a request is sent to, their number how many slots a pool has.
All of it is found out beside the requests, which only read it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from dataplane.discovery.capacity import Capacity
from dataplane.discovery.endpoint_health import EndpointHealth
from dataplane.discovery.kubernetes import KubernetesApi, KubernetesSource
from dataplane.discovery.prober import Prober
from dataplane.discovery.sources import DnsSource, EndpointSource
from dataplane.proxy.upstream import Upstream
from dataplane.settings import DataPlaneSettings
from shared.invalidation import Invalidation, Kind
from shared.policy import CapacitySource, ModelPolicy

START_SECS: Final = 2.0
"""How long the first checks and answers are waited for before requests are served without them."""


class Backends:
    """Health of endpoints and sizes of pools. Made on the loop it runs on.

    `models` are the enabled models.
    """

    def __init__(
        self,
        settings: DataPlaneSettings,
        upstream: Upstream,
        models: Callable[[], Sequence[ModelPolicy]],
    ) -> None:
        self._models: Final = models
        every_secs = settings.capacity_discovery_interval_secs
        self.health: Final = EndpointHealth(models)
        self._prober: Final = Prober(
            upstream, self.health, models, every_secs=settings.endpoint_health_secs
        )
        kubernetes = KubernetesSource(
            KubernetesApi(
                settings.kubernetes_api_url, Path(settings.kubernetes_service_account_dir)
            ),
            every_secs=every_secs,
        )
        self.capacity: Final = Capacity(
            models,
            {
                CapacitySource.ENDPOINTS: EndpointSource(self.health.of),
                CapacitySource.DNS: DnsSource(),
                CapacitySource.KUBERNETES: kubernetes,
            },
            default_size=settings.default_model_max_in_flight,
            every_secs=every_secs,
            is_usable=self.health.is_usable,
        )
        self.health.subscribe(self.capacity.health_changed)
        kubernetes.subscribe(self.capacity.ask_soon)

    async def start(self) -> None:
        """Check and ask for the first time, where sizes depend on it, and go on from there."""
        self._prober.start()
        if any(model.capacity is not None for model in self._models()):
            try:
                async with asyncio.timeout(START_SECS):
                    await self._prober.check_all(only_unknown=True)
                    await self.capacity.ask()
            except TimeoutError:
                pass  # configured sizes for now
        self.capacity.start()

    async def stop(self) -> None:
        await self._prober.stop()
        await self.capacity.stop()

    def policy_changed(self, change: Invalidation) -> None:
        """Something changed, and the policy cache knows it already."""
        if change.kind in (Kind.MODEL, Kind.ALL):
            self.health.policy_changed()
            self._prober.policy_changed()
            self.capacity.ask_soon()

    def figures(self) -> Mapping[tuple[str, str], int]:
        """How many enabled endpoints a model has, by its name and their health."""
        return Counter(
            (model.name, str(self.health.of(endpoint)))
            for model in self._models()
            for endpoint in model.endpoints
            if endpoint.enabled
        )
