"""What takes no replica off the books: the limits hold to the slot, while replicas are
killed, put to sleep, stopped and started under load. Their clocks are minutes apart all the while.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from obleth.backend import Outcome
from tests.faults.conftest import Fault
from tests.faults.fleet import MODELS, POLL_SECS, Fleet, Replica, Timings, fleet
from tests.faults.link import FAIR, Weather
from tests.faults.load import HELLO, End
from tests.faults.trial import (
    all_slots_usable,
    asleep,
    cut_off,
    fallback_begun,
    joined_blind,
    nothing_left,
    shared,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

CLOCKS = ("0", "120", "-120")
"""By how many seconds each replica's wall clock is wrong."""
SKEWED = Path(__file__).parent / "skewed"


@pytest.fixture(scope="module")
def timings(timings: Timings) -> Timings:
    """Such that no replica loses sight of the others because the machine is busy."""
    return replace(timings, ttl=max(timings.ttl, 5.0), answer_ms=3000)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def three(
    database: str, timings: Timings, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Fleet]:
    """Three replicas whose clocks do not agree."""
    folder = tmp_path_factory.mktemp("fleet")
    skewed = [{"PYTHONPATH": str(SKEWED), "SKEWED_BY_SECS": secs} for secs in CLOCKS]
    async with fleet(folder, database, timings, each=skewed) as own:
        yield own


async def test_400_requests_at_once_on_three_replicas_run_20_at_once_and_never_21(
    three: Fleet,
) -> None:
    backend = three.backend
    requests = await asyncio.gather(*three.burst("twenty", 400, secs=0.1))
    assert [request.end for request in requests] == [End.WHOLE] * 400
    assert sum(record.outcome is Outcome.FINISHED for record in backend.log) == 400
    assert backend.peak("twenty") == 20
    await nothing_left(three)
    await all_slots_usable(three)


async def test_waiters_of_a_pool_of_one_slot_do_not_all_ask_for_it_whenever_it_is_free(
    three: Fleet,
) -> None:
    tasks = three.burst("one", 150, secs=0.05)
    await three.backend.until(lambda: three.backend.running("one") > 0, 60)
    before, began = await three.redis.calls(), len(three.backend.log)
    await three.backend.until(lambda: len(three.backend.log) >= began + 20, 60)
    after, ended = await three.redis.calls(), len(three.backend.log)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert after["evalsha"] - before["evalsha"] < 20 * (ended - began)
    await nothing_left(three)


async def test_storm_of_clients_that_all_leave(three: Fleet, fault: Fault) -> None:
    async with fault("200 clients a replica come at once and leave", shared):
        before = await three.redis.calls()
        tasks = [
            task
            for model in MODELS
            for task in three.burst(model, 150, leaves_after=three.timings.outage)
        ]
        await asyncio.gather(*tasks)
        after = await three.redis.calls()
        assert after["evalsha"] - before["evalsha"] < 20 * len(tasks)


async def test_scripts_forgotten(three: Fleet, fault: Fault) -> None:
    async with fault("Redis forgets its scripts, ten times", shared), three.on_redis() as redis:
        for _ in range(10):
            await redis.script_flush()
            await asyncio.sleep(three.timings.outage / 10)


async def test_clocks_that_do_not_agree_change_nothing(three: Fleet, fault: Fault) -> None:
    async with fault("Replicas' clocks two minutes apart", shared):
        before = await _reclaimed(three)
        await asyncio.sleep(three.timings.ttl)
        assert await _reclaimed(three) == before


async def test_asleep_for_less_than_its_time_to_live(three: Fleet, fault: Fault) -> None:
    async with fault("A replica sleeps, not past its time to live", shared):
        three.replicas[0].signal(signal.SIGSTOP)
        await asyncio.sleep(three.timings.ttl - 2 * three.timings.heartbeat)
        three.replicas[0].signal(signal.SIGCONT)


async def test_asleep_for_longer_than_its_time_to_live(three: Fleet, fault: Fault) -> None:
    """The others have its slots when it wakes; it sees that before its next grant, and what it
    gives back late is nobody else's."""
    async with fault("A replica sleeps past its time to live", asleep) as trial:
        first, *others = three.replicas
        trial.ran = await first.runs(three.session)
        first.signal(signal.SIGSTOP)
        await three.until_modes([("shared", 2)] * 2, others)
        await asyncio.sleep(three.timings.ttl)
        first.signal(signal.SIGCONT)


async def test_one_replica_cut_off(three: Fleet, fault: Fault) -> None:
    """Here, because it matters that no other takes Redis for away."""
    async with fault("One replica's link half open", cut_off) as trial:
        first, timings = three.replicas[0], three.timings
        before = await first.runs(three.session)
        await three.links.set(Weather(is_half_open=True), first.link)
        trial.ran = before | await first.runs(three.session)
        await three.until_modes([("fallback", 3), ("shared", 2), ("shared", 2)])
        await asyncio.sleep(timings.ttl)
        assert (await three.modes())[0] == ("fallback", 3)
        await three.links.set(FAIR, first.link)


async def test_a_held_slot_is_taken_on_another_replica_outlives_its_own_and_goes_with_affinity(
    three: Fleet,
) -> None:
    one, two, last = three.replicas
    held = {"enabled": True, "hold_ms": 60_000, "max_held_percent": 100}
    model = await three.api.model("agents", max_in_flight=1, session_affinity=held)
    await three.api.endpoint(model["id"], three.backend.url)

    async def step(replica: Replica, secret: int = 0, **session: str) -> str:
        """A request, once the replica knows the model; which slot it had."""
        body = {"model": "agents", "max_tokens": 1, "messages": HELLO, **session}
        headers = {"authorization": f"Bearer {three.secrets[secret]}"}
        url = f"{replica.url}/v1/chat/completions"
        while True:
            async with three.session.post(url, headers=headers, json=body) as answer:
                await answer.read()
                if answer.status == 200:
                    return answer.headers["x-obleth-slot"]
            await asyncio.sleep(POLL_SECS)

    async def until_held(replica: Replica, number: int) -> None:
        name = 'obleth_held_slots{model="agents"}'
        while True:
            if (await replica.figures(three.session)).get(name, 0) == number:
                return
            await asyncio.sleep(POLL_SECS)

    async with asyncio.timeout(60):
        assert [await step(each, session_id="s") for each in (one, two)] == ["new", "new"]
        await until_held(two, 1)
        assert await step(last, session_id="s") == "held"
        await until_held(last, 1)
        last.kill()
        assert await step(one, session_id="s") == "held", "the hold did not go with its replica"
        await until_held(one, 1)
        waiting = asyncio.create_task(step(two, secret=1))
        await three.api.put(f"/models/{model['id']}/session-affinity", {"enabled": False})
        assert await waiting == "new"
        await until_held(one, 0)
        await last.start()


async def test_killed(three: Fleet, fault: Fault) -> None:
    async with fault("A replica is killed", shared) as trial:
        trial.killed = True
        three.replicas[2].kill()


async def test_another_joins(three: Fleet, fault: Fault) -> None:
    async with fault("A replica joins two that are full", shared):
        await three.replicas[2].start()


async def test_stopped(three: Fleet, fault: Fault) -> None:
    async with fault("A replica is stopped", shared):
        assert await three.replicas[2].stop() == 0


async def test_another_joins_while_redis_is_away(three: Fleet, fault: Fault) -> None:
    """It goes by how many replicas it was told to expect, the others by how many they knew."""
    async with fault("A replica joins with Redis away", joined_blind):
        await three.redis.stop()
        await three.replicas[2].start()
        await three.until_modes([("fallback", 2), ("fallback", 2), ("fallback", 3)])
        await asyncio.sleep(three.timings.outage)
        await three.redis.start()


async def test_with_one_live_replica_requests_make_no_call_to_redis(three: Fleet) -> None:
    for one in three.replicas[1:]:
        await one.stop()
    await three.until_modes([("local", 1)])
    await nothing_left(three)
    before, began = await three.redis.calls(), time.monotonic()
    await asyncio.gather(*three.burst("twenty", 200, secs=0.01))
    took = time.monotonic() - began
    calls = await three.redis.calls()
    made = {name: number - before.get(name, 0) for name, number in calls.items()}
    heartbeats = took / three.timings.heartbeat + 2
    assert made["evalsha"] <= 3 * heartbeats
    assert sum(made.get(name, 0) for name in ("zadd", "zrem", "zcard", "zscore", "mget")) == 0


async def test_another_joins_one_that_was_alone(three: Fleet, fault: Fault) -> None:
    async with fault("A replica joins one that was alone and is full", fallback_begun):
        await three.replicas[1].start()


async def _reclaimed(three: Fleet) -> float:
    """How many slots were taken back from replicas that were taken for dead."""
    all_figures = [await one.figures(three.session) for one in three.running]
    return sum(each.get('obleth_repairs_total{kind="reclaimed"}', 0) for each in all_figures)
