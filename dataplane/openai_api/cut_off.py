"""A block of code that can be ended from outside, for a reason that is raised in its place."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self


class CutOff:
    """`with CutOff() as block:`; another task or a callback ends it with `block.cut(reason)`.

    The block's task is cancelled where it waits, and `reason` is raised as the block is left. A
    cancellation from elsewhere stays a cancellation. Only the first reason counts, and one that
    comes when the block is being left for another cause changes nothing.
    """

    def __init__(self) -> None:
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._reason: Exception | None = None
        self._is_closed = False

    def cut(self, reason: Exception) -> None:
        """End the block. Not to be called from within it."""
        if self._task is not None and self._reason is None and not self._is_closed:
            self._reason = reason
            self._task.cancel()

    def close(self) -> None:
        """From now on `cut` does nothing. What has been cut before stays cut."""
        self._is_closed = True

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None, "a block that waits runs in a task"
        self._task = task
        self._cancelling = task.cancelling()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        task, self._task = self._task, None
        assert task is not None, "left once, after it was entered"
        if (
            self._reason is not None
            and task.uncancel() <= self._cancelling
            and kind is asyncio.CancelledError
        ):
            raise self._reason
