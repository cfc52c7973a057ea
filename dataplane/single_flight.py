"""One load at a time for each thing that is loaded, shared by everyone who wants it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SingleFlight(Generic[K, V]):
    """Runs each load as a task of its own.

    Whoever leaves while waiting takes nothing with it: the load goes on for the others, and what it
    holds (a database connection) is given back by its own end, not by a client's disconnect.
    """

    def __init__(self) -> None:
        self._tasks: dict[K, asyncio.Task[V]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    async def run(self, key: K, load: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """The result of the load under way for `key`, or of a new one. Raises what it raises."""
        return await asyncio.shield(self.start(key, load))

    def start(self, key: K, load: Callable[[], Coroutine[Any, Any, V]]) -> asyncio.Task[V]:
        """As `run`, without waiting for it. A failure nobody waits for is dropped quietly."""
        task = self._tasks.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._run(key, load))
            task.add_done_callback(lambda done: self._ended(key, done))
            self._tasks[key] = task
        return task

    async def stop(self) -> None:
        """Cancel what is under way and wait until it has ended."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, key: K, load: Callable[[], Coroutine[Any, Any, V]]) -> V:
        try:
            return await load()
        finally:
            # Before the task is done, so that nobody joins a load that has already ended.
            self._tasks.pop(key, None)

    def _ended(self, key: K, task: asyncio.Task[V]) -> None:
        if self._tasks.get(key) is task:  # cancelled before it began
            del self._tasks[key]
        if not task.cancelled():
            task.exception()  # whoever waited has it; without a waiter it is no one's to report
