"""How often a wrong token may be given at login."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

AT_ONCE: Final = 5
"""Wrong tokens from one address without a pause."""
PAUSE_SECS: Final = 12.0
"""After them, one more for each pause."""
ADDRESSES: Final = 10_000
"""Remembered at most; the oldest are forgotten first."""


class LoginLimit:
    """Counts wrong tokens by network address. `now`: seconds, of any clock that runs on."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._clear_at: dict[str, float] = {}
        """When an address will have paused enough for everything it got wrong."""

    def wait_secs(self, address: str) -> float:
        """How long until this address may try again; 0: now."""
        behind = self._clear_at.get(address, 0.0) - self._now()
        return max(0.0, behind - (AT_ONCE - 1) * PAUSE_SECS)

    def failed(self, address: str) -> None:
        now = self._now()
        clear_at = max(now, self._clear_at.pop(address, now)) + PAUSE_SECS
        if len(self._clear_at) >= ADDRESSES:
            del self._clear_at[next(iter(self._clear_at))]
        self._clear_at[address] = clear_at
