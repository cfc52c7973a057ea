"""One request, several tries: which, how many, and all within one slot and one reservation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import structlog

from dataplane.openai_api.ports import Outcome
from dataplane.proxy import aiohttp_upstream, forward
from dataplane.proxy.upstream import Timeouts
from shared.policy import LoadBalancing
from tests.proxy.parts import SECRET, endpoint, model
from tests.proxy.serving import Peer, Upstream, World, answers, chat, upstream, world

Step = Callable[[Peer], Awaitable[None]]
NOWHERE = "http://127.0.0.1:1/v1"
QUICK = Timeouts(connect_secs=1, head_secs=0.3, read_secs=1)
GOOD = b'{"usage":{"prompt_tokens":1,"completion_tokens":1}}'


@pytest.fixture(autouse=True)
def short_back_offs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "BACK_OFF_SECS", 0.001)
    monkeypatch.setattr(forward, "BACK_OFF_MAX_SECS", 0.01)


async def good(peer: Peer) -> None:
    await peer.answer(GOOD)


async def mute(peer: Peer) -> None:
    await peer.until_gone()


async def closed(peer: Peer) -> None:
    peer.writer.close()


async def reset(peer: Peer) -> None:
    peer.reset()


async def no_http(peer: Peer) -> None:
    await peer.write(b"SSH-2.0-OpenSSH\r\n\r\n")
    peer.writer.close()


async def torn_head(peer: Peer) -> None:
    await peer.write(b"HTTP/1.1 200 OK\r\ncontent-")
    peer.writer.close()


def status(line: str, **headers: str) -> Step:
    async def step(peer: Peer) -> None:
        await peer.answer(b'{"error":"' + line.encode() + b'"}', line, **headers)

    return step


def in_turn(*steps: Step) -> Callable[[Upstream, Peer], Awaitable[None]]:
    """Each request gets the next step, whatever connection it comes on."""

    async def script(up: Upstream, peer: Peer) -> None:
        while not peer.writer.is_closing():
            await peer.request()
            await steps[min(len(up.asked), len(steps)) - 1](peer)

    return script


def assert_one_slot(w: World) -> None:
    assert len(w.gate.left) == len(w.gate.admitted) == 1
    assert w.gate.running == 0
    assert len(w.budget.reserved) == len(w.budget.settled) == 1
    assert len(w.seen.finished) == 1


@pytest.mark.parametrize("retries", [0, 1, 2])
@pytest.mark.parametrize(
    "failing", [status("429 Slow"), status("500 Oh"), status("503 Busy"), closed, reset, no_http]
)
async def test_the_upstream_sees_one_post_and_one_for_each_retry(
    retries: int, failing: Step
) -> None:
    async with upstream(in_turn(failing)) as up, world(model(up.url, max_retries=retries)) as w:
        reply = await w.ask(body=chat())
        assert reply.status in (429, 500, 503, 502)
        assert len(up.asked) == 1 + retries
        await w.seen.last()
        assert_one_slot(w)
        assert w.gate.left[0].has_failed
        assert w.budget.settled == [None]


async def test_a_later_try_that_succeeds_is_the_answer() -> None:
    steps = [status("429 Slow", retry_after="7"), status("500 Oh"), good]
    async with upstream(in_turn(*steps)) as up, world(model(up.url, max_retries=2)) as w:
        reply = await w.ask(body=chat())
        assert (reply.status, reply.body) == (200, GOOD)
        await w.seen.last()
        assert_one_slot(w)
        assert w.attempts == [("m", "refused"), ("m", "refused"), ("m", "answered")]
        assert w.budget.settled == [2]
        assert not w.gate.left[0].has_failed
        assert len({asked.header("x-request-id") for asked in up.asked}) == 1


async def test_the_last_answer_passes_unchanged_with_when_to_come_back() -> None:
    step = status("429 Slow", retry_after="7", x_should_retry="true")
    async with upstream(in_turn(step)) as up, world(model(up.url, max_retries=1)) as w:
        reply = await w.ask(body=chat())
        assert (reply.status, reply.body) == (429, b'{"error":"429 Slow"}')
        assert (reply.header("retry-after"), reply.header("x-should-retry")) == ("7", "true")
        record = await w.seen.last()
        assert (record.outcome, record.status, record.code) == (Outcome.ANSWERED, 429, None)


@pytest.mark.parametrize(
    "line", ["400 Bad", "401 No", "403 No", "404 None", "409 X", "413 Big", "422 X", "501 Never"]
)
async def test_other_errors_are_the_answer_at_once_and_unchanged(line: str) -> None:
    async with upstream(in_turn(status(line))) as up, world(model(up.url, max_retries=3)) as w:
        reply = await w.ask(body=chat())
        assert reply.body == b'{"error":"' + line.encode() + b'"}'
        assert reply.status == int(line[:3])
        assert len(up.asked) == 1
        assert w.gate.left[0].has_failed


@pytest.mark.parametrize("parser", ["httptools", "h11"])
@pytest.mark.parametrize(
    ("failing", "expected", "code", "outcome"),
    [
        (closed, 502, "upstream_error", "broken"),
        (reset, 502, "upstream_error", "broken"),
        (no_http, 502, "upstream_error", "broken"),
        (torn_head, 502, "upstream_error", "broken"),
        (mute, 504, "upstream_timeout", "timed_out"),
        (status("302 Found", location="http://127.0.0.1/"), 502, "upstream_error", "broken"),
        (status("307 There", location="http://127.0.0.1/"), 502, "upstream_error", "broken"),
    ],
)
async def test_an_upstream_without_an_answer_is_told_as_such(
    parser: str, failing: Step, expected: int, code: str, outcome: str
) -> None:
    async with (
        upstream(in_turn(failing)) as up,
        world(model(up.url, max_retries=0), timeouts=QUICK, parser=parser) as w,
    ):
        reply = await w.ask(body=chat(stream=True))
        assert (reply.status, reply.json["error"]["code"]) == (expected, code)
        assert reply.header("x-obleth-admission") == "fast"
        assert reply.header("location") is None
        assert w.attempts == [("m", outcome)]
        if failing is mute:
            await up.until(lambda up: up.open == 0)
        assert w.gate.running == 0
        reply = await w.ask(path="/v1/messages", body=chat())
        kind = "timeout_error" if expected == 504 else "api_error"
        assert reply.json["error"]["type"] == kind


async def test_nobody_at_the_endpoint_and_no_endpoint_are_told_as_such() -> None:
    off = model(name="off", endpoints=(endpoint(NOWHERE, enabled=False),))
    async with world(model(NOWHERE, max_retries=1), off) as w:
        reply = await w.ask(body=chat())
        assert (reply.status, reply.json["error"]["code"]) == (502, "upstream_error")
        assert w.attempts == [("m", "unreachable")] * 2
        reply = await w.ask(body=chat(model="off"))
        assert reply.status == 502
        assert "no enabled endpoint" in reply.json["error"]["message"]


async def test_the_text_of_an_error_names_no_endpoint() -> None:
    async with world(model(NOWHERE)) as w:
        assert b"127.0.0.1" not in (await w.ask(body=chat())).body


async def test_slots_and_answers_are_there_again_after_every_kind_of_failure() -> None:
    steps = [
        step for step in (closed, reset, no_http, torn_head, status("502 X"), mute) for _ in "123"
    ]
    async with (
        upstream(in_turn(*steps, good)) as up,
        world(model(up.url, max_retries=0), slots=2, timeouts=QUICK) as w,
    ):
        for _ in steps:
            assert (await w.ask(body=chat())).status in (502, 504)
        assert (await w.ask(body=chat())).status == 200
        assert (w.gate.running, w.choice.in_flight("e0")) == (0, 0)


async def test_an_answer_with_two_lengths_is_no_answer() -> None:
    async def step(peer: Peer) -> None:
        await peer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 5\r\n\r\n{}abc")

    async with upstream(in_turn(step)) as up, world(model(up.url, max_retries=0)) as w:
        assert (await w.ask(body=chat())).status == 502


async def test_why_an_upstream_failed_is_in_the_log_under_the_requests_id() -> None:
    async with world(model(NOWHERE, max_retries=0)) as w:
        with structlog.testing.capture_logs() as logged:
            await w.ask(body=chat(), headers={"x-request-id": "r-1"})
        [line] = [each for each in logged if each["event"] == "upstream_failed"]
        assert (line["request_id"], line["model"], line["outcome"]) == ("r-1", "m", "unreachable")
        assert "127.0.0.1" in line["error"]
        assert SECRET not in repr(logged)


# Several endpoints


async def test_another_endpoint_is_tried_before_the_same_one_again() -> None:
    async with (
        upstream(in_turn(status("503 X"))) as bad,
        upstream(answers(GOOD)) as fine,
        world(model(NOWHERE, bad.url, fine.url, max_retries=2)) as w,
    ):
        assert (await w.ask(body=chat())).status == 200
        outcomes = [outcome for _, outcome in w.attempts]
        assert outcomes == ["unreachable", "refused", "answered"]


async def test_after_the_head_no_other_endpoint_is_tried() -> None:
    async def breaks(peer: Peer) -> None:
        await peer.start_stream()
        peer.writer.close()

    async with (
        upstream(in_turn(breaks)) as bad,
        upstream(answers(GOOD)) as fine,
        world(model(bad.url, fine.url, max_retries=2)) as w,
    ):
        reply = await w.ask(body=chat(stream=True))
        assert (reply.status, reply.is_whole) == (200, False)
        assert fine.asked == []


async def test_round_robin_spreads_requests() -> None:
    async with upstream(answers(GOOD)) as one, upstream(answers(GOOD)) as two:
        served = model(one.url, two.url, load_balancing=LoadBalancing.ROUND_ROBIN)
        async with world(served) as w:
            for _ in range(4):
                await w.ask(body=chat())
            assert (len(one.asked), len(two.asked)) == (2, 2)


async def test_the_endpoint_with_least_to_do_is_next() -> None:
    async with upstream(in_turn(mute)) as busy, upstream(answers(GOOD)) as idle:
        served = model(busy.url, idle.url, load_balancing=LoadBalancing.LEAST_IN_FLIGHT)
        async with world(served) as w:
            line = await w.connect()
            await line.send(chat())
            await busy.until(lambda up: len(up.asked) == 1)
            for _ in range(3):
                assert (await w.ask(body=chat())).status == 200
            assert (len(busy.asked), len(idle.asked)) == (1, 3)


# Idle connections


async def test_connections_are_used_again() -> None:
    async with upstream(answers(GOOD)) as up, world(model(up.url)) as w:
        for _ in range(5):
            await w.ask(body=chat())
        assert (len(up.asked), up.connections) == (5, 1)


@pytest.mark.parametrize("dies_by", [closed, reset])
async def test_an_idle_connection_that_was_dead_costs_no_try(dies_by: Step) -> None:
    """The upstream closes on the second request of each connection without a byte."""

    async def script(_: Upstream, peer: Peer) -> None:
        await peer.request()
        await peer.answer(GOOD)
        await peer.request()
        await dies_by(peer)

    async with upstream(script) as up, world(model(up.url, max_retries=0)) as w:
        for _ in range(4):
            assert (await w.ask(body=chat())).status == 200
        # Whatever had died was asked in vain first; who asked got an answer all the same.
        assert len(up.asked) > 4
        assert w.attempts == [("m", "answered")] * 4
        assert len(w.seen.finished) == 4


async def test_a_connection_that_breaks_after_a_while_was_not_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(aiohttp_upstream, "STALE_SECS", 0.05)

    async def script(_: Upstream, peer: Peer) -> None:
        await peer.request()
        await peer.answer(GOOD)
        await peer.request()
        await asyncio.sleep(0.1)

    async with upstream(script) as up, world(model(up.url, max_retries=0)) as w:
        assert (await w.ask(body=chat())).status == 200
        assert (await w.ask(body=chat())).status == 502
        assert len(up.asked) == 2


async def test_a_new_connection_that_breaks_counts_as_a_try() -> None:
    async with upstream(in_turn(closed)) as up, world(model(up.url, max_retries=0)) as w:
        assert (await w.ask(body=chat())).status == 502
        assert len(up.asked) == 1


# Usage reporting refused


@pytest.mark.parametrize("line", ["400 Bad", "422 Bad"])
async def test_an_upstream_that_refuses_to_report_usage_is_asked_without(line: str) -> None:
    event = b'data: {"choices":[1]}\n\n'

    async def script(up: Upstream, peer: Peer) -> None:
        while True:
            asked = await peer.request()
            if b"stream_options" in asked.body:
                await peer.answer(b"{}", line)
            else:
                await peer.start_stream()
                await peer.chunk(event)
                await peer.end_stream()

    async with upstream(script) as up, world(model(up.url, max_retries=0)) as w:
        for number in (2, 3):
            reply = await w.ask(body=chat(stream=True))
            assert (reply.status, reply.body) == (200, event)
            assert up.last.body == chat(stream=True)
            assert len(up.asked) == number  # the second time it is known already
        reply = await w.ask(body=chat(stream=True, stream_options={"include_usage": True}))
        assert reply.status == int(line[:3])  # what the client itself asks for is its own matter


async def test_a_refusal_to_report_usage_is_forgotten_after_ten_minutes() -> None:
    now = 1000.0
    is_old = True

    async def script(up: Upstream, peer: Peer) -> None:
        while True:
            asked = await peer.request()
            if is_old and b"stream_options" in asked.body:
                await peer.answer(b"{}", "400 Bad")
            else:
                await peer.answer(GOOD)

    async def is_asked(w: World, up: Upstream) -> list[bool]:
        before = len(up.asked)
        assert (await w.ask(body=chat(stream=True))).status == 200
        return [b"stream_options" in asked.body for asked in up.asked[before:]]

    async with (
        upstream(script) as up,
        world(model(up.url, max_retries=0), clock=lambda: now) as w,
    ):
        assert await is_asked(w, up) == [True, False]
        now += forward.REFUSAL_HOLDS_SECS - 1
        assert await is_asked(w, up) == [False]
        now += 1
        assert await is_asked(w, up) == [True, False]
        assert await is_asked(w, up) == [False]
        now += forward.REFUSAL_HOLDS_SECS
        is_old = False
        assert await is_asked(w, up) == [True]
        assert await is_asked(w, up) == [True]


async def test_a_request_that_is_bad_in_itself_gets_the_upstreams_own_words() -> None:
    async with upstream(in_turn(status("400 Bad"))) as up, world(model(up.url)) as w:
        for _ in range(2):
            reply = await w.ask(body=chat(stream=True))
            assert (reply.status, reply.body) == (400, b'{"error":"400 Bad"}')
        assert len(up.asked) == 4  # a refusal of everything says nothing about usage reports
