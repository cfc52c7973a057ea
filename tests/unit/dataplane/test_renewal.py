"""A policy change reaches the requests that wait, and only those it concerns."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pytest

from dataplane.errors import InvalidApiKey, PolicyUnavailable, Refusal, TenantSuspended
from dataplane.renewal import Renewal
from shared.invalidation import Invalidation, Kind
from shared.policy import GroupPolicy, KeyPolicy, ModelPolicy, TenantPolicy


def a_key(
    id: str, tenant: str = "t1", group: str = "g1", weight: int = 1, digest: str = ""
) -> KeyPolicy:
    owner = TenantPolicy(id=tenant, name=tenant, group=GroupPolicy(group))
    return KeyPolicy(id=id, name=id, tenant=owner, weight=weight, digest=digest)


class World:
    """Policies and waiters in one, with what was heard."""

    def __init__(self, *waiting: KeyPolicy) -> None:
        self.stored: dict[str, KeyPolicy | Exception] = {key.id: key for key in waiting}
        self.waiting_keys = list(waiting)
        self.running_keys: list[KeyPolicy] = []
        self.heard: list[object] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = asyncio.Event()

    async def renewed(self, key: KeyPolicy) -> KeyPolicy:
        found = self.stored.get(f"{key.id} {key.digest}", self.stored[key.id])
        self.asked.set()
        await self.gate.wait()
        if isinstance(found, Exception):
            raise found
        return found

    def models(self) -> Sequence[ModelPolicy]:
        return (ModelPolicy("m1", "one"),)

    def key_changed(self, key: KeyPolicy) -> None:
        self.heard.append(key)

    def key_gone(self, key: KeyPolicy, because: Callable[[], Refusal]) -> None:
        self.heard.append((key.id, key.digest, type(because())))

    def models_changed(self, models: Iterable[ModelPolicy]) -> None:
        self.heard.append([model.name for model in models])


async def settled(renewal: Renewal) -> None:
    assert renewal._task is not None
    await renewal._task


@pytest.mark.parametrize(
    ("kind", "id", "concerned"),
    [
        (Kind.KEY, "k1", ["k1"]),
        (Kind.TENANT, "t1", ["k1", "k2"]),
        (Kind.GROUP, "g2", ["k3"]),
        (Kind.ALL, "", ["k1", "k2", "k3"]),
    ],
)
async def test_a_change_renews_the_waiting_keys_it_concerns(
    kind: Kind, id: str, concerned: list[str]
) -> None:
    world = World(a_key("k1"), a_key("k2"), a_key("k3", tenant="t2", group="g2"))
    renewal = Renewal(world, world)
    renewal.changed(Invalidation(kind, id, 1))
    await settled(renewal)
    assert [key.id for key in world.heard if isinstance(key, KeyPolicy)] == concerned


@pytest.mark.parametrize(
    ("kind", "id", "renewed"),
    [
        (Kind.TENANT, "t1", ["k1"]),
        (Kind.GROUP, "g1", ["k1"]),
        (Kind.KEY, "k1", []),
        (Kind.ALL, "", []),
    ],
)
async def test_keys_that_only_run_are_renewed_when_their_tenant_or_group_changes(
    kind: Kind, id: str, renewed: list[str]
) -> None:
    world = World()
    world.running_keys = [a_key("k1"), a_key("k2", tenant="t2", group="g2")]
    world.stored = {key.id: key for key in world.running_keys}
    renewal = Renewal(world, world)
    renewal.changed(Invalidation(kind, id, 1))
    if renewed:
        await settled(renewal)
    await asyncio.sleep(0)
    assert [key.id for key in world.heard if isinstance(key, KeyPolicy)] == renewed


async def test_a_change_that_concerns_nobody_who_waits_reloads_nothing() -> None:
    world = World(a_key("k1"))
    Renewal(world, world).changed(Invalidation(Kind.KEY, "k9", 1))
    await asyncio.sleep(0)
    assert world.heard == []
    assert not world.asked.is_set()


async def test_a_revoked_key_and_a_suspended_tenant_end_what_waits_with_their_own_reasons() -> None:
    revoked, suspended = a_key("k1"), a_key("k2", tenant="t2")
    world = World(revoked, suspended)
    world.stored["k1"] = InvalidApiKey()
    world.stored["k2"] = replace(suspended, tenant=replace(suspended.tenant, suspended=True))
    renewal = Renewal(world, world)
    renewal.changed(Invalidation(Kind.ALL, "", 1))
    await settled(renewal)
    assert world.heard == [["one"], ("k1", "", InvalidApiKey), ("k2", "", TenantSuspended)]


async def test_a_key_waited_under_with_its_old_and_its_new_secret_is_renewed_for_each() -> None:
    old, new = a_key("k1", digest="old"), a_key("k1", digest="new")
    world = World(old, new)
    world.stored["k1 old"] = InvalidApiKey()
    renewal = Renewal(world, world)
    renewal.changed(Invalidation(Kind.KEY, "k1", 1))
    await settled(renewal)
    assert world.heard == [("k1", "old", InvalidApiKey), new]


async def test_a_key_that_cannot_be_read_keeps_waiting_under_the_policy_it_had() -> None:
    world = World(a_key("k1"))
    world.stored["k1"] = PolicyUnavailable()
    renewal = Renewal(world, world)
    renewal.changed(Invalidation(Kind.KEY, "k1", 1))
    await settled(renewal)
    assert world.heard == []


async def test_a_key_that_changes_while_it_is_reloaded_is_reloaded_again() -> None:
    world = World(a_key("k1", weight=1))
    world.gate.clear()
    renewal = Renewal(world, world)
    renewal.changed(Invalidation(Kind.KEY, "k1", 1))
    await world.asked.wait()
    world.stored["k1"] = a_key("k1", weight=2)
    renewal.changed(Invalidation(Kind.KEY, "k1", 2))
    world.gate.set()
    await settled(renewal)
    assert [key.weight for key in world.heard if isinstance(key, KeyPolicy)] == [1, 2]


async def test_a_model_change_resizes_pools_without_reloading_keys() -> None:
    world = World(a_key("k1"))
    Renewal(world, world).changed(Invalidation(Kind.MODEL, "m1", 1))
    assert world.heard == [["one"]]
    assert not world.asked.is_set()
