"""Real Redis for tests: the shared server's own corner, or a server of a test's own to break."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from shared import redis as shared_redis
from shared.redis_keys import SlotKeys
from tests.conftest import REDIS

PATIENT_SECS = 10
"""A deadline for tests that are not about deadlines."""


LUA = Path(__file__).parent / "lua"
PASS_TIME = (LUA / "pass_time.lua").read_text()
COUNT = (LUA / "count.lua").read_text()


class Corner:
    """Keys and a channel on a server that no other test uses."""

    def __init__(self, redis: Redis, mark: str) -> None:
        self.redis = redis
        self.tag = f"{{test:{mark}}}"
        self.keys = SlotKeys(self.tag)
        self.channel = f"test:{mark}:released"
        self.stopped_clock = f"{self.tag}:clock"
        """What time it was when `passes` was last called, in ms."""
        self._last = 0

    async def names(self) -> list[str]:
        return sorted([name async for name in self.redis.scan_iter(match=f"{self.tag}:*")])

    async def passes(self, ms: int) -> None:
        """Let `ms` have passed since the last call for these keys, however long it really was."""
        roster, pattern = self.keys.roster, f"{self.tag}:*"
        self._last = await self.redis.eval(
            PASS_TIME, 2, roster, self.stopped_clock, pattern, ms, self._last
        )

    async def counts(self) -> dict[str, int]:
        """How many slots each set of the books has."""
        flat: list[Any] = await self.redis.eval(COUNT, 0, f"{self.tag}:*")
        names = [name.removeprefix(f"{self.tag}:1:") for name in flat[::2]]
        return dict(zip(names, flat[1::2], strict=True))


@asynccontextmanager
async def corner(url: str = REDIS) -> AsyncIterator[Corner]:
    redis = shared_redis.client(url)
    own = Corner(redis, secrets.token_hex(6))
    try:
        yield own
    finally:
        async with shared_redis.client(url) as cleaner:
            names = [name async for name in cleaner.scan_iter(match=f"{own.tag}:*")]
            if names:
                await cleaner.delete(*names)
        await redis.aclose()


class Server:
    """A Redis process of a test's own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server runs"
        return self._process.pid

    async def start(self, *options: str) -> None:
        """Start it, empty, and wait until it answers."""
        binary = shutil.which("redis-server") or shutil.which("valkey-server")
        assert binary, "redis-server is missing: run deploy/dev/services"
        command = [binary, "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        command += ["--dir", str(self._folder), "--enable-debug-command", "local", *options]
        with (self._folder / "redis.log").open("ab") as log:
            self._process = await asyncio.to_thread(
                subprocess.Popen, command, stdout=log, stderr=log
            )
        for _ in range(1000):
            if await self._answers():
                return
            await asyncio.sleep(0.01)
        raise TimeoutError("redis-server does not answer")

    async def stop(self) -> None:
        """Kill it where it stands."""
        if self._process is not None:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
            self._process = None

    def written(self) -> dict[str, bytes]:
        """What it has in its files, if it has been told to keep any."""
        return {
            str(path.relative_to(self._folder)): path.read_bytes()
            for path in sorted((self._folder / "appendonlydir").glob("*"))
        }

    def rewrite(self, written: dict[str, bytes]) -> None:
        """Have it find this in its files when it starts."""
        shutil.rmtree(self._folder / "appendonlydir")
        (self._folder / "appendonlydir").mkdir()
        for name, content in written.items():
            (self._folder / name).write_bytes(content)

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    async def _answers(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        writer.close()
        await writer.wait_closed()
        return True

    async def calls(self) -> dict[str, int]:
        """How often each command was called, by the server's own count."""
        async with shared_redis.client(self.url) as redis:
            stats: dict[str, Any] = await redis.info("commandstats")
        return {name.removeprefix("cmdstat_"): of["calls"] for name, of in stats.items()}


@asynccontextmanager
async def server(folder: Path, *options: str) -> AsyncIterator[Server]:
    own = Server(folder)
    await own.start(*options)
    try:
        yield own
    finally:
        await own.stop()
