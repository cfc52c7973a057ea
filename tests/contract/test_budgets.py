"""What every keeper of token budgets does, wherever it keeps the counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol

import pytest

from dataplane.budgets.fleet import FleetBudgets
from dataplane.budgets.local import LocalBudgets
from dataplane.budgets.port import ACTUAL_TOKENS_MAX, Budgets, RateLimitState
from dataplane.errors import BudgetExhausted, RateLimited
from shared.policy import Budget, BudgetPeriod, KeyPolicy
from tests.budgets.fleet_world import FleetWorld, fleet_world
from tests.budgets.world import MemoryTermStore, Time, key, month, per_minute, tenant


class World(Protocol):
    """A keeper of budgets, and the time it lives in."""

    budgets: Budgets

    def passes(self, secs: float) -> None:
        """Let time pass."""

    def is_now(self, *date: int) -> None:
        """Move the calendar to a moment in UTC."""

    async def restart(self) -> None:
        """End the process that counts, cleanly, and start its successor."""


class LocalWorld:
    def __init__(self) -> None:
        self.time = Time()
        self.store = MemoryTermStore()
        self.budgets: Budgets = self.process()

    def process(self) -> LocalBudgets:
        return LocalBudgets(
            self.store, clock=lambda: self.time.monotonic, wall=lambda: self.time.wall
        )

    def passes(self, secs: float) -> None:
        self.time.passes(secs)

    def is_now(self, *date: int) -> None:
        self.time.is_now(*date)

    async def restart(self) -> None:
        assert isinstance(self.budgets, LocalBudgets)
        await self.budgets.stop()
        self.budgets = self.process()


class RedisWorld:
    def __init__(self, fleet: FleetWorld) -> None:
        self.fleet = fleet
        self.budgets: Budgets = fleet.make()

    def passes(self, secs: float) -> None:
        self.fleet.time.passes(secs)

    def is_now(self, *date: int) -> None:
        self.fleet.time.is_now(*date)

    async def restart(self) -> None:
        assert isinstance(self.budgets, FleetBudgets)
        await self.budgets.stop()
        self.fleet.made.remove(self.budgets)
        self.budgets = self.fleet.make()


@pytest.fixture(params=["local", "redis"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    if request.param == "local":
        yield LocalWorld()
        return
    async with fleet_world(lease_secs=86_400) as fleet:  # nobody renews while time is moved by hand
        yield RedisWorld(fleet)


async def refused(world: World, key: KeyPolicy, estimate: int) -> float:
    """The wait that a refused reservation states."""
    with pytest.raises(RateLimited) as caught:
        await world.budgets.reserve(key, estimate)
    assert caught.value.retry_after_secs is not None
    return caught.value.retry_after_secs


async def spent(world: World, key: KeyPolicy, estimate: int = 1) -> str:
    """The words in which a spent term budget is refused."""
    with pytest.raises(BudgetExhausted) as caught:
        await world.budgets.reserve(key, estimate)
    return caught.value.message


async def use(world: World, key: KeyPolicy, tokens: int) -> None:
    await world.budgets.settle(await world.budgets.reserve(key, tokens), tokens)


# Tokens a minute


async def test_without_budgets_everything_passes_and_no_limit_is_stated(world: World) -> None:
    await world.budgets.check(key(), 10**9)
    reservation = await world.budgets.reserve(key(), 10**9)
    assert reservation.rate_limit is None
    await world.budgets.settle(reservation, 10**7)


async def test_a_tenant_may_use_a_whole_minutes_tokens_at_once(world: World) -> None:
    await world.budgets.reserve(per_minute(1000), 600)
    await world.budgets.reserve(per_minute(1000), 400)
    await refused(world, per_minute(1000), 1)


async def test_a_reservation_states_what_is_left_and_when_all_is_back(world: World) -> None:
    reservation = await world.budgets.reserve(per_minute(1000), 250)
    assert reservation.rate_limit == RateLimitState(limit=1000, remaining=750, reset_secs=15.0)


async def test_a_refusal_states_the_wait_after_which_the_request_passes(world: World) -> None:
    await world.budgets.reserve(per_minute(600), 600)
    assert await refused(world, per_minute(600), 300) == 30
    world.passes(29.5)
    assert await refused(world, per_minute(600), 300) == 1
    world.passes(0.5)
    await world.budgets.reserve(per_minute(600), 300)


async def test_a_wait_is_stated_in_whole_seconds_rounded_up(world: World) -> None:
    await world.budgets.reserve(per_minute(1000), 1000)
    assert await refused(world, per_minute(1000), 20) == 2
    assert await refused(world, per_minute(1000), 1) == 1


async def test_check_refuses_what_could_not_be_reserved_now(world: World) -> None:
    await world.budgets.reserve(per_minute(600), 600)
    with pytest.raises(RateLimited) as caught:
        await world.budgets.check(per_minute(600), 300)
    assert caught.value.retry_after_secs == 30


async def test_check_reserves_nothing(world: World) -> None:
    for _ in range(5):
        await world.budgets.check(per_minute(1000), 1000)
    await world.budgets.reserve(per_minute(1000), 1000)


async def test_a_request_that_used_less_gives_the_rest_back(world: World) -> None:
    await world.budgets.settle(await world.budgets.reserve(per_minute(1000), 1000), 300)
    await world.budgets.reserve(per_minute(1000), 700)
    await refused(world, per_minute(1000), 1)


async def test_a_request_that_used_more_is_paid_off_before_the_next(world: World) -> None:
    await world.budgets.settle(await world.budgets.reserve(per_minute(600), 600), 700)
    assert await refused(world, per_minute(600), 10) == 11


async def test_a_cancelled_request_gives_everything_back(world: World) -> None:
    await world.budgets.settle(await world.budgets.reserve(per_minute(1000), 1000), None)
    await world.budgets.reserve(per_minute(1000), 1000)


async def test_a_reservation_is_settled_once_however_often_it_is_told(world: World) -> None:
    key_ = key(of=tenant(tokens_per_minute=1000, budget=month(5000)))
    reservation = await world.budgets.reserve(key_, 1000)
    await world.budgets.settle(reservation, 400)
    for actual in (None, 0, 999, 400):
        await world.budgets.settle(reservation, actual)
    assert (await world.budgets.reserve(key_, 600)).rate_limit == RateLimitState(1000, 0, 60.0)
    world.passes(60)
    await spent(world, key_, 4001)
    assert "400 used" in await spent(world, key_, 4001)


async def test_an_estimate_larger_than_the_bucket_passes_when_it_is_full_and_leaves_a_debt(
    world: World,
) -> None:
    await world.budgets.reserve(per_minute(600), 1)
    assert await refused(world, per_minute(600), 5000) == 1
    world.passes(1)
    reservation = await world.budgets.reserve(per_minute(600), 1200)
    assert reservation.rate_limit == RateLimitState(600, 0, 120.0)
    assert await refused(world, per_minute(600), 600) == 120


async def test_parallel_requests_cannot_overrun_the_minute(world: World) -> None:
    outcomes = await asyncio.gather(
        *(world.budgets.reserve(per_minute(1000), 1000) for _ in range(20)),
        return_exceptions=True,
    )
    assert sum(isinstance(one, RateLimited) for one in outcomes) == 19


async def test_parallel_requests_overrun_by_their_estimates_error_alone(world: World) -> None:
    granted = []
    for _ in range(20):
        try:
            granted.append(await world.budgets.reserve(per_minute(1000), 100))
        except RateLimited:
            continue
    assert len(granted) == 10
    for reservation in granted:
        await world.budgets.settle(reservation, 130)
    assert await refused(world, per_minute(1000), 100) == 24, "300 of debt and 100 to go"


async def test_keys_of_a_tenant_share_its_minute_and_tenants_share_nothing(world: World) -> None:
    await world.budgets.reserve(per_minute(1000, "k1", "t1"), 1000)
    await refused(world, per_minute(1000, "k2", "t1"), 1)
    await world.budgets.reserve(per_minute(1000, "k3", "t2"), 1000)


async def test_a_raised_limit_brings_no_tokens_but_refills_faster(world: World) -> None:
    await world.budgets.reserve(per_minute(60), 60)
    assert await refused(world, per_minute(6000), 100) == 1
    world.passes(1)
    await world.budgets.reserve(per_minute(6000), 100)


async def test_a_lowered_limit_holds_for_what_is_left(world: World) -> None:
    await world.budgets.reserve(per_minute(1000), 500)
    assert (await world.budgets.reserve(per_minute(100), 50)).rate_limit == RateLimitState(
        100, 0, 60.0
    )


async def test_a_limit_taken_away_and_set_again_brings_no_tokens(world: World) -> None:
    await world.budgets.reserve(per_minute(1000), 1000)
    await world.budgets.settle(await world.budgets.reserve(key(), 5000), 5000)
    await refused(world, per_minute(1000), 1)


@pytest.mark.parametrize("actual", [-5, ACTUAL_TOKENS_MAX + 1, 10**15])
async def test_a_figure_no_request_can_reach_leaves_the_estimate_standing(
    world: World, actual: int
) -> None:
    key_ = key(of=tenant(tokens_per_minute=1000, budget=month(1000)))
    await world.budgets.settle(await world.budgets.reserve(key_, 500), actual)
    assert (await world.budgets.reserve(key_, 500)).rate_limit == RateLimitState(1000, 0, 60.0)
    await spent(world, key_)


# Terms


async def test_a_spent_term_is_refused_in_words_that_say_whose_and_how_much(world: World) -> None:
    key_ = key(of=tenant(budget=month(1000)))
    await use(world, key_, 1000)
    words = await spent(world, key_, 7)
    assert "tenant" in words
    assert "1,000 tokens (month)" in words
    assert "about 7" in words


async def test_check_refuses_a_spent_term(world: World) -> None:
    key_ = key(of=tenant(budget=month(1000)))
    await use(world, key_, 1000)
    with pytest.raises(BudgetExhausted):
        await world.budgets.check(key_, 1)


async def test_what_runs_counts_against_the_term_until_it_is_settled(world: World) -> None:
    key_ = key(of=tenant(budget=month(1000)))
    running = await world.budgets.reserve(key_, 600)
    await spent(world, key_, 401)
    await world.budgets.settle(running, 100)
    await world.budgets.reserve(key_, 900)


async def test_a_cancelled_request_leaves_no_trace_in_the_term(world: World) -> None:
    key_ = key(of=tenant(budget=month(1000)))
    await world.budgets.settle(await world.budgets.reserve(key_, 1000), None)
    await world.budgets.reserve(key_, 1000)


async def test_parallel_requests_cannot_overrun_the_term(world: World) -> None:
    key_ = key(of=tenant(budget=month(1000)))
    outcomes = await asyncio.gather(
        *(world.budgets.reserve(key_, 300) for _ in range(20)), return_exceptions=True
    )
    assert sum(isinstance(one, BudgetExhausted) for one in outcomes) == 17


async def test_a_key_has_a_budget_of_its_own_within_its_tenants(world: World) -> None:
    of = tenant(budget=month(1000))
    await use(world, key("k1", of=of, budget=month(300)), 300)
    assert "The key's budget" in await spent(world, key("k1", of=of, budget=month(300)))
    await use(world, key("k2", of=of), 700)
    assert "The tenant's budget" in await spent(world, key("k2", of=of))


async def test_a_refused_reservation_takes_from_no_budget_at_all(world: World) -> None:
    of = tenant(tokens_per_minute=1000, budget=month(1000))
    await spent(world, key("k1", of=of, budget=month(10)), 11)
    reservation = await world.budgets.reserve(key("k2", of=of), 1000)
    await world.budgets.settle(reservation, None)
    await world.budgets.reserve(per_minute(1000), 1000)
    await refused(world, key("k2", of=of), 1)
    world.passes(60)
    await world.budgets.reserve(key("k2", of=of), 1000)


async def test_a_day_begins_at_midnight_utc(world: World) -> None:
    key_ = key(of=tenant(budget=Budget(100, BudgetPeriod.DAY)))
    world.is_now(2031, 3, 30, 23, 59, 59)
    await use(world, key_, 100)
    await spent(world, key_)
    world.is_now(2031, 3, 31, 0, 0, 0)
    await use(world, key_, 100)
    await spent(world, key_)


async def test_a_month_begins_on_its_first_day_utc(world: World) -> None:
    key_ = key(of=tenant(budget=month(100)))
    world.is_now(2031, 1, 31, 23, 59, 59)
    await use(world, key_, 100)
    await spent(world, key_)
    world.is_now(2031, 2, 1, 0, 0, 0)
    await use(world, key_, 100)


@pytest.mark.parametrize("period", [BudgetPeriod.TERM, BudgetPeriod.LIFETIME])
async def test_a_term_lasts_until_an_operator_moves_its_start(
    world: World, period: BudgetPeriod
) -> None:
    def starting(at: float | None) -> KeyPolicy:
        return key(of=tenant(budget=Budget(100, period, at)))

    await use(world, starting(None), 100)
    world.is_now(2035, 1, 1)
    await spent(world, starting(None))
    await use(world, starting(1_950_000_000.0), 100)
    await spent(world, starting(1_950_000_000.0))
    await use(world, starting(1_950_000_000.5), 100)


async def test_a_request_that_ends_after_its_term_counts_in_the_term_it_began_in(
    world: World,
) -> None:
    key_ = key(of=tenant(budget=Budget(100, BudgetPeriod.DAY)))
    world.is_now(2031, 3, 30, 23, 59, 59)
    running = await world.budgets.reserve(key_, 100)
    world.is_now(2031, 3, 31, 0, 0, 1)
    await world.budgets.reserve(key_, 60)
    await world.budgets.settle(running, 90)
    await world.budgets.reserve(key_, 40)
    await spent(world, key_)


async def test_a_raised_term_budget_is_in_force_at_the_next_request(world: World) -> None:
    await use(world, key(of=tenant(budget=month(100))), 100)
    await spent(world, key(of=tenant(budget=month(100))))
    await use(world, key(of=tenant(budget=month(150))), 50)
    await spent(world, key(of=tenant(budget=month(150))))


async def test_what_a_term_used_survives_a_restart(world: World) -> None:
    key_ = key(of=tenant(budget=month(1000)), budget=month(500))
    await use(world, key_, 450)
    await world.restart()
    assert "450 used" in await spent(world, key_, 51)
    await use(world, key_, 50)
    await world.restart()
    await spent(world, key_)
    await use(world, key("k2", of=tenant(budget=month(1000))), 500)
    await spent(world, key("k2", of=tenant(budget=month(1000))))
