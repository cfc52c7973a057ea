"""What the tests of session affinity within one replica have in common."""

from __future__ import annotations

import dataclasses
from typing import Any

from dataplane.scheduler.events import AffinityRules, PoolPolicy
from dataplane.scheduler.scheduler import Scheduler
from shared.policy import KeyPolicy
from tests.simulation.world import World, a_key

RULES = AffinityRules(
    warm_secs=120, hold_secs=3, max_jumps=8, max_bypass_secs=30, max_held_percent=100
)
T = a_key("t")


def pool_of(size: int, rules: AffinityRules | None = RULES, **changed: Any) -> PoolPolicy:
    if rules is not None and changed:
        rules = dataclasses.replace(rules, **changed)
    return PoolPolicy("m", "m", size, "configured", affinity=rules)


ONE = pool_of(1)


def held(world: World) -> int:
    return sum(pool.held for pool in world.core.pools)


def a_loop(world: World, pool: PoolPolicy = ONE, session: str = "s", key: KeyPolicy = T) -> int:
    """The running step of a session whose last step finished a moment ago."""
    world.finish(world.send(key, pool=pool, session=session))
    return world.send(key, pool=pool, session=session)


def holding(world: World, pool: PoolPolicy = ONE, session: str = "s", key: KeyPolicy = T) -> None:
    """A slot is held for a session from now on."""
    before = held(world)
    world.finish(a_loop(world, pool, session, key))
    assert held(world) == before + 1


def remembered(core: Scheduler) -> int:
    (pool,) = core.pools
    assert pool.affinity is not None
    return pool.affinity.remembered
