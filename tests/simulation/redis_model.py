"""A model of the books: what each script does to Redis, in plain Python and with the time as an
argument.

`tests/contract/test_slots.py` holds it to the real scripts on a real server. It takes the same
script calls and gives the same replies, so everything above a `ScriptRunner` runs on it unchanged.
Nothing here waits or fails; whoever simulates faults decides when a call is carried out, how often,
and whether its reply arrives.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from dataplane.scripts import ScriptCall

Set = dict[str, int]
"""Claim id → end of its lease, in ms."""
Hash = dict[str, str]


class WrongType(Exception):
    """A key holds something else than the script expects; the script stopped where it was."""


class RedisModel:
    """One server: its keys, and what was published on its channel."""

    def __init__(self) -> None:
        self.keys: dict[str, Set | Hash | str] = {}
        self.published: list[dict[str, object]] = []
        self._expiry: dict[str, int] = {}
        self._now = 0

    def run(self, call: ScriptCall, now: int) -> Any:
        """Carry out one script at `now`, in ms of the server's clock. Raises `WrongType`."""
        self.expire(now)
        script: Callable[[tuple[str, ...], tuple[str, ...]], Any] = {
            "claim": self._claim,
            "release": self._release,
            "heartbeat": self._heartbeat,
            "assert": self._assert,
            "reclaim": self._reclaim,
            "settle": self._settle,
            "leave": self._leave,
        }[call.script]
        return script(call.keys, call.args)

    def expire(self, now: int) -> None:
        """Let it be `now`: keys whose life is over go."""
        self._now = now
        for key in [key for key, end in self._expiry.items() if end <= now]:
            self._delete(key)

    def flush(self) -> None:
        """Forget everything, as a restart without persistence does."""
        self.keys.clear()
        self._expiry.clear()

    def set_text(self, key: str, text: str) -> None:
        """Put something of the wrong type under a key."""
        self._delete(key)
        self.keys[key] = text

    def leases(self, key: str) -> Set:
        """What a set of the books has, lapsed or not. For reading only. Raises `WrongType`."""
        return self._set(key)

    # The scripts

    def _claim(self, keys: tuple[str, ...], args: tuple[str, ...]) -> list[list[str]]:
        lease = self._lease_of(keys[0], args[0])
        return [
            [self._claim_one(lease, keys, keys[k : k + 6], args[a : a + 6], int(args[1]))]
            for k, a in zip(range(4, len(keys), 6), range(2, len(args), 6), strict=True)
        ]

    def _claim_one(
        self,
        lease: int | None,
        shared: tuple[str, ...],
        keys: tuple[str, ...],
        args: tuple[str, ...],
        mark_life: int,
    ) -> str:
        id, note, *limits = args
        if lease is None:
            return "not_live"
        if self._set(keys[0]).get(id, 0) > self._now:
            return "granted"
        sets = (keys[0], shared[1], keys[1], keys[2])
        marks = (keys[3], shared[3], keys[4], keys[5])
        names = ("pool", "ceiling", "tenant", "key")
        for name, key, most, mark in zip(names, sets, limits, marks, strict=True):
            if most and self._is_full(key, int(most)):
                self.set_text(mark, "1")
                self._expiry[mark] = self._now + mark_life
                return name
        self._note(shared[2], id, note)
        self._keep(shared[2], lease)
        for key in sets:
            self._add(key, id, lease)
        return "granted"

    def _release(self, keys: tuple[str, ...], args: tuple[str, ...]) -> list[int]:
        found = []
        for k, a in zip(range(3, len(keys), 6), range(1, len(args), 2), strict=True):
            id, pool = args[a : a + 2]
            removed = [self._remove(key, id) for key in (keys[0], *keys[k : k + 3])]
            self._unnote(keys[1], id)
            if any(removed):
                self._announce(pool, (keys[2], *keys[k + 3 : k + 6]))
            found.append(int(any(removed)))
        return found

    def _announce(self, pool: str, marks: tuple[str, ...]) -> None:
        ceiling = marks[0] in self.keys
        if [self._delete(mark) for mark in marks if mark in self.keys]:
            self.published.append({"pool": pool, "ceiling": ceiling})

    def _heartbeat(self, keys: tuple[str, ...], args: tuple[str, ...]) -> list[Any]:
        replica, ttl, layout, complete, _ = args
        for key in keys:
            if isinstance(self.keys.get(key), str) or not self._is_hash(key):
                self._delete(key)
        lapsed, asserted, longest = 1, "0", int(ttl)
        for name, record in list(self._hash(keys[0]).items()):
            heard, its_ttl, its_layout, its_asserted = record.split()
            if self._now - int(heard) >= int(its_ttl):
                self._unnote(keys[0], name)
                continue
            longest = max(longest, int(its_ttl))
            if int(heard) > self._now:
                renewed = f"{self._now} {its_ttl} {its_layout} {its_asserted}"
                self._note(keys[0], name, renewed)
            if name == replica:
                lapsed = 0
                if complete == "1" and its_layout == layout:
                    asserted = its_asserted
        self._note(keys[0], replica, f"{self._now} {ttl} {layout} {asserted}")
        self._expiry[keys[0]] = self._now + 2 * longest
        if keys[1] in self.keys:
            self._keep(keys[1], int(ttl))
        if lapsed:
            self.published.append({"replica": replica})
        return [lapsed, longest, *self._flat(keys[1])]

    def _assert(self, keys: tuple[str, ...], args: tuple[str, ...]) -> list[str]:
        record = self._hash(keys[0]).get(args[0], "0 0 0 0").split()
        lease = int(record[1])
        if self._now - int(record[0]) >= lease:
            return ["not_live"]
        missing = []
        for k, a in zip(range(3, len(keys), 3), range(1, len(args), 2), strict=True):
            id, note = args[a : a + 2]
            added = [self._note(keys[2], id, note)]
            for key in (keys[1], *keys[k : k + 3]):
                if not self._is_set(key):
                    self._repair(key, keys[0])
                added.append(self._add(key, id, lease))
            if any(added):
                missing.append(id)
        if len(args) > 1:
            self._keep(keys[2], lease)
        return ["ok", *missing]

    def _reclaim(self, keys: tuple[str, ...], args: tuple[str, ...]) -> list[int]:
        latest = self._now + int(args[0])
        removed = []
        for key in keys[1:]:
            if not self._is_set(key):
                self._repair(key, keys[0])
            removed.append(self._purge(key))
            leases = self._set(key)
            for id, end in leases.items():
                leases[id] = min(end, latest)
        return removed

    def _settle(self, keys: tuple[str, ...], args: tuple[str, ...]) -> list[Any]:
        replica, layout, complete, _ = args
        roster = {name: record.split() for name, record in self._hash(keys[0]).items()}
        live = sorted(name for name, of in roster.items() if self._now - int(of[0]) < int(of[1]))
        if replica not in live:
            return ["not_live", [], []]
        mine = roster[replica]
        before, mine[3] = mine[3], "1" if complete == "1" and len(live) > 1 else "0"
        self._note(keys[0], replica, " ".join(mine))
        if (before, mine[3]) == ("0", "1"):
            self.published.append({"replica": replica})
        return ["ok", live, [name for name in live if roster[name][2:] == [layout, "1"]]]

    def _leave(self, keys: tuple[str, ...], args: tuple[str, ...]) -> list[str]:
        if self._unnote(keys[0], args[0]):
            self.published.append({"replica": args[0]})
        return self._flat(keys[1])

    # What the scripts have in common

    def _lease_of(self, roster: str, replica: str) -> int | None:
        heard, ttl, _, asserted = self._hash(roster).get(replica, "0 0 0 0").split()
        return int(ttl) if asserted == "1" and self._now - int(heard) < int(ttl) else None

    def _is_full(self, key: str, limit: int) -> bool:
        if len(self._set(key)) < limit:
            return False
        self._purge(key)
        return len(self._set(key)) >= limit

    def _repair(self, key: str, roster: str) -> None:
        self._delete(key)
        for name, record in list(self._hash(roster).items()):
            self._note(roster, name, f"{record[:-1]}0")

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

    def _add(self, key: str, id: str, lease: int) -> bool:
        leases = self._set(key)
        new = id not in leases
        leases[id] = self._now + lease
        self.keys[key] = leases
        self._keep(key, lease)
        return new

    def _remove(self, key: str, id: str) -> bool:
        leases = self._set(key)
        found = leases.pop(id, None) is not None
        if not leases:
            self._delete(key)
        return found

    def _purge(self, key: str) -> int:
        lapsed = [id for id, end in self._set(key).items() if end <= self._now]
        for id in lapsed:
            self._remove(key, id)
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
            self._delete(key)
        return found

    def _flat(self, key: str) -> list[str]:
        return [part for pair in self._hash(key).items() for part in pair]

    def _keep(self, key: str, lease: int) -> None:
        if self._expiry.get(key, 0) - self._now < lease:
            self._expiry[key] = self._now + 2 * lease

    def _delete(self, key: str) -> bool:
        self._expiry.pop(key, None)
        return self.keys.pop(key, None) is not None


class ModelScripts:
    """A `ScriptRunner` on a model: at once, and never failing."""

    def __init__(self, model: RedisModel, clock: Callable[[], int]) -> None:
        self._model: Final = model
        self._clock: Final = clock

    async def run(self, calls: Sequence[ScriptCall]) -> list[Any]:
        return [self._model.run(call, self._clock()) for call in calls]


def announced(messages: Sequence[str]) -> list[dict[str, object]]:
    """Messages of the real channel as the model keeps them."""
    return [json.loads(message) for message in messages]
