"""Fair slots, who is below its share, and why each waits."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.live.verdicts import Verdict, Verdicts, effective_size, judge
from dataplane.live_view import PoolView
from shared.live_state import Cause
from tests.live.views import key, pool, tenant


def judged(of: PoolView, slots: int | None = None, *, ceiling_reached: bool = False) -> Verdicts:
    whole = of.size if slots is None else slots
    return judge(of, slots=whole, by_group=True, ceiling_reached=ceiling_reached)


def tenants(of: PoolView) -> dict[str, Verdict]:
    return dict(judged(of).tenants)


def causes(of: PoolView) -> dict[str, Cause]:
    return {id: verdict.cause for id, verdict in judged(of).tenants.items()}


def test_fair_slots_are_the_weighted_split_over_groups_then_tenants() -> None:
    of = pool(
        8,
        tenant("chat", 7, group="interactive"),
        tenant("api", 1, group="batch", weight=300),
        tenant("jobs", 0, 1, group="batch", weight=100),
        weights={"interactive": 500, "batch": 50},
    )
    verdicts = judged(of)
    assert verdicts.groups == {"interactive": 500 / 550, "batch": 50 / 550}
    fair = {id: verdict.fair_slots for id, verdict in verdicts.tenants.items()}
    assert fair == {
        "chat": pytest.approx(8 * 500 / 550),
        "api": pytest.approx(8 * 50 / 550 * 3 / 4),
        "jobs": pytest.approx(8 * 50 / 550 / 4),
    }


def test_without_groups_tenants_share_the_pool_directly() -> None:
    of = pool(8, tenant("a", 1, group="x", weight=300), tenant("b", 1, group="y"))
    verdicts = judge(of, slots=8, by_group=False, ceiling_reached=False)
    assert {id: each.fair_slots for id, each in verdicts.tenants.items()} == {"a": 6.0, "b": 2.0}
    assert verdicts.groups == {"x": 0.75, "y": 0.25}


def test_a_list_that_was_cut_leaves_the_listed_their_true_part() -> None:
    whole = pool(10, *(tenant(f"t{n}", 1) for n in range(10)))
    listed = msgspec.structs.replace(whole, tenants=whole.tenants[:4])
    assert {each.fair_slots for each in judged(listed).tenants.values()} == {1.0}


Sizes = st.integers(1, 200)
Weights = st.integers(1, 1_000_000)


@given(
    slots=Sizes,
    members=st.lists(st.tuples(st.sampled_from("abcde"), Weights), min_size=1, max_size=40),
    group_weights=st.lists(Weights, min_size=5, max_size=5),
    by_group=st.booleans(),
)
def test_shares_add_up(
    slots: int, members: list[tuple[str, int]], group_weights: list[int], by_group: bool
) -> None:
    of = pool(
        slots,
        *(
            tenant(f"t{n}", 1, group=group, weight=weight)
            for n, (group, weight) in enumerate(members)
        ),
        weights=dict(zip("abcde", group_weights, strict=True)),
        keys=tuple(key(f"t{n}/{k}", 1, weight=k) for n in range(len(members)) for k in (1, 2)),
    )
    verdicts = judge(of, slots=slots, by_group=by_group, ceiling_reached=False)
    of_tenants = [each.fair_slots for each in verdicts.tenants.values()]
    of_keys = [each.fair_slots for each in verdicts.keys.values()]
    assert math.isclose(sum(verdicts.groups.values()), 1, rel_tol=1e-9)
    assert math.isclose(sum(of_tenants), slots, rel_tol=1e-9)
    assert math.isclose(sum(of_keys), slots, rel_tol=1e-9)
    for name, part in verdicts.groups.items():
        inside = [verdicts.tenants[t.id].fair_slots for t in of.tenants if t.group == name]
        assert math.isclose(sum(inside), slots * part, rel_tol=1e-9)


@given(
    slots=Sizes,
    members=st.lists(
        st.tuples(st.integers(0, 50), st.integers(0, 3), Weights), min_size=1, max_size=20
    ),
)
def test_whoever_is_below_its_share_waits_while_another_is_a_slot_ahead(
    slots: int, members: list[tuple[int, int, int]]
) -> None:
    of = pool(
        slots, *(tenant(f"t{n}", run, wait, weight=w) for n, (run, wait, w) in enumerate(members))
    )
    verdicts = tenants(of)
    excess = {view.id: view.occupied - verdicts[view.id].fair_slots for view in of.tenants}
    for view in of.tenants:
        others = [excess[id] for id in excess if id != view.id]
        assert verdicts[view.id].below_share == (
            view.queued > 0 and excess[view.id] < 0 and any(one >= 1 for one in others)
        )
        assert (verdicts[view.id].cause is Cause.IDLE) == (view.queued == 0)


@pytest.mark.parametrize(
    ("of", "below"),
    [
        (pool(8, tenant("a", 2, 5), tenant("b", 6)), {"a"}),
        (pool(8, tenant("a", 4, 5), tenant("b", 4, 5)), set()),
        # The wait is the pool being full: nobody has a slot more than its own.
        (pool(8, tenant("a", 7, 5, weight=500), tenant("b", 1, 5, weight=50)), set()),
        # Whoever has nothing queued is not below, however little it runs.
        (pool(8, tenant("a", 2), tenant("b", 6, 9)), set()),
        # It has its share exactly, in a pool that was made smaller.
        (pool(8, tenant("a", 4, 5), tenant("b", 6)), set()),
        # Held slots count as its own, and as another's.
        (pool(8, tenant("a", 2, 5, held=2), tenant("b", 4)), set()),
        (pool(8, tenant("a", 2, 5), tenant("b", 2, held=3)), {"a"}),
        # Three slots over two equals: one may well have two.
        (pool(3, tenant("a", 1, 5), tenant("b", 2, 5)), set()),
    ],
)
def test_below_share_is_judged_inside_a_pool(of: PoolView, below: set[str]) -> None:
    assert {id for id, verdict in tenants(of).items() if verdict.below_share} == below


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (pool(4, tenant("a", 4)), {"a": "idle"}),
        (pool(4, tenant("a", 4, 3)), {"a": "pool_full"}),
        (pool(0, tenant("a", 0, 3, max_in_flight=1)), {"a": "no_ready_backend"}),
        (pool(8, tenant("a", 2, 3, max_in_flight=2)), {"a": "at_tenant_cap"}),
        (pool(8, tenant("a", 1, 3, max_in_flight=2, held=1)), {"a": "at_tenant_cap"}),
        # A part of its cap, or what the fleet said: the replica knows.
        (pool(8, tenant("a", 1, 3, max_in_flight=2, is_capped=True)), {"a": "at_tenant_cap"}),
        (pool(8, tenant("a", 1, 3, keys_capped=True)), {"a": "at_key_cap"}),
        (
            pool(4, tenant("a", 1, 3), tenant("b", 3, 2)),
            {"a": "below_share", "b": "ahead_of_share"},
        ),
        # Nobody else waits, so it is not for others that it waits.
        (pool(4, tenant("a", 1), tenant("b", 3, 2)), {"a": "idle", "b": "pool_full"}),
        (
            pool(4, tenant("a", 1, 3, max_in_flight=1), tenant("b", 3, 2)),
            {"a": "at_tenant_cap", "b": "pool_full"},
        ),
    ],
)
def test_why_a_tenant_waits(of: PoolView, expected: dict[str, str]) -> None:
    assert causes(of) == expected


def test_the_limit_over_all_pools_is_the_cause_only_where_the_pool_has_room() -> None:
    free, full = pool(8, tenant("a", 2, 3)), pool(2, tenant("a", 2, 3))
    for of, cause in ((free, Cause.GLOBAL_CEILING), (full, Cause.POOL_FULL)):
        assert judged(of, ceiling_reached=True).tenants["a"].cause is cause


def test_why_a_key_waits() -> None:
    keys = (
        key("a/one", 1, 2, max_in_flight=1),
        key("a/two", 3, 1),
        key("b/one", 1, 4),
        key("c/one", 2, 1),
        key("c/two", 0, 0),
        key("d/one", 0, 1, is_passed=True),
    )
    of = pool(
        10,
        tenant("a", 4, 3),
        tenant("b", 1, 4),
        tenant("c", 2, 1, max_in_flight=2),
        tenant("d", 3, 1),
        keys=keys,
    )
    assert {id: each.cause for id, each in judged(of).keys.items()} == {
        "a/one": "at_key_cap",
        "a/two": "ahead_of_share",
        "b/one": "below_share",
        "c/one": "at_tenant_cap",
        "c/two": "idle",
        "d/one": "passed_by_warm_session",
    }


def test_keys_are_below_and_ahead_of_their_part_of_the_tenants_share() -> None:
    keys = (key("a/one", 3, 2), key("a/two", 1, 2))
    verdicts = judged(pool(4, tenant("a", 4, 4), keys=keys)).keys
    assert [verdicts[id].fair_slots for id in ("a/one", "a/two")] == [2.0, 2.0]
    assert [verdicts[id].below_share for id in ("a/one", "a/two")] == [False, True]
    assert [verdicts[id].cause for id in ("a/one", "a/two")] == ["ahead_of_share", "below_share"]


@pytest.mark.parametrize(
    ("size", "occupied", "left", "effective"),
    [(8, 3, 100, 8), (8, 3, 2, 5), (8, 3, 0, 3), (8, 0, 0, 1), (8, 9, -4, 8), (0, 0, 50, 0)],
)
def test_the_effective_size_is_what_the_ceiling_lets_a_pool_use(
    size: int, occupied: int, left: int, effective: int
) -> None:
    assert effective_size(size, occupied, left) == effective
