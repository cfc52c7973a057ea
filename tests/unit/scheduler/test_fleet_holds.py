"""Session affinity where slots belong to the fleet: what claims and releases say of holds, and what
the answers do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dataplane.scheduler.effects import Admit, AffinityEvent, Claim, Effect, Noted, Release, Unhold
from dataplane.scheduler.events import (
    AffinityRules,
    ClaimGranted,
    ClaimRefused,
    Closing,
    Event,
    Finished,
    HoldAnswered,
    HoldEnded,
    HoldMade,
    KeyGone,
    Left,
    PoolChanged,
    PoolGone,
    PoolPolicy,
    RefusedBy,
    Woken,
)
from dataplane.scheduler.holds import NO_TERMS, HoldTerms, StepEnd
from tests.simulation.world import a_key
from tests.unit.scheduler.test_claims import Replica, claims

T = a_key("t", cap=3)
S = ("t-key", "s")


def pool_of(size: int, **rules: float) -> PoolPolicy:
    return PoolPolicy("m", "m", size, "configured", affinity=replace(AffinityRules(), **rules))


def claim_in(effects: list[Effect]) -> Claim:
    (claim,) = [effect for effect in effects if isinstance(effect, Claim)]
    return claim


def step_in(effects: list[Effect]) -> StepEnd | None:
    (release,) = [effect for effect in effects if isinstance(effect, Release)]
    return release.step


def noted(effects: list[Effect]) -> list[AffinityEvent]:
    return [effect.event for effect in effects if isinstance(effect, Noted)]


def running(replica: Replica, pool: PoolPolicy, session: str | None = "s") -> int:
    replica.send(T, pool, session=session)
    replica.do(ClaimGranted(replica.number))
    return replica.number


def test_each_claim_of_a_session_names_its_hold_and_one_without_does_not() -> None:
    replica, pool = Replica(), pool_of(4)
    assert claim_in(replica.send(T, pool, session="s")).holds == HoldTerms("s", most=1)
    assert claim_in(replica.send(T, pool)).holds == HoldTerms(None, most=1)
    assert claim_in(replica.send(T)).holds == NO_TERMS, "affinity is off now"
    none = claim_in(Replica().send(T, pool_of(4, hold_secs=0), session="s"))
    assert none.holds == NO_TERMS, "with hold time 0"


def test_a_step_that_ends_tells_what_the_fleet_needs_to_hold_its_slot() -> None:
    replica, pool = Replica(ceiling=50), pool_of(4, max_held_percent=50, max_jumps=3)
    replica.now = 1.0
    step = running(replica, pool)
    replica.now = 3.0
    assert step_in(replica.do(Finished(step))) == StepEnd(
        "s", 2.0, 3, 120, True, 2, 3, 4, 50, 3, None, T
    )
    assert replica.core.in_flight == 0, "whether it is held or not, it is not the replica's"


@pytest.mark.parametrize("end", ["failed", "closing", "key gone", "model gone"])
def test_a_step_that_failed_or_ends_where_nothing_may_follow_wants_no_hold(end: str) -> None:
    replica = Replica()
    step = running(replica, pool_of(4))
    gone: dict[str, Event] = {
        "closing": Closing(),
        "key gone": KeyGone(T.id),
        "model gone": PoolGone("m"),
    }
    if end in gone:
        replica.do(gone[end])
    told = step_in(replica.do(Finished(step, failed=end == "failed")))
    assert told is not None
    assert not told.is_wanted


def test_a_step_that_never_ran_says_nothing_of_its_session() -> None:
    replica = Replica()
    assert step_in(replica.do(Left(running(replica, pool_of(4))))) is None


def test_of_two_steps_at_once_only_the_later_wants_a_hold() -> None:
    replica, pool = Replica(), pool_of(4)
    one, two = running(replica, pool), running(replica, pool)
    told = [step_in(replica.do(Finished(step))) for step in (one, two)]
    assert [each is not None and each.is_wanted for each in told] == [False, True]


def test_a_request_queued_behind_a_full_pool_asks_once_for_its_sessions_hold_alone() -> None:
    replica, pool = Replica(size=1), pool_of(1)
    running(replica, pool, None)
    assert claim_in(replica.send(T, pool, session="s")).holds == HoldTerms("s", True, 1)
    assert replica.do(ClaimRefused(2, RefusedBy.NO_HOLD, 0.0)) == []
    assert (replica.core.queued, replica.core.in_flight) == (1, 1)
    assert replica.do(Woken()) == []


def test_no_claim_is_made_for_a_hold_alone_where_nothing_is_held_or_somebody_starves() -> None:
    replica, pool = Replica(size=1), pool_of(1, hold_secs=0)
    running(replica, pool, None)
    assert replica.send(T, pool, session="s") == []
    replica, pool = Replica(size=1), pool_of(1, max_bypass_secs=5)
    running(replica, pool, None)
    replica.send(a_key("u"), pool)
    replica.now = 4.9
    assert claims(replica.send(T, pool, session="s")) == [3]
    replica.do(ClaimRefused(3, RefusedBy.NO_HOLD, 4.9))
    replica.now = 5.0
    assert replica.send(T, pool, session="s") == []


def test_a_held_slot_is_taken_ahead_of_the_queue_and_counts_as_a_pass() -> None:
    replica, pool = Replica(size=1), pool_of(1, max_jumps=1)
    running(replica, pool, None)
    replica.send(T, pool)
    replica.send(T, pool, session="s")
    effects = replica.do(ClaimGranted(3, held=True))
    assert Admit(3, fast=False, waited=0.0, held=True) in effects
    assert noted(effects) == [AffinityEvent.REDEEM]
    assert replica.send(T, pool, session="u") == [], "the older one may not be passed again"
    told = step_in(replica.do(Finished(3)))
    assert told is not None
    assert told.most == 0, "and nothing is held for its key"


def test_a_client_that_leaves_while_it_takes_a_held_slot_gives_it_back() -> None:
    replica, pool = Replica(size=1), pool_of(1)
    running(replica, pool, None)
    replica.send(T, pool, session="s")
    replica.do(Left(2))
    effects = replica.do(ClaimGranted(2, held=True))
    assert [effect.request for effect in effects if isinstance(effect, Release)] == [2]
    assert (replica.core.queued, replica.core.in_flight) == (0, 1)


def test_a_step_that_waits_when_the_one_before_it_ends_asks_for_the_slot_it_leaves() -> None:
    replica, pool = Replica(size=1), pool_of(1)
    step = running(replica, pool)
    replica.send(T, pool, session="s")
    replica.do(ClaimRefused(2, RefusedBy.NO_HOLD, 0.0))
    effects = replica.do(Finished(step))
    told = step_in(effects)
    assert told is not None
    assert told.is_wanted
    assert claim_in(effects).holds == HoldTerms("s", True, 1)


def test_a_step_that_waits_asks_for_the_slot_that_another_replica_says_is_held_for_it() -> None:
    replica, pool = Replica(size=1), pool_of(1)
    running(replica, pool, None)
    replica.send(T, pool, session="s")
    replica.do(ClaimRefused(2, RefusedBy.NO_HOLD, 0.0))
    assert replica.do(HoldMade("m", (T.id, "u"))) == [], "another session's"
    assert replica.do(HoldMade("gone", (T.id, "s"))) == []
    assert claim_in(replica.do(HoldMade("m", (T.id, "s")))).holds == HoldTerms("s", True, 1)
    assert Admit(2, fast=False, waited=0.0, held=True) in replica.do(ClaimGranted(2, held=True))
    assert replica.do(HoldMade("m", (T.id, "s"))) == [], "nobody waits for it any more"


def test_a_step_that_hears_of_its_slot_before_it_is_refused_asks_once_more() -> None:
    replica, pool = Replica(size=1), pool_of(1)
    running(replica, pool, None)
    replica.send(T, pool, session="s")
    assert replica.do(HoldMade("m", (T.id, "s"))) == [], "it is asking, perhaps too early"
    again = claim_in(replica.do(ClaimRefused(2, RefusedBy.NO_HOLD, 0.0)))
    assert again.holds == HoldTerms("s", True, 1)
    assert replica.do(ClaimRefused(2, RefusedBy.NO_HOLD, 0.0)) == [], "and only once"


def test_nobody_asks_for_a_slot_that_may_not_be_taken_past_others() -> None:
    replica, pool = Replica(size=1), pool_of(1, max_jumps=0)
    running(replica, pool, None)
    replica.send(T, pool)
    replica.send(T, pool, session="s")
    assert replica.do(HoldMade("m", (T.id, "s"))) == []


def test_a_request_past_the_bypass_limit_marks_the_pools_claims_as_starving() -> None:
    replica, pool = Replica(size=2), pool_of(2, max_bypass_secs=5)
    replica.send(T, pool)
    replica.refuse(1)
    replica.now = 5.0
    assert claim_in(replica.do(Woken())).holds == HoldTerms(None, False, 1, is_starving=True)
    replica.refuse(1)
    assert [e for e in replica.send(T, pool, session="s") if isinstance(e, Claim)] == []


def test_a_request_asks_again_the_moment_it_passes_the_bypass_limit() -> None:
    replica, pool = Replica(size=1), pool_of(1, max_bypass_secs=5)
    replica.send(T, pool)
    replica.now = 4.5
    replica.send(a_key("u"), pool)
    replica.do(ClaimRefused(1, RefusedBy.POOL, 5.4))
    assert replica.core.wake_at() == 5.0
    replica.now = 5.0
    assert claim_in(replica.do(Woken())).holds.is_starving
    replica.do(ClaimRefused(1, RefusedBy.POOL, 5.2))
    assert replica.core.wake_at() == 5.2, "the other one's time, 9.5, changes nothing"


@pytest.mark.parametrize("by", [RefusedBy.TENANT, RefusedBy.KEY])
def test_a_request_past_the_bypass_limit_that_its_cap_keeps_waiting_marks_its_own_claims_alone(
    by: RefusedBy,
) -> None:
    """Others run what its cap allows: the fleet alone can tell whether they still do."""
    replica, pool = Replica(size=2), pool_of(2, max_bypass_secs=5)
    replica.send(T, pool)
    replica.do(ClaimRefused(1, by, 4.9))
    replica.now = 5.0
    assert claim_in(replica.do(Woken())).holds.is_starving
    replica.do(ClaimRefused(1, by, 5.2))
    other = claim_in(replica.send(a_key("u"), pool, session="s"))
    assert other.holds == HoldTerms("s", most=1)
    replica.refuse(other.request)
    replica.now = 5.2
    own = claim_in(replica.do(Woken()))
    assert (own.request, own.holds.is_starving) == (1, True)


def test_passes_of_a_request_whose_claim_is_refused_are_counted_whoever_leaves_meanwhile() -> None:
    replica, pool = Replica(size=2), pool_of(2, max_jumps=1)
    running(replica, pool, None)
    replica.send(T, pool)
    replica.refuse(2)
    replica.send(T, pool, session="s")
    replica.do(ClaimGranted(3, held=True))  # past 2
    replica.send(T, pool)
    assert claims(replica.do(Finished(1))) == [2]
    replica.send(T, pool)
    replica.do(Left(5))
    replica.refuse(2)
    assert claims(replica.send(T, pool, session="s")) == [], "2 may not be passed again"


def test_a_held_slot_is_not_taken_past_a_request_that_may_not_be_passed_and_claims_just_now() -> (
    None
):
    replica, pool = Replica(size=2), pool_of(2, max_jumps=1)
    running(replica, pool, None)
    replica.send(T, pool)
    replica.refuse(2)
    replica.send(T, pool, session="s")
    replica.do(ClaimGranted(3, held=True))
    assert claims(replica.do(Finished(1))) == [2]
    assert claims(replica.send(T, pool, session="s")) == []


def test_a_step_that_leaves_while_it_claims_has_passed_nobody() -> None:
    replica, pool = Replica(size=2), pool_of(2, max_jumps=1)
    running(replica, pool, None)
    replica.send(T, pool)
    replica.refuse(2)
    assert claims(replica.send(T, pool, session="s")) == [3]
    replica.do(Left(3))
    replica.do(ClaimRefused(3, RefusedBy.NO_HOLD, 0.0))
    assert claims(replica.send(T, pool, session="s")) == [4]


def test_a_held_slot_taken_while_an_older_request_claims_is_a_pass_if_that_is_refused() -> None:
    replica, pool = Replica(size=1), pool_of(1, max_jumps=1)
    replica.send(T, pool)
    replica.send(T, pool, session="s")
    replica.do(ClaimGranted(2, held=True))
    replica.refuse(1)
    assert claims(replica.send(T, pool, session="s")) == []


def test_a_key_stands_in_line_for_its_oldest_request_whoever_of_it_goes_next() -> None:
    replica, pool = Replica(size=2, fleet_order=True), pool_of(2)
    running(replica, pool)
    replica.now = 1.0
    replica.send(T, pool)
    replica.do(ClaimRefused(2, RefusedBy.POOL, 5.0))
    replica.now = 4.0
    claim = claim_in(replica.send(T, pool, session="s"))
    assert claim.request == 3, "a step of its session runs"
    assert claim.turn is not None
    assert claim.turn.standing.waited == 3.0
    assert [each.waited for each in claim.turn.others] == [3.0]


def let_go(effects: list[Effect]) -> list[Unhold]:
    return [effect for effect in effects if isinstance(effect, Unhold)]


NO_MORE: dict[str, Event] = {
    "affinity off": PoolChanged(PoolPolicy("m", "m", 4, "configured")),
    "model deleted": PoolGone("m"),
    "key revoked": KeyGone(T.id),
}


@pytest.mark.parametrize("why", NO_MORE)
def test_what_the_fleet_holds_is_let_go_at_once_when_nothing_may_be_held_any_more(why: str) -> None:
    replica, pool = Replica(), pool_of(4)
    replica.do(Finished(running(replica, pool)))
    replica.do(HoldAnswered("m", S, 3.0, T))
    assert [key.id for key in replica.core.session_keys] == [T.id]
    assert let_go(replica.do(NO_MORE[why])) == [Unhold("m", "default", "t", T.id, "s")]
    replica.do(HoldEnded("m", S, "freed"))
    assert let_go(replica.do(NO_MORE[why])) == []


@pytest.mark.parametrize("why", ["affinity off", "model deleted"])
def test_a_slot_that_was_held_while_that_was_on_its_way_is_let_go_too(why: str) -> None:
    replica, pool = Replica(), pool_of(4)
    replica.do(Finished(running(replica, pool)))
    replica.do(NO_MORE[why])
    assert let_go(replica.do(HoldAnswered("m", S, 3.0, T))) == [
        Unhold("m", "default", "t", T.id, "s")
    ]
    assert let_go(replica.do(HoldAnswered("m", S, None, T))) == []


def test_a_key_that_is_revoked_loses_only_what_is_held_for_it() -> None:
    replica, pool = Replica(), pool_of(4)
    replica.do(Finished(running(replica, pool)))
    replica.do(HoldAnswered("m", S, 3.0, T))
    assert let_go(replica.do(KeyGone("another"))) == []


def test_what_the_fleet_holds_is_seen_once_with_the_replica_that_gave_it_back() -> None:
    replica, pool = Replica(), pool_of(4)
    replica.do(Finished(running(replica, pool)))
    assert noted(replica.do(HoldAnswered("m", S, 3.0, T))) == [AffinityEvent.HOLD]
    (seen,) = replica.core.pools
    assert (seen.is_seen, list(seen.fleet_holds)) == (True, [S])
    assert replica.do(HoldEnded("m", S, "redeem")) == []
    assert not seen.is_seen
    replica.do(HoldAnswered("m", S, 3.0, T))
    replica.do(HoldAnswered("m", ("t-key", "u"), 5.0, T))
    replica.do(HoldEnded("m", ("t-key", "v"), "freed"))
    assert replica.core.wake_at() == 3.0
    replica.do(HoldEnded("m", ("t-key", "u"), "redeem"))
    replica.now = 3.0
    replica.do(Woken())
    assert not seen.is_seen, "nobody said so, but its time is up"
    assert noted(replica.do(HoldEnded("m", S, "expire"))) == [AffinityEvent.EXPIRE]
    assert noted(replica.do(HoldAnswered("m", S, None, T))) == [AffinityEvent.REFUSED]
    assert replica.do(HoldEnded("gone", S, "expire")) == []
