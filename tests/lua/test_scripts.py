"""The scripts on a real server that loses, delays, forgets and holds what it should not."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from redis.asyncio import Redis

from dataplane.admission.slots.port import Answer, Freed, SlotsUnavailable
from dataplane.admission.slots.redis import RedisSlots
from dataplane.admission.slots.scripts import ScriptRunner, SlotScripts
from dataplane.admission.slots.server import (
    eviction_warnings,
    server_warnings,
    version_warnings,
)
from dataplane.scheduler.holds import StepEnd
from dataplane.scripts import MalformedScript, ScriptCall, load, parse
from shared import redis as shared_redis
from shared.redis import Command, round_trip
from tests.contract.slot_worlds import answers
from tests.lua.parts import KEYS, claim, held, replica, stand_still, two, until
from tests.redis_server import PATIENT_SECS, Server
from tests.simulation.world import a_key

POOL, _, TENANT, KEY = KEYS.sets("m", "g", "t", "k")
GRANTED = Answer.GRANTED


def test_a_script_without_its_contract_does_not_load() -> None:
    text = "-- Purpose: x\n-- KEYS: none\n-- ARGV: none\n-- Returns: 1\n-- Safe to repeat? Yes.\n"
    assert parse("good", text + "return 1").name == "good"
    for line in text.splitlines():
        with pytest.raises(MalformedScript, match=r"bad\.lua"):
            parse("bad", text.replace(line + "\n", "") + "return 1")


def test_no_script_names_a_key_or_looks_for_any() -> None:
    for script in load("dataplane.admission.slots").values():
        code = "\n".join(line for line in script.text.splitlines() if not line.startswith("--"))
        assert "'KEYS'" not in code
        assert "SCAN" not in code
        assert "obleth" not in code
        assert "os." not in code
        assert "while" not in code, "every loop runs over something that ends"


async def test_scripts_that_redis_forgot_are_sent_again_and_nobody_notices(redis: Redis) -> None:
    one, _ = await two(redis)
    for number in range(20):
        await redis.script_flush()
        assert await answers(one, [held(f"a{number - 1}")], [claim(f"a{number}", pool_size=1)]) == [
            GRANTED
        ]


async def test_scripts_that_redis_forgets_between_any_two_commands_are_carried_out_all_the_same(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = await two(redis)

    async def forgetful(redis: Redis, commands: Sequence[Command], *, secs: float) -> list[Any]:
        replies = []
        for command in commands:
            replies += (await round_trip(redis, [("SCRIPT FLUSH",), command], secs=secs))[1:]
        return replies

    monkeypatch.setattr("dataplane.scripts.round_trip", forgetful)
    claims = [claim(name, pool_size=3) for name in "abcd"]
    assert await answers(one, [], claims) == [GRANTED] * 3 + [Answer.POOL]
    assert await answers(one, [held("a"), held("b")], [claim("d", pool_size=2)]) == [GRANTED]


async def test_scripts_are_sent_by_name_once_redis_knows_them(
    own_server: Server, redis: Redis
) -> None:
    one, _ = await two(redis)
    await answers(one, [], [claim("a")])
    before = await own_server.calls()
    await answers(one, [held("a")], [claim("b")])
    after = await own_server.calls()
    assert after["evalsha"] - before["evalsha"] == 2
    assert after["script|load"] == before["script|load"]


async def test_a_restart_without_data_leaves_nobody_with_a_wrong_right(
    own_server: Server, redis: Redis
) -> None:
    one, other = await two(redis)
    await answers(one, [], [claim("a"), claim("b")])
    await own_server.stop()
    with pytest.raises(SlotsUnavailable):
        await answers(one, [held("a")], [])
    await own_server.start()
    assert await answers(other, [], [claim("c")]) == [Answer.NOT_LIVE]
    await other.heartbeat([])
    await one.heartbeat([held("b")])
    await other.heartbeat([])
    assert await answers(other, [], [claim("d"), claim("e")]) == [GRANTED, Answer.POOL]


async def test_a_grant_whose_answer_was_lost_is_given_back_by_the_next_heartbeat(
    own_server: Server, redis: Redis
) -> None:
    _, other = await two(redis)
    hurried = RedisSlots(
        SlotScripts(redis, secs=0.1),
        replica="one",
        ttl=15,
        heartbeats=SlotScripts(redis, secs=PATIENT_SECS),
    )
    await answers(hurried, [held("none")], [])
    own_server.signal(signal.SIGSTOP)
    with pytest.raises(SlotsUnavailable):
        await answers(hurried, [], [claim("late", pool_size=1)])
    own_server.signal(signal.SIGCONT)
    await until(lambda: redis.zcard(POOL))
    assert await answers(other, [], [claim("b", pool_size=1)]) == [Answer.POOL]
    assert (await hurried.heartbeat([])).repaired == 1
    assert await answers(other, [], [claim("c", pool_size=1)]) == [GRANTED]


async def test_a_grant_read_only_after_its_lease_has_ended_is_worth_nothing(redis: Redis) -> None:
    _, other = await two(redis)
    one = replica(redis, "one", ttl=0.2)
    for turns in range(1, 7):
        await one.heartbeat([])
        call = asyncio.create_task(answers(one, [], [claim(f"a{turns}", pool_size=1)]))
        for _ in range(turns):
            await asyncio.sleep(0)
        stand_still(0.25)
        assert await asyncio.gather(call, return_exceptions=True) != [[GRANTED]]
        assert await answers(other, [], [claim("b", pool_size=1)]) == [GRANTED]
        await answers(other, [held("b")], [])


async def test_a_cancelled_exchange_leaves_nothing_behind_after_the_next_heartbeat(
    redis: Redis,
) -> None:
    one, _ = await two(redis)
    for number in range(40):
        task = asyncio.create_task(answers(one, [], [claim(f"a{number}", pool_size=1000)]))
        for _ in range(number % 8):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    # What was sent before it was cut off may be carried out a moment later.
    await redis.ping()
    await one.heartbeat([])
    await one.heartbeat([])
    assert await redis.zcard(KEYS.all) == 0


async def test_what_ends_while_it_is_being_asserted_does_not_stay_on_the_books(
    redis: Redis,
) -> None:
    one, _ = await two(redis)
    for number in range(1, 60):
        id = f"a{number}"
        await answers(one, [], [claim(id)])
        beat = asyncio.create_task(one.heartbeat([held(id)]))
        for _ in range(number):
            await asyncio.sleep(0)
        await answers(one, [held(id)], [])
        await beat
        assert await redis.exists(POOL, TENANT, KEY, KEYS.all, KEYS.held("one")) == 0


async def test_a_claim_made_anew_is_never_granted_and_then_taken_off_the_books(
    redis: Redis,
) -> None:
    one, _ = await two(redis)
    for number in range(60):
        id = f"a{number}"
        await redis.hset(KEYS.held("one"), id, "m:g:t:k")
        await redis.zadd(POOL, {id: 9_999_999_999_999})
        beat = asyncio.create_task(one.heartbeat([]))
        for _ in range(number):
            await asyncio.sleep(0)
        replies = await answers(one, [], [claim(id, pool_size=1)])
        await beat
        on_books = await redis.zscore(POOL, id) is not None
        assert on_books is (replies == [GRANTED])
        await answers(one, [held(id)], [])


class Gate:
    """Carries out calls once it is open."""

    def __init__(self, inner: ScriptRunner) -> None:
        self._inner = inner
        self.is_open = asyncio.Event()
        self.is_open.set()

    async def run(self, calls: Sequence[ScriptCall]) -> list[Any]:
        await self.is_open.wait()
        return await self._inner.run(calls)


@pytest.mark.parametrize("beats_first", [False, True])
async def test_a_release_under_way_is_left_alone_by_a_heartbeat_and_is_no_repair(
    redis: Redis, *, beats_first: bool
) -> None:
    await two(redis)
    scripts = SlotScripts(redis, secs=PATIENT_SECS)
    gate = Gate(scripts)
    one = RedisSlots(gate, replica="one", ttl=15, heartbeats=scripts)
    await answers(one, [], [claim("before")])
    await one.heartbeat([held("before")])
    await answers(one, [], [claim("since")])
    gate.is_open.clear()
    step = StepEnd("s", 0.0, 3.0, 120.0, True, 2, 8, 100, 100, None, None, a_key("t"))
    ending = [replace(held(id), step=step) for id in ("before", "since")]
    if beats_first:
        beat = asyncio.create_task(one.heartbeat([]))
    await asyncio.sleep(0)
    releasing = asyncio.create_task(one.exchange(ending, []))
    await asyncio.sleep(0)
    if not beats_first:
        beat = asyncio.create_task(one.heartbeat([]))
    assert (await beat).repaired == 0
    gate.is_open.set()
    # The later of the two follows the other, so that its slot is held.
    assert (await releasing).releases == [Freed.RELEASED, Freed.HELD]
    assert (await one.heartbeat([])).repaired == 0


async def test_a_claim_under_way_is_left_alone_by_a_heartbeat(redis: Redis) -> None:
    one, _ = await two(redis)
    for number in range(30):
        id = f"a{number}"
        claiming = asyncio.create_task(answers(one, [], [claim(id)]))
        for _ in range(number):
            await asyncio.sleep(0)
        await one.heartbeat([])
        assert await claiming == [GRANTED]
        assert await redis.zcard(POOL) == 1
        await answers(one, [held(id)], [])


@pytest.mark.parametrize("key", [POOL, TENANT, KEY, KEYS.all])
async def test_something_else_under_a_sets_name_stops_grants_until_all_have_asserted_again(
    redis: Redis, key: str
) -> None:
    one, other = await two(redis)
    await answers(one, [], [claim("a")])
    await redis.set(key, "not a set")
    with pytest.raises(SlotsUnavailable, match="WRONGTYPE"):
        await answers(other, [], [claim("b", tenant_cap=5, key_cap=5)])
    await other.heartbeat([])
    assert await answers(one, [], [claim("c")]) == [Answer.NOT_LIVE]
    await one.heartbeat([held("a")])
    await other.heartbeat([])
    assert await redis.type(key) == "zset"
    assert await answers(other, [], [claim("d"), claim("e")]) == [GRANTED, Answer.POOL]


@pytest.mark.parametrize("key", [KEYS.roster, KEYS.held("one")])
async def test_something_else_under_a_hashs_name_is_put_right_by_heartbeats(
    redis: Redis, key: str
) -> None:
    one, other = await two(redis)
    await answers(one, [], [claim("a")])
    await redis.set(key, "not a hash")
    with pytest.raises(SlotsUnavailable, match="WRONGTYPE"):
        await answers(one, [], [claim("b")])
    await one.heartbeat([held("a")])
    await other.heartbeat([])
    await one.heartbeat([held("a")])
    assert await answers(one, [], [claim("c"), claim("d")]) == [GRANTED, Answer.POOL]


async def test_one_pools_keys_deleted_are_back_after_a_heartbeat(redis: Redis) -> None:
    one, other = await two(redis)
    await answers(one, [], [claim("a"), claim("b")])
    await redis.delete(POOL)
    assert (await one.heartbeat([held("a"), held("b")])).repaired == 2
    assert await answers(other, [], [claim("c")]) == [Answer.POOL]


async def test_a_clock_set_back_does_not_keep_the_dead_alive(redis: Redis) -> None:
    one, other = await two(redis)
    await answers(one, [], [claim("a"), claim("b")])
    # As if everything had been written by a clock an hour ahead.
    for key in (KEYS.all, POOL, TENANT, KEY):
        for id, end in await redis.zrange(key, 0, -1, withscores=True):
            await redis.zadd(key, {id: end + 3_600_000})
    for name, record in (await redis.hgetall(KEYS.roster)).items():
        heard, _, rest = record.partition(" ")
        await redis.hset(KEYS.roster, name, f"{int(heard) + 3_600_000} {rest}")
    assert await answers(other, [], [claim("c")]) == [Answer.POOL]
    await other.heartbeat([])
    now_s, now_us = await redis.time()
    latest = now_s * 1000 + now_us // 1000 + 15_000
    for key in (KEYS.all, POOL):
        assert all(end <= latest for _, end in await redis.zrange(key, 0, -1, withscores=True))
    for record in (await redis.hgetall(KEYS.roster)).values():
        assert int(record.split()[0]) <= latest - 15_000


async def test_two_replicas_may_reclaim_at_once(redis: Redis) -> None:
    dead, ones = replica(redis, "dead", ttl=0.2), [replica(redis, f"r{at}") for at in range(3)]
    await dead.heartbeat([held(f"a{at}") for at in range(10)])
    heard = []
    while sum(each.reclaimed for each in heard) < 10:
        heard += await asyncio.gather(*(one.heartbeat([]) for one in ones))
    heard += await asyncio.gather(*(one.heartbeat([]) for one in ones))
    assert sum(each.reclaimed for each in heard) == 10
    assert heard[-1].live == ("r0", "r1", "r2")


async def test_large_limits_and_times_are_written_as_whole_numbers(redis: Redis) -> None:
    one, _ = await two(redis)
    big = claim("a", pool_size=200_000_000, ceiling=2**53 - 1)
    assert await answers(one, [], [big]) == [GRANTED]
    for record in (await redis.hgetall(KEYS.roster)).values():
        assert all(part.isdigit() for part in record.split())
    (_, end), *_ = await redis.zrange(POOL, 0, -1, withscores=True)
    assert end == int(end)


async def test_a_replica_with_another_layout_is_seen_and_never_counts_as_asserted(
    redis: Redis,
) -> None:
    one, _ = await two(redis)
    now_s, _ = await redis.time()
    await redis.hset(KEYS.roster, "older", f"{now_s * 1000} 60000 0 1")
    heard = await one.heartbeat([])
    assert heard.live == ("older", "one", "two")
    assert heard.asserted == ("one", "two")


async def test_a_read_only_server_is_unavailable(redis: Redis) -> None:
    one, _ = await two(redis)
    await redis.replicaof("127.0.0.1", "1")
    with pytest.raises(SlotsUnavailable, match=r"(?i)read.?only"):
        await answers(one, [], [claim("a")])
    with pytest.raises(SlotsUnavailable):
        await one.heartbeat([])
    await redis.replicaof("NO", "ONE")
    await one.heartbeat([])
    assert await answers(one, [], [claim("b")]) == [GRANTED]


async def test_everything_of_the_books_goes_away_by_itself(redis: Redis) -> None:
    one, other = await two(redis)
    await answers(one, [], [claim("a"), claim("b")])
    await answers(other, [], [claim("c")])
    names = [name async for name in redis.scan_iter()]
    assert len(names) == 8
    for name in names:
        assert 0 < await redis.pttl(name) <= 30_000


async def test_requests_at_once_share_calls(own_server: Server, redis: Redis) -> None:
    one, _ = await two(redis)
    for at_once, most in ((1, 2), (32, 2), (256, 8)):
        ids = [f"{at_once}-{number}" for number in range(at_once)]
        before = await own_server.calls()
        await answers(one, [], [claim(id, pool_size=1000, ceiling=1000) for id in ids])
        await answers(one, [held(id) for id in ids], [])
        after = await own_server.calls()
        assert after["evalsha"] - before["evalsha"] == most


async def test_a_server_that_may_drop_slots_is_told_of(redis: Redis) -> None:
    assert await server_warnings(redis, secs=PATIENT_SECS) == []
    await redis.config_set("maxmemory", "100mb")
    assert await server_warnings(redis, secs=PATIENT_SECS) == []
    await redis.config_set("maxmemory-policy", "volatile-lru")
    (warning,) = await server_warnings(redis, secs=PATIENT_SECS)
    assert "maxmemory-policy volatile-lru" in warning


async def test_a_server_that_is_not_there_says_nothing() -> None:
    async with shared_redis.client("redis://127.0.0.1:1/0") as nobody:
        with pytest.raises(SlotsUnavailable):
            await server_warnings(nobody, secs=PATIENT_SECS)


@pytest.mark.parametrize(
    ("info", "fine"),
    [
        ({"redis_version": "6.2.0"}, True),
        ({"redis_version": "7.0.15"}, True),
        ({"redis_version": "10.1"}, True),
        ({"redis_version": "6.0.16"}, False),
        ({"redis_version": "5.0.7"}, False),
        ({"redis_version": "odd"}, False),
        ({}, False),
        ({"redis_version": "5.0", "server_name": "valkey", "valkey_version": "8.0.1"}, True),
    ],
)
def test_too_old_a_server_is_told_of(info: dict[str, str], fine: bool) -> None:
    assert (list(version_warnings(info)) == []) is fine
    assert list(eviction_warnings({"maxmemory": 0, "maxmemory_policy": "allkeys-lru"})) == []
