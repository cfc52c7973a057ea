"""How the scripts that keep the books are run: as any others, in the words of the slots' port."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from redis.asyncio import Redis

from dataplane import scripts
from dataplane.admission.slots.port import SlotsUnavailable
from dataplane.scripts import ScriptCall
from shared.redis import RedisUnavailable


class ScriptRunner(Protocol):
    """Whatever carries out script calls."""

    async def run(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """Carry out calls in order and together, though not as one; their answers.

        Raises `SlotsUnavailable`; then any of them may have been carried out, or may yet be.
        """
        ...


class SlotScripts:
    """Runs them on a Redis server. `secs` is how long one `run` may take."""

    def __init__(self, redis: Redis, *, secs: float) -> None:
        books = scripts.load("dataplane.admission.slots")
        self._scripts: Final = scripts.RedisScripts(redis, books, secs=secs)

    async def run(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """See `ScriptRunner`."""
        try:
            return await self._scripts.run(calls)
        except RedisUnavailable as error:
            raise SlotsUnavailable(str(error)) from error
