"""In which mode a replica is and what it may do, with time as a number."""

from __future__ import annotations

from typing import Any

import pytest

from dataplane.admission.replica import (
    ANSWERS_MAX,
    CALM_HEARTBEATS,
    Mode,
    Phase,
    Replica,
    ReplicaSettings,
    Stance,
)
from dataplane.admission.slots.port import Heard

ALL = ("a", "b", "c")
CALM_SECS = CALM_HEARTBEATS * ReplicaSettings().heartbeat


def heard(*live: str, asserted: tuple[str, ...] | None = None, lapsed: bool = False) -> Heard:
    return Heard(live, 0, 0, live if asserted is None else asserted, lapsed)


def replica(now: float = 0.0, **settings: Any) -> Replica:
    return Replica("a", ReplicaSettings(**settings), now)


def shared(now: float = 0.0, *live: str) -> Replica:
    one = replica(now)
    one.begin()
    one.heard(heard(*(live or ALL)), now)
    assert one.stance.mode is Mode.SHARED
    return one


def beats(one: Replica, now: float, what: Heard) -> Stance:
    one.begin()
    one.heard(what, now)
    return one.stance


def test_nobody_is_admitted_before_the_first_heartbeat_is_answered() -> None:
    one = replica()
    assert one.next_at == 0
    assert one.stance.paused


def test_a_replica_alone_has_whole_limits_and_makes_no_claims() -> None:
    one = replica()
    stance = beats(one, 0, heard("a", asserted=()))
    assert stance == Stance(Mode.LOCAL, 1, 1, claims=False, paused=False)
    assert one.next_at == 5


def test_a_newcomer_is_on_its_part_until_the_others_have_asserted() -> None:
    one = replica()
    stance = beats(one, 0, heard("a", "b", asserted=("a",)))
    assert stance == Stance(Mode.FALLBACK, 2, 2, claims=True, paused=False)
    one.replicas_changed(0.01)
    assert one.next_at == 0.01
    stance = beats(one, 0.02, heard("a", "b"))
    assert stance == Stance(Mode.SHARED, 2, 1, claims=True, paused=False)


def test_one_that_was_alone_admits_nobody_until_all_it_holds_is_on_the_books() -> None:
    one = replica()
    beats(one, 0, heard("a", asserted=()))
    one.replicas_changed(1)
    assert one.next_at == 1
    assert not one.begin(), "it has admitted without claims"
    one.heard(heard("a", "b", asserted=("b",)), 1)
    assert one.stance == Stance(Mode.FALLBACK, 2, 2, claims=False, paused=True)
    assert one.next_at == 1
    assert one.begin(), "it has admitted nobody since"
    one.heard(heard("a", "b"), 1.01)
    assert one.stance.mode is Mode.SHARED


def test_without_an_answer_every_limit_is_divided_by_the_replicas_last_known() -> None:
    one = shared()
    one.slots_unavailable(7)
    assert one.stance == Stance(Mode.FALLBACK, 3, 3, claims=False, paused=False)
    assert [one.stance.part(limit) for limit in (32, 20, 3, 1, 0)] == [11, 7, 1, 1, 0]
    assert one.next_at == 8


def test_further_failures_do_not_put_off_the_next_try() -> None:
    one = shared()
    one.slots_unavailable(7)
    one.slots_unavailable(7.9)
    assert one.next_at == 8


def test_an_unanswered_heartbeat_is_tried_again_each_second() -> None:
    one = shared()
    for second in range(5, 9):
        one.begin()
        one.unheard(second)
        assert one.stance.mode is Mode.FALLBACK
        assert one.next_at == second + 1


def test_the_way_back_goes_over_a_heartbeat_with_nobody_admitted_meanwhile() -> None:
    one = shared()
    one.slots_unavailable(30)
    assert not one.begin(), "it admits without claims while the books are away"
    one.heard(heard(*ALL), 31)
    assert one.stance.paused
    assert one.begin()
    one.heard(heard(*ALL), 31.01)
    assert one.stance.mode is Mode.SHARED


def test_a_failure_during_the_reconciling_heartbeat_makes_it_worth_nothing() -> None:
    one = shared()
    assert one.begin()
    one.slots_unavailable(5)
    one.heard(heard(*ALL), 5.1)
    assert one.stance.paused
    assert not one.stance.claims


def test_a_replica_on_its_part_does_not_drag_the_others_down() -> None:
    one = shared()
    assert beats(one, 5, heard(*ALL, asserted=("a", "b"))).mode is Mode.SHARED


def test_one_that_is_not_known_to_the_books_may_not_claim_before_it_has_asserted() -> None:
    one = shared()
    one.lapsed(6)
    assert one.stance.paused
    assert one.next_at == 6
    assert beats(one, 6.01, heard(*ALL, lapsed=True)).mode is Mode.SHARED


def test_books_that_lost_everybody_do_not_make_a_replica_think_it_is_alone() -> None:
    one = shared()
    one.lapsed(6)
    stance = beats(one, 6, heard("a", asserted=(), lapsed=True))
    assert stance == Stance(Mode.FALLBACK, 3, 3, claims=False, paused=False)
    stance = beats(one, 7, heard("a", "b", asserted=("b",)))
    assert stance.paused
    stance = beats(one, 7.01, heard("a", "b"))
    assert stance == Stance(Mode.FALLBACK, 3, 3, claims=True, paused=False)
    assert beats(one, 8, heard(*ALL)).mode is Mode.SHARED


def test_who_does_not_come_back_within_a_heartbeat_is_gone() -> None:
    one = shared()
    one.slots_unavailable(5)
    beats(one, 6, heard("a", asserted=(), lapsed=True))
    assert one.stance.replicas == 3
    assert beats(one, 12.1, heard("a", asserted=())) == Stance(Mode.LOCAL, 1, 1, False, False)


def test_a_replica_that_dies_leaves_its_part_to_the_others() -> None:
    one = shared()
    assert beats(one, 20, heard("a", "b")).replicas == 2
    assert beats(one, 40, heard("a", asserted=())).mode is Mode.LOCAL


def test_a_start_without_the_books_uses_the_expected_number_of_replicas() -> None:
    one = replica(expected_replicas=4)
    one.begin()
    one.unheard(0.25)
    assert one.stance == Stance(Mode.FALLBACK, 4, 4, claims=False, paused=False)


def test_one_replica_expected_is_local_whatever_the_books_do() -> None:
    one = replica()
    one.begin()
    one.unheard(0.25)
    assert one.stance == Stance(Mode.LOCAL, 1, 1, claims=False, paused=False)


def test_answers_around_the_limit_do_not_make_the_mode_flap() -> None:
    one, now, changes = shared(), 20.0, 0
    for _ in range(120):
        # Heartbeats are answered, and a moment later a claim is not.
        was = one.stance.mode
        beats(one, now, heard(*ALL))
        if one.stance.paused:
            beats(one, now, heard(*ALL))
        changes += one.stance.mode is not was
        if one.stance.claims:
            one.slots_unavailable(now + 0.5)
            changes += 1
        now += 1
    assert changes <= 2 * (120 / ANSWERS_MAX + 4)


def test_an_outage_long_after_the_last_is_left_at_the_first_answer() -> None:
    one = shared()
    one.slots_unavailable(1)
    beats(one, 2, heard(*ALL))
    beats(one, 2, heard(*ALL))
    one.slots_unavailable(3)
    beats(one, 4, heard(*ALL))
    assert one.phase is Phase.AWAY, "so soon after the last it takes two answers"
    beats(one, 5, heard(*ALL))
    beats(one, 5, heard(*ALL))
    one.slots_unavailable(5 + CALM_SECS)
    beats(one, 6 + CALM_SECS, heard(*ALL))
    assert one.phase is Phase.JOINING


def test_with_slots_not_shared_limits_are_split_and_nothing_is_claimed() -> None:
    one = replica(shared_slots=False)
    assert not one.begin()
    one.heard(heard(*ALL, asserted=()), 0)
    assert one.stance == Stance(Mode.SPLIT, 3, 3, claims=False, paused=False)
    one.begin()
    one.unheard(5)
    assert one.stance.mode is Mode.SPLIT
    assert beats(one, 6, heard("a", asserted=())).mode is Mode.SPLIT, "they may have missed it"
    assert beats(one, 12.1, heard("a", asserted=())).mode is Mode.LOCAL


@pytest.mark.parametrize("shared_slots", [True, False])
def test_with_replicas_not_counted_limits_stay_whole(shared_slots: bool) -> None:
    one = replica(shared_slots=shared_slots, replica_aware=False, expected_replicas=3)
    one.begin()
    one.unheard(1)
    assert one.stance.divisor == 1
    assert one.stance.mode is (Mode.FALLBACK if shared_slots else Mode.LOCAL)


def test_replicas_of_another_layout_keep_everybody_on_their_part() -> None:
    one = replica()
    stance = beats(one, 0, heard("a", "old", asserted=("a",)))
    for second in range(1, 30):
        stance = beats(one, second, heard("a", "old", asserted=("a",)))
    assert stance == Stance(Mode.FALLBACK, 2, 2, claims=True, paused=False)
