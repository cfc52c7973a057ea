"""How the scripts that keep the books are run: as any others, in the words of the slots' port."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
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


Called = Callable[[str, str, float], None]
"""Told of each call its script, its outcome (`answered`, `unavailable`) and the seconds it took."""


class SlotScripts:
    """Runs them on a Redis server. `secs` is how long one `run` may take."""

    def __init__(
        self, redis: Redis, *, secs: float, called: Called = lambda script, outcome, secs: None
    ) -> None:
        books = scripts.load("dataplane.admission.slots")
        self._scripts: Final = scripts.RedisScripts(redis, books, secs=secs)
        self._called: Final = called

    async def run(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """See `ScriptRunner`."""
        now = asyncio.get_running_loop().time
        began, outcome = now(), "unavailable"
        try:
            answers = await self._scripts.run(calls)
            outcome = "answered"
        except RedisUnavailable as error:
            raise SlotsUnavailable(str(error)) from error
        finally:
            took = now() - began
            for call in calls:
                self._called(call.script, outcome, took)
        return answers
