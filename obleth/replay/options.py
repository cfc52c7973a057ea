"""What a replay is told: the trace, the gateway, who sends, and how fast."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from obleth.replay.errors import BadOptions


class Assignment(StrEnum):
    """Which tenant sends a session. Traces name none, so one is made up and the report says how."""

    ROUND_ROBIN = "round-robin"
    RANDOM = "random"
    """Seeded, all tenants alike."""
    SESSION = "session"
    """By a hash of the session's name: the same in every run and for any number of rows."""


@dataclass(frozen=True, slots=True)
class TenantKey:
    """One sender: a name for the report, its key, and the weight its share is held against."""

    name: str
    key: str = field(repr=False)
    weight: int = 100

    @classmethod
    def parse(cls, text: str) -> Self:
        """`name=key` or `name:weight=key`. Raises BadOptions, which never shows the key."""
        label, equals, key = text.partition("=")
        name, colon, weight = label.partition(":")
        if not equals or not name or not key:
            raise BadOptions(f"{label!r}: a tenant is given as name=key or name:weight=key")
        if colon and not (weight.isascii() and weight.isdigit() and int(weight) > 0):
            raise BadOptions(f"{label!r}: {weight!r} is not a weight; it is a whole number above 0")
        return cls(name, key, int(weight) if colon else 100)


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """Raises BadOptions when a value makes no sense."""

    trace: Path
    url: str
    """The gateway, with or without `/v1`."""
    tenants: tuple[TenantKey, ...]
    model: str | None = None
    """None: the one model that the keys may use."""
    assign: Assignment | None = None
    """None: by session where the trace has sessions, else round robin."""
    seed: int = 1
    speed: float = 1.0
    """How much faster than recorded; divides arrivals and delays, never what a request takes."""
    limit: int | None = None
    """Rows of the trace that are used."""
    max_sessions: int | None = None
    max_steps: int | None = None
    closed_loop: int | None = None
    """Instead of the recorded arrivals, every tenant keeps this many sessions going."""
    duration_secs: float | None = None
    """Begin nothing more after so many seconds of real time."""
    token_scale: float = 1.0
    """Factor on prompt lengths, and on output lengths unless `output_scale` is set."""
    output_scale: float | None = None
    start_spread_secs: float | None = None
    """Sessions of an agentic trace all start at 0; they are spread at random over this much trace
    time. None: one second for each."""
    max_outstanding: int = 1000
    """Requests under way at once; arrivals beyond it are late, and the report says by how much."""
    timeout_secs: float = 600.0
    """Longest silence of one response."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadOptions(f"{self.url!r} is not an http(s) URL")
        if not self.tenants:
            raise BadOptions("give at least one tenant as name=key or name:weight=key")
        names = [tenant.name for tenant in self.tenants]
        if len(set(names)) < len(names):
            raise BadOptions("every tenant needs a name of its own")
        for name in ("limit", "max_sessions", "max_steps", "closed_loop", "max_outstanding"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise BadOptions(f"{name.replace('_', '-')} must be at least 1")
        for name in ("speed", "duration_secs", "token_scale", "output_scale", "timeout_secs"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise BadOptions(f"{name.replace('_', '-')} must be greater than 0")
        spread = self.start_spread_secs
        if spread is not None and not (math.isfinite(spread) and spread >= 0):
            raise BadOptions("start-spread-secs must not be negative")

    @property
    def base_url(self) -> str:
        """The gateway's URL with `/v1`, without a slash at its end."""
        return self.url.rstrip("/").removesuffix("/v1") + "/v1"
