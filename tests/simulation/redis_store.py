"""What a Redis server keeps, in plain Python and with the time as an argument: sets of leases,
hashes and texts under keys that may expire, and what was published on its channel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

Set = dict[str, int]
"""Claim id → end of its lease, in ms."""
Hash = dict[str, str]


class WrongType(Exception):
    """A key holds something else than the script expects; the script stopped where it was."""


class RedisStore:
    """One server's keys, and the commands that scripts use on them."""

    def __init__(self) -> None:
        self.keys: dict[str, Set | Hash | str] = {}
        self.published: list[dict[str, object]] = []
        self._expiry: dict[str, int] = {}
        self.now = 0

    def expire(self, now: int) -> None:
        """Let it be `now`: keys whose life is over go."""
        self.now = now
        for key in [key for key, end in self._expiry.items() if end <= now]:
            self.delete(key)

    def flush(self) -> None:
        """Forget everything, as a restart without persistence does."""
        self.keys.clear()
        self._expiry.clear()

    def set_text(self, key: str, text: str) -> None:
        """Put something of the wrong type under a key."""
        self.delete(key)
        self.keys[key] = text

    def has(self, key: str, id: str) -> bool:
        """Whether a set has a lease; something else has none."""
        return self._is_set(key) and id in self._set(key)

    def leases(self, key: str) -> Set:
        """What a set of the books has, lapsed or not. For reading only. Raises `WrongType`."""
        return self._set(key)

    def hash_values(self, key: str, fields: Sequence[str]) -> list[str | None]:
        """HMGET."""
        values = self._hash(key) if self._is_hash(key) else {}
        return [values.get(field) for field in fields]

    # What lines and holds need

    def text_of(self, key: str) -> str | None:
        """GET."""
        value = self.keys.get(key)
        return value if isinstance(value, str) else None

    def hash_of(self, key: str) -> Hash:
        if not self._is_hash(key):
            self.delete(key)
        return self._hash(key)

    def write(self, key: str, field: str, value: str) -> None:
        self._note(key, field, value)

    def remove(self, key: str, field: str) -> None:
        self._unnote(key, field)

    def live(self, key: str, ms: int) -> None:
        self._expiry[key] = self.now + ms

    def publish(self, message: dict[str, object]) -> None:
        self.published.append(message)

    # Redis's own commands

    def _set(self, key: str) -> Set:
        if not self._is_set(key):
            raise WrongType(key)
        return cast("Set", self.keys.get(key, {}))

    def _hash(self, key: str) -> Hash:
        if not self._is_hash(key):
            raise WrongType(key)
        return cast("Hash", self.keys.get(key, {}))

    def _is_set(self, key: str) -> bool:
        value: Final = self.keys.get(key, {})
        return isinstance(value, dict) and all(isinstance(each, int) for each in value.values())

    def _is_hash(self, key: str) -> bool:
        value: Final = self.keys.get(key, {})
        return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())

    def add(self, key: str, id: str, lease: int) -> bool:
        leases = self._set(key)
        new = id not in leases
        leases[id] = self.now + lease
        self.keys[key] = leases
        self.keep(key, lease)
        return new

    def take_out(self, key: str, id: str) -> bool:
        leases = self._set(key)
        found = leases.pop(id, None) is not None
        if not leases:
            self.delete(key)
        return found

    def _purge(self, key: str) -> int:
        lapsed = [id for id, end in self._set(key).items() if end <= self.now]
        for id in lapsed:
            self.take_out(key, id)
        return len(lapsed)

    def _note(self, key: str, field: str, value: str) -> bool:
        fields = self._hash(key)
        new = field not in fields
        fields[field] = value
        self.keys[key] = fields
        return new

    def _unnote(self, key: str, field: str) -> bool:
        fields = self._hash(key)
        found = fields.pop(field, None) is not None
        if not fields:
            self.delete(key)
        return found

    def _flat(self, key: str) -> list[str]:
        return [part for pair in self._hash(key).items() for part in pair]

    def keep(self, key: str, lease: int) -> None:
        if self._expiry.get(key, 0) - self.now < lease:
            self._expiry[key] = self.now + 2 * lease

    def delete(self, key: str) -> bool:
        self._expiry.pop(key, None)
        return self.keys.pop(key, None) is not None
