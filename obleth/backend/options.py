"""What a simulated backend is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from obleth.backend.switches import HEALTHY, Faults


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """Left as it is: a healthy backend that answers everything at once.

    Raises ValueError, naming the field, when a value makes no sense.
    """

    host: str = "127.0.0.1"
    port: int = 0
    """0 takes a free port."""
    models: tuple[str, ...] = ("sim-model",)
    """What `/v1/models` lists."""
    only_listed: bool = False
    """Answer 404 for any other model; otherwise every name is served."""
    api_key: str | None = field(default=None, repr=False)
    """What `Authorization: Bearer` or `x-api-key` must carry; None: nobody is asked."""
    slots: int | None = None
    """Requests of one model that run at once; the others wait inside. None: no limit."""
    prefill_secs_per_token: float = 0.0
    """Time each prompt token costs that is not cached."""
    token_secs: float = 0.0
    """Time each output token takes."""
    speed: float = 1.0
    """How much faster than real time; divides the two above."""
    block_tokens: int = 16
    cache_tokens: int = 0
    """Prefix cache of each model; 0: none."""
    reply_tokens: int = 64
    """Length of a reply to a request that sets no limit; one that does gets exactly that much."""
    longest_reply_tokens: int = 8192
    """No request's own limit goes above it."""
    keep_alive_secs: float = 75.0
    """How long an idle connection is kept open."""
    faults: Faults = HEALTHY
    model_faults: Mapping[str, Faults] = field(default_factory=dict)
    log_length: int = 100_000
    """Requests kept in the log; the oldest go first."""
    keep_bodies: bool = False
    """Keep request bodies in the log too."""

    def __post_init__(self) -> None:
        whole = ("block_tokens", "longest_reply_tokens", "log_length")
        for name in whole:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        amounts = ("prefill_secs_per_token", "token_secs", "cache_tokens", "reply_tokens")
        for name in amounts:
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must not be negative")
        for name in ("speed", "keep_alive_secs"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be greater than 0")
        if self.slots is not None and self.slots < 1:
            raise ValueError("slots must be at least 1")
        if not 0 <= self.port <= 65535:
            raise ValueError("port must be 0…65535")
        if not self.models or not all(self.models):
            raise ValueError("models must name at least one model")
