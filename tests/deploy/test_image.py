"""deploy/Dockerfile, held to hadolint's rules and to what the project consists of."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.architecture.tree import ROOT

DOCKERFILE = ROOT / "deploy" / "Dockerfile"


def _instructions() -> list[tuple[str, str]]:
    """Each instruction and what follows it, continued lines joined."""
    joined = DOCKERFILE.read_text().replace("\\\n", " ")
    lines = [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def _copied() -> set[str]:
    """What is taken from the project."""
    copies = [rest.split()[:-1] for word, rest in _instructions() if word == "COPY"]
    return {name for names in copies if not names[0].startswith("--from") for name in names}


def test_hadolint_has_nothing_to_say() -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert hadolint, "run the tests from the project's own environment"
    done = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_runs_as_an_ordinary_user() -> None:
    last_stage = _instructions()[::-1]
    user = next(rest for word, rest in last_stage if word == "USER")
    assert all(int(part) >= 10_000 for part in user.split(":"))


def test_the_image_is_made_of_everything_that_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    described = {"pyproject.toml", "uv.lock", project["project"]["readme"], "LICENSE"}
    building = {project["tool"]["hatch"]["build"]["hooks"]["custom"]["path"], "deploy/vendor.py"}
    assert _copied() == {*packages, *described, *building}
    assert all((ROOT / name).exists() for name in _copied())


def test_the_build_is_sent_exactly_that() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert {line[1:] for line in lines if line.startswith("!")} == _copied()
    assert "*" in lines


def test_the_entry_point_is_the_command() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    entry = next(rest for word, rest in _instructions() if word == "ENTRYPOINT")
    assert entry == f'["{next(iter(project["project"]["scripts"]))}"]'
