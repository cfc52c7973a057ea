"""One order over a fleet, as one replica sees it: whom it names, who it takes for next, and whether
whoever was called has come."""

from __future__ import annotations

from dataplane.scheduler.effects import Claim, Effect
from dataplane.scheduler.events import (
    ClaimGranted,
    Finished,
    FleetSeen,
    KeyChanged,
    OtherCalled,
    OtherCame,
    PoolChanged,
    PoolPolicy,
    RefusedBy,
    TurnCome,
    Woken,
)
from dataplane.scheduler.standing import Cuts, LevelElsewhere, PoolElsewhere, Served, Sibling, Turn
from dataplane.scheduler.state import OwnSlots
from shared.policy import KeyPolicy
from tests.simulation.world import a_key
from tests.unit.scheduler.test_claims import Replica, claims

T, U = a_key("t"), a_key("u")


def turn(effects: list[Effect]) -> Turn:
    """What goes with the one claim there is."""
    (claim,) = (each for each in effects if isinstance(each, Claim))
    assert claim.turn is not None
    return claim.turn


def named(effects: list[Effect]) -> list[str]:
    return [standing.tenant.id for standing in turn(effects).others]


def waiting(*names: str, cap: int | None = None, weighted: bool = True) -> Replica:
    """One request of each waits behind a pool that is full."""
    replica = Replica(weighted=weighted, fleet_order=True)
    for name in names:
        come(replica, a_key(name, cap=cap))
    return replica


def come(replica: Replica, key: KeyPolicy) -> None:
    for request in claims(replica.send(key)):
        replica.refuse(request)


def test_a_replica_names_several_for_the_first_of_them_may_be_served_elsewhere_meanwhile() -> None:
    for weighted in (True, False):
        replica = waiting("t", "u", "v", weighted=weighted)
        assert named(replica.do(TurnCome("m", ("t", T.id)))) == ["u", "v"]


def test_a_replica_names_four_of_a_group_at_most_and_first_those_that_come_first() -> None:
    replica = waiting(*"tuvwxyz")
    assert named(replica.do(TurnCome("m", ("t", T.id)))) == list("uvwx")


def test_those_that_are_at_their_caps_elsewhere_do_not_hide_who_comes_after_them() -> None:
    capped = [f"c{n}" for n in range(6)]
    replica = waiting(*capped, cap=1)
    for key in (T, U):
        come(replica, key)
    siblings = {name: Sibling(name, 100, taken=1) for name in capped}
    elsewhere = PoolElsewhere(6, LevelElsewhere(), {"": LevelElsewhere(siblings)})
    # The first of them claims, so that the fleet is told of the others.
    told = replica.do(FleetSeen(6, {"m": elsewhere}))
    assert named(told) == ["c1", "c2", "c3", "c4", "t", "u"]


def test_a_key_that_may_be_at_its_cap_does_not_hide_its_tenants_other_keys() -> None:
    replica = Replica(weighted=True, fleet_order=True)
    first, second = a_key("t", key="first", key_cap=1), a_key("t", key="second")
    for key in (T, first, second):
        come(replica, key)
    others = turn(replica.do(TurnCome("m", ("t", T.id)))).others
    assert [each.key.id for each in others] == [first.id, second.id]


def test_whose_turn_it_is_claims_although_it_was_at_its_cap_a_moment_ago() -> None:
    replica = Replica(fleet_order=True)
    capped = a_key("t", cap=1)
    replica.send(capped)
    replica.refuse(1, RefusedBy.TENANT)
    assert claims(replica.send(U)) == [2]
    # The books have room for the first by now, and know of it: it was named.
    assert claims(replica.refuse(2, turn_of=("t", capped.id))) == [1]


def test_who_is_told_whose_turn_it_is_and_is_told_so_again_waits_for_a_moment() -> None:
    replica = waiting("t", "u")
    again = replica.do(TurnCome("m", ("t", T.id)))
    assert claims(again) == [1]
    assert claims(replica.refuse(1, turn_of=("u", U.id))) == [2]
    assert claims(replica.refuse(2, turn_of=("t", T.id))) == []


def test_one_who_is_called_while_a_claim_of_its_is_refused_at_a_cap_claims_again() -> None:
    capped = a_key("t", cap=1)
    for by in (RefusedBy.TENANT, RefusedBy.POOL):
        replica = Replica(fleet_order=True)
        replica.send(capped)
        replica.do(TurnCome("m", ("t", capped.id)))
        assert claims(replica.refuse(1, by)) == [1]
        assert claims(replica.refuse(1, by)) == []


def test_a_replica_asks_for_the_slot_if_whoever_was_called_for_it_does_not_come() -> None:
    replica = waiting("t")
    assert replica.do(OtherCalled("m", "other", replica.now + 0.1)) == []
    assert replica.core.wake_at() == replica.now + 0.1
    replica.now += 0.1
    assert claims(replica.do(Woken())) == [1]


def test_a_replica_asks_for_nothing_if_whoever_was_called_has_come() -> None:
    replica = waiting("t")
    replica.do(OtherCalled("m", "other", replica.now + 0.1))
    replica.do(OtherCalled("m", "another", replica.now + 0.15))
    replica.do(OtherCame("m", "other"))
    replica.now += 0.1
    assert replica.do(Woken()) == []
    replica.now += 0.05
    assert claims(replica.do(Woken())) == [1], "the other one has not come"


def test_a_replica_whose_pool_waits_for_the_ceiling_looks_for_who_was_called_in_another() -> None:
    replica = Replica(fleet_order=True)
    replica.send(T)
    replica.refuse(1, RefusedBy.TURN)
    replica.do(OtherCalled("not here", "other", replica.now + 0.1))
    replica.now += 0.1
    assert claims(replica.do(Woken())) == [1]


def test_shares_are_cut_from_what_the_ceiling_leaves_however_old_the_others_views_are() -> None:
    # The others ran six of the pool's when they last told; two of those are the replica's by now.
    pool = PoolPolicy("m", "m", 8, "configured")
    replica = Replica(ceiling=7, fleet_order=True)
    heavy, light = a_key("h", group="z", group_weight=300), a_key("l", group="x")
    replica.send(heavy, pool)
    replica.do(FleetSeen(6, {"m": PoolElsewhere(6, LevelElsewhere())}))
    for request in (1, 2, 3):
        replica.do(ClaimGranted(request))
        claim = replica.send(light if request == 1 else heavy, pool)
    # Of seven slots three to one: five and two. Of eight, which there never are: six and two.
    assert turn(claim).standing.group.share == 5


def test_near_the_ceiling_a_replica_tells_the_shares_of_each_number_of_slots_it_may_leave() -> None:
    pool = PoolPolicy("m", "m", 8, "configured")
    replica = Replica(ceiling=10, fleet_order=True)
    heavy, light = a_key("h", group="z", group_weight=300), a_key("l", group="x")
    replica.do(FleetSeen(9, {"m": PoolElsewhere(4), "other": PoolElsewhere(5)}))
    replica.send(heavy, pool)
    # The other pool leaves five now, and may leave any number when the fleet decides.
    shares = {light: (0, 1, 1, 1, 1, 2, 2, 2), heavy: (1, 1, 2, 3, 4, 4, 5, 6)}
    for key, each in shares.items():
        told = turn(replica.send(key, pool)).standing
        assert told.cuts == Cuts(1, 8, 10, each, each)


def test_far_from_the_ceiling_a_replica_tells_one_share_of_each() -> None:
    replica = Replica(ceiling=100, fleet_order=True)
    assert turn(replica.send(T)).standing.cuts is None


def test_where_no_shares_count_none_are_told() -> None:
    replica = Replica(ceiling=2, weighted=True, fleet_order=True)
    assert turn(replica.send(T)).standing.cuts is None


def test_a_pool_that_grows_asks_for_its_new_slots_at_once() -> None:
    replica = waiting("t")
    assert claims(replica.do(PoolChanged(PoolPolicy("m", "m", 4, "configured")))) == []
    assert claims(replica.do(PoolChanged(PoolPolicy("m", "m", 5, "configured")))) == [1]
    replica.do(PoolChanged(PoolPolicy("m", "m", 6, "configured")))
    assert claims(replica.refuse(1)) == [1], "that answer was to a claim of five"


def test_whoever_is_at_its_cap_asks_again_at_once_when_the_cap_is_raised() -> None:
    for by, few, more in (
        (RefusedBy.TENANT, a_key("t", cap=1), a_key("t", cap=2)),
        (RefusedBy.KEY, a_key("t", key_cap=1), a_key("t", key_cap=2)),
    ):
        replica = Replica(fleet_order=True)
        replica.send(few)
        replica.refuse(1, by)
        assert claims(replica.do(KeyChanged(few))) == []
        assert claims(replica.do(KeyChanged(more))) == [1]


def test_a_replica_names_of_more_groups_fewer_tenants_each() -> None:
    replica = Replica(fleet_order=True)
    keys = [a_key(f"{group}{n}", group=group) for group in "abcdefgh" for n in range(3)]
    for key in keys:
        come(replica, key)
    told = named(replica.do(TurnCome("m", ("a0", keys[0].id))))
    assert sorted(told) == ["a1", "a2", *(f"{group}{n}" for group in "bcdefgh" for n in range(2))]


def test_a_replica_tells_anew_who_comes_first_when_the_books_have_moved_on() -> None:
    replica = waiting(*"tuvwxyz")
    replica.do(TurnCome("m", ("t", T.id)))
    replica.refuse(1)
    seen = dict.fromkeys("tuvwxyz", 0.0)
    assert claims(replica.do(FleetSeen(0, {}, {"m": Served(tenants=seen)}))) == []
    seen |= dict.fromkeys("tuvwx", 100.0)
    assert claims(replica.do(FleetSeen(0, {}, {"m": Served(tenants=seen)}))) == [6]


def test_a_pool_that_takes_turns_is_called_and_asks_for_nothing_when_it_frees_a_slot() -> None:
    replica = Replica(fleet_order=True)
    replica.send(T)
    replica.do(ClaimGranted(1, more_at=9.0, more_by=RefusedBy.TURN))
    replica.send(T)
    replica.refuse(2, RefusedBy.TURN)
    assert claims(replica.do(Finished(1))) == []
    # One that came elsewhere meanwhile is no reason to wait.
    assert claims(replica.send(U, PoolPolicy("n", "n", 4))) == [3]
    assert claims(replica.do(TurnCome("m", ("t", T.id)))) == [2]


def test_a_call_is_not_forgotten_over_an_older_refusal_at_the_ceiling() -> None:
    replica = Replica(fleet_order=True)
    replica.send(T)
    assert claims(replica.do(TurnCome("m", ("t", T.id)))) == []
    assert claims(replica.refuse(1, RefusedBy.TURN)) == [1]


def test_who_was_at_its_cap_here_is_told_of_when_its_slot_is_free_though_the_pool_takes_turns() -> (
    None
):
    replica = Replica(fleet_order=True)
    capped = a_key("t", cap=1)
    replica.send(U)
    replica.send(capped)
    replica.send(capped)
    for request in (1, 2):
        replica.do(ClaimGranted(request, more_at=9.0, more_by=RefusedBy.TURN))
    assert claims(replica.do(Finished(2))) == [3]


def test_a_replica_whose_freed_slots_go_to_others_claims_fewer_and_fewer_of_them_at_once() -> None:
    own = OwnSlots()
    tried = []
    for number in range(1 + 2 + 4 + 8 + 8):
        if not own.lets_pass():
            tried.append(number)
            own.answered(granted=False)
    assert tried == [0, 2, 6, 14, 22]


def test_a_replica_that_gets_the_slot_it_freed_claims_the_next_at_once_again() -> None:
    own = OwnSlots()
    assert not own.lets_pass()
    own.answered(granted=False)
    assert own.lets_pass()
    own.answered(granted=True)  # of a claim that it made when it was called
    assert not own.lets_pass()
    own.answered(granted=True)
    assert not own.lets_pass()


def test_a_slot_that_a_replica_lets_pass_is_for_whom_the_fleet_calls() -> None:
    replica = waiting("t", "u", "v")
    replica.do(TurnCome("m", ("t", T.id)))
    replica.do(ClaimGranted(1, more_at=replica.now + 9))
    assert claims(replica.do(Finished(1))) == [2], "the first that is freed is claimed at once"
    replica.refuse(2)
    replica.do(TurnCome("m", ("u", U.id)))
    replica.do(ClaimGranted(2, more_at=replica.now + 9))
    assert claims(replica.do(Finished(2))) == []
    assert claims(replica.do(TurnCome("m", ("v", "v/key")))) == [3]


def test_a_tenant_whose_cap_is_lifted_starts_level_though_it_waits_on_other_replicas_too() -> None:
    replica = Replica(weighted=True, fleet_order=True)
    replica.send(a_key("t", cap=1))
    replica.refuse(1, RefusedBy.TENANT)
    siblings = {"t": Sibling("t", 100, taken=1, waits=True), "u": Sibling("u", 100, waits=True)}
    level = LevelElsewhere(siblings, lowest=1000.0, top=1000.0)
    elsewhere = PoolElsewhere(1, LevelElsewhere(), {"": level})
    replica.do(FleetSeen(1, {"m": elsewhere}, {"m": Served(tenants={"t": 10.0})}))
    assert turn(replica.do(KeyChanged(T))).standing.tenant.floor == 1000.0


def test_a_group_to_which_a_tenant_moves_whose_only_request_claims_starts_level() -> None:
    replica = Replica(fleet_order=True)
    siblings = {"x": Sibling("x", 100, taken=1, waits=True)}
    level = LevelElsewhere(siblings, lowest=1000.0, top=1000.0)
    replica.do(FleetSeen(1, {"m": PoolElsewhere(1, level)}))
    assert turn(replica.send(a_key("t", group="a"))).standing.group.floor == 1000.0
    replica.do(KeyChanged(a_key("t", group="b")))
    replica.refuse(1)
    group = turn(replica.do(TurnCome("m", ("t", T.id)))).standing.group
    assert (group.id, group.floor) == ("b", 1000.0)
