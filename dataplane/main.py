"""The data plane's composition: every object of a replica is made here, and nothing is decided."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterable
from importlib.metadata import version
from ipaddress import ip_address
from typing import Any

import structlog

from dataplane import picture
from dataplane.admission import Admission, Limits
from dataplane.admission.replica import ReplicaSettings
from dataplane.backends import Backends
from dataplane.budgets.database import DatabaseTermStore
from dataplane.budgets.fleet import FleetBudgets
from dataplane.budgets.local import LocalBudgets
from dataplane.budgets.redis import RedisBooks
from dataplane.budgets.retention import TermRetention
from dataplane.cluster import Cluster, instance_name
from dataplane.live.history import History, Sampler
from dataplane.live.replica import Live
from dataplane.live_view import PoolView, ReplicaView
from dataplane.metrics import FleetFigures, Metrics, PoolFigures
from dataplane.observers import CountRequests, LogRequests, RecordUsage
from dataplane.openai_api.endpoint import Gateway, GatewayOptions
from dataplane.openai_api.ports import Observer
from dataplane.openai_api.server_protocol import http_protocol
from dataplane.ops import app as operations
from dataplane.ops.readiness import Readiness, assess
from dataplane.picture import Identity
from dataplane.policy.cache import PolicyCache
from dataplane.policy.database import DatabasePolicySource
from dataplane.policy.subscriber import InvalidationSubscriber
from dataplane.proxy.aiohttp_upstream import AiohttpUpstream
from dataplane.proxy.endpoint_choice import EndpointChoice
from dataplane.proxy.forward import Forwarder
from dataplane.proxy.upstream import Timeouts
from dataplane.renewal import Renewal
from dataplane.scripts import RedisScripts
from dataplane.scripts import load as load_scripts
from dataplane.settings import DataPlaneSettings, TraceSettings
from dataplane.traces import tracing
from dataplane.usage.database import DatabaseUsageStore
from dataplane.usage.recorder import UsageRecorder
from shared.database import Database
from shared.network import NetworkRules
from shared.policy import UNROUTED, EndpointPolicy
from shared.redis import client
from shared.settings import ListenAddress

log = structlog.get_logger(__name__)


class DataPlane:
    """One replica. To be made inside the event loop it runs on.

    `gateway` is served to clients, with `protocol` under it; `operations` to whoever runs it.
    """

    def __init__(self, settings: DataPlaneSettings) -> None:
        self._settings = settings
        self._database = Database(settings.database_url)
        self._upstream = AiohttpUpstream(
            NetworkRules(settings.block_private_networks, settings.allowed_private_cidrs)
        )
        self._is_draining = False
        self.policy = PolicyCache(
            DatabasePolicySource(self._database, encryption_keys=settings.encryption_keys()),
            pepper=settings.api_key_pepper.get_secret_value(),
            capacity=settings.policy_cache_keys,
            stale_secs=settings.policy_stale_secs,
            poll_secs=settings.policy_poll_secs,
        )
        self.backends = Backends(settings, self._upstream, self.policy.models)
        self.policy.subscribe(self.backends.policy_changed)
        metrics = self._metrics()
        self.admission = Admission(
            _limits(settings),
            has_fleet=settings.redis_url is not None,
            size_of=self.backends.capacity.size_of,
            on_affinity=metrics.affinity_happened,
        )
        self.backends.capacity.subscribe(self._resized)
        self._renewal = Renewal(self.policy, self.admission)
        self.policy.subscribe(self._renewal.changed)
        self._changes = self._listener(settings)
        terms = DatabaseTermStore(self._database)
        self._budgets = self._shared_or_local_budgets(settings, terms)
        self._term_retention = TermRetention(terms)
        self._who = _identity(settings)
        self._cluster = None if settings.redis_url is None else self._member(settings, metrics)
        self._history = History(settings.fairshare_history_secs)
        self._sampler = Sampler(self._history, self._pools, lambda: round(time.time() * 1000))
        self.live = self._live()
        self._usage = UsageRecorder(
            DatabaseUsageStore(self._database),
            retention_days=settings.usage_retention_days,
            on_dropped=metrics.usage_dropped,
        )
        self._traces = tracing(TraceSettings().otel_exporter_otlp_endpoint)
        self.gateway = Gateway(
            _gateway_options(settings),
            policy=self.policy,
            budgets=self._budgets,
            admission=self.admission,
            forwarder=self._forwarder(settings, metrics),
            observers=self._observers(metrics),
        )
        self.protocol = http_protocol(
            "httptools", write_timeout_secs=settings.client_write_timeout_secs
        )
        token = settings.internal_token
        self.operations: Any = operations.build(
            assess=self.readiness,
            metrics=metrics,
            live=self.live,
            internal_token=None if token is None else token.get_secret_value(),
        )

    async def start(self) -> None:
        """Load policy and begin what runs in the background; works without a database, unready."""
        if self._changes is not None:
            self._changes.start()
        await self.policy.start()
        await self.backends.start()
        await self._budgets.start()
        self._term_retention.start()
        await self._usage.start()
        if self._cluster is not None:
            await self._cluster.start()
        self._sampler.start()
        self._warn_of_a_low_ceiling()

    async def drain(self, grace_secs: float) -> None:
        """Refuse new requests and those that wait; returns when nothing runs any more.

        What still runs after `grace_secs` is cut off. Safe to repeat, with less patience.
        """
        self._is_draining = True
        self.gateway.drain()
        self.admission.close()
        await self.gateway.stop(grace_secs)

    async def stop(self) -> None:
        """After `drain`: write what is to be written, and close everything."""
        await self._sampler.stop()
        if self._cluster is not None:
            await self._cluster.stop()
        if self._changes is not None:
            await self._changes.stop()
        await self.backends.stop()
        await self._renewal.stop()
        await self.policy.stop()
        await self._term_retention.stop()
        await asyncio.gather(self._budgets.stop(), self._usage.stop())
        if self._traces is not None:
            await self._traces.stop()
        await self._upstream.close()
        await self._database.close()

    def _resized(self) -> None:
        self.admission.models_changed(self.policy.models())

    def _is_registered(self, name: str) -> bool:
        model = self.policy.model(name)
        return model is not None and model.name == name

    def _model_name(self, name: str) -> str | None:
        model = self.policy.model(name)
        if model is not None:
            return model.name
        return UNROUTED if name == UNROUTED else None

    def _observers(self, metrics: Metrics) -> tuple[Observer, ...]:
        observers = (CountRequests(metrics), RecordUsage(self._usage), LogRequests())
        return observers if self._traces is None else (*observers, self._traces)

    def _live(self) -> Live:
        return Live(
            self._who.instance,
            view=self._view,
            members=None if self._cluster is None else self._cluster.members,
            samples=self._history,
            model_name=self._model_name,
        )

    def _view(self) -> ReplicaView:
        if self._cluster is not None:
            return self._cluster.view()
        now = asyncio.get_running_loop().time()
        return picture.replica(self.admission.core, now, self._who, mode="local", replicas=1)

    def _pools(self) -> tuple[PoolView, ...]:
        return picture.totals(self.admission.core)

    def _figures(self) -> Iterable[PoolFigures]:
        return picture.figures(self.admission.core)

    def readiness(self) -> Readiness:
        """Whether requests should be sent here, and what stands in the way."""
        mode = self._fleet_figures().mode
        return assess(self.policy, mode=mode, is_draining=self._is_draining)

    def _fleet_figures(self) -> FleetFigures:
        if self._cluster is None:
            return FleetFigures()
        stance = self._cluster.stance
        return FleetFigures(stance.mode, stance.replicas, self._cluster.heartbeat_age_secs)

    def _metrics(self) -> Metrics:
        return Metrics(
            is_registered=self._is_registered,
            pools=self._figures,
            fleet=self._fleet_figures,
            endpoints=self.backends.figures,
        )

    def _forwarder(self, settings: DataPlaneSettings, metrics: Metrics) -> Forwarder:
        return Forwarder(
            self._upstream,
            EndpointChoice(self.backends.health.is_usable),
            _timeouts(settings),
            metrics.upstream_attempted,
            watch=self.backends.health.attempted,
        )

    def _shared_or_local_budgets(
        self, settings: DataPlaneSettings, store: DatabaseTermStore
    ) -> FleetBudgets | LocalBudgets:
        if settings.redis_url is None:
            return LocalBudgets(store)
        redis = client(settings.redis_url, connections=2, name="obleth-budgets")
        answer_secs = settings.redis_response_timeout_ms / 1000
        scripts = RedisScripts(redis, load_scripts("dataplane.budgets"), secs=answer_secs)
        return FleetBudgets(RedisBooks(redis, scripts), store, replicas=self._replicas)

    def _replicas(self) -> int:
        assert self._cluster is not None, "who asks is in a fleet"
        return self._cluster.stance.replicas

    def _listener(self, settings: DataPlaneSettings) -> InvalidationSubscriber | None:
        if settings.redis_url is None:
            return None
        return InvalidationSubscriber(
            settings.redis_url,
            self.policy.invalidate,
            answer_secs=settings.redis_response_timeout_ms / 1000,
        )

    def _member(self, settings: DataPlaneSettings, metrics: Metrics) -> Cluster:
        assert settings.redis_url is not None, "without Redis there is no fleet"
        return Cluster(
            self.admission,
            redis_url=settings.redis_url,
            who=self._who,
            fleet_order=settings.fairshare_fleet_order,
            answer_secs=settings.redis_response_timeout_ms / 1000,
            ttl_secs=settings.replica_lease_secs,
            settings=ReplicaSettings(
                heartbeat=settings.fairshare_replica_heartbeat_secs,
                shared_slots=settings.fairshare_shared_slots,
                replica_aware=settings.fairshare_replica_aware,
                expected_replicas=settings.fairshare_expected_replicas,
            ),
            repaired=metrics.repaired,
            slots_called=metrics.slots_called,
            endpoint_health=self.backends.health.shown,
        )

    def _warn_of_a_low_ceiling(self) -> None:
        settings = self._settings
        sizes = [self.backends.capacity.size_of(each).size for each in self.policy.models()]
        if settings.upstream_base_url is not None:
            sizes.append(settings.default_model_max_in_flight)
        if sum(sizes) > settings.global_max_in_flight:
            log.warning(
                "OBLETH_GLOBAL_MAX_IN_FLIGHT is below the sum of the pools:"
                " they cannot all be full at once",
                ceiling=settings.global_max_in_flight,
                sum_of_pools=sum(sizes),
            )


def _identity(settings: DataPlaneSettings) -> Identity:
    return Identity(
        instance=instance_name(),
        url=settings.advertise_url or _own_url(settings.metrics_listen),
        version=version("obleth"),
        algorithm=settings.fairshare_algorithm,
        started_at=time.time(),
        ttl_secs=None if settings.redis_url is None else settings.effective_replica_ttl_secs,
    )


def _own_url(listen: ListenAddress) -> str:
    """Where an operations listener is found: this host's name and the port. One that listens on a
    loopback address is found there, and only from this host."""
    try:
        is_loopback = ip_address(listen.host).is_loopback
    except ValueError:
        is_loopback = listen.host == "localhost"
    return f"http://{listen if is_loopback else f'{socket.gethostname()}:{listen.port}'}"


def _limits(settings: DataPlaneSettings) -> Limits:
    return Limits(
        algorithm=settings.fairshare_algorithm,
        default_size=settings.default_model_max_in_flight,
        ceiling=settings.global_max_in_flight,
        timeout=settings.admission_timeout_secs,
        pool_idle=settings.pool_idle_secs,
        fleet_order=settings.fairshare_fleet_order,
        affinity=settings.affinity(),
        warm_secs=settings.fairshare_session_affinity_warm_secs,
        max_jumps=settings.fairshare_session_affinity_max_jumps,
    )


def _timeouts(settings: DataPlaneSettings) -> Timeouts:
    return Timeouts(
        connect_secs=settings.upstream_connect_timeout_secs,
        head_secs=settings.upstream_timeout_secs,
        read_secs=settings.upstream_read_timeout_secs,
    )


def _gateway_options(settings: DataPlaneSettings) -> GatewayOptions:
    default = None
    if settings.upstream_base_url is not None:
        key = settings.upstream_api_key
        default = EndpointPolicy(
            id="default",
            url=settings.upstream_base_url,
            api_key=None if key is None else key.get_secret_value(),
        )
    return GatewayOptions(
        max_body_bytes=settings.max_body_bytes,
        body_timeout_secs=settings.body_timeout_secs,
        client_write_timeout_secs=settings.client_write_timeout_secs,
        default_endpoint=default,
        affinity=settings.affinity(),
        derives_sessions=settings.session_id_derivation,
    )
