"""One request, several tries: which, how many, and all within one slot and one reservation."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from ipaddress import ip_network

import pytest
import structlog

from dataplane.openai_api.ports import Outcome
from dataplane.proxy import aiohttp_upstream, forward
from dataplane.proxy.upstream import Timeouts
from shared.network import NetworkRules
from shared.policy import LoadBalancing
from tests.proxy.parts import endpoint, model
from tests.proxy.serving import Peer, Upstream, World, answers, chat, streams, upstream, world

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
        assert _secret(w) not in repr(logged)


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


# Addresses


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/v1",
        "http://[::ffff:169.254.169.254]/v1",
        "http://0.0.0.0:{port}/v1",
        "http://127.0.0.1:{port}/v1",
        "http://[::ffff:127.0.0.1]:{port}/v1",
        "http://localhost:{port}/v1",
        "http://2130706433:{port}/v1",
        "http://127.1:{port}/v1",
        "file:///etc/passwd",
        "http:///v1",
    ],
)
async def test_what_may_not_be_connected_to_is_not(url: str) -> None:
    rules = NetworkRules(block_private=True)
    async with upstream(answers(GOOD)) as up:
        forbidden = model(url.format(port=up.port), max_retries=0)
        async with world(forbidden, rules=rules) as w:
            reply = await w.ask(body=chat())
            assert (reply.status, reply.json["error"]["code"]) == (502, "upstream_error")
            assert up.connections == 0


async def test_a_name_that_comes_to_mean_another_address_is_checked_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever it resolved to when it was saved, or a moment ago."""
    monkeypatch.setattr(aiohttp_upstream, "DNS_CACHE_SECS", 0)
    rules = NetworkRules(block_private=True, allowed_private=[ip_network("127.0.0.1/32")])
    means = ["127.0.0.1", "127.0.0.2"]

    async def getaddrinfo(host: str, port: int, **options: object) -> list[object]:
        assert host == "backend.example"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (means[0], port))]

    once = answers(GOOD, connection="close")
    async with upstream(once) as up:
        named = model(up.url.replace("127.0.0.1", "backend.example"), max_retries=0)
        async with world(named, rules=rules) as w:
            monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
            assert (await w.ask(body=chat())).status == 200
            del means[0]
            assert (await w.ask(body=chat())).status == 502
            assert up.connections == 1


async def test_an_allowed_private_address_is_connected_to() -> None:
    rules = NetworkRules(block_private=True, allowed_private=[ip_network("127.0.0.0/8")])
    async with upstream(answers(GOOD)) as up, world(model(up.url), rules=rules) as w:
        assert (await w.ask(body=chat())).status == 200


async def test_fields_of_the_body_do_not_choose_where_a_request_goes() -> None:
    async with (
        upstream(answers(GOOD)) as up,
        upstream(answers(GOOD)) as other,
        world(model(up.url)) as w,
    ):
        await w.ask(body=chat(api_base=other.url, base_url=other.url, api_key="x"))
        assert (len(up.asked), len(other.asked)) == (1, 0)


# Names and keys


async def test_the_model_is_called_upstream_what_its_policy_says() -> None:
    async with upstream(answers(GOOD)) as up:
        renamed = model(up.url, upstream_model="org/real", aliases=("nick",))
        plain = model(up.url, name="plain", aliases=("other",))
        async with world(renamed, plain) as w:
            for name, called in (("m", "org/real"), ("nick", "org/real"), ("other", "plain")):
                await w.ask(body=chat(model=name))
                assert up.last.json["model"] == called
            assert [each.model for each in w.seen.finished] == ["m", "m", "plain"]


async def test_an_endpoint_gets_its_own_key_and_never_the_clients() -> None:
    async with upstream(answers(GOOD)) as up:
        keyed = model(endpoints=(endpoint(up.url, api_key="sk-upstream"),))
        async with world(keyed) as w:
            sent = {"cookie": "a=b", "x-custom": "kept", "proxy-authorization": "x"}
            await w.ask(body=chat(), headers=sent)
            assert up.last.header("authorization") == "Bearer sk-upstream"
            assert up.last.header("x-custom") == "kept"
            await w.ask(path="/v1/messages", body=chat(), headers=sent)
            assert up.last.header("x-api-key") == "sk-upstream"
            await w.ask(path=f"/v1/messages?key={_secret(w)}&a=%20b", body=chat())
            assert up.last.target == "/v1/messages?a=%20b"
            for asked in up.asked:
                assert _secret(w) not in repr(asked)
                assert asked.header("cookie") is None


def _secret(w: World) -> str:
    return next(iter(w.policy.keys))


async def test_hop_by_hop_headers_cross_neither_way() -> None:
    script = streams(
        b"data: 1\n\n",
        connection="x-b, keep-alive",
        x_b="1",
        keep_alive="timeout=5",
        proxy_authenticate="x",
        trailer="x",
        upgrade="h2c",
        set_cookie="a=b",
        x_c="kept",
    )
    async with upstream(script) as up, world(model(up.url)) as w:
        sent = {"connection": "x-a, keep-alive", "x-a": "1", "te": "trailers", "x-d": "kept"}
        reply = await w.ask(body=chat(), headers=sent)
        crossing = {name for name, _ in up.last.headers}
        assert not crossing & {"connection", "x-a", "te", "authorization"}
        assert up.last.header("x-d") == "kept"
        back = {name for name, _ in reply.headers}
        assert not back & {"x-b", "keep-alive", "proxy-authenticate", "trailer", "set-cookie"}
        assert reply.header("x-c") == "kept"
