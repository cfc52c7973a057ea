"""The project's own files, as the architecture tests look at them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("controlplane", "dataplane", "shared", "obleth")
NOT_OURS = {"node_modules", "dist", "build", "screenshots", "__pycache__"}
TEXT = {".py", ".md", ".toml", ".yml", ".yaml", ".sh", ".lua", ".html", ".js", ".css", ".json", ""}


def modules(*packages: str) -> list[Path]:
    """Every Python module of the given packages (all four by default)."""
    return sorted(
        path
        for name in packages or PACKAGES
        for path in (ROOT / name).rglob("*.py")
        if not NOT_OURS & set(path.relative_to(ROOT).parts)
    )


def texts() -> Iterator[Path]:
    """Every file written by hand; lock files are a tool's."""
    for top in sorted(ROOT.iterdir()):
        if top.name in NOT_OURS or (top.name.startswith(".") and top.name != ".ci"):
            continue
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            inside = path.relative_to(ROOT)
            if path.suffix in TEXT and path.is_file() and not NOT_OURS & set(inside.parts):
                yield path


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def name(path: Path) -> str:
    """A file as it is written in a message: relative to the project."""
    return str(path.relative_to(ROOT))


def imported(path: Path) -> set[str]:
    """Dotted names a module imports: modules, and names taken from modules."""
    found: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found
