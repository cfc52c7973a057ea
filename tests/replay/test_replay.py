"""Whole replays against the simulated backend, which knows what really came."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from rich.console import Console

from obleth.backend import Faults, Outcome, RequestRecord, SimulatedBackend
from obleth.replay import (
    Assignment,
    GatewayUnreachable,
    KeyRefused,
    Player,
    ReplayOptions,
    TenantKey,
    replay,
    run,
)

DATA = Path(__file__).resolve().parents[1] / "data"
AZURE = DATA / "azure_llm_2023_conv_400.csv"
MOONCAKE = DATA / "mooncake_conversation_200.jsonl"
AGENTIC = DATA / "agentic_code_synthetic_16.jsonl"
TENANTS = (TenantKey("gold", "sk-gold", 300), TenantKey("iron", "sk-iron", 100))


@pytest.fixture
async def backend() -> AsyncIterator[SimulatedBackend]:
    async with SimulatedBackend(models=("m",), cache_tokens=10_000_000) as running:
        yield running


def options(backend: SimulatedBackend, trace: Path = AZURE, **fields: Any) -> ReplayOptions:
    given: dict[str, Any] = {"trace": trace, "url": backend.url, "tenants": TENANTS, "speed": 1e6}
    return ReplayOptions(**given | fields)


def tenant_of(record: RequestRecord) -> str:
    return (record.header("authorization") or "").removeprefix("Bearer sk-")


async def test_every_row_is_sent_once_with_its_tokens(backend: SimulatedBackend) -> None:
    report = await replay(options(backend, limit=60))
    rows = [line.split(",") for line in AZURE.read_text().splitlines()[1:61]]
    sent = sorted((record.prompt_tokens - 4, record.output_tokens) for record in backend.log)
    assert sent == sorted((int(row[1]), int(row[2])) for row in rows)
    assert (report.total.requests, report.total.errors) == (60, 0)
    assert report.total.output_tokens == sum(int(row[2]) for row in rows)
    assert [tenant.requests for tenant in report.tenants] == [30, 30]


async def test_arrivals_keep_their_recorded_distance(backend: SimulatedBackend) -> None:
    """The tenth row is 8.465 s after the first: at hundredfold speed it cannot come any earlier."""
    began = time.monotonic()
    await replay(options(backend, limit=10, speed=100))
    assert backend.log[-1].arrived - began >= 0.0846


async def test_token_counts_can_be_scaled(backend: SimulatedBackend) -> None:
    await replay(options(backend, limit=1, token_scale=0.5, output_scale=0.25))
    assert [(one.prompt_tokens, one.output_tokens) for one in backend.log] == [(187 + 4, 11)]


async def test_in_a_closed_loop_every_tenant_keeps_so_many_going(backend: SimulatedBackend) -> None:
    backend.faults = Faults(mute=True)
    work = asyncio.create_task(replay(options(backend, closed_loop=3, limit=40)))
    await backend.until(lambda: backend.running("m") == 6)
    held = [tenant_of(record) for record in backend.log]
    assert sorted(held) == ["gold"] * 3 + ["iron"] * 3
    backend.reset()
    backend.drop_connections()
    report = await work
    assert report.total.requests == 40
    assert report.total.errors == 6
    assert backend.peak_present("m") <= 6


async def test_a_closed_loop_can_keep_to_the_assigned_tenants(backend: SimulatedBackend) -> None:
    given = options(backend, closed_loop=2, limit=20, assign=Assignment.ROUND_ROBIN)
    report = await replay(given)
    assert [tenant.requests for tenant in report.tenants] == [10, 10]


async def test_no_more_are_under_way_than_allowed(backend: SimulatedBackend) -> None:
    backend.faults = Faults(token_ms=0.1)
    report = await replay(options(backend, limit=60, max_outstanding=5))
    assert report.total.requests == 60
    assert backend.peak_present("m") <= 5


async def test_a_step_follows_its_sessions_last_one_with_the_grown_prompt(
    backend: SimulatedBackend,
) -> None:
    given = options(backend, AGENTIC, speed=1000, max_sessions=4, max_steps=5, token_scale=0.02)
    report = await replay(given)
    sessions: dict[str | None, list[RequestRecord]] = {}
    for record in backend.log:
        sessions.setdefault(record.session, []).append(record)
    assert len(sessions) == 4
    for steps in sessions.values():
        assert len({tenant_of(step) for step in steps}) == 1
        for before, after in pairwise(steps):
            assert before.ended is not None
            assert after.arrived >= before.ended
            assert after.prompt_tokens > before.prompt_tokens + before.output_tokens
    assert report.total.sessions == sum(len(steps) > 1 for steps in sessions.values())
    assert report.total.cached_share > 0.5


async def test_a_session_whose_step_fails_goes_no_further(backend: SimulatedBackend) -> None:
    backend.faults = Faults(status=500)
    given = options(backend, AGENTIC, max_sessions=3, max_steps=5, token_scale=0.01)
    report = await replay(given)
    assert (report.total.requests, report.total.errors) == (3, 3)
    assert report.tenants[0].sessions == 0


async def test_recorded_conversations_name_their_sessions(backend: SimulatedBackend) -> None:
    report = await replay(options(backend, MOONCAKE, token_scale=0.01))
    named = [record.session for record in backend.log]
    assert report.total.requests == 200
    assert None not in named
    assert len(set(named)) < 200


@pytest.mark.parametrize(
    ("faults", "kind"),
    [
        (Faults(status=503), "503 sim_503"),
        (Faults(refuse=True), "no answer"),
        (Faults(cut="rst"), "connection broken"),
        (Faults(cut="fin"), "connection broken"),
        (Faults(cut="end"), "the stream ended without [DONE]"),
        (Faults(cut="error"), "error event: the simulated engine died"),
    ],
)
async def test_what_goes_wrong_is_counted_under_its_name(
    backend: SimulatedBackend, faults: Faults, kind: str
) -> None:
    backend.faults = faults
    report = await replay(options(backend, limit=4))
    assert report.total.error_kinds == {kind: 4}
    assert report.exit_code == 1


async def test_a_gateway_that_falls_silent_is_given_up(backend: SimulatedBackend) -> None:
    backend.faults = Faults(mute=True)
    report = await replay(options(backend, limit=2, timeout_secs=0.05))
    assert report.total.error_kinds == {"timeout": 2}


async def test_answers_without_usage_are_counted_from_their_text(backend: SimulatedBackend) -> None:
    backend.faults = Faults(usage="none")
    report = await replay(options(backend, limit=3))
    assert report.total.output_tokens == sum(record.output_tokens for record in backend.log)
    assert any("had no usage" in note for note in report.notes)


async def test_streams_in_any_form_are_read(backend: SimulatedBackend) -> None:
    backend.faults = Faults(newline="crlf", data_space=False, comments=1, multiline=True)
    report = await replay(options(backend, limit=3))
    assert report.total.errors == 0
    assert report.total.output_tokens == sum(record.output_tokens for record in backend.log)


async def test_nothing_is_begun_after_the_given_time(backend: SimulatedBackend) -> None:
    report = await replay(options(backend, speed=1, duration_secs=0.05))
    assert report.total.requests < 10


async def test_interrupted_it_reports_what_it_has(backend: SimulatedBackend) -> None:
    players: list[Player] = []
    answered = asyncio.Event()
    given = options(backend, speed=1)
    work = asyncio.create_task(replay(given, on_step=answered.set, on_ready=players.append))
    await answered.wait()
    players[0].interrupt()
    report = await work
    assert report.total.requests >= 1
    assert "Interrupted: what was under way is not counted." in report.notes


async def test_a_gateway_that_is_not_there_is_told_before_anything_is_sent() -> None:
    async with SimulatedBackend() as backend:
        await backend.stop_listening()
        with pytest.raises(GatewayUnreachable, match=r"cannot reach http://127\.0\.0\.1") as caught:
            await replay(options(backend))
    assert caught.value.exit_code == 3


async def test_a_refused_key_is_told_by_its_tenants_name() -> None:
    async with SimulatedBackend(api_key="sk-gold") as backend:
        with pytest.raises(KeyRefused, match="tenant 'iron' was refused") as caught:
            await replay(options(backend))
        assert backend.log == []
    assert caught.value.exit_code == 4
    assert "sk-" not in str(caught.value)


async def test_the_model_must_be_one_the_keys_may_use(backend: SimulatedBackend) -> None:
    with pytest.raises(KeyRefused, match="may not use 'n'; its models: m"):
        await replay(options(backend, model="n"))
    async with SimulatedBackend(models=("x", "y")) as many:
        with pytest.raises(KeyRefused, match=r"name the model; .* x, y"):
            await replay(options(many))


@pytest.mark.parametrize(
    ("status", "text", "said"),
    [(404, "gone", "answered 404"), (200, "<html>", "does not answer with a list of models")],
)
async def test_a_server_that_is_no_gateway_is_told(status: int, text: str, said: str) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, text=text)

    app = web.Application()
    app.router.add_get("/v1/models", answer)
    async with TestServer(app) as server:
        given = ReplayOptions(trace=AZURE, url=str(server.make_url("/")), tenants=TENANTS)
        with pytest.raises(GatewayUnreachable, match=said):
            await replay(given)


async def test_waits_and_shares_come_from_what_the_gateway_says() -> None:
    """A gateway that says how long it held a request is believed, whatever the network added."""

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m"}]})

    async def chat(request: web.Request) -> web.Response:
        usage = {"prompt_tokens": 10, "completion_tokens": 2}
        text = f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n"
        headers = {"x-obleth-queue-ms": "1234", "x-obleth-admission": "queued"}
        return web.Response(text=text, headers=headers, content_type="text/event-stream")

    app = web.Application()
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/chat/completions", chat)
    async with TestServer(app) as server:
        url = str(server.make_url("/"))
        given = ReplayOptions(trace=AZURE, url=url, tenants=TENANTS, limit=4, speed=1e6)
        report = await replay(given)
    assert report.total.wait.p99 == 1.234
    assert report.total.tokens == 4 * 12


PROGRAM = """
from obleth.backend import BackendOptions, run
run(BackendOptions(), on_ready=lambda backend: print(backend.url, flush=True))
"""


def test_the_whole_run_shows_its_progress_and_returns_its_report() -> None:
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        url = process.stdout.readline().strip()
        given = ReplayOptions(trace=AZURE, url=url, tenants=TENANTS, limit=20, speed=1e6)
        console = Console(file=StringIO(), force_terminal=True, width=100)
        report = run(given, console)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 0
    assert report.total.requests == 20
    assert isinstance(console.file, StringIO)
    assert "20/20" in console.file.getvalue()


async def test_a_client_that_stops_leaves_nothing_running(backend: SimulatedBackend) -> None:
    backend.faults = Faults(endless=True)
    players: list[Player] = []
    given = options(backend, closed_loop=2, limit=10)
    work = asyncio.create_task(replay(given, on_ready=players.append))
    await backend.until(lambda: backend.running("m") == 4)
    players[0].interrupt()
    await work
    await backend.until(lambda: backend.running("m") == 0)
    assert {record.outcome for record in backend.log} == {Outcome.CLIENT_LEFT}
