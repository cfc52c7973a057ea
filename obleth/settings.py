"""Both planes' settings in one, for the process that runs both and for knowing every name."""

from __future__ import annotations

from controlplane.settings import ControlPlaneSettings
from dataplane.settings import DataPlaneSettings
from shared.settings import Listen, ListenAddress, LogSettings, Settings, StorageSettings, Token


# mypy's pydantic plugin gives each class a constructor of its own, and finds that they differ.
class EmbeddedSettings(ControlPlaneSettings, DataPlaneSettings):  # type: ignore[misc]
    """Everything there is to set."""


class ConsoleSettings(Settings):
    """What `obleth top` and `obleth explain` read: where the API is, and a token for it."""

    admin_listen: Listen = ListenAddress("127.0.0.1", 9180)
    admin_token: Token | None = None
    viewer_token: Token | None = None


class MigrationSettings(StorageSettings, LogSettings):
    """What `obleth migrate` reads."""
