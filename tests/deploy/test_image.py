"""deploy/Dockerfile, held to hadolint's rules and to what the project consists of."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from obleth import __version__
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


@pytest.mark.timeout(600)
def test_its_build_steps_make_a_command_that_works(tmp_path: Path) -> None:
    """The steps of the build stage on what they are sent, with nothing on the path but uv and
    Python."""
    source, programs, target = tmp_path / "src", tmp_path / "bin", tmp_path / "opt"
    programs.mkdir()
    uv = shutil.which("uv", path=f"{ROOT / '.tools' / 'bin'}:{os.environ['PATH']}")
    for name, program in {"uv": uv, "python3": sys.executable, "sh": "/bin/sh"}.items():
        assert program, name
        (programs / name).symlink_to(program)
    environment = {
        **{name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"},
        "PATH": str(programs),
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_PROJECT_ENVIRONMENT": str(target),
    }
    for word, rest in _build_stage():
        if word == "COPY":
            _copy(rest.split()[:-1], source)
        elif word == "RUN" and rest.startswith("uv "):
            subprocess.run(rest, shell=True, cwd=source, env=environment, check=True)
    shutil.rmtree(source)
    assert _output([str(target / "bin" / "obleth"), "--version"]) == f"obleth {__version__}"
    vendored = list(target.rglob("dashboard/static/vendor/htmx.min.js"))
    assert len(vendored) == 1


def _build_stage() -> list[tuple[str, str]]:
    last_stage = max(n for n, (word, _) in enumerate(_instructions()) if word == "FROM")
    return _instructions()[:last_stage]


def _copy(names: list[str], folder: Path) -> None:
    """What is tracked of them: a fresh clone is what is built from."""
    listed = _output(["git", "-C", str(ROOT), "ls-files", "--", *names]).splitlines()
    assert listed
    for name in listed:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.strip()
