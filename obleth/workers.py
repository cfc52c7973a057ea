"""Several data-plane processes on one port, kept running by one that serves nothing itself.

The supervisor binds the port and each worker inherits the socket, so that a worker that dies takes
no connection with it that was not its own. Every worker is a replica: its own name, its own
operations port (the configured one plus its number). A worker whose supervisor is gone stops as
if told to.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from typing import Any, Final, Self

import structlog

from obleth.failures import WRONG_USE, Failed
from obleth.server import StopSignal

FIRST_PAUSE_SECS: Final = 0.5
LONGEST_PAUSE_SECS: Final = 10.0
STEADY_SECS: Final = 30.0
"""A worker that ran this long failed anew, and not again."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """What a worker was given by its supervisor."""

    number: int
    count: int
    """How many workers there are."""
    proxy: socket.socket

    @classmethod
    def inherited(cls, number: int, count: int, descriptor: int) -> Self:
        """The place that the supervisor has handed to this process."""
        proxy = socket.socket(fileno=descriptor)
        proxy.setblocking(False)
        return cls(number, count, proxy)

    def follow_supervisor(self) -> None:
        """From inside the loop: stop as on SIGTERM when the supervisor's end of stdin closes."""
        loop = asyncio.get_running_loop()
        loop.add_reader(sys.stdin.fileno(), self._supervisor_gone)

    def _supervisor_gone(self) -> None:
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        os.kill(os.getpid(), signal.SIGTERM)


async def supervise(count: int, proxy: socket.socket) -> None:
    """Run `count` workers until a signal says to stop; a second signal hurries them.

    Raises `Failed` if a worker says that it was started wrongly: the next would say the same.
    """
    stop = StopSignal()
    stop.install()
    workers = [_Worker(number, count, proxy) for number in range(count)]
    keeping = [asyncio.create_task(worker.keep_running()) for worker in workers]
    stopped = asyncio.create_task(stop.wait())
    try:
        first: list[asyncio.Future[None]] = [stopped, *keeping]
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        hurried = asyncio.create_task(stop.hurried())
        for worker in workers:
            worker.stop()
        ended = asyncio.create_task(asyncio.wait(keeping))
        either: list[asyncio.Future[Any]] = [ended, hurried]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            for worker in workers:
                worker.stop()
        await ended
        hurried.cancel()
    finally:
        stopped.cancel()
        proxy.close()
    for each in keeping:
        each.result()


class _Worker:
    def __init__(self, number: int, count: int, proxy: socket.socket) -> None:
        self._number: Final = number
        self._count: Final = count
        self._proxy: Final = proxy
        self._process: asyncio.subprocess.Process | None = None
        self._stopping: Final = asyncio.Event()

    def stop(self) -> None:
        """Tell the worker to drain; said again, to hurry."""
        self._stopping.set()
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()

    async def keep_running(self) -> None:
        loop = asyncio.get_running_loop()
        pause = FIRST_PAUSE_SECS
        while not self._stopping.is_set():
            began = loop.time()
            code = await self._run()
            if self._stopping.is_set():
                return
            if code == WRONG_USE:
                raise Failed(f"worker {self._number} could not start", WRONG_USE)
            pause = FIRST_PAUSE_SECS if loop.time() - began > STEADY_SECS else pause
            log.warning("worker_ended", worker=self._number, code=code, starts_again_in=pause)
            try:
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
            except TimeoutError:
                pause = min(2 * pause, LONGEST_PAUSE_SECS)

    async def _run(self) -> int:
        descriptor = self._proxy.fileno()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "obleth",
            "dataplane",
            f"--workers={self._count}",
            f"--worker={self._number}",
            f"--descriptor={descriptor}",
            pass_fds=[descriptor],
            stdin=subprocess.PIPE,
            # A signal from the terminal is for the supervisor, who passes it on.
            start_new_session=True,
        )
        if self._stopping.is_set():
            self._process.terminate()
        return await self._process.wait()
