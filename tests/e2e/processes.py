"""`obleth` commands as real processes, as a user starts them."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

COMMAND = [sys.executable, "-m", "obleth"]
FREE_PORTS = {
    "OBLETH_PROXY_LISTEN": "127.0.0.1:0",
    "OBLETH_ADMIN_LISTEN": "127.0.0.1:0",
    "OBLETH_METRICS_LISTEN": "127.0.0.1:0",
}
START_SECS = 60
LISTENING = r'"listening": \["([^"]+)"'
"""Where the first listener is, in a log in JSON."""
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if name != "PYTHONDONTWRITEBYTECODE"  # the next process starts faster
} | {"PYTHONUNBUFFERED": "1"}


class Process:
    """A running command. What it prints is kept; leaving the block stops it."""

    def __init__(self, *arguments: str, folder: Path, **environment: str) -> None:
        self.log = folder / f"{'-'.join(arguments)}.log"
        self._errors = self.log.open("w+")
        self.running = subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=folder,
            env={**ENVIRONMENT, **FREE_PORTS, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._is_over = False
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.running.stdout is not None
        with self.running.stdout:
            for line in self.running.stdout:
                with self._news:
                    self.lines.append(line.rstrip("\n"))
                    self._news.notify_all()
        with self._news:
            self._is_over = True
            self._news.notify_all()

    def find(self, pattern: str) -> str:
        """The first group of the first printed line that matches, waiting for it to be printed."""

        def found() -> re.Match[str] | None:
            return next((m for line in self.lines if (m := re.search(pattern, line))), None)

        with self._news:
            self._news.wait_for(lambda: found() or self._is_over, START_SECS)
        match = found()
        assert match, f"{pattern!r} was not printed: {self.lines} {self.errors()}"
        return match[1]

    async def said(self, pattern: str) -> str:
        """The first group of what it first says in its log that matches, waiting for it."""
        for _ in range(100 * START_SECS):
            text = await asyncio.to_thread(self.log.read_text)
            if match := re.search(pattern, text):
                return match[1]
            assert self.running.poll() is None, f"it has ended: {text}"
            await asyncio.sleep(0.01)
        raise TimeoutError(f"{pattern} was not said: {text}")

    def errors(self) -> str:
        """What it has written to standard error."""
        self._errors.seek(0)
        return self._errors.read()

    def terminate(self) -> None:
        self.running.send_signal(signal.SIGTERM)

    def exit_code(self) -> int:
        """Waits for its end."""
        return self.running.wait(START_SECS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.running.poll() is None:
            self.terminate()
            self.running.wait(START_SECS)
        self._errors.close()


class Demo(Process):
    """`obleth demo`, and what it printed for its user."""

    def __init__(self, *arguments: str, folder: Path, **environment: str) -> None:
        super().__init__("demo", *arguments, folder=folder, **environment)

    def await_ready(self) -> Self:
        self.find("^(Ctrl-C) stops it")
        return self

    @property
    def curl(self) -> str:
        return self.find("^(curl .*)")

    @property
    def gateway(self) -> str:
        """Without `/v1`."""
        return self.find(r"^  gateway +(\S+)/v1$")

    @property
    def dashboard(self) -> str:
        return self.find(r"^  dashboard +(\S+)/$")

    @property
    def admin_token(self) -> str:
        return self.find(r"^  admin token +(\S+)$")

    @property
    def backend(self) -> str:
        """Without `/v1`."""
        return self.find(r"^  backend +(\S+)/v1 ")

    def key(self, tenant: str) -> str:
        return self.find(rf"^  {tenant} +(sk-[0-9a-f]{{48}}) ")
