"""Builds the release, and uses it as somebody would who has nothing else of the project.

    make clean-room

The source archive and the wheel made from it are each installed into an empty environment, and
`obleth demo` is run there from an empty folder: on ports of its own, without the project, without
its environment. Stops at the first thing that is wrong.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from obleth import __version__

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("controlplane", "dataplane", "migrations", "obleth", "shared")
NOT_SHIPPED: Final = {"__pycache__", "node_modules"}
STOP_SECS: Final = 60
LOAD_EVERY_SCRIPT: Final = """
from pathlib import Path
import dataplane
from dataplane.scripts import load
root = Path(dataplane.__file__).parent
found = [folder.parent.relative_to(root) for folder in root.rglob("lua") if folder.is_dir()]
assert found
for folder in found:
    assert load(".".join(("dataplane", *folder.parts)))
"""


class Wrong(Exception):
    """The release is not as it should be."""


def main() -> None:
    """All of it. Ends with 1 and one line when something is wrong."""
    with tempfile.TemporaryDirectory(prefix="obleth-clean-room-") as room:
        try:
            for archive in build(Path(room, "dist")):
                check_contents(archive)
                try_out(archive, Path(room, archive.name))
        except (Wrong, subprocess.CalledProcessError) as problem:
            sys.exit(f"clean-room: {problem}")


def build(folder: Path) -> list[Path]:
    """The source archive, and the wheel that is built from it. Raises Wrong."""
    subprocess.run([_uv(), "build", "--quiet", "--out-dir", folder, ROOT], check=True)
    wanted = [
        folder / f"obleth-{__version__}.tar.gz",
        folder / f"obleth-{__version__}-py3-none-any.whl",
    ]
    if missing := [path.name for path in wanted if not path.exists()]:
        raise Wrong(f"{', '.join(missing)} was not built")
    return wanted


def check_contents(archive: Path) -> None:
    """Every file of the packages is in it: modules, migrations, scripts, pages. Raises Wrong."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            inside = set(wheel.namelist())
    else:
        with tarfile.open(archive) as source:
            inside = {name.partition("/")[2] for name in source.getnames()}
    shipped = {
        path.relative_to(ROOT)
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and not NOT_SHIPPED & set(path.parts)
    }
    if missing := sorted(str(path) for path in shipped if str(path) not in inside):
        raise Wrong(f"{archive.name} has no {', '.join(missing)}")
    print(f"{archive.name}: {len(shipped)} files of the packages")


def try_out(archive: Path, room: Path) -> None:
    """Install it into an environment of its own and run the demo. Raises Wrong."""
    empty = room / "empty"
    empty.mkdir(parents=True)
    subprocess.run(
        [_uv(), "venv", "--quiet", "--python", sys.executable, room / "venv"], check=True
    )
    python = room / "venv" / "bin" / "python"
    subprocess.run([_uv(), "pip", "install", "--quiet", "--python", python, archive], check=True)
    environment = {"PATH": f"{python.parent}:/usr/bin:/bin", "HOME": str(empty), "LANG": "C.UTF-8"}
    said = _output(["obleth", "--version"], empty, environment)
    if said != f"obleth {__version__}":
        raise Wrong(f"`obleth --version` says {said!r}")
    _output(["python", "-c", LOAD_EVERY_SCRIPT], empty, environment)
    with demo(empty, environment) as told:
        check_answers(told)
    if left := sorted(path.name for path in empty.iterdir()):
        raise Wrong(f"the demo has left {', '.join(left)} behind")
    print(f"{archive.name}: installed, and `obleth demo` served from an empty folder")


@contextmanager
def demo(folder: Path, environment: dict[str, str]) -> Iterator[dict[str, str]]:
    """`obleth demo`, and what it told its user by the name in front. Raises Wrong."""
    ports = {f"OBLETH_{name}_LISTEN": "127.0.0.1:0" for name in ("PROXY", "ADMIN", "METRICS")}
    with (folder.parent / "demo.log").open("w+") as log:
        running = subprocess.Popen(
            [shutil.which("obleth", path=environment["PATH"]) or "obleth", "demo", "--no-traffic"],
            cwd=folder,
            env=environment | ports | {"PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        assert running.stdout is not None
        told: dict[str, str] = {}
        try:
            for line in running.stdout:
                if found := re.match(r"  (\S+(?: token)?) +(\S+)", line):
                    told[found[1]] = found[2]
                if line.startswith("Ctrl-C"):
                    break
            else:
                log.seek(0)
                raise Wrong(f"the demo did not start: {log.read().strip()}")
            yield told
        finally:
            running.send_signal(signal.SIGTERM)
            code = running.wait(STOP_SECS)
    if code:
        raise Wrong(f"the demo ended with {code}")


def check_answers(told: dict[str, str]) -> None:
    """A completion by a printed key, the API and the page at the printed places. Raises Wrong."""
    question = {"model": "demo-model", "messages": [{"role": "user", "content": "Hello"}]}
    answer = _ask(f"{told['gateway']}/chat/completions", told["chatbot"], question)
    if not json.loads(answer)["choices"][0]["message"]["content"]:
        raise Wrong(f"the gateway answered {answer}")
    health = json.loads(_ask(f"{told['dashboard']}api/v1/health"))
    if health["status"] != "ok":
        raise Wrong(f"the Management API answered {health}")
    page = _ask(told["dashboard"])
    parts = re.findall(r'(?:src|href)="/(static/[^"#]+)', page)
    if not any("htmx" in part for part in parts):
        raise Wrong(f"the page at {told['dashboard']} is not the dashboard: {page[:200]}")
    for part in parts:
        _ask(told["dashboard"] + part)


def _ask(url: str, key: str | None = None, body: Any = None) -> str:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    if key is not None:
        request.add_header("authorization", f"Bearer {key}")
    without_proxy = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with without_proxy.open(request, timeout=30) as answer:
        return str(answer.read().decode())


def _output(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    program = shutil.which(command[0], path=environment["PATH"]) or command[0]
    done = subprocess.run(
        [program, *command[1:]],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def _uv() -> str:
    found = shutil.which("uv", path=f"{ROOT / '.tools' / 'bin'}:{os.environ['PATH']}")
    if found is None:
        raise Wrong("uv is missing: make setup")
    return found


if __name__ == "__main__":
    main()
