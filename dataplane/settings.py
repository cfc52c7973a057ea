"""What a data-plane process reads from its environment."""

from __future__ import annotations

from typing import Final, Self
from urllib.parse import urlsplit, urlunsplit

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.settings import (
    AffinitySettings,
    DefaultUpstreamSettings,
    HttpBase,
    InternalSettings,
    Listen,
    ListenAddress,
    LogSettings,
    NetworkSettings,
    PoolSettings,
    RedisSettings,
    Settings,
    StorageSettings,
    Token,
)

MEBIBYTE: Final = 1024 * 1024
DAY_SECS: Final = 86_400


class ListenSettings(Settings):
    proxy_listen: Listen = Field(
        ListenAddress("0.0.0.0", 8080),  # noqa: S104 - clients come from outside
        description="What clients call.",
    )
    metrics_listen: Listen = Field(
        ListenAddress("127.0.0.1", 9091),
        description="Operations listener; worker i of a host takes this port + i.",
    )
    advertise_url: HttpBase | None = Field(
        None, description="Where the control plane reaches this replica's operations listener."
    )


class UpstreamSettings(DefaultUpstreamSettings):
    upstream_api_key: Token | None = Field(
        None, description="Bearer token sent to the default upstream."
    )
    upstream_connect_timeout_secs: float = Field(
        10, gt=0, le=600, allow_inf_nan=False, description="To a connection with an endpoint."
    )
    upstream_timeout_secs: float = Field(
        300, gt=0, le=DAY_SECS, allow_inf_nan=False, description="To the head of the response."
    )
    upstream_read_timeout_secs: float = Field(
        300, gt=0, le=DAY_SECS, allow_inf_nan=False, description="Silence inside a body."
    )


class RequestSettings(Settings):
    max_body_bytes: int = Field(
        64 * MEBIBYTE, ge=1024, le=4096 * MEBIBYTE, description="A longer body gets 413."
    )
    body_timeout_secs: float = Field(
        60, gt=0, le=3600, allow_inf_nan=False, description="For a client to send its body."
    )
    client_write_timeout_secs: float = Field(
        120, gt=0, le=3600, allow_inf_nan=False, description="A client that does not read is cut."
    )
    session_id_derivation: bool = Field(
        True, description="Tell sessions by their prompts where clients send no id."
    )


class AdmissionSettings(PoolSettings, AffinitySettings):
    admission_timeout_secs: float = Field(
        60, gt=0, le=DAY_SECS, allow_inf_nan=False, description="Longest wait for a slot, then 503."
    )
    pool_idle_secs: float = Field(
        600, gt=0, le=DAY_SECS, allow_inf_nan=False, description="An idle pool is forgotten then."
    )
    shutdown_grace_secs: float = Field(
        300,
        ge=0,
        le=DAY_SECS,
        allow_inf_nan=False,
        description="For running requests to end after SIGTERM.",
    )
    fairshare_history_secs: int = Field(
        3600, ge=0, le=7 * DAY_SECS, description="How far back the live history goes; 0: off."
    )


class ReplicaSettings(Settings):
    """How replicas share limits."""

    fairshare_shared_slots: bool = Field(
        True, description="Hold every limit together with the other replicas, in Redis."
    )
    fairshare_replica_aware: bool = Field(
        True, description="Where slots are not shared, enforce a part of every limit."
    )
    fairshare_fleet_order: bool = Field(
        True, description="Whether one order holds over all replicas, or whoever claims first goes."
    )
    fairshare_expected_replicas: int = Field(
        1, ge=1, le=10_000, description="Replicas to count on where Redis is away at the start."
    )
    fairshare_replica_heartbeat_secs: float = Field(
        5, ge=0.1, le=300, allow_inf_nan=False, description="How often a replica says it lives."
    )
    fairshare_replica_ttl_secs: float = Field(
        15,
        ge=0.2,
        le=3600,
        allow_inf_nan=False,
        description="A replica not heard of for so long has lost its slots; raised to at least"
        " twice the heartbeat.",
    )

    @property
    def effective_replica_ttl_secs(self) -> float:
        return max(self.fairshare_replica_ttl_secs, 2 * self.fairshare_replica_heartbeat_secs)


class PolicySettings(Settings):
    policy_poll_secs: float = Field(
        5,
        ge=0.1,
        le=3600,
        allow_inf_nan=False,
        description="How often a replica asks for changes it was not told of.",
    )
    policy_stale_secs: float = Field(
        3600,
        ge=0,
        le=30 * DAY_SECS,
        allow_inf_nan=False,
        description="How long policy is good with the database away.",
    )
    policy_cache_keys: int = Field(
        100_000, ge=100, le=10_000_000, description="API keys remembered at once."
    )


class DiscoverySettings(Settings):
    """How backends are watched."""

    endpoint_health_secs: float = Field(
        10, ge=0.1, le=3600, allow_inf_nan=False, description="Between checks of an endpoint."
    )
    capacity_discovery_interval_secs: float = Field(
        15,
        ge=0.1,
        le=3600,
        allow_inf_nan=False,
        description="Between looks at how many backends of a model are ready.",
    )
    kubernetes_api_url: HttpBase = Field(
        "https://kubernetes.default.svc", description="Asked for EndpointSlices."
    )
    kubernetes_service_account_dir: str = Field(
        "/var/run/secrets/kubernetes.io/serviceaccount",
        min_length=1,
        description="Has `token`, `ca.crt` and `namespace`.",
    )


class UsageSettings(Settings):
    usage_retention_days: int = Field(
        30, ge=1, le=3650, description="Older usage rows are deleted."
    )


class DataPlaneSettings(
    ListenSettings,
    UpstreamSettings,
    RequestSettings,
    AdmissionSettings,
    ReplicaSettings,
    PolicySettings,
    DiscoverySettings,
    UsageSettings,
    StorageSettings,
    RedisSettings,
    InternalSettings,
    NetworkSettings,
    LogSettings,
):
    """All of them."""

    def for_worker(self, number: int, count: int) -> Self:
        """The same for worker `number` of `count` on a host: its own operations port, where it is
        reached, and on how many replicas it counts at least.

        An `advertise_url` is that of the first worker.
        """
        moved = self.metrics_listen.moved(number)
        url = self.advertise_url
        if url is not None and (port := urlsplit(url).port) is not None:
            parts = urlsplit(url)
            host = parts.netloc.rpartition(":")[0]
            url = urlunsplit(parts._replace(netloc=f"{host}:{port + number}"))
        return self.model_copy(
            update={
                "metrics_listen": moved,
                "advertise_url": url,
                "fairshare_expected_replicas": max(self.fairshare_expected_replicas, count),
            }
        )

    @property
    def replica_lease_secs(self) -> float:
        """How long a replica's slots stay its own after a heartbeat: the time to live, and never so
        short that the next one loses them if it is a whole interval late and answered at the last
        moment.
        """
        late = 2 * self.fairshare_replica_heartbeat_secs + self.redis_response_timeout_ms / 1000
        return max(self.effective_replica_ttl_secs, late)


class TraceSettings(BaseSettings):
    """Where traces go. The variable is OpenTelemetry's own; its libraries read all the others."""

    model_config = SettingsConfigDict(env_prefix="", env_ignore_empty=True, extra="ignore")

    otel_exporter_otlp_endpoint: str | None = None
