"""Clients of a fleet, and what became of each of their requests."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Any, Protocol, Self

import aiohttp

SECS = (0.3, 0.7)
"""How long the backend takes for a request."""
LEAVERS = 0.1
"""How many of the clients go away before their request has ended."""
PATIENCE_SECS = 60.0
"""After which a request counts as one that never ends."""


class End(StrEnum):
    """How a request ended, as its client saw it."""

    WHOLE = "whole"
    REFUSED = "refused"
    """An error in JSON, and its status."""
    ERROR_EVENT = "error event"
    LEFT = "left"
    """The client went away itself."""
    LOST = "lost"
    """The connection ended and nothing had been said: only where a replica was killed."""
    UNREACHED = "unreached"
    """Nobody took the connection."""


@dataclass(slots=True)
class Request:
    """One request and what its client was told. `status` is None without a head of an answer."""

    model: str
    secret: str
    id: str
    stream: bool = True
    secs: float = 0.3
    """How long the backend takes for it."""
    leaves_after: float = PATIENCE_SECS
    end: End = End.LOST
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = field(default=b"", repr=False)

    async def make(self, session: aiohttp.ClientSession, url: str) -> Self:
        """Send it to a replica and follow it to its end."""
        try:
            async with asyncio.timeout(self.leaves_after):
                await self._follow(session, url)
        except TimeoutError:
            self.end = End.LEFT
        except aiohttp.ClientConnectorError:
            self.end = End.UNREACHED
        except aiohttp.ClientError:
            # After an error event the connection is cut, so that nobody takes it for the end.
            self.end = End.ERROR_EVENT if b'"error"' in self.body else End.LOST
        return self

    async def _follow(self, session: aiohttp.ClientSession, url: str) -> None:
        headers = {
            "authorization": f"Bearer {self.secret}",
            "x-request-id": self.id,
            "x-sim-first-token-ms": f"{self.secs * 1000:.0f}",
        }
        body = {"model": self.model, "stream": self.stream, "max_tokens": 3, "messages": HELLO}
        async with session.post(f"{url}/v1/chat/completions", headers=headers, json=body) as answer:
            self.status, self.headers = answer.status, answer.headers
            async for chunk in answer.content.iter_any():
                self.body += chunk
        self.end = self._judged()

    def _judged(self) -> End:
        if self.status != 200:
            return End.REFUSED if "error" in json.loads(self.body) else End.LOST
        if b"data: [DONE]" in self.body:
            return End.WHOLE
        if self.stream:
            return End.ERROR_EVENT if b'"error"' in self.body else End.LOST
        return End.WHOLE if "choices" in json.loads(self.body) else End.LOST


HELLO: list[Any] = [{"role": "user", "content": "Hello"}]


class Target(Protocol):
    """A replica, as clients know it."""

    @property
    def url(self) -> str: ...


def session() -> aiohttp.ClientSession:
    """One connection a request: a replica that goes takes no other request with it."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None))


class Load:
    """Clients that ask again as soon as they were answered, until the end of the block.

    `clients` says how many each model has; each goes round the replicas. One in ten requests is
    left by its client, one in two streams.
    """

    _numbers = itertools.count(1)

    def __init__(
        self,
        session: aiohttp.ClientSession,
        replicas: Sequence[Target],
        secrets: Sequence[str],
        clients: Mapping[str, int],
        seed: int,
    ) -> None:
        self.requests: list[Request] = []
        self._session = session
        self._replicas = replicas
        self._secrets = secrets
        self._clients = clients
        self._random = random.Random(seed)
        self._is_over = False
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        names = [name for name, number in self._clients.items() for _ in range(number)]
        self._random.shuffle(names)
        self._tasks = [
            asyncio.create_task(self._ask_on(model, number)) for number, model in enumerate(names)
        ]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Let what was asked end."""
        self._is_over = True
        if error is not None:
            for task in self._tasks:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=error is not None)

    @property
    def ends(self) -> Counter[End]:
        return Counter(one.end for one in self.requests)

    async def _ask_on(self, model: str, number: int) -> None:
        draw = self._random
        for turn in itertools.count(number):
            if self._is_over:
                return
            request = Request(
                model,
                self._secrets[turn % len(self._secrets)],
                f"request-{next(self._numbers)}",
                stream=draw.random() < 0.5,
                secs=draw.uniform(*SECS),
            )
            if draw.random() < LEAVERS:
                request.leaves_after = draw.uniform(0.01, 0.5)
            await request.make(self._session, self._replicas[turn % len(self._replicas)].url)
            if request.end is End.UNREACHED:
                await asyncio.sleep(0.05)
            else:
                self.requests.append(request)
