"""A source of policy that can be slow, broken or away, and a clock moved by hand."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dataplane.policy.cache import PolicyCache
from dataplane.policy.source import SourceUnavailable
from shared.invalidation import Invalidation, Kind
from shared.policy import GroupPolicy, KeyPolicy, ModelPolicy, TenantPolicy
from shared.secrets import key_digest

PEPPER = "pepper"


def secret(name: str) -> str:
    return f"sk-{name}"


@dataclass
class Source:
    """A `PolicySource` in memory. Each answer is what was stored when the question *began*."""

    stored: dict[str, KeyPolicy] = field(default_factory=dict)
    registered: dict[str, ModelPolicy] = field(default_factory=dict)
    number: int = 0
    problem: str | None = None
    away: bool = False
    held: asyncio.Event | None = None
    """While set to an event, answers wait for it."""
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    asked: Counter[str] = field(default_factory=Counter)
    at_once: int = 0
    at_once_max: int = 0

    async def revision(self) -> int:
        return await self._answer("revision", self.number)

    async def schema_problem(self) -> str | None:
        return await self._answer("schema", self.problem)

    async def key(self, digest: str) -> KeyPolicy | None:
        return await self._answer("key", self.stored.get(digest))

    async def models(self) -> Sequence[ModelPolicy]:
        return await self._answer("models", list(self.registered.values()))

    async def _answer(self, question: str, answer: Any) -> Any:
        self.asked[question] += 1
        self.at_once += 1
        self.at_once_max = max(self.at_once_max, self.at_once)
        self.begun.set()
        try:
            if self.held is not None:
                await self.held.wait()
            else:
                await asyncio.sleep(0)
            if self.away:
                raise SourceUnavailable("away")
            return answer
        finally:
            self.at_once -= 1


@dataclass
class World:
    """A cache over a source; changes are stored, numbered and, unless lost, told."""

    options: dict[str, Any] = field(default_factory=dict)
    now: float = 1000.0
    wall: float = 1_900_000_000.0

    def __post_init__(self) -> None:
        self.source = Source()
        self.put_model("m1", id="model-1", aliases=("alias-1",))
        self.cache = PolicyCache(
            self.source,
            pepper=PEPPER,
            clock=lambda: self.now,
            wall=lambda: self.wall,
            **{"capacity": 1000, "stale_secs": 3600.0, **self.options},
        )

    def passes(self, secs: float) -> None:
        self.now += secs
        self.wall += secs

    def put(self, name: str, *, tenant: str = "t1", group: str = "g1", **fields: Any) -> KeyPolicy:
        """Store a key without telling anyone."""
        digest = key_digest(secret(name), PEPPER)
        of = TenantPolicy(tenant, f"name of {tenant}", GroupPolicy(group))
        key = KeyPolicy(name, f"name of {name}", of, digest=digest)
        self.source.stored[digest] = replace(key, **fields)
        self.source.number += 1
        return self.source.stored[digest]

    def remove(self, name: str) -> None:
        del self.source.stored[key_digest(secret(name), PEPPER)]
        self.source.number += 1

    def put_model(self, name: str, **fields: Any) -> ModelPolicy:
        """Store a model without telling anyone."""
        model = replace(ModelPolicy(f"id of {name}", name), **fields)
        self.source.registered[model.id] = model
        self.source.number += 1
        return model

    def told(self, kind: Kind, id_: str = "") -> None:
        """The invalidation of the newest change arrives."""
        self.cache.invalidate(Invalidation(kind, id_, self.source.number))

    async def key(self, name: str) -> KeyPolicy:
        """As a request asks: the fast path, then the other."""
        known = self.cache.cached_key(secret(name))
        return known if known is not None else await self.cache.key(secret(name))

    def hold(self) -> asyncio.Event:
        """Answers wait from now on, until the event is set."""
        self.source.begun.clear()
        self.source.held = asyncio.Event()
        return self.source.held

    def release(self) -> None:
        """What waits may answer, and nothing waits from now on."""
        held, self.source.held = self.source.held, None
        if held is not None:
            held.set()
