"""Something that runs on a loop and a thread of its own, for browsers that block the test's."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")
LONGEST_SECS = 60
"""A guard against hanging."""


class Background(ABC):
    """`start` leaves what is to be undone at the end in `stack`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="background")
        self.stack = AsyncExitStack()

    @abstractmethod
    async def start(self) -> None:
        """Start it, on that loop."""

    def __enter__(self) -> Self:
        self._thread.start()
        self.run(self.start())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.run(self.stack.aclose())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, done on that loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(LONGEST_SECS)
