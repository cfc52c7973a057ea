"""The rest of the data plane as the gateway sees it, made small and observable."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self

from dataplane.admission.permit import Ask
from dataplane.budgets.port import RateLimitState, Reservation
from dataplane.errors import InvalidApiKey, Refusal, ShuttingDown
from dataplane.openai_api.ports import FinishedRequest
from shared.policy import EndpointPolicy, KeyPolicy, ModelPolicy, TenantPolicy

SECRET = "sk-" + "5" * 48
MODEL = "m"
TENANT = TenantPolicy(id="t1", name="tenant")
KEY = KeyPolicy(id="k1", digest="", name="key", tenant=TENANT)


def endpoint(url: str, id: str = "e1", **fields: object) -> EndpointPolicy:
    return EndpointPolicy(id=id, url=url, **fields)  # type: ignore[arg-type]


def model(*urls: str, name: str = MODEL, **fields: object) -> ModelPolicy:
    endpoints = tuple(endpoint(url, f"e{number}") for number, url in enumerate(urls))
    return ModelPolicy(id=name, name=name, **{"endpoints": endpoints, **fields})  # type: ignore[arg-type]


@dataclass
class Policy:
    """`PolicyLookup` over plain dictionaries."""

    keys: dict[str, KeyPolicy] = field(default_factory=lambda: {SECRET: KEY})
    registered: dict[str, ModelPolicy] = field(default_factory=dict)
    fails_with: Refusal | None = None

    def cached_key(self, secret: str) -> KeyPolicy | None:
        return self.keys.get(secret)

    async def key(self, secret: str) -> KeyPolicy:
        if self.fails_with is not None:
            raise self.fails_with
        raise InvalidApiKey

    def model(self, name: str) -> ModelPolicy | None:
        for each in self.registered.values():
            if name == each.name or name in each.aliases:
                return each
        return None

    def models(self) -> Sequence[ModelPolicy]:
        return list(self.registered.values())


@dataclass
class Budget:
    """`Budgets` that lets everything pass unless told otherwise, and remembers what was asked."""

    check_fails_with: Refusal | None = None
    reserve_fails_with: Refusal | None = None
    rate_limit: RateLimitState | None = None
    checked: list[int] = field(default_factory=list)
    reserved: list[int] = field(default_factory=list)
    reserved_for: list[KeyPolicy] = field(default_factory=list)
    settled: list[int | None] = field(default_factory=list)
    on_check: Callable[[], None] = lambda: None
    """Called while a request is being checked."""

    async def check(self, key: KeyPolicy, estimate: int) -> None:
        self.checked.append(estimate)
        self.on_check()
        if self.check_fails_with is not None:
            raise self.check_fails_with

    async def reserve(self, key: KeyPolicy, estimate: int) -> Reservation:
        if self.reserve_fails_with is not None:
            raise self.reserve_fails_with
        self.reserved.append(estimate)
        self.reserved_for.append(key)
        return Reservation("r", key.tenant.id, estimate, None, (), self.rate_limit)

    async def settle(self, reservation: Reservation, actual: int | None) -> None:
        self.settled.append(actual)


class Permit:
    """One request's way through `Gate`."""

    def __init__(self, gate: Gate, ask: Ask) -> None:
        self._gate = gate
        self.ask = ask
        self.admission: Literal["fast", "queued"] = "fast"
        self.queue_ms = 0.0
        self.slot: Literal["new", "held"] = "new"
        self.was_undone = False
        self.has_failed = False
        self.refusal: Refusal | None = None
        self.turn: asyncio.Future[None] | None = None

    def undo(self) -> None:
        self.was_undone = True

    def fail(self) -> None:
        self.has_failed = True

    async def __aenter__(self) -> Self:
        gate = self._gate
        if gate.is_closed:
            raise ShuttingDown
        if gate.running >= gate.slots:
            self.admission, self.queue_ms = "queued", 12.6
            self.turn = asyncio.get_running_loop().create_future()
            gate.queue.append(self)
            gate.changed.set()
            try:
                await self.turn
            finally:
                if self in gate.queue:
                    gate.queue.remove(self)
                gate.changed.set()
            if self.refusal is not None:
                raise self.refusal
        gate.running += 1
        gate.peak = max(gate.peak, gate.running)
        gate.admitted.append(self)
        gate.changed.set()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._gate.on_release()
        self._gate.running -= 1
        self._gate.left.append(self)
        self._gate.changed.set()
        self._gate.next()


class Gate:
    """Admission in order of arrival, to a fixed number of slots."""

    def __init__(self, slots: int = 100) -> None:
        self.slots = slots
        self.running = 0
        self.peak = 0
        self.is_closed = False
        self.queue: deque[Permit] = deque()
        self.admitted: list[Permit] = []
        self.left: list[Permit] = []
        self.changed = asyncio.Event()
        self.on_release: Callable[[], None] = lambda: None
        """Called in the moment a slot is given back."""

    def admit(self, ask: Ask) -> Permit:
        return Permit(self, ask)

    def next(self) -> None:
        if self.queue and self.running < self.slots:
            permit = self.queue.popleft()
            assert permit.turn is not None
            if not permit.turn.done():
                permit.turn.set_result(None)

    def refuse_waiting(self, refusal: Refusal) -> None:
        for permit in list(self.queue):
            permit.refusal = refusal
            assert permit.turn is not None
            permit.turn.set_result(None)

    async def until(self, condition: Callable[[Gate], bool], within: float = 30.0) -> None:
        async with asyncio.timeout(within):
            while not condition(self):
                self.changed.clear()
                await self.changed.wait()

    @asynccontextmanager
    async def busy(self) -> AsyncIterator[None]:
        """All slots taken for as long as the block runs."""
        before, self.slots = self.slots, 0
        try:
            yield
        finally:
            self.slots = before
            self.next()


class Observations:
    """`Observer` that can be waited for."""

    def __init__(self) -> None:
        self.finished: list[FinishedRequest] = []
        self._changed = asyncio.Event()

    def request_finished(self, request: FinishedRequest) -> None:
        self.finished.append(request)
        self._changed.set()

    async def last(self, count: int = 1, within: float = 30.0) -> FinishedRequest:
        """The last record, once there are `count`."""
        async with asyncio.timeout(within):
            while len(self.finished) < count:
                self._changed.clear()
                await self._changed.wait()
        assert len(self.finished) == count
        return self.finished[-1]
