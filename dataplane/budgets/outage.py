"""Whether Redis answers, and when it is asked again: the first call that fails says so for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

RETRY_SECS: Final = 1.0
RETRY_SECS_MAX: Final = 8.0
CALM_SECS: Final = 15.0
"""An outage this long after the last one is a new one."""

Clock = Callable[[], float]


class Outage:
    """The state of it. PURE but for its clocks: `clock` is monotonic, `wall` is Unix time."""

    def __init__(self, clock: Clock, wall: Clock) -> None:
        self._clock: Final = clock
        self._wall: Final = wall
        self._is_on = False
        self._ended_at = clock() - CALM_SECS
        self._retry_secs = RETRY_SECS
        self._answers_since = wall()

    @property
    def is_on(self) -> bool:
        return self._is_on

    @property
    def retry_secs(self) -> float:
        """How long to wait before Redis is asked again: longer when it had only just come back."""
        return self._retry_secs

    @property
    def answers_since(self) -> float:
        """Since when there has been no outage, in Unix time."""
        return self._answers_since

    def begin(self) -> None:
        """A call was not answered."""
        self._is_on = True
        soon = self._clock() - self._ended_at < CALM_SECS
        self._retry_secs = min(2 * self._retry_secs, RETRY_SECS_MAX) if soon else RETRY_SECS

    def end(self) -> None:
        """Redis can be written again."""
        self._is_on = False
        self._ended_at = self._clock()
        self._answers_since = self._wall()
