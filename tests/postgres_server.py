"""A PostgreSQL server of a test's own, to break."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg

NEVER_AS_ROOT = "postgres"
"""Who runs the server where the tests run as root, whom it refuses."""


class Server:
    """A PostgreSQL process over files of its own, with one role and one database, `obleth`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._data = folder / "data"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, port: int | None = None) -> str:
        """For SQLAlchemy; by another port if a proxy stands before it."""
        return f"postgresql+asyncpg://obleth@127.0.0.1:{port or self.port}/obleth"

    async def make(self) -> None:
        """Its files, without anything in them."""
        arguments = ["--auth=trust", "--username=obleth", "--no-sync", "--encoding=UTF8"]
        await asyncio.to_thread(
            subprocess.run,
            [_binary("initdb"), "-D", str(self._data), *arguments, "--no-instructions"],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=self._folder,
            **_as_server(),
        )

    async def start(self) -> None:
        """Start it over what is there and wait until it answers."""
        given = {"fsync": "off", "superuser_reserved_connections": 0, "max_connections": 50}
        options = [part for name, value in given.items() for part in ("-c", f"{name}={value}")]
        place = ["-D", str(self._data), "-p", str(self.port), "-k", str(self._folder)]
        with (self._folder / "postgres.log").open("ab") as log:
            self._process = await asyncio.to_thread(
                subprocess.Popen,
                [_binary("postgres"), *place, "-h", "127.0.0.1", *options],
                stdout=log,
                stderr=log,
                cwd=self._folder,
                **_as_server(),
            )
        for _ in range(1000):
            try:
                connection = await self.connect("postgres")
            except (OSError, asyncpg.PostgresError):
                await asyncio.sleep(0.02)
            else:
                if not await connection.fetchval(
                    "SELECT 1 FROM pg_database WHERE datname='obleth'"
                ):
                    await connection.execute("CREATE DATABASE obleth")
                await connection.close()
                return
        raise TimeoutError("PostgreSQL does not answer")

    async def connect(self, database: str = "obleth") -> Any:
        return await asyncpg.connect(
            host="127.0.0.1", port=self.port, user="obleth", database=database, timeout=5
        )

    async def stop(self) -> None:
        """End it at once, as a crash would; what it had committed is there at the next start."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            await asyncio.to_thread(self._process.wait)
            self._process = None

    async def freeze(self) -> None:
        for pid in await self._pids():
            os.kill(pid, signal.SIGSTOP)

    async def thaw(self) -> None:
        for pid in await self._pids():
            os.kill(pid, signal.SIGCONT)

    async def _pids(self) -> list[int]:
        """The server and the processes it has for its connections."""
        assert self._process is not None, "the server runs"
        parent = self._process.pid
        told = await asyncio.to_thread(
            subprocess.run, ["ps", "-A", "-o", "pid=,ppid="], check=True, capture_output=True
        )
        pairs = [line.split() for line in told.stdout.decode().splitlines()]
        return [parent, *(int(pid) for pid, of in pairs if int(of) == parent)]


def _binary(name: str) -> str:
    places = [str(path) for path in Path("/usr/lib/postgresql").glob("*/bin")]
    found = shutil.which(name) or shutil.which(name, path=os.pathsep.join(sorted(places)))
    assert found, f"{name} is missing: run deploy/dev/services"
    return found


def _as_server() -> dict[str, Any]:
    return {"user": NEVER_AS_ROOT, "extra_groups": []} if os.geteuid() == 0 else {}


@asynccontextmanager
async def server() -> AsyncIterator[Server]:
    """One that runs, empty, and is gone at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="obleth-postgres-") as name:
        if os.geteuid() == 0:
            shutil.chown(name, NEVER_AS_ROOT)
        own = Server(Path(name))
        await own.make()
        await own.start()
        try:
            yield own
        finally:
            await own.stop()
