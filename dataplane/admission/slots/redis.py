"""The fleet's books in Redis, as one replica keeps and repairs them.

**What is on the books.** A slot is a lease under its claim's id in four sorted sets: all slots, its
pool, its tenant in the pool, its key in the pool. A limit is reached when its set has that many
leases that have not lapsed. Nothing is ever counted up or down, so nothing can be counted twice or
fall below zero, and what nobody renews goes away by itself.

**Who renews.** Each replica, every heartbeat, everything it holds. Beside the leases it has an
index of its own ids, from which a heartbeat learns what the books have for it that it does not
hold: the grant whose answer was lost, the claim that a frozen server carried out late. That is
given back then, and nobody else's slot can be meant, because an id is never used twice.

**What a heartbeat must not do** is to undo what happens while it runs. A claim under way or just
granted is not among the holdings it was called with, and is left alone. A holding that ends while
it is being asserted is released once more at the end.

The order of a heartbeat's three steps matters: first the replica is live, then all it holds is on
the books, and only then does it count as asserted.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from redis.asyncio import Redis

from dataplane.admission.slots.port import (
    Answer,
    Claim,
    Heard,
    Holding,
    Reply,
    SlotsUnavailable,
)
from dataplane.admission.slots.scripts import ScriptRunner
from dataplane.scheduler.standing import Standing, Told
from dataplane.scripts import ScriptCall
from shared import redis_keys
from shared.redis import RedisUnavailable, round_trip
from shared.redis_keys import SlotKeys, escaped, unescaped

PER_CALL: Final = 64
"""Slots that one script call deals with at most: what bounds how long it holds up the server."""
SUSPECTS_MAX: Final = 512

T = TypeVar("T")


def loop_time() -> float:
    """The time of the loop that runs now, in seconds."""
    return asyncio.get_running_loop().time()


class RedisSlots:
    """See `Slots`. One for each replica.

    `replica` is its name, never used again by another process or after a restart; `ttl` how long it
    lives on without a heartbeat, in seconds. Heartbeats go by `heartbeats` where it is given, so
    that they need not queue behind requests. `clock` tells seconds.
    """

    def __init__(
        self,
        scripts: ScriptRunner,
        *,
        replica: str,
        ttl: float,
        keys: SlotKeys | None = None,
        channel: str = redis_keys.RELEASED,
        heartbeats: ScriptRunner | None = None,
        clock: Callable[[], float] = loop_time,
    ) -> None:
        self._scripts: Final = scripts
        self._heartbeats: Final = scripts if heartbeats is None else heartbeats
        self._replica: Final = replica
        self._ttl_ms: Final = round(ttl * 1000)
        self._keys: Final = SlotKeys() if keys is None else keys
        self._channel: Final = channel
        self._held: Final = self._keys.held(replica)
        self._clock: Final = clock
        self._in_flight: set[str] = set()
        """Claims whose answer is not here yet."""
        self._young: set[str] = set()
        """Claims made since the last heartbeat began and not known to have come to nothing."""
        self._ended: set[str] | None = None
        """What was released since the heartbeat under way began; None: none is under way."""
        self._giving_back: frozenset[str] = frozenset()
        """What the heartbeat under way found on the books that nobody held, and releases."""
        self._suspect: dict[str, None] = {}
        """Sets that refused a claim since the last heartbeat, or may not be sets at all: worth
        looking at."""

    async def exchange(
        self, releases: Sequence[Holding], claims: Sequence[Claim]
    ) -> Sequence[Reply]:
        """See `Slots`."""
        # A claim made anew after its answer was lost must not meet its own release.
        sent = [claim for claim in claims if claim.id not in self._giving_back]
        answers = await self._exchange(releases, sent)
        if len(sent) == len(claims):
            return answers
        answered = dict(zip((claim.id for claim in sent), answers, strict=True))
        return [answered.get(claim.id, Reply(Answer.POOL)) for claim in claims]

    async def _exchange(
        self, releases: Sequence[Holding], claims: Sequence[Claim]
    ) -> Sequence[Reply]:
        for holding in releases:
            self._young.discard(holding.id)
            if self._ended is not None:
                self._ended.add(holding.id)
        ids = {claim.id for claim in claims}
        self._in_flight |= ids
        self._young |= ids
        lost = True
        began = self._clock()
        try:
            claimed_in = {claim.pool for claim in claims}
            calls = [*self._release_calls(releases, claimed_in), *self._claim_calls(claims)]
            replies = await self._scripts.run(calls)
            if self._clock() - began >= self._ttl_ms / 1000:
                raise SlotsUnavailable("this replica stood still; what it was granted has lapsed")
            claimed = replies[len(replies) - _batch_count(claims) :]
            answers = [_reply(reply) for batch in claimed for reply in batch]
            lost = False
        finally:
            self._in_flight -= ids
            if lost:
                self._young -= ids
                slots: list[Claim | Holding] = [*releases, *claims]
                for slot in slots:
                    self._suspect_sets(*self._sets_of(slot))
        for claim, answer in zip(claims, answers, strict=True):
            if answer.answer is not Answer.GRANTED:
                self._young.discard(claim.id)
                self._remember_refusal(claim, answer.answer)
        return answers

    async def heartbeat(self, holdings: Sequence[Holding], *, complete: bool = True) -> Heard:
        """See `Slots`. Three round trips."""
        assert self._ended is None, "one heartbeat at a time"
        ended: set[str] = set()
        self._ended = ended
        recent, self._young = self._young, set(self._in_flight)
        try:
            lapsed, longest_ms, index = await self._announce(complete)
            held = {holding.id for holding in holdings}
            unheld = [
                _noted(id, note)
                for id, note in index.items()
                if id not in held and id not in recent and id not in self._young
            ]
            self._giving_back = frozenset(holding.id for holding in unheld)
            still = [holding for holding in holdings if holding.id not in ended]
            missing, reclaimed = await self._repair(still, unheld, longest_ms)
            live, asserted = await self._settle(complete)
            again = [holding for holding in still if holding.id in ended]
            if again:
                await self._heartbeats.run(list(self._release_calls(again)))
        finally:
            self._ended = None
            self._giving_back = frozenset()
        repaired = len(unheld) + sum(id not in ended for id in missing)
        return Heard(live, reclaimed, repaired, asserted, lapsed)

    async def leave(self, holdings: Sequence[Holding]) -> None:
        """See `Slots`."""
        if holdings:
            await self._heartbeats.run(list(self._release_calls(holdings)))
        call = ScriptCall("leave", (self._keys.roster, self._held), (self._replica, self._channel))
        (pairs,) = await self._heartbeats.run([call])
        left = [_noted(id, note) for id, note in _pairs(pairs).items()]
        if left:
            await self._heartbeats.run(list(self._release_calls(left)))

    # The steps of a heartbeat

    async def _announce(self, complete: bool) -> tuple[bool, int, dict[str, str]]:
        call = ScriptCall(
            "heartbeat",
            (self._keys.roster, self._held),
            (
                self._replica,
                str(self._ttl_ms),
                str(redis_keys.LAYOUT),
                _flag(complete),
                self._channel,
            ),
        )
        (reply,) = await self._heartbeats.run([call])
        return reply[0] == 1, reply[1], _pairs(reply[2:])

    async def _repair(
        self, holdings: Sequence[Holding], unheld: Sequence[Holding], longest_ms: int
    ) -> tuple[list[str], int]:
        """Put holdings on the books and take off what is not held; the ids that were missing, and
        how many slots of the dead were taken back."""
        for holding in unheld:
            self._suspect_sets(*self._sets_of(holding))
        # First what could keep the others from being carried out.
        calls = list(self._reclaim_calls(longest_ms))
        calls += self._release_calls(unheld)
        asserts_at = len(calls)
        calls += self._assert_calls(holdings)
        replies = await self._heartbeats.run(calls)
        missing: list[str] = []
        for reply in replies[asserts_at:]:
            _require_live(reply)
            missing += reply[1:]
        return missing, replies[0][0]

    async def _settle(self, complete: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
        call = ScriptCall(
            "settle",
            (self._keys.roster,),
            (self._replica, str(redis_keys.LAYOUT), _flag(complete), self._channel),
        )
        (reply,) = await self._heartbeats.run([call])
        _require_live(reply)
        return tuple(sorted(reply[1])), tuple(sorted(reply[2]))

    # Calls

    def _claim_calls(self, claims: Sequence[Claim]) -> Iterator[ScriptCall]:
        for batch in _batches(claims):
            keys = [self._keys.roster, self._keys.all, self._held, self._keys.line_all]
            args = [self._replica, self._channel]
            for claim in batch:
                keys += self._keys_of(claim)
                args += (
                    claim.id,
                    _note(claim),
                    claim.pool,
                    str(claim.pool_size),
                    str(claim.ceiling),
                    _cap(claim.tenant_cap),
                    _cap(claim.key_cap),
                    *_turn(claim),
                )
            yield ScriptCall("claim", tuple(keys), tuple(args))

    def _release_calls(
        self, holdings: Sequence[Holding], claimed_in: Container[str] = ()
    ) -> Iterator[ScriptCall]:
        for batch in _batches(holdings):
            keys = [self._keys.all, self._held, self._keys.line_all]
            args = [self._channel, self._replica]
            for holding in batch:
                keys += self._keys_of(holding)
                args += (
                    holding.id,
                    holding.pool,
                    holding.group,
                    holding.tenant,
                    holding.key,
                    "" if holding.refund is None else json.dumps(holding.refund),
                    _flag(holding.pool in claimed_in),
                )
            yield ScriptCall("release", tuple(keys), tuple(args))

    def _assert_calls(self, holdings: Sequence[Holding]) -> Iterator[ScriptCall]:
        for batch in _batches(holdings):
            keys = [self._keys.roster, self._keys.all, self._held]
            args = [self._replica]
            for holding in batch:
                keys += self._sets_of(holding)
                args += (holding.id, _note(holding))
            yield ScriptCall("assert", tuple(keys), tuple(args))

    def _reclaim_calls(self, longest_ms: int) -> Iterator[ScriptCall]:
        sets = [self._keys.all, *self._suspect]
        self._suspect = {}
        for batch in _batches(sets):
            yield ScriptCall("reclaim", (self._keys.roster, *batch), (str(longest_ms),))

    def _remember_refusal(self, claim: Claim, answer: Answer) -> None:
        pool, _, tenant, key = self._sets_of(claim)
        match answer:
            case Answer.POOL:
                self._suspect_sets(pool)
            case Answer.TENANT:
                self._suspect_sets(tenant)
            case Answer.KEY:
                self._suspect_sets(key)

    def _sets_of(self, slot: Claim | Holding) -> tuple[str, str, str, str]:
        return self._keys.sets(slot.pool, slot.group, slot.tenant, slot.key)

    def _keys_of(self, slot: Claim | Holding) -> tuple[str, ...]:
        lines = self._keys.lines(slot.pool, slot.tenant, slot.key)
        return (*self._sets_of(slot), self._keys.served(slot.pool), *lines)

    def _suspect_sets(self, *sets: str) -> None:
        if len(self._suspect) < SUSPECTS_MAX:
            self._suspect.update(dict.fromkeys(sets))


def _note(slot: Claim | Holding) -> str:
    return ":".join(map(escaped, (slot.pool, slot.group, slot.tenant, slot.key)))


def _noted(id: str, note: str) -> Holding:
    pool, group, tenant, key = map(unescaped, note.split(":"))
    return Holding(id, pool, group, tenant, key)


def _reply(reply: Sequence[str]) -> Reply:
    answer, number, turn_at, tenant, key, *told = reply
    return Reply(
        Answer(answer),
        is_more=number == "1",
        turn_at=Answer(turn_at) if turn_at else None,
        turn_of=(tenant, key) if key else None,
        wait=int(number) / 1000 if turn_at else 0.0,
        told=_told(told) if told else None,
    )


def _told(told: Sequence[str]) -> Told:
    group, tenant, key, group_taken, tenant_taken = told
    return Told((float(group), float(tenant), float(key)), (int(group_taken), int(tenant_taken)))


def _turn(claim: Claim) -> tuple[str, str, str]:
    """How it stands, how the others do, and what it is charged, as `claim` takes them."""
    turn = claim.turn
    if turn is None:
        return "", "", ""
    own = json.dumps([_standing(claim.pool, turn.standing)])
    others = [_standing(claim.pool, each) for each in turn.others]
    return own, json.dumps(others) if others else "", json.dumps(turn.charges)


def _standing(pool: str, standing: Standing) -> list[object]:
    group, tenant, key = standing.group, standing.tenant, standing.key
    return [
        *(pool, round(standing.waited * 1000)),
        *(group.id, group.floor, _or_none(group.share)),
        *(tenant.id, tenant.floor, _or_none(tenant.share), _or_none(tenant.cap)),
        *(key.id, key.floor, _or_none(key.cap)),
    ]


def _or_none(number: int | None) -> int:
    return -1 if number is None else number


def _cap(cap: int | None) -> str:
    return "" if cap is None else str(cap)


def _flag(value: bool) -> str:
    return "1" if value else "0"


def _require_live(reply: Sequence[Any]) -> None:
    if reply[0] != "ok":
        raise SlotsUnavailable("the books were lost while a heartbeat was under way")


def _pairs(flat: Sequence[str]) -> dict[str, str]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), PER_CALL):
        yield items[start : start + PER_CALL]


def _batch_count(items: Sequence[object]) -> int:
    return -(-len(items) // PER_CALL)


# What the server must be like


async def server_warnings(redis: Redis, *, secs: float) -> list[str]:
    """What about a Redis server keeps slots from being safe on it, a sentence each.

    Raises `SlotsUnavailable` if it does not say.
    """
    try:
        replies = await round_trip(redis, [("INFO", "server"), ("INFO", "memory")], secs=secs)
    except RedisUnavailable as error:
        raise SlotsUnavailable(str(error)) from error
    info: dict[str, Any] = {}
    for reply in replies:
        if isinstance(reply, Mapping):
            info.update(reply)
    return [*version_warnings(info), *eviction_warnings(info)]


def version_warnings(info: Mapping[str, Any]) -> Iterable[str]:
    """Whether the server, by its own `INFO`, is Redis 6.2 or newer, or any Valkey."""
    if info.get("server_name") == "valkey" or "valkey_version" in info:
        return
    version = str(info.get("redis_version", ""))
    try:
        number = tuple(int(part) for part in version.split(".")[:2])
    except ValueError:
        yield f"Redis does not say its version ({version!r}); 6.2 or newer, or Valkey, is needed"
        return
    if number < (6, 2):
        yield f"Redis {version} is too old: 6.2 or newer, or Valkey, is needed"


def eviction_warnings(info: Mapping[str, Any]) -> Iterable[str]:
    """Whether a full server would drop slots to make room."""
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if policy != "noeviction" and int(info.get("maxmemory", 0)) > 0:
        yield (
            f"Redis may drop slots when its memory is full (maxmemory-policy {policy}), and then "
            "more requests run than the limits allow: set it to noeviction"
        )
