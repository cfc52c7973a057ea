"""How Redis is called: once, in time, and each reply to whoever asked for it."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ReadOnlyError, ResponseError

from obleth.server import run
from shared import redis as shared_redis
from shared.redis import RedisUnavailable, round_trip
from tests.faults.link import FAIR, Links, Weather
from tests.lua.parts import stand_still
from tests.redis_server import PATIENT_SECS, Server, server

SLOW = "local n = redis.call('INCR', KEYS[1]); local at = 0; while at < 4e7 do at = at + 1 end"


async def test_a_call_that_timed_out_ran_once(redis: Redis) -> None:
    # However slow the machine: it must not answer that it is busy.
    await redis.config_set("lua-time-limit", 10 * 1000 * PATIENT_SECS)
    with pytest.raises(RedisUnavailable):
        await round_trip(redis, [("EVAL", SLOW, 1, "runs")], secs=0.05)
    assert await round_trip(redis, [("GET", "runs")], secs=PATIENT_SECS) == ["1"]


async def test_the_url_cannot_switch_retries_on(own_server: Server) -> None:
    options = "retry_on_timeout=true&socket_timeout=9&max_connections=1000"
    redis = shared_redis.client(f"{own_server.url}?{options}", connections=3)
    pool = redis.connection_pool
    assert pool.max_connections == 3
    connection = pool.make_connection()
    assert connection.retry.get_retries() == 0
    assert connection.socket_timeout is None
    await redis.aclose()


async def test_a_refused_command_has_its_error_in_its_place(redis: Redis) -> None:
    replies = await round_trip(redis, [("SET", "a", "1"), ("HGET", "a", "b"), ("GET", "a")], secs=9)
    assert replies[0] is True
    assert isinstance(replies[1], ResponseError)
    assert replies[2] == "1"


@pytest.mark.parametrize("running", [True, False])
async def test_a_server_that_does_not_answer_costs_no_more_than_the_deadline(
    own_server: Server, redis: Redis, running: bool
) -> None:
    if running:
        own_server.signal(signal.SIGSTOP)
    else:
        await own_server.stop()
    loop = asyncio.get_running_loop()
    began = loop.time()
    calls = [round_trip(redis, [("GET", "a")], secs=0.2) for _ in range(100)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(result, RedisUnavailable) for result in results)
    assert loop.time() - began < PATIENT_SECS
    if running:
        own_server.signal(signal.SIGCONT)
    else:
        await own_server.start()
    assert await round_trip(redis, [("PING",)], secs=PATIENT_SECS) == [True]


async def test_each_reply_belongs_to_its_own_command_however_many_are_cut_off(
    own_server: Server,
) -> None:
    async with shared_redis.client(own_server.url, connections=2) as redis:
        wrong: list[Any] = []

        async def ask(number: int) -> None:
            replies = await round_trip(redis, [("ECHO", str(number))], secs=PATIENT_SECS)
            if replies != [str(number)]:
                wrong.append((number, replies))

        for number in range(400):
            tasks = [asyncio.create_task(ask(number * 10 + each)) for each in range(4)]
            # Cut off at every stage: before it runs, while it waits, writes, reads, ends.
            for _ in range(number % 9):
                await asyncio.sleep(0)
            tasks[0].cancel()
            tasks[1].cancel()
            await asyncio.sleep(0)
            tasks[1].cancel()
            await asyncio.wait(tasks)
            assert not tasks[3].cancelled()
            assert tasks[3].exception() is None
        assert wrong == []
        pool = redis.connection_pool
        assert len(pool._in_use_connections) == 0
        assert len(pool._available_connections) <= 2


async def test_more_calls_than_connections_wait_for_their_turn(own_server: Server) -> None:
    async with shared_redis.client(own_server.url, connections=2) as redis:
        calls = [round_trip(redis, [("INCR", "n")], secs=PATIENT_SECS) for _ in range(200)]
        replies = await asyncio.gather(*calls)
    assert sorted(reply for (reply,) in replies) == list(range(1, 201))


def test_connections_reset_as_soon_as_they_stand_are_told_as_unavailable_on_the_replicas_own_loop(
    tmp_path: Path,
) -> None:
    async def try_often() -> None:
        async with Links() as links, server(tmp_path) as own:
            link = await links.open(own.port, seed=1)
            url = f"redis://127.0.0.1:{link.port}/0"
            async with shared_redis.client(url, name="named") as redis:
                await round_trip(redis, [("PING",)], secs=PATIENT_SECS)
                await links.set(Weather(refuses=True), link)
                await links.cut(link)
                for _ in range(200):
                    with pytest.raises(RedisUnavailable):
                        await round_trip(redis, [("PING",)], secs=PATIENT_SECS)
                await links.set(FAIR, link)
                await round_trip(redis, [("PING",)], secs=PATIENT_SECS)

    run(try_often())


@pytest.mark.parametrize("loop", [run, asyncio.run])
def test_connections_that_were_reset_while_nobody_used_them_are_not_used_again(
    tmp_path: Path, loop: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    async def ask_reset_ask() -> None:
        async with Links() as links, server(tmp_path) as own:
            link = await links.open(own.port, seed=1)
            async with shared_redis.client(f"redis://127.0.0.1:{link.port}/0") as redis:
                for _ in range(3):
                    calls = [round_trip(redis, [("PING",)], secs=PATIENT_SECS) for _ in range(9)]
                    assert await asyncio.gather(*calls) == [[True]] * 9
                    await links.cut(link)
                    await asyncio.sleep(0.05)

    loop(ask_reset_ask())


async def test_after_a_failure_calls_go_to_whoever_answers_now_under_the_name(
    tmp_path: Path,
) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    async with (
        Links() as links,
        server(tmp_path / "old") as old,
        server(tmp_path / "new") as new,
        shared_redis.client(old.url) as to_old,
    ):
        link = await links.open(old.port, seed=1)
        async with shared_redis.client(f"redis://127.0.0.1:{link.port}/0") as redis:
            calls = [round_trip(redis, [("INCR", "n")], secs=PATIENT_SECS) for _ in range(9)]
            await asyncio.gather(*calls)
            link.to = new.port
            await to_old.replicaof("127.0.0.1", str(new.port))
            (refused,) = await round_trip(redis, [("INCR", "n")], secs=PATIENT_SECS)
            assert isinstance(refused, ReadOnlyError)
            calls = [round_trip(redis, [("INCR", "m")], secs=PATIENT_SECS) for _ in range(9)]
            assert sorted(await asyncio.gather(*calls)) == [[n] for n in range(1, 10)]


@pytest.mark.parametrize("loop", [run, asyncio.run])
def test_an_answer_that_came_while_the_loop_stood_still_is_read(
    tmp_path: Path, loop: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    async def ask_and_stand_still() -> None:
        async with server(tmp_path) as own, shared_redis.client(own.url) as redis:
            await round_trip(redis, [("PING",)], secs=PATIENT_SECS)
            for turns in range(5):
                call = asyncio.create_task(round_trip(redis, [("ECHO", "heard")], secs=0.2))
                for _ in range(turns):
                    await asyncio.sleep(0)
                stand_still(0.4)
                _until_answered(own)
                assert await call == ["heard"]

    loop(ask_and_stand_still())


def _until_answered(server: Server) -> None:
    """Stand still until the server has answered whatever it was sent before."""
    with socket.create_connection(("127.0.0.1", server.port)) as other:
        for _ in range(2):
            other.sendall(b"PING\r\n")
            assert other.recv(64) == b"+PONG\r\n"
