"""The per-minute budget of one tenant: a bucket of tokens that fills as time passes.

All in whole numbers, so that a wait worked out from a bucket is exact and nothing is lost in
rounding however often it is asked. The unit is 1/60,000 token: a bucket of `size` tokens a minute
gains `size` units each millisecond. Sizes up to 10^11 tokens a minute stay below 2^53, so a store
that only knows doubles gets the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

UNITS_PER_TOKEN: Final = 60_000
"""One token, counted in what a bucket of one token a minute gains each millisecond."""
DEBT_MINUTES_MAX: Final = 60
"""The most minutes of refill that settling may put a bucket in debt. Whatever an upstream claims to
have used, the tenant is back after an hour."""


@dataclass(slots=True)
class TokenBucket:
    """A bucket and the moment it was last brought up to date. Times are whole milliseconds.

    Every method but `advance` works on the bucket as it stands: call `advance` first. The level is
    negative while a debt is paid off.
    """

    size: int
    """Tokens a minute, and the most the bucket holds. At least 1."""
    level: int
    """What is in it, in units of 1/60,000 token."""
    at_ms: int

    @classmethod
    def full(cls, size: int, now_ms: int) -> Self:
        """A bucket nobody has used: it starts full."""
        assert size >= 1, "a bucket without a size would let everything pass"
        return cls(size, size * UNITS_PER_TOKEN, now_ms)

    @property
    def capacity(self) -> int:
        return self.size * UNITS_PER_TOKEN

    @property
    def is_full(self) -> bool:
        """Whether forgetting the bucket loses nothing: a new one would be the same."""
        return self.level == self.capacity

    def advance(self, now_ms: int, size: int) -> None:
        """Refill up to `now_ms` and take on the size in force.

        A clock that goes back gives nothing and takes nothing. A new size keeps what is in the
        bucket in proportion (half full stays half full, empty stays empty), so that moving a limit
        up and down mints no tokens; a debt stays the debt it is.
        """
        if now_ms > self.at_ms:
            self.level = min(self.capacity, self.level + self.size * (now_ms - self.at_ms))
            self.at_ms = now_ms
        if size != self.size:
            if self.level > 0:
                self.level = self.level * size // self.size
            self.size = size

    def wait_ms(self, estimate: int) -> int:
        """Milliseconds until a request of `estimate` tokens passes; 0 when it passes now.

        One larger than the whole bucket passes when the bucket is full.
        """
        missing = min(estimate, self.size) * UNITS_PER_TOKEN - self.level
        return 0 if missing <= 0 else -(-missing // self.size)

    def take(self, estimate: int) -> None:
        """Take a reservation. More than is there leaves a debt that later refills pay off."""
        self.level -= estimate * UNITS_PER_TOKEN

    def correct(self, estimate: int, actual: int) -> None:
        """Replace a reservation of `estimate` by what was used: give back or take the difference.

        What is given back never overfills the bucket; what is taken puts it in debt by at most
        `DEBT_MINUTES_MAX` minutes of refill, unless its reservations had put it deeper already.
        """
        level = self.level + (estimate - actual) * UNITS_PER_TOKEN
        if actual > estimate:
            deepest = min(self.level, -DEBT_MINUTES_MAX * self.capacity)
            self.level = max(level, deepest)
        else:
            self.level = min(level, self.capacity)

    @property
    def remaining(self) -> int:
        """Whole tokens that could be taken now."""
        return max(0, self.level // UNITS_PER_TOKEN)

    @property
    def reset_ms(self) -> int:
        """Milliseconds until the bucket is full again."""
        return -((self.level - self.capacity) // self.size)


def whole_secs(wait_ms: int) -> int:
    """A wait as `Retry-After` states it: whole seconds, rounded up, at least 1."""
    return max(1, -(-wait_ms // 1000))
