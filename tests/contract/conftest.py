"""Every keeper of the fleet's slots, for the suites that all of them are held to."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from dataplane.admission.slots.port import Slots
from tests.contract.slot_worlds import ModelWorld, World, redis_world


@pytest.fixture(params=["redis", "model"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    if request.param == "model":
        yield ModelWorld()
        return
    async with redis_world() as real:
        yield real


@pytest.fixture
async def pair(world: World) -> tuple[Slots, Slots]:
    """Two live replicas whose holdings, none, are on the books."""
    one, two = world.replica("one"), world.replica("two")
    await one.heartbeat([])
    await two.heartbeat([])
    await one.heartbeat([])
    await world.announced()
    return one, two
