"""The project's pages for people, and the commands in them.

A fenced block of a language that somebody would run says after the language what becomes of it in
the tests: `run`, in the order of the page and in one shell; `covered=` and the test that runs it;
or `no-run=` and why not.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.architecture.tree import ROOT

RUNNABLE = ("sh", "python")
SHOWN = ("json", "yaml", "text", "nginx", "promql")
"""Languages of blocks that nobody runs."""
_FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    page: Path
    language: str
    kind: str
    """`run`, `covered`, `no-run`, or empty."""
    detail: str
    body: str

    @property
    def where(self) -> str:
        first = self.body.split("\n", 1)[0]
        return f"{self.page.relative_to(ROOT)}: {first}"


def pages() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def blocks(page: Path) -> Iterator[Block]:
    for fence in _FENCE.finditer(page.read_text()):
        language, *words = shlex.split(fence["info"]) or [""]
        kind, _, detail = words[0].partition("=") if words else ("", "", "")
        yield Block(page, language, kind, detail, fence["body"])


def script(page: Path) -> str:
    """What the page's reader runs, in one piece; empty if there is nothing."""
    return "\n".join(one.body for one in blocks(page) if one.kind == "run")
