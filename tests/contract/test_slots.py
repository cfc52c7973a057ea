"""What every keeper of the fleet's slots does, and that the simulation's model of Redis does to the
letter what the real scripts do on a real server."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

import pytest

from dataplane.admission.slots.port import Answer, Claim, Holding, Slots
from dataplane.admission.slots.redis import RedisSlots
from dataplane.admission.slots.scripts import RedisScripts, ScriptRunner
from shared.redis_keys import RELEASED, SlotKeys
from tests.redis_server import PATIENT_SECS, Corner, corner
from tests.simulation.redis_model import ModelScripts, RedisModel, announced

TTL: Final = 15.0
GRANTED: Final = Answer.GRANTED


class World(Protocol):
    """Books, and the time they live in."""

    def replica(self, name: str) -> Slots: ...

    async def passes(self, secs: float) -> None: ...

    async def forgets(self) -> None:
        """The server loses everything."""

    async def counts(self) -> dict[str, int]:
        """How many slots each set of the books has."""

    async def announced(self) -> list[dict[str, object]]:
        """What was published since the last look."""


class RedisWorld:
    def __init__(self, own: Corner, subscription: Any) -> None:
        self._own = own
        self._subscription = subscription
        self.scripts = RedisScripts(own.redis, secs=PATIENT_SECS)

    def replica(self, name: str) -> Slots:
        return slots_of(self.scripts, name, self._own.keys, self._own.channel)

    async def passes(self, secs: float) -> None:
        await self._own.passes(round(secs * 1000))

    async def forgets(self) -> None:
        names = await self._own.names()
        if names:
            await self._own.redis.delete(*names)

    async def counts(self) -> dict[str, int]:
        return await self._own.counts()

    async def announced(self) -> list[dict[str, object]]:
        # What was published before is here before the end mark is.
        await self._own.redis.publish(self._own.channel, "{}")
        messages: list[str] = []
        while not messages or messages[-1] != "{}":
            message = await self._subscription.get_message(
                ignore_subscribe_messages=True, timeout=PATIENT_SECS
            )
            if message is not None:
                messages.append(message["data"])
        return announced(messages[:-1])


class ModelWorld:
    def __init__(self) -> None:
        self.model = RedisModel()
        self.now = 1_700_000_000_000
        self.scripts = ModelScripts(self.model, lambda: self.now)

    def replica(self, name: str) -> Slots:
        return slots_of(self.scripts, name, SlotKeys("{model}"), RELEASED)

    async def passes(self, secs: float) -> None:
        self.now += round(secs * 1000)

    async def forgets(self) -> None:
        self.model.flush()

    async def counts(self) -> dict[str, int]:
        self.model.expire(self.now)
        return {
            name.removeprefix("{model}:1:"): len(value)
            for name, value in self.model.keys.items()
            if isinstance(value, dict) and ":held:" not in name and not name.endswith(":roster")
        }

    async def announced(self) -> list[dict[str, object]]:
        messages = self.model.published[:]
        self.model.published.clear()
        return messages


def slots_of(scripts: ScriptRunner, name: str, keys: SlotKeys, channel: str) -> RedisSlots:
    return RedisSlots(scripts, replica=name, ttl=TTL, keys=keys, channel=channel)


@asynccontextmanager
async def redis_world() -> AsyncIterator[RedisWorld]:
    async with corner() as own, own.redis.pubsub() as subscription:
        await subscription.subscribe(own.channel)
        yield RedisWorld(own, subscription)


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


def claim(id: str, **changed: Any) -> Claim:
    plain: dict[str, Any] = {
        "pool": "m",
        "tenant": "t",
        "key": "k",
        "pool_size": 2,
        "ceiling": 100,
    }
    return Claim(id, **(plain | changed))


def held(id: str, pool: str = "m", tenant: str = "t", key: str = "k") -> Holding:
    return Holding(id, pool, tenant, key)


async def test_a_pool_is_never_larger_than_its_size_whoever_claims(
    pair: tuple[Slots, Slots],
) -> None:
    one, two = pair
    assert await one.exchange([], [claim("a"), claim("b"), claim("c")]) == [
        GRANTED,
        GRANTED,
        Answer.POOL,
    ]
    assert await two.exchange([], [claim("d")]) == [Answer.POOL]


async def test_a_release_and_a_claim_travel_together_and_the_release_comes_first(
    pair: tuple[Slots, Slots],
) -> None:
    one, _ = pair
    await one.exchange([], [claim("a"), claim("b")])
    assert await one.exchange([held("a")], [claim("c"), claim("d")]) == [GRANTED, Answer.POOL]


@pytest.mark.parametrize(
    ("first", "second", "answer"),
    [
        ({}, {"pool_size": 1, "ceiling": 1, "tenant_cap": 1, "key_cap": 1}, Answer.POOL),
        ({}, {"ceiling": 1, "tenant_cap": 1, "key_cap": 1}, Answer.CEILING),
        ({}, {"tenant_cap": 1, "key_cap": 1}, Answer.TENANT),
        ({}, {"key_cap": 1}, Answer.KEY),
        ({}, {"pool": "other", "pool_size": 1, "ceiling": 1}, Answer.CEILING),
        ({}, {"pool": "other", "tenant_cap": 1, "key_cap": 1}, GRANTED),
        ({}, {"tenant": "other", "key": "other", "tenant_cap": 1, "key_cap": 1}, GRANTED),
        ({}, {"key": "other", "key_cap": 1}, GRANTED),
        ({}, {"pool_size": 0}, Answer.POOL),
        ({}, {"tenant_cap": 0}, Answer.TENANT),
    ],
)
async def test_a_refusal_names_the_first_limit_in_the_way(
    pair: tuple[Slots, Slots], first: dict[str, Any], second: dict[str, Any], answer: Answer
) -> None:
    one, two = pair
    await one.exchange([], [claim("a", **first)])
    assert await two.exchange([], [claim("b", **second)]) == [answer]


async def test_a_refused_claim_leaves_nothing_behind(
    world: World, pair: tuple[Slots, Slots]
) -> None:
    one, _ = pair
    await one.exchange([], [claim("a")])
    before = await world.counts()
    await one.exchange([], [claim("b", key="new", tenant="new", tenant_cap=1, ceiling=1)])
    assert await world.counts() == before


async def test_a_repeated_claim_is_one_slot(world: World, pair: tuple[Slots, Slots]) -> None:
    one, _ = pair
    await one.exchange([], [claim("a", pool_size=1)])
    assert await one.exchange([], [claim("a", pool_size=1)]) == [GRANTED]
    assert (await world.counts())["pool:m"] == 1


async def test_a_repeated_or_unknown_release_changes_nothing(
    world: World, pair: tuple[Slots, Slots]
) -> None:
    one, two = pair
    await one.exchange([], [claim("a"), claim("b")])
    await one.exchange([held("a"), held("a")], [])
    await two.exchange([held("a"), held("never")], [])
    assert (await world.counts())["pool:m"] == 1


async def test_nothing_is_left_on_the_books_when_all_has_ended(
    world: World, pair: tuple[Slots, Slots]
) -> None:
    one, two = pair
    await one.exchange([], [claim("a")])
    await two.exchange([], [claim("b")])
    await one.exchange([held("a")], [])
    await two.exchange([held("b")], [])
    assert await world.counts() == {}


async def test_names_that_look_like_parts_of_others_are_kept_apart(
    pair: tuple[Slots, Slots],
) -> None:
    one, _ = pair
    first = claim("a", pool="a:b", tenant="c", pool_size=1, tenant_cap=1)
    assert await one.exchange([], [first]) == [GRANTED]
    second = claim("b", pool="a", tenant="b:c", pool_size=1, tenant_cap=1)
    assert await one.exchange([], [second]) == [GRANTED]
    third = claim("c", pool="a%3Ab", tenant="c", pool_size=1, tenant_cap=1)
    assert await one.exchange([], [third]) == [GRANTED]


async def test_hundreds_of_claims_in_one_exchange_fill_the_pool_exactly(
    pair: tuple[Slots, Slots],
) -> None:
    one, _ = pair
    claims = [claim(f"c{number}", pool_size=200, ceiling=250) for number in range(300)]
    answers = await one.exchange([], claims)
    assert answers == [GRANTED] * 200 + [Answer.POOL] * 100


async def test_an_unknown_replica_may_not_claim(world: World) -> None:
    assert await world.replica("one").exchange([], [claim("a")]) == [Answer.NOT_LIVE]


async def test_a_replica_alone_does_not_count_as_asserted(world: World) -> None:
    one = world.replica("one")
    heard = await one.heartbeat([held("a")])
    assert (heard.live, heard.asserted, heard.lapsed) == (("one",), (), True)
    assert await one.exchange([], [claim("b")]) == [Answer.NOT_LIVE]


async def test_the_second_replica_finds_that_the_first_has_yet_to_assert(world: World) -> None:
    one, two = world.replica("one"), world.replica("two")
    await one.heartbeat([held("a")])
    heard = await two.heartbeat([])
    assert (heard.live, heard.asserted) == (("one", "two"), ("two",))
    heard = await one.heartbeat([held("a")])
    assert heard.asserted == ("one", "two")


async def test_a_replica_that_admits_without_claims_is_not_asserted_and_may_not_claim(
    pair: tuple[Slots, Slots],
) -> None:
    one, two = pair
    assert (await one.heartbeat([], complete=False)).asserted == ("two",)
    assert await one.exchange([], [claim("a")]) == [Answer.NOT_LIVE]
    assert (await two.heartbeat([])).asserted == ("two",)
    assert (await one.heartbeat([])).asserted == ("one", "two")


async def test_newcomers_and_what_changes_for_others_is_announced(world: World) -> None:
    one, two = world.replica("one"), world.replica("two")
    await one.heartbeat([])
    assert await world.announced() == [{"replica": "one"}]
    await one.heartbeat([])
    assert await world.announced() == []
    await two.heartbeat([])
    assert await world.announced() == [{"replica": "two"}, {"replica": "two"}]
    await one.heartbeat([])
    assert await world.announced() == [{"replica": "one"}]
    await one.leave([])
    assert await world.announced() == [{"replica": "one"}]


async def test_a_heartbeat_asserts_what_is_held_even_above_the_limits(
    world: World, pair: tuple[Slots, Slots]
) -> None:
    one, two = pair
    holdings = [held(f"h{number}") for number in range(150)]
    heard = await one.heartbeat(holdings)
    assert heard.repaired == 150
    assert (await world.counts())["pool:m"] == 150
    assert await two.exchange([], [claim("b", pool_size=150)]) == [Answer.POOL]
    assert (await one.heartbeat(holdings)).repaired == 0


async def test_a_heartbeat_releases_what_is_not_held(
    world: World, pair: tuple[Slots, Slots]
) -> None:
    one, _ = pair
    await one.exchange([], [claim("a"), claim("b")])
    await one.heartbeat([held("a"), held("b")])
    heard = await one.heartbeat([held("b")])
    assert heard.repaired == 1
    assert (await world.counts())["pool:m"] == 1


async def test_a_heartbeat_leaves_alone_what_was_claimed_since_the_last(
    world: World, pair: tuple[Slots, Slots]
) -> None:
    one, _ = pair
    await one.exchange([], [claim("a")])
    assert (await one.heartbeat([])).repaired == 0
    assert (await world.counts())["pool:m"] == 1


async def test_holdings_stay_on_the_books_however_long_while_the_replica_is_heard_of(
    world: World, pair: tuple[Slots, Slots]
) -> None:
    one, two = pair
    await one.exchange([], [claim("a", pool_size=1)])
    for _ in range(10):
        await world.passes(TTL - 5)
        await one.heartbeat([held("a")])
        await two.heartbeat([])
    assert await two.exchange([], [claim("b", pool_size=1)]) == [Answer.POOL]


async def test_what_the_dead_held_is_taken_back(world: World, pair: tuple[Slots, Slots]) -> None:
    one, two = pair
    await one.exchange([], [claim("a"), claim("b")])
    await world.passes(TTL - 5)
    await two.heartbeat([])
    await world.passes(6)
    heard = await two.heartbeat([])
    assert (heard.live, heard.reclaimed) == (("two",), 2)
    assert await world.counts() == {"key:m:k": 2, "pool:m": 2, "tenant:m:t": 2}
    await world.replica("three").heartbeat([])
    await two.heartbeat([])
    assert await two.exchange([], [claim("c"), claim("d")]) == [GRANTED, GRANTED]


async def test_everything_the_dead_left_goes_away_even_if_nobody_comes(
    world: World, pair: tuple[Slots, Slots]
) -> None:
    one, _ = pair
    await one.exchange([], [claim("a"), claim("b")])
    await world.passes(2 * TTL + 1)
    assert await world.counts() == {}


async def test_a_replica_that_comes_back_frees_nothing_of_others(
    world: World, pair: tuple[Slots, Slots]
) -> None:
    one, two = pair
    third = world.replica("three")
    await third.heartbeat([])
    await one.exchange([], [claim("a"), claim("b")])
    await world.passes(TTL - 5)
    await two.heartbeat([])
    await third.heartbeat([])
    await world.passes(6)
    await two.heartbeat([])
    assert await two.exchange([], [claim("c"), claim("d")]) == [GRANTED, GRANTED]
    assert await one.exchange([held("a")], [claim("e")]) == [Answer.NOT_LIVE]
    heard = await one.heartbeat([held("b")])
    assert heard.lapsed
    assert (await world.counts())["pool:m"] == 3
    assert await one.exchange([held("b")], [claim("f")]) == [Answer.POOL]


async def test_lost_books_let_nobody_claim_who_has_not_asserted_again(
    world: World, pair: tuple[Slots, Slots]
) -> None:
    one, two = pair
    await one.exchange([], [claim("a")])
    await world.forgets()
    assert await one.exchange([], [claim("b")]) == [Answer.NOT_LIVE]
    assert await two.exchange([], [claim("c")]) == [Answer.NOT_LIVE]
    await two.heartbeat([])
    heard = await one.heartbeat([held("a")])
    assert (heard.lapsed, heard.repaired, heard.asserted) == (True, 1, ("one",))
    assert (await two.heartbeat([])).asserted == ("one", "two")
    assert await two.exchange([], [claim("d"), claim("e")]) == [GRANTED, Answer.POOL]


async def test_ends_after_the_books_were_lost_leave_no_count_below_zero(
    world: World, pair: tuple[Slots, Slots]
) -> None:
    one, _ = pair
    await one.exchange([], [claim("a"), claim("b")])
    await world.forgets()
    await one.exchange([held("a"), held("b")], [])
    await world.replica("two").heartbeat([])
    await one.heartbeat([])
    answers = await one.exchange([], [claim("c"), claim("d"), claim("e")])
    assert answers == [GRANTED, GRANTED, Answer.POOL]


async def test_a_pool_made_again_under_another_id_is_not_touched_by_the_old_one(
    world: World, pair: tuple[Slots, Slots]
) -> None:
    one, _ = pair
    await one.exchange([], [claim("old", pool="model-1"), claim("new", pool="model-2")])
    await one.exchange([held("old", pool="model-1")], [])
    assert (await world.counts())["pool:model-2"] == 1


async def test_leaving_takes_everything_off_the_books(
    world: World, pair: tuple[Slots, Slots]
) -> None:
    one, two = pair
    await one.exchange([], [claim("a"), claim("b")])
    await one.leave([held("a")])
    assert await world.counts() == {}
    assert (await two.heartbeat([])).live == ("two",)
    await one.leave([])


async def test_only_a_release_that_somebody_waits_for_is_announced_and_once(
    world: World, pair: tuple[Slots, Slots]
) -> None:
    one, two = pair
    await one.exchange([], [claim("a"), claim("b")])
    await one.exchange([held("a")], [claim("c")])
    assert await world.announced() == []
    await two.exchange([], [claim("d")])
    await one.exchange([held("b"), held("c")], [])
    assert await world.announced() == [{"pool": "m", "ceiling": False}]


async def test_a_mark_is_forgotten_when_nobody_tries_again(
    world: World, pair: tuple[Slots, Slots]
) -> None:
    one, two = pair
    await one.exchange([], [claim("a", pool_size=1)])
    await two.exchange([], [claim("b", pool_size=1)])
    await world.passes(2)
    await one.exchange([held("a")], [])
    assert await world.announced() == []


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        ({"ceiling": 1, "pool": "other"}, {"pool": "m", "ceiling": True}),
        ({"tenant_cap": 1}, {"pool": "m", "ceiling": False}),
        ({"key_cap": 1}, {"pool": "m", "ceiling": False}),
    ],
)
async def test_ceiling_and_caps_are_waited_for_too(
    world: World,
    pair: tuple[Slots, Slots],
    refused: dict[str, Any],
    message: dict[str, object],
) -> None:
    one, two = pair
    await one.exchange([], [claim("a"), claim("x", tenant="x", key="x", pool="x")])
    await two.exchange(
        [], [claim("b", **({"ceiling": 2} if "ceiling" in refused else {}) | refused)]
    )
    await one.exchange([held("a")], [])
    assert await world.announced() == [message]


class CommandList:
    """Random calls of a random fleet, the same ones for a given number."""

    def __init__(self, number: int) -> None:
        self._random = random.Random(number)
        self._ids = 0
        self.operations = 0
        """Claims, releases and other calls so far."""
        self.holdings: dict[str, dict[str, Holding]] = {
            name: {} for name in ("one", "two", "three")
        }

    def claims(self) -> list[Claim]:
        return [self._claim() for _ in range(self._random.choice((0, 1, 1, 2, 5, 70)))]

    def _claim(self) -> Claim:
        choose = self._random
        self._ids += 1
        repeated = choose.random() < 0.1
        return Claim(
            id=f"id{choose.randint(1, self._ids) if repeated else self._ids}",
            pool=choose.choice(("m", "n:", "(unrouted)")),
            tenant=choose.choice("tu"),
            key=choose.choice("kl"),
            pool_size=choose.choice((0, 1, 3, 8, 100)),
            ceiling=choose.choice((1, 5, 100)),
            tenant_cap=choose.choice((None, None, 1, 4)),
            key_cap=choose.choice((None, None, 1, 4)),
        )

    def releases(self, replica: str) -> list[Holding]:
        held = list(self.holdings[replica].values())
        chosen = self._random.sample(held, self._random.randint(0, len(held)))
        if self._random.random() < 0.2:
            chosen.append(Holding(f"id{self._random.randint(1, self._ids + 1)}", "m", "t", "k"))
        return chosen

    async def play(self, world: RedisWorld | ModelWorld, length: int) -> AsyncIterator[object]:
        """Play `length` commands on a world, and say what came of each."""
        choose = self._random
        fleet = {name: world.replica(name) for name in self.holdings}
        for _ in range(length):
            name = choose.choice(list(fleet))
            slots, mine = fleet[name], self.holdings[name]
            self.operations += 1
            action = choose.random()
            if action < 0.6:
                releases, claims = self.releases(name), self.claims()
                self.operations += len(releases) + len(claims)
                answers = list(await slots.exchange(releases, claims))
                for holding in releases:
                    mine.pop(holding.id, None)
                for each, answer in zip(claims, answers, strict=True):
                    # Now and then a grant is lost on its way.
                    if answer is GRANTED and choose.random() < 0.9:
                        mine[each.id] = Holding(each.id, each.pool, each.tenant, each.key)
                yield answers
            elif action < 0.85:
                yield await slots.heartbeat(list(mine.values()), complete=choose.random() < 0.9)
            elif action < 0.95:
                await world.passes(choose.choice((0.5, 1.5, 4.0, 12.25, 40.0)))
                yield "time"
            elif action < 0.97:
                await slots.leave(list(mine.values()))
                mine.clear()
                yield "left"
            else:
                await world.forgets()
                yield "lost"
            await world.passes(0)
            yield await world.counts(), await world.announced()


async def test_the_model_does_what_the_scripts_do_on_random_commands() -> None:
    operations = 0
    for number in range(4):
        commands = CommandList(number)
        model = [seen async for seen in commands.play(ModelWorld(), 300)]
        operations += commands.operations
        at = 0
        async with redis_world() as real:
            await real.passes(0)
            async for seen in CommandList(number).play(real, 300):
                assert seen == model[at], f"list {number}, step {at}"
                at += 1
        assert at == len(model)
    assert operations > 10_000
