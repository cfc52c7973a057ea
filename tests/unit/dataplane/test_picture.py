"""What a replica says of its scheduler, and how several replicas' words become one picture."""

from __future__ import annotations

import msgspec
import pytest

from dataplane import live_view, picture
from dataplane.live_view import PoolView, ReplicaView
from dataplane.metrics import PoolFigures
from dataplane.scheduler.events import (
    AffinityRules,
    ClaimGranted,
    Finished,
    HoldAnswered,
    HoldEnded,
    KeyChanged,
    PoolGone,
    PoolPolicy,
)
from dataplane.scheduler.order import Weighted
from shared.policy import KeyPolicy
from tests.simulation.world import World, a_key
from tests.unit.scheduler.test_claims import Replica


def pools(world: World) -> dict[str, PoolView]:
    return {pool.model: pool for pool in picture.pools(world.core, world.now)}


def view_of(world: World | Replica, instance: str = "r1", taken_at: float = 0.0) -> ReplicaView:
    return ReplicaView(
        instance=instance,
        url=f"http://{instance}:9091",
        version="1",
        mode="shared",
        algorithm="hierarchical",
        replicas=2,
        started_at=0.0,
        taken_at=taken_at,
        global_max_in_flight=4096,
        configured_global_max_in_flight=4096,
        in_flight=world.core.in_flight,
        queued=world.core.queued,
        pools=picture.pools(world.core, world.now),
    )


def busy_world() -> World:
    world = World()
    for _ in range(10):
        world.send(a_key("chat", group="chat", group_weight=500, key="a"), tokens=100)
    for _ in range(3):
        world.send(a_key("batch", group="api", group_weight=50, cap=2), tokens=50)
    return world


def test_the_picture_counts_what_runs_and_waits_at_every_level() -> None:
    world = busy_world()
    world.run(2)
    (pool,) = pools(world).values()
    assert (pool.size, pool.in_flight, pool.queued, pool.oldest_wait_ms) == (8, 8, 5, 2000)
    groups = {group.name: (group.in_flight, group.queued, group.weight) for group in pool.groups}
    assert groups == {"api": (0, 3, 50), "chat": (8, 2, 500)}
    tenants = {t.name: (t.in_flight, t.queued, t.max_in_flight, t.group) for t in pool.tenants}
    assert tenants == {"chat": (8, 2, None, "chat"), "batch": (0, 3, 2, "api")}
    assert [(k.name, k.tenant_id, k.in_flight, k.queued) for k in pool.keys] == [
        ("a", "chat", 8, 2),
        ("key", "batch", 0, 3),
    ]


def test_the_picture_says_what_each_was_charged_and_where_it_stands() -> None:
    (pool,) = pools(busy_world()).values()
    chat = next(tenant for tenant in pool.tenants if tenant.id == "chat")
    assert (chat.served_tokens, chat.share_score) == (800, 8.0)
    group = next(group for group in pool.groups if group.name == "chat")
    assert (group.served_tokens, group.share_score) == (800, pytest.approx(1.6))
    assert pool.virtual_time > 0


def test_groups_are_counted_where_the_algorithm_has_none() -> None:
    world = World(Weighted())
    for tenant in ("a", "b"):
        world.send(a_key(tenant, group="both", group_weight=7), tokens=100)
    (pool,) = pools(world).values()
    assert [(g.name, g.weight, g.in_flight, g.served_tokens) for g in pool.groups] == [
        ("both", 7, 2, 200)
    ]


def test_a_groups_weight_is_the_one_it_counts_with() -> None:
    world = World()
    pool = PoolPolicy("m", "m", 1)
    world.send(a_key("runs", group="g", group_weight=100), pool=pool)
    world.send(a_key("waits", group="g", group_weight=100), pool=pool)
    world.post(KeyChanged(a_key("waits", group="g", group_weight=900)))
    (view,) = pools(world).values()
    assert [(group.name, group.weight) for group in view.groups] == [("g", 900)]


def test_pools_without_work_are_left_out_and_the_fullest_comes_first() -> None:
    world = World()
    for size, sent in ((4, 1), (2, 2), (100, 3)):
        for _ in range(sent):
            world.send(a_key("t"), pool=PoolPolicy(f"m{size}", f"m{size}", size))
    world.finish(world.send(a_key("t"), pool=PoolPolicy("idle", "idle", 1)))
    assert list(pools(world)) == ["m2", "m4", "m100"]


def test_the_busiest_tenants_and_keys_are_kept_where_there_are_too_many() -> None:
    world = World()
    for n in range(700):
        for _ in range(1 + (n >= 690)):
            world.send(a_key(f"t{n:03}"), pool=PoolPolicy("m", "m", 1))
    (pool,) = pools(world).values()
    assert (len(pool.tenants), len(pool.keys)) == (512, 128)
    assert {tenant.name for tenant in pool.tenants[:10]} == {f"t{n}" for n in range(690, 700)}
    assert (pool.in_flight, pool.queued) == (1, 709)
    assert sum(group.queued for group in pool.groups) == 709


def test_totals_are_those_of_the_picture_with_nobody_listed() -> None:
    world = busy_world()
    assert picture.totals(world.core) == tuple(
        msgspec.structs.replace(pool, oldest_wait_ms=0, tenants=(), keys=(), next_in_line=())
        for pool in picture.pools(world.core, world.now)
    )


def test_all_pools_together_are_bounded_too() -> None:
    world = World()
    for p in range(6):
        for n in range(500):
            world.send(a_key(f"p{p}t{n}"), pool=PoolPolicy(f"m{p}", f"m{p}", 1))
    views = picture.pools(world.core, world.now)
    assert sum(len(pool.tenants) for pool in views) == 2048
    assert sum(len(pool.keys) for pool in views) == 512
    assert [pool.queued for pool in views] == [499] * 6


def test_a_view_is_the_same_after_it_was_published() -> None:
    view = view_of(busy_world())
    assert live_view.decode(live_view.encode(view)) == view


def test_a_view_of_a_newer_replica_is_understood_as_far_as_it_goes() -> None:
    view = view_of(busy_world())
    text = live_view.encode(view).replace(b'{"', b'{"something_new":[1,{"x":2}],"', 1)
    assert live_view.decode(text) == view


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'{"instance": 3}', b"\xff"])
def test_what_is_no_view_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        live_view.decode(text)


def test_counts_of_replicas_add_up_and_a_tenant_on_both_is_one_tenant() -> None:
    first, second = World(), World()
    for _ in range(3):
        first.send(a_key("t"), pool=PoolPolicy("m", "m", 4))
    for _ in range(2):
        second.send(a_key("t"), pool=PoolPolicy("m", "m", 4))
    second.send(a_key("u"), pool=PoolPolicy("m", "m", 4))
    (pool,) = live_view.merge([view_of(first, "r1"), view_of(second, "r2")])
    assert (pool.in_flight, pool.queued, pool.size) == (6, 0, 4)
    assert {tenant.id: tenant.in_flight for tenant in pool.tenants} == {"t": 5, "u": 1}


def test_what_is_one_number_for_the_fleet_is_taken_from_the_newest_view() -> None:
    worlds = []
    for size in (4, 6):
        world = World()
        world.send(a_key("t", weight=size), pool=PoolPolicy("m", "m", size))
        worlds.append(world)
    newest, oldest = view_of(worlds[1], "r2", taken_at=2.0), view_of(worlds[0], "r1", taken_at=1.0)
    for views in ([newest, oldest], [oldest, newest]):
        (pool,) = live_view.merge(views)
        assert (pool.configured_size, pool.tenants[0].weight) == (6, 6)


def test_merging_one_view_changes_nothing_but_the_order_of_groups() -> None:
    view = view_of(busy_world())
    assert live_view.merge([view]) == view.pools


def test_views_are_plain_values() -> None:
    view = view_of(busy_world())
    assert msgspec.to_builtins(view)["pools"][0]["tenants"][0]["id"] == "chat"


def test_a_model_made_again_while_its_old_requests_run_has_one_set_of_gauges() -> None:
    world = World()
    world.send(a_key("t"), pool=PoolPolicy("id-1", "m", 3))
    world.post(PoolGone("id-1"))
    for _ in range(6):
        world.send(a_key("t"), pool=PoolPolicy("id-2", "m", 5))
    assert list(picture.figures(world.core)) == [PoolFigures("m", 5, 6, 1, 0)]


AGENTS = PoolPolicy("m", "m", 4, "configured", affinity=AffinityRules())


def counts(pool: PoolView) -> dict[str, tuple[int, int, int]]:
    """What runs, waits and is held, of everybody in the picture."""
    nodes = (*pool.groups, *pool.tenants, *pool.keys)
    return {each.name: (each.in_flight, each.queued, each.held) for each in nodes}


def give_back(replica: Replica, key: KeyPolicy, session: str = "s") -> None:
    """A step runs, and the fleet holds its slot as it ends."""
    replica.send(key, AGENTS, session=session)
    replica.do(ClaimGranted(replica.number))
    replica.do(Finished(replica.number))
    replica.do(HoldAnswered("m", (key.id, session), 3.0, key))


@pytest.mark.parametrize("weighted", [False, True])
def test_a_slot_the_fleet_holds_counts_for_its_group_tenant_and_key(weighted: bool) -> None:
    replica = Replica(weighted=weighted)
    agent = a_key("agent", group="g", weight=50, cap=1)
    give_back(replica, agent)
    (pool,) = picture.pools(replica.core, replica.now)
    assert counts(pool) == {"g": (0, 0, 1), "agent": (0, 0, 1), "key": (0, 0, 1)}
    assert (pool.held, pool.tenants[0].weight, pool.tenants[0].max_in_flight) == (1, 50, 1)
    assert pool.groups[0].tenants == 1
    replica.send(agent, AGENTS)
    replica.send(a_key("other", group="g", key="k2"), AGENTS)
    (pool,) = picture.pools(replica.core, replica.now)
    assert counts(pool)["agent"] == (1, 0, 1), "what is claimed runs, and is not held"
    assert (pool.groups[0].tenants, pool.groups[0].tenant_weight) == (2, 150)
    replica.do(HoldEnded("m", (agent.id, "s"), "redeem"))
    (pool,) = picture.pools(replica.core, replica.now)
    assert (pool.held, counts(pool)["agent"]) == (0, (1, 0, 0))


def test_over_replicas_a_slot_the_fleet_holds_counts_once() -> None:
    first, second = Replica(), Replica()
    agent = a_key("agent", group="g")
    give_back(first, agent, "s")
    give_back(second, agent, "u")
    second.send(agent, AGENTS)
    views = [view_of(first, "r1"), view_of(second, "r2")]
    (pool,) = live_view.merge(views)
    assert counts(pool) == {"g": (1, 0, 2), "agent": (1, 0, 2), "key": (1, 0, 2)}
    assert pool.held == 2


def test_a_groups_tenants_on_several_replicas_are_counted_together() -> None:
    worlds = [World(), World()]
    for world, name in zip(worlds, ("t", "u"), strict=True):
        world.send(a_key(name, group="g"))
    (pool,) = live_view.merge([view_of(world, f"r{n}") for n, world in enumerate(worlds)])
    assert [group.tenants for group in pool.groups] == [2]
