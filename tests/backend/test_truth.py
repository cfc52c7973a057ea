"""What the backend says about what it ran: the figures others are held against."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from obleth.backend import BackendOptions, CannotListen, Faults, Outcome, SimulatedBackend
from tests.backend.raw_client import CHAT, ask, question, request_bytes, sent


@pytest.fixture
async def backend() -> AsyncIterator[SimulatedBackend]:
    async with SimulatedBackend(slots=2) as running:
        yield running


async def test_work_beyond_the_slots_waits_inside_and_shows(backend: SimulatedBackend) -> None:
    async with (
        sent(backend.url, question(), x_sim_mute=1),
        sent(backend.url, question(), x_sim_mute=1),
        sent(backend.url, question(), x_sim_mute=1),
        sent(backend.url, question("other"), x_sim_mute=1),
    ):
        await backend.until(lambda: backend.waiting("m") == 1 and backend.running("other") == 1)
        assert (backend.running("m"), backend.peak("m"), backend.peak_present("m")) == (2, 2, 3)
        assert backend.peak("other") == 1
    await backend.until(lambda: not backend.running("m") and not backend.running("other"))


@pytest.mark.parametrize(
    ("fields", "headers"),
    [
        ({}, {"x_sim_mute": 1}),
        ({}, {"x_sim_head_delay_ms": 60_000}),
        ({"stream": True}, {"x_sim_first_token_ms": 60_000}),
        ({"stream": True}, {"x_sim_token_ms": 60_000}),
        ({}, {"x_sim_token_ms": 60_000}),
        ({"stream": True}, {"x_sim_endless": 1}),
    ],
    ids=["mute", "head", "first token", "mid-stream", "whole", "endless"],
)
async def test_a_client_that_leaves_is_noticed_at_once(
    backend: SimulatedBackend, fields: dict[str, Any], headers: dict[str, Any]
) -> None:
    async with sent(backend.url, question(**fields), **headers):
        await backend.until(lambda: backend.running("m") == 1)
        left = time.monotonic()
    await backend.until(lambda: backend.running("m") == 0)
    record = backend.log[0]
    assert record.outcome is Outcome.CLIENT_LEFT
    assert record.ended is not None
    assert record.ended >= left


async def test_a_client_that_leaves_the_queue_never_runs(backend: SimulatedBackend) -> None:
    async with (
        sent(backend.url, question(), x_sim_mute=1),
        sent(backend.url, question(), x_sim_mute=1),
    ):
        await backend.until(lambda: backend.running("m") == 2)
        async with sent(backend.url, question(), x_sim_tenant="leaver"):
            await backend.until(lambda: backend.waiting("m") == 1)
        await backend.until(lambda: backend.waiting("m") == 0)
    (leaver,) = [record for record in backend.log if record.tenant == "leaver"]
    assert (leaver.outcome, leaver.started) == (Outcome.CLIENT_LEFT, None)


async def test_a_client_that_leaves_while_it_sends_is_logged(backend: SimulatedBackend) -> None:
    async with sent(backend.url, question(), content_length=10_000):
        await backend.until(lambda: len(backend.log) == 1)
    await backend.until(lambda: backend.log[0].outcome is Outcome.CLIENT_LEFT)


async def test_a_slot_is_free_before_its_last_byte_arrives(backend: SimulatedBackend) -> None:
    """One after the other, however fast, is never seen as two at once."""
    async with aiohttp.ClientSession() as session:
        for _ in range(50):
            url = backend.url + "/chat/completions"
            async with session.post(url, json=question(stream=True)) as answer:
                await answer.read()
    assert backend.peak("m") == 1


async def test_one_that_is_closed_and_one_that_follows_are_never_two_at_once(
    backend: SimulatedBackend,
) -> None:
    """The end of one connection and a request on another often come in the same pass."""
    parts = urlsplit(backend.url)
    address = (str(parts.hostname), parts.port)
    endless = request_bytes(CHAT, question(stream=True), {"x-sim-endless": 1})
    for _ in range(20):
        with (
            socket.create_connection(address) as leaving,
            socket.create_connection(address) as following,
        ):
            leaving.sendall(endless)
            await backend.until(lambda: backend.running("m") == 1 and backend.connections == 2)
            leaving.close()
            following.sendall(endless)
            await backend.until(
                lambda: len(backend.log) % 2 == 0 and backend.log[-1].started is not None
            )
        await backend.until(lambda: backend.running("m") == 0)
    assert backend.peak("m") == 1


async def test_the_log_says_what_came_and_how_it_ended(backend: SimulatedBackend) -> None:
    headers = {"X_Request_Id": "r1", "x_sim_tenant": "gold", "x_obleth_session_id": "s1"}
    raw = await ask(
        backend.url, question(text="abcd" * 6, max_tokens=3), path=CHAT + "?beta=true", **headers
    )
    (record,) = backend.log
    assert raw.header_lines("x-sim-record") == [str(record.number)]
    assert (record.request_id, record.tenant, record.session) == ("r1", "gold", "s1")
    assert (record.path, record.status) == (CHAT + "?beta=true", 200)
    assert (record.prompt_tokens, record.cached_tokens, record.output_tokens) == (10, 0, 3)
    assert record.outcome is Outcome.FINISHED
    assert record.started is not None
    assert record.ended is not None
    assert record.arrived <= record.started <= record.ended
    assert ("x-request-id", "r1") in record.headers


async def test_bodies_are_kept_only_when_asked() -> None:
    for keep in (True, False):
        async with SimulatedBackend(keep_bodies=keep) as backend:
            await ask(backend.url, question(text="secret"))
            assert (b"secret" in (backend.log[0].body or b"")) is keep


async def test_prefill_costs_only_what_is_not_cached() -> None:
    """The loop's clock is the witness: times are at least what they must be, and differ."""
    slow = BackendOptions(prefill_secs_per_token=0.001, cache_tokens=10_000)
    async with SimulatedBackend(slow) as backend:
        for _ in range(2):
            await ask(backend.url, question(text="abcd" * 156, max_tokens=1))
        cold, warm = backend.log
    assert (cold.cached_tokens, warm.cached_tokens) == (0, 160)
    assert cold.first_token
    assert cold.started
    assert cold.first_token - cold.started >= 0.16


async def test_speed_divides_model_time() -> None:
    hour_long = BackendOptions(token_secs=3600, speed=1_000_000)
    async with SimulatedBackend(hour_long) as backend:
        raw = await ask(backend.url, question(stream=True, max_tokens=4))
    assert raw.ended_properly


async def test_faults_can_be_set_for_all_for_one_model_and_in_its_name() -> None:
    faults = Faults(status=500)
    async with SimulatedBackend(model_faults={"bad": faults}) as backend:
        assert (await ask(backend.url, question("bad"))).status == 500
        assert (await ask(backend.url, question("good"))).status == 200
        assert (await ask(backend.url, question("good+status=418"))).status == 418
        backend.faults = Faults(status=503)
        assert (await ask(backend.url, question("good"))).status == 503
        assert (await ask(backend.url, question("good"), x_sim_status=429)).status == 429
        backend.reset()
        assert (await ask(backend.url, question("good"))).status == 200


async def test_its_own_key_and_its_own_models_can_be_required() -> None:
    async with SimulatedBackend(api_key="up", only_listed=True, models=("a",)) as backend:
        assert (await ask(backend.url, question("a"))).status == 401
        bearer = {"authorization": "Bearer up"}
        assert (await ask(backend.url, question("a"), **bearer)).status == 200
        assert (await ask(backend.url, question("a"), x_api_key="up")).status == 200
        assert (await ask(backend.url, question("b"), **bearer)).status == 404


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"model": 7},
        {"model": "m"},
        {"model": "m", "messages": "hi"},
        question(max_tokens=0),
        question(max_tokens="many"),
        question(stream="yes"),
    ],
)
async def test_a_question_that_makes_no_sense_is_refused(
    backend: SimulatedBackend, body: dict[str, object]
) -> None:
    raw = await ask(backend.url, body)
    assert raw.status == 400
    assert backend.log[0].outcome is Outcome.FAILED


async def test_other_processes_read_the_same_truth_over_http(backend: SimulatedBackend) -> None:
    await ask(backend.url, question(max_tokens=3), authorization="Bearer secret")
    async with aiohttp.ClientSession(backend.root_url) as session:
        async with session.get("/sim/state") as answer:
            state = await answer.json()
        assert state["models"]["m"]["finished"] == 1
        async with session.get("/sim/log", params={"after": "0"}) as answer:
            text = await answer.text()
        assert json.loads(text)[0]["output_tokens"] == 3
        assert "secret" not in text
        switches = {"model": "m", "switches": {"status": 500}}
        async with session.put("/sim/faults", json=switches) as answer:
            assert answer.status == 200
        assert (await ask(backend.url, question())).status == 500
        async with session.put("/sim/faults", json={"switches": {"nonsense": 1}}) as answer:
            assert answer.status == 400
        async with session.post("/sim/reset") as answer:
            assert (await answer.json())["models"] == {}
    assert backend.log == []


async def test_a_reset_keeps_what_still_runs(backend: SimulatedBackend) -> None:
    async with sent(backend.url, question(), x_sim_mute=1):
        await backend.until(lambda: backend.running("m") == 1)
        await ask(backend.url, question())
        backend.reset()
        assert (backend.running("m"), backend.peak("m"), len(backend.log)) == (1, 1, 1)
    await backend.until(lambda: backend.running("m") == 0)


async def test_it_can_be_away_and_come_back_at_the_same_address(backend: SimulatedBackend) -> None:
    url = backend.url
    await backend.stop_listening()
    with pytest.raises(ConnectionRefusedError):
        await ask(url, question())
    await backend.listen_again()
    assert (await ask(url, question())).status == 200
    assert backend.url == url


async def test_stopping_cuts_what_runs_and_says_so() -> None:
    backend = SimulatedBackend()
    await backend.start()
    async with sent(backend.url, question(), x_sim_mute=1) as (reader, _):
        await backend.until(lambda: backend.running("m") == 1)
        await backend.stop()
        assert await reader.read() == b""
    assert backend.log[0].outcome is Outcome.CUT


@pytest.mark.parametrize("turns", range(6))
async def test_whoever_connects_as_it_stops_hears_of_the_end(turns: int) -> None:
    """Whatever turn of the loop finds the connection."""
    backend = SimulatedBackend()
    await backend.start()
    where = urlsplit(backend.root_url)
    with socket.create_connection((where.hostname, where.port), timeout=5) as client:
        for _ in range(turns):
            await asyncio.sleep(0)
        await backend.stop()
        try:
            told = await asyncio.to_thread(client.recv, 100)
        except ConnectionResetError:
            told = b""
    assert told == b""


async def test_an_idle_connection_is_closed_after_its_time() -> None:
    async with SimulatedBackend(keep_alive_secs=0.05) as backend:
        body = question(max_tokens=1)
        async with sent(backend.url, body, connection="keep-alive") as (reader, _):
            assert b"200 OK" in await reader.read()
        assert backend.connections == 0


async def test_a_taken_port_is_told_in_one_line(backend: SimulatedBackend) -> None:
    port = int(backend.root_url.rpartition(":")[2])
    taken = SimulatedBackend(port=port)
    with pytest.raises(CannotListen, match=f"cannot listen on 127.0.0.1:{port}"):
        await taken.start()
    await taken.stop()


@pytest.mark.parametrize(
    ("field", "value"),
    [("slots", 0), ("speed", 0), ("token_secs", -1), ("port", 70_000), ("models", ())],
)
def test_options_that_make_no_sense_are_named(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        SimulatedBackend(**{field: value})


async def test_two_hundred_at_once_are_all_answered(backend: SimulatedBackend) -> None:
    short = question(stream=True, max_tokens=2)
    answers = await asyncio.gather(*(ask(backend.url, short, x_sim_token_ms=1) for _ in range(200)))
    assert all(answer.ended_properly for answer in answers)
    assert backend.peak("m") == 2
