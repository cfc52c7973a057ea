"""What a Redis server runs, by its own word: scripts by name, and claims for a held slot alone."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from types import TracebackType
from typing import Self

from dataplane import scripts

_ARGUMENT = re.compile(r'"((?:[^"\\]|\\.)*)"')
_NAMES = {script.sha: name for name, script in scripts.load("dataplane.admission.slots").items()}
# As in the header of claim.lua.
_SHARED_ARGS, _ARGS_EACH, _IS_ONLY = 2, 14, 11


class Monitor:
    """Counts while its block runs."""

    def __init__(self, port: int) -> None:
        self.ran: Counter[str] = Counter()
        self._port = port
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 22)
        writer.write(b"MONITOR\r\n")
        assert await reader.readline() == b"+OK\r\n"
        self._task = asyncio.create_task(self._watch(reader, writer))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._task is not None, "it was entered"
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _watch(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                self._count(_ARGUMENT.findall(line.decode()))
        finally:
            writer.close()

    def _count(self, command: list[str]) -> None:
        if command[0].upper() != "EVALSHA":
            return
        name = _NAMES.get(command[1], "other")
        self.ran[name] += 1
        if name == "claim":
            args = command[3 + int(command[2]) + _SHARED_ARGS :]
            self.ran["hold only"] += args[_IS_ONLY::_ARGS_EACH].count("1")
