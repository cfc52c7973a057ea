"""The log of everything the backend was asked: what tests hold against what others say happened."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from obleth.backend.options import BackendOptions
from obleth.backend.prefix_cache import PrefixCache
from obleth.backend.slots import Place, Slots
from obleth.backend.switches import TENANT_HEADER

SECRET_HEADERS: Final = frozenset({"authorization", "x-api-key", "cookie", "proxy-authorization"})
_SESSION_HEADER: Final = "x-obleth-session-id"


class Outcome(StrEnum):
    """How a request ended."""

    FINISHED = "finished"
    """Everything was worked out and handed to the network."""
    CLIENT_LEFT = "client_left"
    """The connection was closed from the other side first."""
    CUT = "cut"
    """The backend broke off, because it was told to or because it was stopped."""
    FAILED = "failed"
    """Answered with an error."""


@dataclass(slots=True, eq=False)
class RequestRecord:
    """One request. Times are seconds of the loop's clock; a machine's processes share it."""

    number: int
    """Also sent as `x-sim-record` with the answer."""
    method: str
    path: str
    """With its query."""
    arrived: float
    raw_headers: tuple[tuple[bytes, bytes], ...] = field(repr=False)
    model: str = ""
    stream: bool = False
    started: float | None = None
    """When it got its slot."""
    first_token: float | None = None
    ended: float | None = None
    outcome: Outcome | None = None
    """None while it lasts."""
    status: int | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    """Tokens worked out, also when not all of them reached the client."""
    body: bytes | None = field(default=None, repr=False)

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Every header line as it came, names in lower case."""
        return [
            (name.decode("latin-1").lower(), value.decode("latin-1"))
            for name, value in self.raw_headers
        ]

    def header(self, name: str) -> str | None:
        """The first value of a header (name in lower case)."""
        wanted = name.encode()
        for raw, value in self.raw_headers:
            if raw.lower() == wanted:
                return value.decode("latin-1")
        return None

    @property
    def request_id(self) -> str | None:
        return self.header("x-request-id")

    @property
    def tenant(self) -> str | None:
        """Who sent it, where the sender says so in `x-sim-tenant`."""
        return self.header(TENANT_HEADER)

    @property
    def session(self) -> str | None:
        return self.header(_SESSION_HEADER)

    def as_json(self) -> dict[str, Any]:
        """Everything but the body; credentials are masked."""
        fields = ("number", "method", "path", "model", "stream", "request_id", "tenant", "session")
        times = ("arrived", "started", "first_token", "ended", "outcome", "status")
        counts = ("prompt_tokens", "cached_tokens", "output_tokens")
        found = {name: getattr(self, name) for name in (*fields, *times, *counts)}
        found["headers"] = [
            (name, "…" if name in SECRET_HEADERS else value) for name, value in self.headers
        ]
        return found


class Pool:
    """One model's slots, cache and counts."""

    def __init__(self, options: BackendOptions) -> None:
        self.slots = Slots(options.slots)
        self.cache = PrefixCache(options.cache_tokens, options.block_tokens)
        self.reset()

    def reset(self) -> None:
        """Start the counts again and empty the cache; what runs or waits goes on."""
        self.slots.forget_peaks()
        self.cache.clear()
        self.ended = dict.fromkeys(Outcome, 0)
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.output_tokens = 0

    def as_json(self) -> dict[str, Any]:
        slots = self.slots
        return {
            "slots": slots.size,
            "running": slots.running,
            "waiting": slots.waiting,
            "peak": slots.peak,
            "peak_present": slots.peak_present,
            **{outcome.value: number for outcome, number in self.ended.items()},
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "output_tokens": self.output_tokens,
            "cache_used_tokens": self.cache.used_tokens,
        }


class Ledger:
    """Opens an account for each request, and tells whoever watches of every change."""

    def __init__(self, options: BackendOptions) -> None:
        self._options = options
        self._number = 0
        self.log: deque[RequestRecord] = deque(maxlen=options.log_length)
        self.pools: dict[str, Pool] = {}
        self.open: set[Account] = set()
        self._watchers: set[asyncio.Event] = set()

    def account(
        self, method: str, path: str, raw_headers: tuple[tuple[bytes, bytes], ...]
    ) -> Account:
        self._number += 1
        now = asyncio.get_running_loop().time()
        record = RequestRecord(self._number, method, path, now, raw_headers)
        self.log.append(record)
        account = Account(self, record)
        self.open.add(account)
        self.changed()
        return account

    def pool(self, model: str) -> Pool:
        pool = self.pools.get(model)
        if pool is None:
            pool = self.pools[model] = Pool(self._options)
        return pool

    def reset(self) -> None:
        """Empty the log, the caches and the counts; what runs or waits goes on and is kept."""
        kept = sorted((account.record for account in self.open), key=lambda record: record.number)
        self.log.clear()
        self.log.extend(kept)
        live = {record.model for record in kept}
        for model in list(self.pools):
            if model in live:
                self.pools[model].reset()
            else:
                del self.pools[model]
        self.changed()

    def changed(self) -> None:
        for watcher in self._watchers:
            watcher.set()

    async def until(self, condition: Callable[[], bool], within: float) -> None:
        """Return when a condition on the log or the figures holds. Raises TimeoutError."""
        watcher = asyncio.Event()
        self._watchers.add(watcher)
        try:
            async with asyncio.timeout(within):
                while not condition():
                    watcher.clear()
                    await watcher.wait()
        finally:
            self._watchers.discard(watcher)


class Account:
    """One request's dealings with the ledger: its record, its place, and its end, once."""

    def __init__(self, ledger: Ledger, record: RequestRecord) -> None:
        self._ledger = ledger
        self._place: Place | None = None
        self._pool: Pool | None = None
        self.record = record

    async def start(self, pool: Pool) -> None:
        """Wait for a slot. Cancelled when the account is closed meanwhile."""
        # The next pass of the loop, so that a connection whose end reached the socket before this
        # request did has given its slot back first: closed and running must never look alike.
        await asyncio.sleep(0)
        if self.record.outcome is not None:
            raise asyncio.CancelledError
        self._pool = pool
        self._place = pool.slots.ask()
        self._ledger.changed()
        await self._place.ready()
        self.record.started = asyncio.get_running_loop().time()
        self._ledger.changed()

    def first_token(self) -> None:
        if self.record.first_token is None:
            self.record.first_token = asyncio.get_running_loop().time()

    def close(self, outcome: Outcome) -> None:
        """Write the end down and give the slot back, in the same instant. Only the first counts."""
        record = self.record
        if record.outcome is not None:
            return
        record.outcome = outcome
        record.ended = asyncio.get_running_loop().time()
        if self._pool is not None:
            self._pool.ended[outcome] += 1
            self._pool.prompt_tokens += record.prompt_tokens
            self._pool.cached_tokens += record.cached_tokens
            self._pool.output_tokens += record.output_tokens
        if self._place is not None:
            self._place.give_back()
        self._ledger.open.discard(self)
        self._ledger.changed()
