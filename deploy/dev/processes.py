"""Processes and ports of this machine, as `deploy/dev/fleet` needs them."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    """A process that was started, told from any later one with its pid by when it began."""

    pid: int
    began: str

    @classmethod
    def of(cls, pid: int) -> Process:
        return cls(pid, _began(pid) or "")

    @property
    def runs(self) -> bool:
        return bool(self.began) and _began(self.pid) == self.began

    def signal(self, number: signal.Signals) -> None:
        if self.runs:
            os.kill(self.pid, number)


def _began(pid: int) -> str | None:
    """When the process began, in its system's own words; None once it has ended."""
    if Path("/proc/self/stat").exists():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        except OSError:
            return None
        state, began = fields[0], fields[19]
    else:
        command = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
        asked = subprocess.run(command, capture_output=True, text=True, check=False)
        state, _, began = asked.stdout.strip().partition(" ")
    return None if not state or state.startswith("Z") else began.strip()


def is_taken(port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, below those that the system gives to connections."""
    found: set[int] = set()
    while len(found) < count:
        port = 20_000 + secrets.randbelow(10_000)
        if not is_taken(port):
            found.add(port)
    return sorted(found)
