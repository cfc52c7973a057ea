"""Virtual time for several processes in one: each has an event loop of its own, and nothing waits.

`Time` holds the agenda of the whole world. It lets every loop do what it can at one instant, one
turn at a time and in an order drawn from the seed, and then jumps to the next thing due. A loop can
be frozen, as a process is that is stopped: what comes due meanwhile waits for it, and it finds on
waking that its clock has moved on. A loop can be killed: nothing it would have done happens.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import random
from asyncio.events import _set_running_loop
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, Final


class Time:
    """The one clock of a simulated world, in seconds, and everything that is still to happen."""

    def __init__(self, choose: random.Random) -> None:
        self.now = 0.0
        self._choose: Final = choose
        self._ticks: Final = itertools.count()
        self._agenda: list[tuple[float, int, Loop | None, Any]] = []
        self._awake: dict[Loop, None] = {}
        """Loops that have something to do now, in the order in which they came to."""

    def at(self, when: float, what: Callable[[], object]) -> None:
        """Something happens to the world, outside of every process."""
        heapq.heappush(self._agenda, (max(when, self.now), next(self._ticks), None, what))

    def after(self, secs: float, what: Callable[[], object]) -> None:
        self.at(self.now + secs, what)

    def plan(self, when: float, loop: Loop, timer: asyncio.TimerHandle) -> None:
        heapq.heappush(self._agenda, (max(when, self.now), next(self._ticks), loop, timer))

    def wake(self, loop: Loop) -> None:
        self._awake[loop] = None

    def run(self, secs: float) -> None:
        """Let `secs` pass."""
        end = self.now + secs
        while True:
            self._settle()
            if not self._agenda or self._agenda[0][0] > end:
                self.now = end
                return
            when, _, loop, what = heapq.heappop(self._agenda)
            self.now = max(self.now, when)
            if loop is None:
                what()
            else:
                loop.due(what)

    def _settle(self) -> None:
        """Turns of loops until none has anything left to do at this instant."""
        while self._awake:
            loops = list(self._awake)
            loop = loops[0] if len(loops) == 1 else self._choose.choice(loops)
            if not loop.turn():
                del self._awake[loop]


class Loop(asyncio.AbstractEventLoop):
    """The event loop of one process. `offset` is how far its clock is from the world's."""

    def __init__(
        self, time: Time, offset: float, on_error: Callable[[dict[str, Any]], None]
    ) -> None:
        self._time: Final = time
        self._offset: Final = offset
        self._on_error: Final = on_error
        self._ready: deque[asyncio.Handle] = deque()
        self._overdue: list[asyncio.Handle] = []
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self.is_frozen = False
        self.is_dead = False

    # What the world does to it

    def due(self, timer: asyncio.TimerHandle) -> None:
        """The time of a timer has come."""
        if self.is_dead or timer.cancelled():
            return
        if self.is_frozen:
            self._overdue.append(timer)
            return
        self._ready.append(timer)
        self._time.wake(self)

    def turn(self) -> bool:
        """Run what is ready, but nothing that becomes so meanwhile; whether anything was."""
        if self.is_frozen or self.is_dead or not self._ready:
            return False
        self._run_ready()
        return True

    def freeze(self) -> None:
        self.is_frozen = True

    def thaw(self, *, timers_first: bool) -> None:
        """Go on where it stopped, whatever came in meanwhile before or after the timers."""
        self.is_frozen = False
        timers, self._overdue = self._overdue, []
        if timers_first:
            self._ready.extendleft(reversed(timers))
        else:
            self._ready.extend(timers)
        self._time.wake(self)

    def kill(self) -> None:
        """End the process. Its tasks are unwound where nobody sees it."""
        self.is_dead = True
        for _ in range(100):
            pending = [task for task in self._tasks if not task.done()]
            for task in pending:
                task.cancel()
            if not pending and not self._ready:
                return
            while self._ready:
                self._run_ready()
        raise AssertionError("tasks do not end when they are cancelled")

    def _run_ready(self) -> None:
        _set_running_loop(self)
        try:
            for _ in range(len(self._ready)):
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            _set_running_loop(None)

    # What asyncio asks of it

    def time(self) -> float:
        return self._time.now + self._offset

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        self._time.wake(self)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        timer._scheduled = True
        at = when - self._offset
        while at + self._offset < when:
            at = math.nextafter(at, math.inf)
        self._time.plan(at, self, timer)
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.call_exception_handler({"message": "a task has failed", "exception": error})

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.is_dead:
            self._on_error(context)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return asyncio._get_running_loop() is self

    def is_closed(self) -> bool:
        return False


def new_loop(time: Time, offset: float, on_error: Callable[[dict[str, Any]], None]) -> Loop:
    """A loop that knows what replicas ask of one, and no more."""
    return Loop(time, offset, on_error)  # type: ignore[abstract]
