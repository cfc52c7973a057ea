"""Every command in the documentation is run, or says why it is not."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT
from tests.docs.pages import RUNNABLE, SHOWN, blocks, pages, script
from tests.e2e.processes import Demo

ALL = [one for page in pages() for one in blocks(page)]
TO_RUN = [page for page in pages() if script(page)]


def test_every_block_says_what_becomes_of_it() -> None:
    known = {"run", "covered", "no-run"}
    commands = [one for one in ALL if one.language in RUNNABLE]
    assert len(commands) > 20
    assert [one.where for one in commands if one.kind not in known] == []
    assert [one.where for one in ALL if one.language not in (*RUNNABLE, *SHOWN)] == []


def test_only_shell_lines_are_run_as_they_are() -> None:
    assert [one.where for one in ALL if one.kind == "run" and one.language != "sh"] == []


def test_what_is_covered_elsewhere_is_covered_by_a_test_that_exists() -> None:
    claimed = [one for one in ALL if one.kind == "covered"]
    assert [one.where for one in claimed if not _is_test(one.detail)] == []


def _is_test(detail: str) -> bool:
    path, _, name = detail.partition("::")
    file = ROOT / path
    return file.is_file() and (not name or f"def {name}(" in file.read_text())


def test_what_is_not_run_says_why() -> None:
    assert [one.where for one in ALL if one.kind == "no-run" and len(one.detail) < 10] == []


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """One for the pages of each folder: README.md and docs/ give things the same names."""
    with Demo("--no-traffic", folder=tmp_path_factory.mktemp("demo")) as running:
        yield running.await_ready()


@pytest.mark.parametrize(
    ("page", "demo"),
    [pytest.param(page, page.parent, id=page.name) for page in TO_RUN],
    indirect=["demo"],
    scope="module",
)
def test_a_pages_commands_work_in_their_order(page: Path, demo: Demo, tmp_path: Path) -> None:
    """Against the demo, whose addresses stand in for the usual ones."""
    usual = {
        "http://127.0.0.1:8080": demo.gateway,
        "http://127.0.0.1:9180": demo.dashboard,
        "http://127.0.0.1:9091": demo.find(r"^  metrics +(\S+)/metrics$"),
        "http://127.0.0.1:9000": demo.backend,
    }
    text = script(page)
    for address, here in usual.items():
        text = text.replace(address, here)
    folder = tmp_path / "reader"
    folder.mkdir()
    (folder / ".venv").symlink_to(Path(sys.prefix))
    done = subprocess.run(
        ["/bin/sh", "-eu"],
        input=text,
        cwd=folder,
        env={
            **os.environ,
            "OBLETH_ADMIN_TOKEN": demo.admin_token,
            "KEY": demo.key("chatbot"),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr


def test_links_between_pages_lead_somewhere() -> None:
    broken = []
    for page in pages():
        for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text()):
            path, _, anchor = target.partition("#")
            found = (page.parent / path) if path else page
            if not found.exists() or (anchor and anchor not in _anchors(found)):
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


def _anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
