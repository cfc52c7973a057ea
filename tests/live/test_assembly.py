"""The picture that is put together from views."""

from __future__ import annotations

import msgspec

from dataplane.live.assembly import assemble
from shared.live_state import LiveState
from tests.live.views import pick, pool, replica, tenant


def test_where_slots_are_shared_it_is_the_clusters() -> None:
    own = replica(pool(8, tenant("a", 2, 1)), mode="shared", replicas=3)
    other = replica(pool(8, tenant("a", 1), tenant("b", 5, 4)), mode="shared", instance="r2")
    state = assemble(own, [other], state_age_ms=120)
    assert (state.scope, state.scope_reason, state.state_age_ms) == ("cluster", None, 120)
    assert (state.replicas, state.replicas_reporting) == (3, 2)
    assert (state.in_flight, state.queued, state.cluster_in_flight) == (8, 5, 8)
    assert (state.instance, state.replica_in_flight, state.replica_queued) == ("r1", 2, 1)
    (one,) = state.pools
    assert (one.in_flight, one.replica_in_flight, one.cluster_in_flight) == (8, 2, 8)
    assert {t.id: (t.in_flight, t.fair_slots, t.cause) for t in one.tenants} == {
        "a": (3, 4.0, "below_share"),
        "b": (5, 4.0, "ahead_of_share"),
    }


def test_a_replica_that_has_just_come_is_one_of_those_there_are() -> None:
    others = [replica(mode="shared", replicas=3, instance=name) for name in ("r2", "r3")]
    state = assemble(replica(mode="shared", replicas=2), others)
    assert (state.replicas, state.replicas_reporting) == (3, 3)


def test_what_affinity_did_is_added_up_over_replicas() -> None:
    own = replica(pool(8, tenant("a", 1), affinity={"hold": 2, "warm": 1}), mode="shared")
    other = replica(pool(8, affinity={"hold": 3, "redeem": 4}), mode="shared", instance="r2")
    (one,) = assemble(own, [other]).pools
    assert one.affinity == {"hold": 5, "warm": 1, "redeem": 4}


def test_in_any_other_mode_it_is_the_replicas_own_and_says_why() -> None:
    for mode in ("local", "split", "fallback"):
        own = replica(
            pool(3, tenant("a", 2), configured_size=8),
            **{"mode": mode, "replicas": 3, "global_max_in_flight": 1366},
        )
        state = assemble(own, [replica(pool(3, tenant("a", 3)))])
        assert (state.scope, state.in_flight, state.cluster_in_flight) == ("replica", 2, None)
        assert state.scope_reason is not None
        assert mode in state.scope_reason
        assert (state.pools[0].size, state.pools[0].configured_size) == (3, 8)


def test_of_a_fallback_it_is_told_whether_a_part_of_each_limit_is_enforced_or_the_whole() -> None:
    reasons = [
        assemble(replica(mode="fallback", replicas=3, global_max_in_flight=enforced)).scope_reason
        for enforced in (1366, 4096)
    ]
    assert "its own part of every limit" in str(reasons[0])
    assert "the whole of every limit by itself" in str(reasons[1])


def test_a_pool_of_others_only_has_nothing_of_the_answering_replica() -> None:
    other = replica(pool(8, tenant("b", 5, 4)), mode="shared", instance="r2")
    (one,) = assemble(replica(mode="shared"), [other]).pools
    assert (one.in_flight, one.replica_in_flight, one.replica_queued) == (5, 0, 0)


def test_groups_have_their_share_in_whole_slots_and_what_they_borrow() -> None:
    of = pool(
        8,
        tenant("chat", 6, 3, group="chat", held=1),
        tenant("api", 1, 3, group="api"),
        weights={"chat": 100, "api": 100},
    )
    (one,) = assemble(replica(of)).pools
    assert {g.name: (g.slot_cap, g.borrowed, g.weight_share) for g in one.groups} == {
        "api": (4, 0, 0.5),
        "chat": (4, 3, 0.5),
    }
    assert one.borrowed == 3


def test_where_groups_do_not_count_they_have_no_share_of_their_own() -> None:
    of = pool(8, tenant("a", 6, group="x", weight=300), tenant("b", 2, group="y"))
    (one,) = assemble(replica(of, algorithm="weighted")).pools
    assert [(g.slot_cap, g.borrowed, g.weight_share) for g in one.groups] == [
        (None, 0, 0.75),
        (None, 0, 0.25),
    ]


def test_shares_are_cut_from_what_the_limit_over_all_pools_leaves() -> None:
    busy = pool(8, tenant("a", 6), id="m1", model="m1")
    waiting = pool(8, tenant("b", 2, 3), id="m2", model="m2")
    state = assemble(replica(busy, waiting, global_max_in_flight=8))
    fair = {one.model: one.tenants[0].fair_slots for one in state.pools}
    assert fair == {"m1": 6.0, "m2": 2.0}
    assert {one.model: one.tenants[0].cause for one in state.pools} == {
        "m1": "idle",
        "m2": "global_ceiling",
    }


def test_next_in_line_of_several_replicas_says_on_which_each_waits() -> None:
    first = pool(1, tenant("a", 1), next_in_line=(pick("a", 9.0),))
    second = pool(1, tenant("b", 0, 1), next_in_line=(pick("b", 5.0),))
    (one,) = assemble(
        replica(first, mode="shared"), [replica(second, mode="shared", instance="r2")]
    ).pools
    assert [(p.instance, p.tenant_score) for p in one.next_in_line] == [("r2", 5.0), ("r1", 9.0)]


def test_the_picture_survives_being_sent() -> None:
    state = assemble(replica(pool(8, tenant("<b>&'\"", 2, 1), next_in_line=(pick("a", 1.0),))))
    assert msgspec.json.decode(msgspec.json.encode(state), type=LiveState) == state


def test_two_thousand_tenants_add_up() -> None:
    of = pool(100, *(tenant(f"t{n:04}", n < 100, 1, weight=1 + n % 7) for n in range(2000)))
    (one,) = assemble(replica(of)).pools
    assert len(one.tenants) == 2000
    assert abs(sum(each.fair_slots for each in one.tenants) - 100) < 1e-6
