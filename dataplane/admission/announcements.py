"""What replicas tell each other on the announcement channel, and who listens.

A message is a JSON object. `pool` with `turn`: there is a slot, and it is the turn of the replica
named there, for a waiter of `key`, of `tenant`. `came` with `at`: that replica was called at the
pool named there, and has claimed. `pool` with `ceiling` (whether others than its own waiters may
go on): a slot that somebody waits for was freed, and whoever claims first has it. `hold` with
`replica` and `why`: the slot that the replica had held for a session is not held any more. `held`:
a slot is held for a session, whose next step takes it wherever it waits.
`replica` alone: that replica came, went, or has all it holds on the books now. Anything else is
passed over, so that a newer replica may say more. A message may be lost, doubled or late: it
hurries what would happen anyway.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from redis.asyncio import Redis

from dataplane.admission.slots import wire
from dataplane.subscription import Subscription


@dataclass(frozen=True, slots=True)
class Freed:
    """A slot of `pool` was freed, and the replicas that were refused may try again."""

    pool: str
    ceiling: bool
    """Whether somebody was refused by the limit over all pools: then any pool may try."""


@dataclass(frozen=True, slots=True)
class TurnCalled:
    """It is the turn of `replica` to claim in `pool`; it is waited for, but not for long."""

    pool: str
    replica: str
    tenant: str
    key: str


@dataclass(frozen=True, slots=True)
class TurnTaken:
    """`replica` was called in `pool`, and came, whatever became of its claim."""

    pool: str
    replica: str


@dataclass(frozen=True, slots=True)
class HoldOver:
    """The slot that `replica` had held for a session of a key is taken, or was freed."""

    replica: str
    pool: str
    key: str
    session: str
    why: str


@dataclass(frozen=True, slots=True)
class HoldBegun:
    """A slot is held for a session of a key."""

    pool: str
    key: str
    session: str


@dataclass(frozen=True, slots=True)
class ReplicaChanged:
    """The set of live replicas, or of those whose holdings are on the books, is another."""

    replica: str


@dataclass(frozen=True, slots=True)
class Listening:
    """The subscription stands, for the first time or again: messages may have been missed."""


@dataclass(frozen=True, slots=True)
class Deaf:
    """The subscription is lost; it is tried again."""

    reason: str


Said = Freed | TurnCalled | TurnTaken | HoldOver | HoldBegun | ReplicaChanged
Announcement = Said | Listening | Deaf


def parse(text: str) -> Said | None:
    """What a message says; None if it is not understood."""
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        return None
    match message:
        case {"pool": str(pool), "turn": str(replica), "tenant": str(tenant), "key": str(key)}:
            return TurnCalled(pool, replica, tenant, key)
        case {"came": str(replica), "at": str(pool)}:
            return TurnTaken(pool, replica)
        case {"pool": str(pool)}:
            return Freed(pool, message.get("ceiling") is True)
        case {"hold": str(id), "replica": str(replica), "why": str(why)}:
            names = wire.session_of(id)
            return None if names is None else HoldOver(replica, *names, why)
        case {"held": str(id)}:
            names = wire.session_of(id)
            return None if names is None else HoldBegun(*names)
        case {"replica": str(replica)}:
            return ReplicaChanged(replica)
    return None


class Announcements:
    """Listens on a connection of its own and tells what it hears, in order.

    `secs` is how long Redis may take to answer; it is asked for a sign of life after `quiet`
    seconds without a message.
    """

    def __init__(
        self,
        redis: Redis,
        channel: str,
        tell: Callable[[Announcement], None],
        *,
        secs: float,
        quiet: float,
    ) -> None:
        self._tell: Final = tell
        self._subscription: Final = Subscription(
            redis,
            channel,
            heard=self._heard,
            listening=lambda: tell(Listening()),
            deaf=lambda reason: tell(Deaf(reason)),
            secs=secs,
            quiet=quiet,
        )

    def start(self) -> None:
        """Begin to listen, now and whenever Redis can be reached."""
        self._subscription.start()

    async def stop(self) -> None:
        await self._subscription.stop()

    def _heard(self, message: str) -> None:
        if (said := parse(message)) is not None:
            self._tell(said)
