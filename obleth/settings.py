"""Both planes' settings in one, for the process that runs both and for knowing every name."""

from __future__ import annotations

from controlplane.settings import ControlPlaneSettings
from dataplane.settings import DataPlaneSettings
from shared.settings import LogSettings, StorageSettings


class EmbeddedSettings(ControlPlaneSettings, DataPlaneSettings):
    """Everything there is to set."""


class MigrationSettings(StorageSettings, LogSettings):
    """What `obleth migrate` reads."""
