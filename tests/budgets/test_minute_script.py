"""A minute's bucket in Redis has the same numbers as the one in memory, whatever happens to it."""

from __future__ import annotations

import random

import pytest

from dataplane.budgets.bucket import TokenBucket
from dataplane.budgets.port import counted
from dataplane.budgets.refusals import state_of
from dataplane.errors import RateLimited
from tests.budgets.fleet_world import fleet_world, until
from tests.budgets.world import per_minute

STEPS = 150


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("sizes", [(1, 30), (500, 100_000), (10**10, 10**11)])
async def test_the_same_story_gives_the_same_numbers(seed: int, sizes: tuple[int, int]) -> None:
    draw = random.Random(f"{seed} {sizes}")
    size = draw.randint(*sizes)
    async with fleet_world(lease_secs=86_400) as world:
        budgets = world.make()
        model = TokenBucket.full(size, 0)
        running = []
        now_ms = 0
        for step in range(STEPS):
            passing = draw.choice([0, 1, 17, 999, 20_000])
            now_ms += passing
            world.time.passes(passing / 1000)
            if draw.random() < 0.15:
                size = draw.randint(*sizes)
            if running and draw.random() < 0.4:
                reservation = running.pop(draw.randrange(len(running)))
                estimate = reservation.estimate
                model.advance(now_ms, model.size)
                used = draw.choice([0, estimate // 3, estimate])
                if not model.is_full and draw.random() < 0.4:  # a full one may be forgotten
                    used = min(10**8, 2 * estimate)
                await budgets.settle(reservation, used)
                await until(lambda: budgets.is_idle)
                model.correct(estimate, counted(estimate, used))
                continue
            estimate = draw.randint(0, size // draw.choice([1, 3, 20]))
            model.advance(now_ms, size)
            wait_ms = model.wait_ms(estimate)
            if wait_ms:
                with pytest.raises(RateLimited) as refused:
                    await budgets.reserve(per_minute(size), estimate)
                assert refused.value.retry_after_secs == -(-wait_ms // 1000), (seed, step)
            else:
                reservation = await budgets.reserve(per_minute(size), estimate)
                model.take(estimate)
                assert reservation.rate_limit == state_of(model), (seed, step)
                running.append(reservation)
