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
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, Final, TypeVar

from dataplane.admission.slots import wire
from dataplane.admission.slots.port import (
    Answer,
    Claim,
    Exchanged,
    Freed,
    Heard,
    Holding,
    Reply,
    SlotsUnavailable,
)
from dataplane.admission.slots.scripts import ScriptRunner
from dataplane.scripts import ScriptCall
from shared import redis_keys
from shared.redis_keys import SlotKeys

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
        self._hold_keys: Final = (self._keys.line_all, self._keys.holds, self._keys.hold_notes)
        self._clock: Final = clock
        self._in_flight: set[str] = set()
        """Claims whose answer is not here yet."""
        self._young: set[str] = set()
        """Claims made since the last heartbeat began and not known to have come to nothing."""
        self._leaving: set[str] = set()
        """Releases whose answer is not here yet: what they give back is on the books until then,
        and a heartbeat that meets it there leaves it to them."""
        self._booked: set[str] = set()
        """What the books should have: granted or asserted, and not given back since. What a
        heartbeat finds otherwise has gone wrong; the rest of what it puts on the books or takes off
        was held without them until now, or will be from now on."""
        self._ended: set[str] | None = None
        """What was released since the heartbeat under way began; None: none is under way."""
        self._giving_back: frozenset[str] = frozenset()
        """What the heartbeat under way found on the books that nobody held, and releases."""
        self._suspect: dict[str, None] = {}
        """Sets that refused a claim since the last heartbeat, or may not be sets at all: worth
        looking at."""

    async def exchange(self, releases: Sequence[Holding], claims: Sequence[Claim]) -> Exchanged:
        """See `Slots`."""
        # A claim made anew after its answer was lost must not meet its own release.
        sent = [claim for claim in claims if claim.id not in self._giving_back]
        done = await self._exchange(releases, sent)
        if len(sent) == len(claims):
            return done
        answered = dict(zip((claim.id for claim in sent), done.claims, strict=True))
        replies = [answered.get(claim.id, Reply(Answer.POOL)) for claim in claims]
        return Exchanged(done.releases, replies)

    async def _exchange(self, releases: Sequence[Holding], claims: Sequence[Claim]) -> Exchanged:
        for holding in releases:
            self._young.discard(holding.id)
            self._booked.discard(holding.id)
            if self._ended is not None:
                self._ended.add(holding.id)
        ids, leaving = {claim.id for claim in claims}, {holding.id for holding in releases}
        self._leaving |= leaving
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
            claims_at = len(replies) - _batch_count(claims)
            claimed = replies[claims_at:]
            freed = [Freed(outcome) for batch in replies[:claims_at] for outcome in batch]
            answers = [wire.reply(reply) for batch in claimed for reply in batch]
            lost = False
        finally:
            self._leaving -= leaving
            self._in_flight -= ids
            if lost:
                self._young -= ids
                slots: list[Claim | Holding] = [*releases, *claims]
                for slot in slots:
                    self._suspect_sets(*self._sets_of(slot))
        for claim, answer in zip(claims, answers, strict=True):
            if answer.answer is Answer.GRANTED:
                self._booked.add(claim.id)
            else:
                self._young.discard(claim.id)
                self._remember_refusal(claim, answer.answer)
        return Exchanged(freed, answers)

    async def heartbeat(self, holdings: Sequence[Holding], *, complete: bool = True) -> Heard:
        """See `Slots`. Three round trips."""
        assert self._ended is None, "one heartbeat at a time"
        ended: set[str] = set()
        self._ended = ended
        recent, self._young = self._young | self._leaving, set(self._in_flight)
        known = frozenset(self._booked)
        try:
            lapsed, longest_ms, index = await self._announce(complete)
            held = {holding.id for holding in holdings}
            accounted = held | recent | self._young | ended
            unheld = [wire.noted(id, note) for id, note in index.items() if id not in accounted]
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
        told = {holding.id for holding in still}
        self._booked = (self._booked - known) | (told - ended)
        repaired = sum(holding.id not in known for holding in unheld)
        repaired += sum(id in known and id not in ended for id in missing)
        return Heard(live, reclaimed, repaired, asserted, lapsed)

    async def leave(self, holdings: Sequence[Holding]) -> None:
        """See `Slots`."""
        if holdings:
            await self._heartbeats.run(list(self._release_calls(holdings)))
        keys = (self._keys.roster, self._held, self._keys.all, *self._hold_keys)
        call = ScriptCall("leave", keys, (self._replica, self._channel))
        (pairs,) = await self._heartbeats.run([call])
        left = [wire.noted(id, note) for id, note in wire.pairs(pairs).items()]
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
                wire.flag(complete),
                self._channel,
            ),
        )
        (reply,) = await self._heartbeats.run([call])
        return reply[0] == 1, reply[1], wire.pairs(reply[2:])

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
            (self._replica, str(redis_keys.LAYOUT), wire.flag(complete), self._channel),
        )
        (reply,) = await self._heartbeats.run([call])
        _require_live(reply)
        return tuple(sorted(reply[1])), tuple(sorted(reply[2]))

    # Calls

    def _claim_calls(self, claims: Sequence[Claim]) -> Iterator[ScriptCall]:
        for batch in _batches(claims):
            keys = [self._keys.roster, self._keys.all, self._held, *self._hold_keys]
            args = [self._replica, self._channel]
            for claim in batch:
                keys += self._keys_of(claim, claim.holds.session)
                args += (
                    claim.id,
                    wire.note(claim),
                    claim.pool,
                    str(claim.pool_size),
                    str(claim.ceiling),
                    wire.cap(claim.tenant_cap),
                    wire.cap(claim.key_cap),
                    *wire.turn(claim),
                    *wire.hold_terms(claim),
                )
            yield ScriptCall("claim", tuple(keys), tuple(args))

    def _release_calls(
        self, holdings: Sequence[Holding], claimed_in: Container[str] = ()
    ) -> Iterator[ScriptCall]:
        for batch in _batches(holdings):
            keys = [self._keys.all, self._held, *self._hold_keys]
            args = [self._channel, self._replica]
            for holding in batch:
                step = holding.step
                keys += self._keys_of(holding, None if step is None else step.session)
                args += (
                    holding.id,
                    holding.pool,
                    holding.group,
                    holding.tenant,
                    holding.key,
                    wire.refund(holding),
                    wire.flag(holding.pool in claimed_in),
                    wire.step_end(holding),
                )
            yield ScriptCall("release", tuple(keys), tuple(args))

    def _assert_calls(self, holdings: Sequence[Holding]) -> Iterator[ScriptCall]:
        for batch in _batches(holdings):
            keys = [self._keys.roster, self._keys.all, self._held]
            args = [self._replica]
            for holding in batch:
                keys += self._sets_of(holding)
                args += (holding.id, wire.note(holding))
            yield ScriptCall("assert", tuple(keys), tuple(args))

    def _reclaim_calls(self, longest_ms: int) -> Iterator[ScriptCall]:
        sets = [self._keys.all, *self._suspect]
        self._suspect = {}
        for batch in _batches(sets):
            keys = (self._keys.roster, self._keys.all, *self._hold_keys, *batch)
            yield ScriptCall("reclaim", keys, (str(longest_ms), self._channel))

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

    def _keys_of(self, slot: Claim | Holding, session: str | None) -> tuple[str, ...]:
        lines = self._keys.lines(slot.pool, slot.tenant, slot.key)
        affinity = self._keys.affinity(slot.pool, slot.key, session or "")
        return (*self._sets_of(slot), self._keys.served(slot.pool), *lines, *affinity)

    def _suspect_sets(self, *sets: str) -> None:
        if len(self._suspect) < SUSPECTS_MAX:
            self._suspect.update(dict.fromkeys(sets))


def _require_live(reply: Sequence[Any]) -> None:
    if reply[0] != "ok":
        raise SlotsUnavailable("the books were lost while a heartbeat was under way")


def _batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), PER_CALL):
        yield items[start : start + PER_CALL]


def _batch_count(items: Sequence[object]) -> int:
    return -(-len(items) // PER_CALL)
