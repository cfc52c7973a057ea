"""`deploy/dev/fleet`: the processes of docker-compose.yml on this machine, HAProxy in front.

Commands and environments are read from docker-compose.yml; only addresses are others. What runs is
written down in a state folder, each process by its pid and the moment it began, so that a pid that
was given to somebody else is never signalled.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import asyncpg
from dotenv import dotenv_values

from deploy.dev.compose import FILE, MissingVariable, commands
from deploy.dev.processes import Process, free_ports, is_taken

ROOT: Final = FILE.parent
MOST_REPLICAS: Final = 9
START_SECS: Final = 60.0
DRAIN_SECS: Final = 330.0
"""Above OBLETH_SHUTDOWN_GRACE_SECS and what a process needs beyond it."""
EMPTY_SECS: Final = 90.0
"""For a replica that gets no new requests to have served those it has; they may wait for 60."""
PAUSE_SECS: Final = 0.1


class Problem(Exception):
    """What the caller can set right, in one line."""


@dataclass(slots=True)
class State:
    """What is written down between calls."""

    database_url: str
    redis_url: str
    admin_token: str
    internal_token: str
    ports: dict[str, int]
    """By listener: `gateway`, `admin`, `backend`, and `proxy1`, `metrics1`, ..."""
    processes: dict[str, Process] = field(default_factory=dict)


class Fleet:
    """The fleet whose state is kept in `folder`."""

    def __init__(self, folder: Path, state: State) -> None:
        self.folder = folder
        self.state = state

    @classmethod
    def found(cls, folder: Path) -> Fleet | None:
        path = folder / "fleet.json"
        if not path.exists():
            return None
        kept: dict[str, Any] = json.loads(path.read_text())
        processes = {name: Process(**one) for name, one in kept.pop("processes").items()}
        return cls(folder, State(**kept, processes=processes))

    def keep(self) -> None:
        path = self.folder / "fleet.json"
        path.touch(mode=0o600)
        path.write_text(json.dumps(asdict(self.state), indent=2))

    # --- what there is ----------------------------------------------------------------------------

    def runs(self, name: str) -> bool:
        process = self.state.processes.get(name)
        return process is not None and process.runs

    def url(self, listener: str) -> str:
        return f"http://127.0.0.1:{self.state.ports[listener]}"

    def replicas(self) -> list[int]:
        return [n for n in range(1, MOST_REPLICAS + 1) if self.runs(f"dataplane{n}")]

    # --- up ---------------------------------------------------------------------------------------

    def up(self, replicas: int) -> None:
        self._look_at_ports(replicas)
        asyncio.run(_make_database(self.state.database_url))
        wanted = commands(self._variables(replicas))
        self._run("migrate", wanted["migrate"].arguments, wanted["migrate"].environment)
        self._ensure("backend", wanted["backend"], {}, "/v1/models", "backend")
        admin = {"OBLETH_ADMIN_LISTEN": f"127.0.0.1:{self.state.ports['admin']}"}
        self._ensure("controlplane", wanted["controlplane"], admin, "/api/v1/health", "admin")
        self._balance()
        for number in range(1, replicas + 1):
            self._ensure(
                f"dataplane{number}",
                wanted["dataplane"],
                {
                    "OBLETH_PROXY_LISTEN": f"127.0.0.1:{self.state.ports[f'proxy{number}']}",
                    "OBLETH_METRICS_LISTEN": f"127.0.0.1:{self.state.ports[f'metrics{number}']}",
                    "OBLETH_ADVERTISE_URL": self.url(f"metrics{number}"),
                },
                "/readyz",
                f"metrics{number}",
            )
            self._tell(f"set server dataplanes/replica{number} state ready")
        for number in self.replicas():
            if number > replicas:
                self._retire(number)
        _wait(lambda: self._balanced() == replicas, "HAProxy does not see every replica")

    def _look_at_ports(self, replicas: int) -> None:
        """Before anything starts: another program's answer would be taken for the fleet's."""
        listeners = {"backend": ["backend"], "controlplane": ["admin"], "haproxy": ["gateway"]}
        for number in range(1, replicas + 1):
            listeners[f"dataplane{number}"] = [f"proxy{number}", f"metrics{number}"]
        for name in listeners:
            for port in (self.state.ports[one] for one in listeners[name]):
                if is_taken(port) and not self.runs(name):
                    raise Problem(
                        f"port {port}, for {name}, is another program's (a demo?): stop that, "
                        "or start the fleet with --free-ports"
                    )

    def _variables(self, replicas: int) -> dict[str, str]:
        mine = {
            "OBLETH_ADMIN_TOKEN": self.state.admin_token,
            "OBLETH_INTERNAL_TOKEN": self.state.internal_token,
            "OBLETH_FAIRSHARE_EXPECTED_REPLICAS": str(replicas),
        }
        return {**_dotenv(), **os.environ, **mine}

    def _environment(self, *given: Any) -> dict[str, str]:
        found = dict(os.environ)
        for one in given:
            found |= {name: str(value) for name, value in one.items()}
        found["OBLETH_DATABASE_URL"] = self.state.database_url
        found["OBLETH_REDIS_URL"] = self.state.redis_url
        return found

    def _run(self, name: str, arguments: tuple[str, ...], environment: Any) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "obleth", *arguments],
            cwd=self.folder,
            env=self._environment(environment),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise Problem(f"{name}: {done.stderr.strip()}")

    def _ensure(self, name: str, command: Any, moved: Any, path: str, listener: str) -> None:
        """Have the service run and answer."""
        if not self.runs(name):
            arguments = [
                f"127.0.0.1:{self.state.ports['backend']}" if one == "0.0.0.0:9000" else one
                for one in command.arguments
            ]
            self._start(
                name,
                [sys.executable, "-m", "obleth", *arguments],
                self._environment(command.environment, moved),
            )
        _wait(lambda: _status(self.url(listener) + path) == 200, self._trouble(name), self, name)

    def _start(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            started = subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.state.processes[name] = Process.of(started.pid)
        self.keep()

    def _trouble(self, name: str) -> str:
        return f"{name} does not answer: see {self.folder / f'{name}.log'}"

    # --- HAProxy ----------------------------------------------------------------------------------

    def _balance(self) -> None:
        if self.runs("haproxy"):
            return
        haproxy = _haproxy()
        servers = "".join(
            f"    server replica{n} 127.0.0.1:{self.state.ports[f'proxy{n}']}"
            f" check port {self.state.ports[f'metrics{n}']}\n"
            for n in range(1, MOST_REPLICAS + 1)
        )
        (self.folder / "servers.cfg").write_text(
            f"global\n    stats socket {self.folder}/haproxy.sock mode 600 level admin\n\n"
            f"backend dataplanes\n{servers}"
        )
        self._start(
            "haproxy",
            [haproxy, "-db", "-f", str(ROOT / "deploy/haproxy/haproxy.cfg"), "-f", "servers.cfg"],
            self._environment({"OBLETH_GATEWAY_BIND": f"127.0.0.1:{self.state.ports['gateway']}"}),
        )
        _wait((self.folder / "haproxy.sock").exists, self._trouble("haproxy"), self, "haproxy")

    def _tell(self, command: str) -> str:
        """What HAProxy answers on its socket."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.folder / "haproxy.sock"))
            connection.sendall(command.encode() + b"\n")
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()

    def _balanced(self) -> int:
        """How many replicas get requests."""
        lines = self._tell("show stat dataplanes 4 -1").splitlines()
        return sum(line.split(",")[17].startswith("UP") for line in lines if line.startswith("da"))

    # --- down -------------------------------------------------------------------------------------

    def _retire(self, number: int) -> None:
        """Send the replica nothing new, let it serve what it has, and stop it."""
        self._tell(f"set server dataplanes/replica{number} state drain")
        try:
            _wait(lambda: self._idle(number), "", secs=EMPTY_SECS)
        except Problem:
            print(f"replica {number} still has requests that wait; they are told to come again")
        self._stop(f"dataplane{number}", signal.SIGTERM, DRAIN_SECS)

    def _idle(self, number: int) -> bool:
        text = _text(self.url(f"metrics{number}") + "/metrics")
        busy = ("obleth_in_flight{", "obleth_queue_depth{")
        return not any(
            float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(busy)
        )

    def down(self) -> None:
        self._signal("haproxy", signal.SIGUSR1)  # takes no more; what runs goes on
        for number in self.replicas():
            self._signal(f"dataplane{number}", signal.SIGTERM)
        for number in self.replicas():
            self._stop(f"dataplane{number}", None, DRAIN_SECS)
        for name in ("haproxy", "controlplane", "backend"):
            self._stop(name, signal.SIGTERM, 30)
        (self.folder / "fleet.json").unlink()

    def _signal(self, name: str, number: signal.Signals) -> None:
        if name in self.state.processes:
            self.state.processes[name].signal(number)

    def _stop(self, name: str, number: signal.Signals | None, secs: float) -> None:
        if number is not None:
            self._signal(name, number)
        try:
            _wait(lambda: not self.runs(name), "", secs=secs)
        except Problem:
            print(f"{name} did not stop within {secs:.0f} s and is killed", file=sys.stderr)
            self._signal(name, signal.SIGKILL)
            _wait(lambda: not self.runs(name), f"{name} cannot be stopped")
        self.state.processes.pop(name, None)
        self.keep()

    # --- status -----------------------------------------------------------------------------------

    def report(self) -> str:
        lines = [
            f"  gateway       {self.url('gateway')}/v1",
            f"  dashboard     {self.url('admin')}/",
            f"  admin token   {self.state.admin_token}",
            f"  backend       {self.url('backend')}/v1  simulated, serves demo-model",
        ]
        for number in self.replicas():
            ready = (
                "ready" if _status(self.url(f"metrics{number}") + "/readyz") == 200 else "not ready"
            )
            lines.append(f"  replica {number}     {self.url(f'metrics{number}')}/metrics  {ready}")
        ended = sorted(name for name in self.state.processes if not self.runs(name))
        lines += [f"  {name} has ended: see {self.folder / f'{name}.log'}" for name in ended]
        return "\n".join(lines)


def _dotenv() -> dict[str, str]:
    return {name: value for name, value in dotenv_values(ROOT / ".env").items() if value}


def _status(url: str) -> int:
    """0 where nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def _text(url: str) -> str:
    with urllib.request.urlopen(url, timeout=2) as answer:
        return str(answer.read().decode())


def _wait(
    holds: Callable[[], bool],
    trouble: str,
    fleet: Fleet | None = None,
    name: str = "",
    secs: float = START_SECS,
) -> None:
    """Until it holds. Raises Problem when the time is up, or when the process named has ended."""
    until = time.monotonic() + secs
    while not holds():
        if time.monotonic() > until or (fleet is not None and not fleet.runs(name)):
            raise Problem(trouble)
        time.sleep(PAUSE_SECS)


def _haproxy() -> str:
    """Where HAProxy is; Debian's is installed when root."""
    if found := shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin:/opt/homebrew/bin"):
        return found
    if shutil.which("apt-get") is None:
        raise Problem("missing: haproxy; on macOS: brew install haproxy")
    if os.geteuid() != 0:
        raise Problem("missing: haproxy; as root: apt-get install haproxy")
    print("fleet: installing haproxy", file=sys.stderr)
    quietly: dict[str, Any] = {
        "env": {**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.DEVNULL,
    }
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "haproxy"]
    if subprocess.run(install, **quietly, stderr=subprocess.DEVNULL, check=False).returncode:
        subprocess.run(["apt-get", "update", "-qq"], **quietly, check=True)
        subprocess.run(install, **quietly, check=True)
    return _haproxy()


async def _make_database(url: str) -> None:
    server, _, name = url.replace("postgresql+asyncpg://", "postgresql://").rpartition("/")
    connection = await asyncpg.connect(f"{server}/postgres")
    try:
        if not await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", name):
            await connection.execute(f'CREATE DATABASE "{name}"')
    finally:
        await connection.close()


def _ports(free: bool) -> dict[str, int]:
    usual = {"gateway": 8080, "admin": 9180, "backend": 9000}
    for number in range(1, MOST_REPLICAS + 1):
        usual |= {f"proxy{number}": 8080 + number, f"metrics{number}": 9090 + number}
    return dict(zip(usual, free_ports(len(usual)), strict=True)) if free else usual


def _new(options: argparse.Namespace) -> Fleet:
    given = _dotenv() | dict(os.environ)
    folder = options.state.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return Fleet(
        folder,
        State(
            database_url=options.database_url,
            redis_url=options.redis_url,
            admin_token=given.get("OBLETH_ADMIN_TOKEN") or secrets.token_hex(24),
            internal_token=given.get("OBLETH_INTERNAL_TOKEN") or secrets.token_hex(24),
            ports=_ports(options.free_ports),
        ),
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="fleet", description=__doc__.split("\n")[0])
    kept = argparse.ArgumentParser(add_help=False)
    kept.add_argument("--state", type=Path, default=ROOT / ".fleet", help="pids, ports and logs")
    commands_ = parser.add_subparsers(dest="command", required=True)
    up = commands_.add_parser("up", parents=[kept], help="start it, or change how many replicas")
    up.add_argument("--replicas", type=int, default=1, choices=range(1, MOST_REPLICAS + 1))
    up.add_argument(
        "--database-url", default="postgresql+asyncpg://obleth:obleth@127.0.0.1:5432/obleth"
    )
    up.add_argument("--redis-url", default="redis://127.0.0.1:6379/0")
    up.add_argument("--free-ports", action="store_true", help="instead of 8080, 9180, 9000, ...")
    commands_.add_parser("status", parents=[kept], help="what runs, and where")
    commands_.add_parser("down", parents=[kept], help="let requests end, and stop it")
    return parser.parse_args()


def main() -> None:
    """The script. Exits with 1 and one line when something is in the way."""
    options = _options()
    fleet = Fleet.found(options.state.resolve())
    try:
        if options.command == "up":
            fleet = fleet or _new(options)
            fleet.up(options.replicas)
        if fleet is None:
            print("nothing runs")
        elif options.command == "down":
            fleet.down()
            print("stopped")
        else:
            print(fleet.report())
    except (Problem, MissingVariable, OSError, asyncpg.PostgresError) as problem:
        sys.exit(f"fleet: {problem}")


if __name__ == "__main__":
    main()
