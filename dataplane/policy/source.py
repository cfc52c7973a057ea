"""Where policy is read from, as the cache sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from shared.policy import KeyPolicy, ModelPolicy


class SourceUnavailable(Exception):
    """The database is away, or holds what this version cannot read. Later it may be back."""


class PolicySource(Protocol):
    """Reads policy as it is stored at the moment. Every method raises `SourceUnavailable`."""

    async def revision(self) -> int:
        """The number of the newest change."""

    async def schema_problem(self) -> str | None:
        """Why what is stored does not suit this build, and what to do; None when it does."""

    async def key(self, digest: str) -> KeyPolicy | None:
        """The key with this digest, disabled and expired ones included; None: there is none."""

    async def models(self) -> Sequence[ModelPolicy]:
        """All models, disabled ones included."""
