"""Mistakes the product could make, one each, to be put into it while a test runs: what the
simulation must notice, or it proves nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final

import pytest

from dataplane.admission.fleet import Fleet
from dataplane.admission.heartbeat import Heartbeat
from dataplane.admission.owner import Admission
from dataplane.admission.replica import Replica, Stance
from dataplane.admission.slots.port import Heard
from dataplane.admission.slots.redis import RedisSlots
from dataplane.scheduler.books import Books
from dataplane.scheduler.scheduler import Scheduler
from dataplane.scheduler.state import Key
from tests.simulation.redis_model import RedisModel

Mistake = Callable[[pytest.MonkeyPatch], None]


def _nothing(*_: Any, **__: Any) -> None:
    pass


def slots_are_not_given_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Fleet, "release", _nothing)


def one_slot_too_many_is_granted(patch: pytest.MonkeyPatch) -> None:
    is_full = RedisModel._is_full
    patch.setattr(RedisModel, "_is_full", lambda self, key, most: is_full(self, key, most + 1))


def what_the_living_hold_is_reclaimed(patch: pytest.MonkeyPatch) -> None:
    reclaim = RedisModel._reclaim

    def too_much(self: RedisModel, keys: tuple[str, ...], args: tuple[str, ...]) -> list[int]:
        for key in keys[5:]:
            self.delete(key)
        return reclaim(self, keys, args)

    patch.setattr(RedisModel, "_reclaim", too_much)


def what_the_dead_held_is_never_reclaimed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RedisModel, "_purge", lambda self, key: 0)


def a_heartbeat_releases_what_was_just_claimed(patch: pytest.MonkeyPatch) -> None:
    heartbeat = RedisSlots.heartbeat

    async def hasty(self: RedisSlots, *parts: Any, **more: Any) -> Heard:
        self._young.clear()
        self._in_flight.clear()
        return await heartbeat(self, *parts, **more)

    patch.setattr(RedisSlots, "heartbeat", hasty)


def a_heartbeat_does_not_give_back_what_nobody_holds(patch: pytest.MonkeyPatch) -> None:
    announce = RedisSlots._announce

    async def blind(self: RedisSlots, complete: bool) -> tuple[bool, int, dict[str, str]]:
        lapsed, longest, _ = await announce(self, complete)
        return lapsed, longest, {}

    patch.setattr(RedisSlots, "_announce", blind)


def a_heartbeat_does_not_assert(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RedisSlots, "_assert_calls", lambda self, holdings: iter(()))


def a_refused_claim_is_not_put_back_into_its_queue(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Key, "take_back", _nothing)


def a_resize_is_not_heard_of(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Admission, "models_changed", _nothing)


def pools_do_not_take_on_their_new_size(patch: pytest.MonkeyPatch) -> None:
    pool = Books.pool
    patch.setattr(
        Books, "pool", lambda self, policy: self.pools.get(policy.id) or pool(self, policy)
    )


def limits_are_not_divided_in_fallback(patch: pytest.MonkeyPatch) -> None:
    _stands_as(patch, divisor=1)


def admission_goes_on_while_holdings_are_written_down(patch: pytest.MonkeyPatch) -> None:
    _stands_as(patch, paused=False)


def _stands_as(patch: pytest.MonkeyPatch, **changed: Any) -> None:
    stand = Admission.stand

    def changed_stand(self: Admission, stance: Stance) -> None:
        stand(self, dataclasses.replace(stance, **changed))

    patch.setattr(Admission, "stand", changed_stand)


def limits_are_divided_by_one_too_few(patch: pytest.MonkeyPatch) -> None:
    remember = Replica._remember

    def too_few(self: Replica, heard: Heard, now: float) -> None:
        remember(self, heard, now)
        self._known = max(self._known - 1, min(self._known, 2))

    patch.setattr(Replica, "_remember", too_few)


def a_replica_shares_before_the_others_have_asserted(patch: pytest.MonkeyPatch) -> None:
    hear = Replica.heard

    def trusting(self: Replica, heard: Heard, now: float) -> None:
        hear(self, dataclasses.replace(heard, asserted=heard.live), now)

    patch.setattr(Replica, "heard", trusting)


def a_replica_shares_though_it_admitted_without_claims(patch: pytest.MonkeyPatch) -> None:
    begin = Replica.begin

    def sure(self: Replica) -> bool:
        begin(self)
        self._complete = True
        return True

    patch.setattr(Replica, "begin", sure)


def lost_books_are_taken_for_empty_ones(patch: pytest.MonkeyPatch) -> None:
    hear = Replica.heard

    def calm(self: Replica, heard: Heard, now: float) -> None:
        hear(self, dataclasses.replace(heard, lapsed=False), now)

    patch.setattr(Replica, "heard", calm)


def an_unanswered_call_is_not_noticed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Heartbeat, "slots_unavailable", _nothing)
    patch.setattr(Replica, "unheard", _nothing)


def a_client_that_leaves_is_not_noticed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Admission, "leave", _nothing)


def a_grant_to_nobody_is_kept(patch: pytest.MonkeyPatch) -> None:
    granted = Scheduler._granted

    def kept(self: Scheduler, request: int, now: float) -> None:
        if not self._slots[request].is_abandoned:
            granted(self, request, now)

    patch.setattr(Scheduler, "_granted", kept)


def a_refused_claim_is_tried_again_only_when_something_is_heard(
    patch: pytest.MonkeyPatch,
) -> None:
    for name in ("RETRY_SECS", "REFRESH_SECS", "LOOK_SECS"):
        patch.setattr(f"dataplane.admission.fleet.{name}", (1e6, 2e6))


def a_request_waits_for_ever(patch: pytest.MonkeyPatch) -> None:
    def patiently(do: Callable[..., Any]) -> Callable[..., Any]:
        def patient(self: Any, *now: float) -> Any:
            waiting, self._waiting = self._waiting, type(self._waiting)()
            try:
                return do(self, *now)
            finally:
                self._waiting = waiting

        return patient

    for name in ("_pass_time", "wake_at"):
        patch.setattr(Scheduler, name, patiently(getattr(Scheduler, name)))


MISTAKES: Final[list[tuple[Mistake, str]]] = [
    (slots_are_not_given_back, "deaf"),
    (one_slot_too_many_is_granted, "mixed"),
    (what_the_living_hold_is_reclaimed, "mixed"),
    (what_the_dead_held_is_never_reclaimed, "one killed"),
    (a_heartbeat_releases_what_was_just_claimed, "mixed"),
    (a_heartbeat_does_not_give_back_what_nobody_holds, "mixed"),
    (a_heartbeat_does_not_assert, "mixed"),
    (a_refused_claim_is_not_put_back_into_its_queue, "mixed"),
    (a_resize_is_not_heard_of, "resized"),
    (pools_do_not_take_on_their_new_size, "resized"),
    (limits_are_not_divided_in_fallback, "outage"),
    (admission_goes_on_while_holdings_are_written_down, "outage"),
    (limits_are_divided_by_one_too_few, "outage"),
    (a_replica_shares_before_the_others_have_asserted, "joined"),
    (a_replica_shares_though_it_admitted_without_claims, "outage"),
    (lost_books_are_taken_for_empty_ones, "forgotten"),
    (an_unanswered_call_is_not_noticed, "outage"),
    (a_client_that_leaves_is_not_noticed, "mixed"),
    (a_grant_to_nobody_is_kept, "mixed"),
    (a_refused_claim_is_tried_again_only_when_something_is_heard, "deaf"),
    (a_request_waits_for_ever, "mixed"),
]
"""Each with the kind of life in which it shows soonest."""
