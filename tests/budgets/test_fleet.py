"""Budgets that replicas share on a real Redis: what they agree on, and what each does alone."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from dataplane import scripts
from dataplane.budgets.fleet import FleetBudgets
from dataplane.budgets.port import Reservation
from dataplane.budgets.terms import Term
from dataplane.errors import BudgetExhausted, PolicyUnavailable, RateLimited
from dataplane.scripts import ScriptCall
from shared.policy import Budget, BudgetPeriod, KeyPolicy
from tests.budgets.fleet_world import FleetWorld, TimedScripts, fleet_world, until
from tests.budgets.world import MemoryTermStore, key, month, per_minute, tenant
from tests.redis_server import Server, server


@pytest.fixture
async def world() -> AsyncIterator[FleetWorld]:
    async with fleet_world() as made:
        yield made


@pytest.fixture
async def own_server(tmp_path: Path) -> AsyncIterator[Server]:
    async with server(tmp_path) as running:
        yield running


@pytest.fixture
async def breakable(own_server: Server) -> AsyncIterator[FleetWorld]:
    """Replicas on a server that a test may break."""
    async with fleet_world(own_server.url) as made:
        yield made
        if not own_server.is_running:
            await own_server.start()


def monthly(tokens: int, id_: str = "k1") -> KeyPolicy:
    return key(id_, of=tenant(budget=month(tokens)))


async def use(budgets: FleetBudgets, key: KeyPolicy, tokens: int) -> None:
    await settled(budgets, await budgets.reserve(key, tokens), tokens)


async def settled(budgets: FleetBudgets, reservation: Reservation, actual: int | None) -> None:
    """Settle, and wait until the others can know."""
    await budgets.settle(reservation, actual)
    await until(lambda: budgets.is_idle)


async def spent(budgets: FleetBudgets, key: KeyPolicy, estimate: int = 1) -> str:
    with pytest.raises(BudgetExhausted) as caught:
        await budgets.reserve(key, estimate)
    return caught.value.message


async def granted(budgets: FleetBudgets, key: KeyPolicy, estimate: int) -> int:
    """How many requests of this size pass until one is refused."""
    for number in range(10_000):
        try:
            await budgets.reserve(key, estimate)
        except (RateLimited, BudgetExhausted):
            return number
    raise AssertionError("no limit at all")


# What replicas agree on


async def test_replicas_draw_on_one_minute(world: FleetWorld) -> None:
    one, other = world.make(), world.make()
    await one.reserve(per_minute(1000), 600)
    await other.reserve(per_minute(1000), 400)
    for budgets in (one, other):
        with pytest.raises(RateLimited):
            await budgets.check(per_minute(1000), 1)


async def test_replicas_draw_on_one_term_with_what_runs_on_any_of_them(world: FleetWorld) -> None:
    one, other = world.make(), world.make()
    running = await one.reserve(monthly(1000), 600)
    assert "600 reserved" in await spent(other, monthly(1000), 401)
    await settled(one, running, 100)
    await use(other, monthly(1000), 900)
    assert "1,000 used" in await spent(one, monthly(1000))


async def test_requests_at_once_on_three_replicas_cannot_overrun_a_budget(
    world: FleetWorld,
) -> None:
    replicas = [world.make() for _ in range(3)]
    key_ = key(of=tenant(tokens_per_minute=10_000, budget=month(1000)))
    outcomes = await asyncio.gather(
        *(replicas[number % 3].reserve(key_, 100) for number in range(90)), return_exceptions=True
    )
    assert sum(isinstance(one, BudgetExhausted) for one in outcomes) == 80


async def test_what_replicas_used_adds_up_in_the_database(world: FleetWorld) -> None:
    one, other = world.make(), world.make()
    for budgets, tokens in ((one, 100), (other, 200), (one, 30)):
        await use(budgets, monthly(1000), tokens)
        assert await budgets.save()
    assert list(world.store.used.values()) == [330]


# What gets lost


async def test_a_term_that_redis_lost_goes_on_from_the_database_and_from_what_was_heard(
    world: FleetWorld,
) -> None:
    one, other = world.make(), world.make()
    await use(one, monthly(1000), 300)
    await one.save()
    await use(one, monthly(1000), 50)
    await world.redis.delete(*await world.names())
    assert "300 used" in await spent(other, monthly(1000), 701)
    await one.save()
    assert "350 used" in await spent(other, monthly(1000), 651)
    await one.save()
    assert "350 used" in await spent(one, monthly(1000), 651)


async def test_what_runs_is_written_down_again_where_redis_lost_it(world: FleetWorld) -> None:
    one, other = world.make(), world.make()
    await one.start()
    running = await one.reserve(monthly(1000), 600)
    await world.redis.delete(*await world.names())
    await one.check(monthly(1000), 1)
    await world.until_reserved(600)
    assert "600 reserved" in await spent(other, monthly(1000), 401)
    await settled(one, running, 600)
    await use(other, monthly(1000), 400)


async def test_a_reservation_of_a_replica_that_crashed_lapses(world: FleetWorld) -> None:
    crashed, other = world.make(), world.make()
    await crashed.reserve(monthly(1000), 900)
    world.time.passes(world.lease_secs - 1)
    await spent(other, monthly(1000), 101)
    world.time.passes(1)
    await use(other, monthly(1000), 1000)


async def test_what_a_lapsed_reservation_used_is_counted_all_the_same(world: FleetWorld) -> None:
    asleep, other = world.make(), world.make()
    running = await asleep.reserve(monthly(1000), 900)
    world.time.passes(world.lease_secs)
    await other.check(monthly(1000), 1000)
    await settled(asleep, running, 800)
    await asleep.save()
    assert "800 used" in await spent(other, monthly(1000), 201)
    await use(other, monthly(1000), 200)


async def test_a_request_whose_client_leaves_while_it_reserves_leaves_nothing_behind(
    world: FleetWorld,
) -> None:
    budgets = world.make()
    key_ = key(of=tenant(tokens_per_minute=1000, budget=month(1000)))
    for turns in range(6):
        task = asyncio.create_task(budgets.reserve(key_, 1000))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await until(lambda: budgets.is_idle)
    assert budgets.remembered[0] == 0
    reservation = await budgets.reserve(key_, 1000)
    await settled(budgets, reservation, None)


async def test_keys_of_another_type_are_put_right(world: FleetWorld) -> None:
    budgets = world.make()
    key_ = key(of=tenant(tokens_per_minute=1000, budget=month(1000)))
    await use(budgets, key_, 400)
    await budgets.save()
    for name in await world.names():
        await world.redis.delete(name)
        await world.redis.lpush(name, "not ours")
    await use(budgets, key_, 600)
    assert not budgets.is_away
    await spent(budgets, key_)


@pytest.mark.parametrize("size", [1, 7, 10**11])
async def test_a_minutes_numbers_are_exact_at_any_size(world: FleetWorld, size: int) -> None:
    budgets = world.make()
    await budgets.reserve(per_minute(size), size)
    smaller = max(1, size // 3)
    world.time.passes(30)
    with pytest.raises(RateLimited):
        await budgets.check(per_minute(smaller), smaller)
    world.time.passes(30)
    assert (await budgets.reserve(per_minute(smaller), smaller)).rate_limit is not None


async def test_a_term_of_billions_is_counted_to_the_token(world: FleetWorld) -> None:
    budgets = world.make()
    key_ = monthly(10**15)
    world.store.used.clear()
    await use(budgets, key_, 10**8)
    (term,) = (await budgets.reserve(key_, 1)).terms
    await world.store.add({term: 10**15 - 2})
    other = world.make()
    await world.redis.delete(*await world.names())
    await use(other, key_, 1)
    await spent(other, key_, 2)


# Redis away


@pytest.mark.parametrize("frozen", [True, False])
async def test_with_redis_away_each_replica_has_its_part_after_one_stall(
    own_server: Server, breakable: FleetWorld, frozen: bool
) -> None:
    replicas = [breakable.make(secs=0.3) for _ in range(3)]
    breakable.replicas = 3
    for budgets in replicas:
        await budgets.check(per_minute(900), 1)
        await budgets.check(monthly(900), 1)
    if frozen:
        own_server.signal(signal.SIGSTOP)
    else:
        await own_server.stop()
    for budgets in replicas:
        assert await granted(budgets, per_minute(900), 100) == 3
        assert await granted(budgets, monthly(900), 100) == 3
        assert budgets.is_away
        checking = budgets.check(key(of=tenant("t2", tokens_per_minute=900)), 1)
        with pytest.raises(StopIteration):
            checking.send(None)  # decided without waiting for anything
    if frozen:
        own_server.signal(signal.SIGCONT)


async def test_the_part_is_of_what_was_left_when_redis_went_away(
    own_server: Server, breakable: FleetWorld
) -> None:
    replicas = [breakable.make() for _ in range(2)]
    breakable.replicas = 2
    await use(replicas[0], monthly(1000), 600)
    await replicas[0].save()
    await replicas[0].reserve(per_minute(1000), 600)
    await own_server.stop()
    assert await granted(replicas[0], monthly(1000), 50) == 4
    assert await granted(replicas[1], monthly(1000), 50) == 4
    assert await granted(replicas[0], per_minute(1000), 50) == 4


async def test_what_was_used_without_redis_is_known_to_all_once_it_is_back(
    own_server: Server, breakable: FleetWorld
) -> None:
    one, other = breakable.make(), breakable.make()
    breakable.replicas = 2
    await use(one, monthly(1000), 100)
    for budgets in (one, other):
        await budgets.start()
    await own_server.stop()
    await use(one, monthly(1000), 300)
    running = await other.reserve(monthly(1000), 200)
    await own_server.start()
    await until(lambda: not (one.is_away or other.is_away))
    await breakable.until_reserved(200)
    await one.save()
    assert "400 used and 200 reserved" in await spent(one, monthly(1000), 401)
    await settled(other, running, 200)
    await other.save()
    assert "600 used." in await spent(other, monthly(1000), 401)


async def test_what_was_used_without_redis_cannot_be_used_once_more_when_it_is_back(
    own_server: Server, breakable: FleetWorld
) -> None:
    replicas = [breakable.make(save_every_secs=3600) for _ in range(3)]
    breakable.replicas = 3
    for budgets in replicas:
        await budgets.start()
        await budgets.check(monthly(900), 1)
    await own_server.stop()
    for budgets in replicas:
        for _ in range(3):
            await use(budgets, monthly(900), 100)
    await own_server.start()
    for budgets in replicas:
        await until(lambda one=budgets: not one.is_away)
        # At the very moment at which it is back, whoever else is.
        await spent(budgets, monthly(900), 1)


async def test_what_was_used_without_redis_and_database_is_known_when_redis_is_back(
    own_server: Server, breakable: FleetWorld
) -> None:
    budgets = breakable.make()
    await budgets.start()
    await use(budgets, monthly(900), 100)
    await own_server.stop()
    await use(budgets, monthly(900), 200)
    breakable.store.away = True
    await use(budgets, monthly(900), 300)
    await own_server.start()
    await until(lambda: not budgets.is_away)
    assert "600 used." in await spent(budgets, monthly(900), 301)
    breakable.store.away = False
    await budgets.save()
    assert "600 used." in await spent(budgets, monthly(900), 301)


async def test_a_server_that_refuses_to_write_counts_as_away_until_it_writes(
    own_server: Server, breakable: FleetWorld
) -> None:
    budgets = breakable.make()
    await budgets.start()
    await budgets.check(monthly(1000), 1)
    await breakable.redis.execute_command("REPLICAOF", "127.0.0.1", "1")
    await use(budgets, monthly(1000), 400)
    assert budgets.is_away
    await breakable.redis.execute_command("REPLICAOF", "NO", "ONE")
    await until(lambda: not budgets.is_away)
    await budgets.save()
    await spent(budgets, monthly(1000), 601)


async def test_with_redis_and_the_database_away_only_what_is_known_passes(
    own_server: Server, breakable: FleetWorld
) -> None:
    budgets = breakable.make()
    await use(budgets, monthly(1000), 400)
    breakable.store.away = True
    await own_server.stop()
    await spent(budgets, monthly(1000), 601)
    await budgets.reserve(monthly(1000), 600)
    with pytest.raises(PolicyUnavailable):
        await budgets.reserve(key(of=tenant("never seen", budget=month(10))), 1)
    breakable.store.away = False


async def test_midnight_needs_no_database_while_redis_is_there(world: FleetWorld) -> None:
    budgets = world.make()
    daily = key(of=tenant(budget=Budget(100, BudgetPeriod.DAY)))
    await use(budgets, daily, 100)
    world.store.away = True
    world.time.is_now(2031, 3, 31)
    await use(budgets, daily, 100)
    await spent(budgets, daily)
    world.store.away = False


async def test_usage_the_database_could_not_take_is_added_when_it_is_back(
    world: FleetWorld,
) -> None:
    budgets = world.make()
    await use(budgets, monthly(1000), 100)
    world.store.away = True
    assert not await budgets.save()
    await use(budgets, monthly(1000), 50)
    world.store.away = False
    assert await budgets.save()
    assert list(world.store.used.values()) == [150]


# The scripts and what they cost


def test_no_script_names_a_key_or_looks_for_any() -> None:
    for script in scripts.load("dataplane.budgets").values():
        code = "\n".join(
            line for line in script.text.splitlines() if not line.lstrip().startswith("--")
        )
        for word in ("'KEYS'", "SCAN", "obleth", "os.", "while"):
            assert word not in code, script.name


async def test_scripts_that_redis_forgot_are_sent_again_and_nobody_notices(
    breakable: FleetWorld,
) -> None:
    budgets = breakable.make()
    for _ in range(10):
        await breakable.redis.script_flush()
        await use(budgets, monthly(1000), 100)
    await spent(budgets, monthly(1000))
    assert not budgets.is_away


async def test_a_request_costs_three_calls_and_one_without_budgets_none(
    own_server: Server, breakable: FleetWorld
) -> None:
    budgets = breakable.make()
    key_ = key(of=tenant(tokens_per_minute=10**6, budget=month(10**6)))
    await use(budgets, key_, 1)
    await budgets.check(key_, 1)
    before = await own_server.calls()
    for _ in range(10):
        await budgets.check(key_, 10)
        await use(budgets, key_, 10)
        await budgets.check(key(), 10)
        await use(budgets, key(), 10)
    await until(lambda: budgets.is_idle)
    after = await own_server.calls()
    assert after["evalsha"] - before["evalsha"] == 30


async def test_every_key_but_the_mark_of_a_test_has_an_end(world: FleetWorld) -> None:
    budgets = world.make()
    await use(budgets, key(of=tenant(tokens_per_minute=1000, budget=month(1000))), 100)
    await budgets.reserve(key(of=tenant(tokens_per_minute=1000, budget=month(1000))), 100)
    names = await world.names()
    assert len(names) == 3
    for name in names:
        assert await world.redis.pttl(name) > 0, name


async def test_a_store_that_is_slow_to_load_is_asked_once_for_many(world: FleetWorld) -> None:
    store = MemoryTermStore()
    budgets = world.make(store=store)
    await asyncio.gather(*(budgets.check(monthly(1000), 1) for _ in range(50)))
    assert len(store.loads) == 1


class Mistaken(TimedScripts):
    """Fails once in a way that nobody foresaw, as the script is called that a test names."""

    fails_at = ""

    async def run(self, calls: Sequence[ScriptCall]) -> list[Any]:
        if self.fails_at in [call.script for call in calls]:
            self.fails_at = ""
            raise LookupError("a mistake")
        return await super().run(calls)


async def test_after_a_mistake_nobody_foresaw_no_request_waits_for_ever(world: FleetWorld) -> None:
    replica = world.make(scripts=Mistaken)
    Mistaken.fails_at = "reserve"
    async with asyncio.timeout(10):
        await use(replica, monthly(1000), 10)
    assert replica.is_away, "as when Redis does not answer"


async def test_usage_reaches_the_database_after_a_mistake_nobody_foresaw(world: FleetWorld) -> None:
    class Store(MemoryTermStore):
        tried = False

        async def add(self, used: Mapping[Term, int]) -> Mapping[Term, int]:
            if not self.tried:
                self.tried = True
                raise LookupError("a mistake")
            return await super().add(used)

    store = Store()
    replica = world.make(store=store, save_every_secs=0.001)
    await replica.start()
    await use(replica, monthly(1000), 10)
    await until(lambda: list(store.used.values()) == [10])


async def test_reservations_are_renewed_after_a_mistake_nobody_foresaw(world: FleetWorld) -> None:
    class Store(MemoryTermStore):
        tried = False

        async def load(self, terms: Sequence[Term]) -> Mapping[Term, int]:
            if not self.tried:
                return await super().load(terms)
            self.tried = False
            raise LookupError("a mistake")

    store = Store()
    replica = world.make(store=store)
    reservation = await replica.reserve(monthly(1000), 10)
    await world.redis.delete(*await world.names())
    store.tried = True
    await replica.start()
    await until(lambda: not store.tried)
    await replica.check(monthly(1000), 1)  # which finds that the books have lost the term
    await world.until_reserved(10)
    await settled(replica, reservation, 10)
