"""Both planes' settings in one, for the process that runs both and for knowing every name."""

from __future__ import annotations

from controlplane.settings import ControlPlaneSettings
from dataplane.settings import DataPlaneSettings
from shared.settings import LogSettings, StorageSettings


# mypy's pydantic plugin gives each class a constructor of its own, and finds that they differ.
class EmbeddedSettings(ControlPlaneSettings, DataPlaneSettings):  # type: ignore[misc]
    """Everything there is to set."""


class MigrationSettings(StorageSettings, LogSettings):
    """What `obleth migrate` reads."""
