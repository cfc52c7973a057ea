"""Playing a trace: each session at its time, or as many at once as every tenant keeps going."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field

from obleth.replay.assignment import Plan, plan
from obleth.replay.options import ReplayOptions, TenantKey
from obleth.replay.prompts import Conversation, scaled
from obleth.replay.sender import Call, Sender
from obleth.replay.trace import Session, Trace


@dataclass(slots=True)
class SessionRun:
    """How one session of several steps went."""

    tenant: str
    began: float
    ended: float = 0.0
    busy_secs: float = 0.0
    """Time its requests were under way, without the pauses between them."""
    steps: int = 0
    whole: bool = False
    """Every step was answered."""


@dataclass(slots=True)
class Played:
    """What was sent and what became of it."""

    words: str
    """How sessions were given to tenants."""
    began: float
    ended: float = 0.0
    calls: list[Call] = field(default_factory=list)
    sessions: list[SessionRun] = field(default_factory=list)
    latest_secs: float = 0.0
    """The most that a request was sent behind its time."""
    interrupted: bool = False


class Player:
    """Plays a trace once. `on_step` is called each time a step is dealt with."""

    def __init__(
        self,
        trace: Trace,
        options: ReplayOptions,
        sender: Sender,
        on_step: Callable[[], None] = lambda: None,
    ) -> None:
        self._trace = trace
        self._options = options
        self._sender = sender
        self._on_step = on_step
        self._places = asyncio.Semaphore(options.max_outstanding)
        self._tasks: set[asyncio.Task[None]] = set()
        self._played = Played(words="", began=time.monotonic())

    async def play(self) -> Played:
        """Send everything and wait for its end, or for `interrupt`."""
        planned = plan(self._trace, self._options)
        played = self._played
        played.words = planned.words
        async with asyncio.TaskGroup() as group:
            played.began = time.monotonic()
            if self._options.closed_loop is None:
                self._start(group, self._open_loop(group, planned))
            else:
                self._closed_loop(group, planned, self._options.closed_loop)
        played.ended = time.monotonic()
        return played

    def interrupt(self) -> None:
        """Give up what is under way; `play` returns what there is."""
        self._played.interrupted = True
        for task in self._tasks:
            task.cancel()

    def _start(self, group: asyncio.TaskGroup, work: Coroutine[None, None, None]) -> None:
        task = group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _place(self, due: float) -> bool:
        """Wait until a request is due and there is a place for it; give the place back after it.

        False, without a place, when that is past the time in which anything may begin.
        """
        longest = self._options.duration_secs
        end = None if longest is None else self._played.began + longest
        if end is not None and due > end:
            return False
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        await self._places.acquire()
        if end is not None and time.monotonic() > end:
            self._places.release()
            return False
        self._played.latest_secs = max(self._played.latest_secs, time.monotonic() - due)
        return True

    async def _open_loop(self, group: asyncio.TaskGroup, planned: Plan) -> None:
        """Every session at its recorded time, or as soon as there is room after it."""
        for tenant, session in planned.sessions:
            due = self._played.began + session.starts_secs / self._options.speed
            if not await self._place(due):
                return
            self._start(group, self._session(tenant, session))

    def _closed_loop(self, group: asyncio.TaskGroup, planned: Plan, each: int) -> None:
        """Every tenant keeps `each` sessions going, until the sessions are used up."""
        tenants = self._options.tenants
        sessions = [session for _, session in planned.sessions]
        shared = iter(sessions)
        sources: dict[str, Iterable[Session]] = {tenant.name: shared for tenant in tenants}
        if self._options.assign is None:
            self._played.words = "whichever tenant has room takes the next session"
        else:
            for tenant in tenants:
                own = [session for owner, session in planned.sessions if owner == tenant]
                sources[tenant.name] = iter(own)
        for _ in range(each):
            for tenant in tenants:
                self._start(group, self._worker(tenant, sources[tenant.name]))

    async def _worker(self, tenant: TenantKey, source: Iterable[Session]) -> None:
        for session in source:
            if not await self._place(time.monotonic()):
                return
            await self._session(tenant, session)

    async def _session(self, tenant: TenantKey, session: Session) -> None:
        """One session from its first step to its last; a place for the first is already taken."""
        options = self._options
        played = self._played
        conversation = Conversation(options.token_scale)
        run = SessionRun(tenant.name, began=time.monotonic())
        for index, step in enumerate(session.steps):
            due = time.monotonic() + step.delay_secs / options.speed
            if index and not await self._place(due):
                break
            try:
                wanted = scaled(step.output_tokens, options.output_scale or options.token_scale)
                call, text = await self._sender.call(
                    tenant, conversation.ask(step), wanted, session.id
                )
            finally:
                self._places.release()
            played.calls.append(call)
            self._on_step()
            run.steps += 1
            run.busy_secs += call.ended - call.sent
            run.ended = call.ended
            if call.error is not None:
                break
            conversation.answer(text)
        else:
            run.whole = True
        if len(session.steps) > 1 and run.steps:
            played.sessions.append(run)
