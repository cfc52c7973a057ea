"""What the control plane reads from its environment."""

from __future__ import annotations

from pydantic import Field, model_validator

from shared.settings import (
    AffinitySettings,
    DefaultUpstreamSettings,
    InternalSettings,
    Listen,
    ListenAddress,
    LogSettings,
    Networks,
    NetworkSettings,
    PoolSettings,
    RedisSettings,
    Settings,
    StorageSettings,
    Token,
)


class AdminSettings(Settings):
    admin_listen: Listen = Field(
        ListenAddress("127.0.0.1", 9180), description="Management API and dashboard."
    )
    admin_token: Token = Field(description="Bearer token that may do everything.")
    viewer_token: Token | None = Field(None, description="Bearer token that may read.")
    admin_trusted_proxies: Networks = Field(
        (),
        description="Proxies in front of the dashboard whose `X-Forwarded-For` says who asks: wrong"
        " tokens are counted by address.",
    )

    @model_validator(mode="after")
    def _tokens_differ(self) -> AdminSettings:
        if self.viewer_token == self.admin_token:
            raise ValueError("OBLETH_VIEWER_TOKEN must differ from OBLETH_ADMIN_TOKEN")
        return self


class ControlPlaneSettings(
    AdminSettings,
    DefaultUpstreamSettings,
    PoolSettings,
    AffinitySettings,
    StorageSettings,
    RedisSettings,
    InternalSettings,
    NetworkSettings,
    LogSettings,
):
    """All of them."""
