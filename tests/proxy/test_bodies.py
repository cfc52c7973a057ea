"""Bodies as they arrive: too large, too slow, framed two ways."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from dataplane.openai_api import body as json_body
from dataplane.openai_api import client as clients
from dataplane.openai_api import intake, server_protocol
from dataplane.openai_api.body import JsonBody
from dataplane.openai_api.ports import Outcome
from tests.proxy.parts import model
from tests.proxy.serving import Peer, Reply, Upstream, World, answers, chat, upstream, world

NOWHERE = "http://127.0.0.1:1/v1"
GOOD = b'{"usage":{"prompt_tokens":1,"completion_tokens":1}}'
PARSERS = pytest.mark.parametrize("parser", ["httptools", "h11"])


def assert_untouched(w: World) -> None:
    """No slot was taken and nothing was asked of anybody."""
    assert (w.gate.admitted, w.budget.checked, w.attempts) == ([], [], [])


async def refused(w: World, text: bytes, status: int, code: str, **kwargs: Any) -> Reply:
    for path in ("/v1/chat/completions", "/v1/messages"):
        reply = await w.ask(body=text, path=path, **kwargs)
        assert (reply.status, reply.is_whole) == (status, True)
        assert reply.header("content-type") == "application/json"
        if path == "/v1/messages":
            assert reply.json["type"] == "error"
        else:
            assert reply.json["error"]["code"] == code
    return reply


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b"[]", "invalid_json"),
        (b'"x"', "invalid_json"),
        (b"null", "invalid_json"),
        (b'{"model":"m","x":NaN}', "invalid_json"),
        (b'{"model":"m","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "invalid_json"),
        (b'{"model":"m","tools":' + b"[" * 1000 + b"]" * 1000 + b"}", "invalid_json"),
        (b'{"model":"m","n":' + b"9" * 5000 + b"}", "invalid_json"),
        (b'\xef\xbb\xbf{"model":"m"}', "invalid_json"),
        ('{"model":"m"}'.encode("utf-16"), "invalid_json"),
        (b'{"model":"\xff"}', "invalid_json"),
        (b'{"model":"\\ud800"}', "invalid_json"),
        (b"{}", "missing_model"),
        (b'{"model":"m","model":"n"}', "duplicate_key"),
        (b'{"model":"a\\r\\nset-cookie: x=1"}', "invalid_model"),
        (b'{"model":"a\\u0000b"}', "invalid_model"),
    ],
)
async def test_what_is_no_request_is_refused_and_never_forwarded(text: bytes, code: str) -> None:
    async with upstream(answers(GOOD)) as up, world(model(up.url)) as w:
        await refused(w, text, 400, code)
        assert_untouched(w)
        assert up.connections == 0
        assert [each.outcome for each in w.seen.finished] == [Outcome.REFUSED] * 2


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"content-type": "application/json; charset=foo"}, "unsupported_charset"),
        ({"content-type": 'application/json; Charset="utf-16"'}, "unsupported_charset"),
        ({"content-encoding": "gzip"}, "unsupported_encoding"),
        ({"expect": "miracles"}, "invalid_expect"),
    ],
)
async def test_bodies_in_another_coding_are_refused(headers: dict[str, str], code: str) -> None:
    async with world(model(NOWHERE)) as w:
        await refused(w, chat(), 400, code, headers=headers)


@pytest.mark.parametrize(
    "content_type",
    ["application/json; charset=UTF-8", "text/plain", "application/x-www-form-urlencoded"],
)
async def test_the_kind_a_client_declares_does_not_matter(content_type: str) -> None:
    async with upstream(answers(GOOD)) as up, world(model(up.url)) as w:
        reply = await w.ask(body=chat(), headers={"content-type": content_type})
        assert reply.status == 200
        assert up.last.header("content-type") == content_type


# Size


@PARSERS
async def test_a_body_that_declares_to_be_too_large_is_refused_before_it_is_sent(
    parser: str,
) -> None:
    async with world(model(NOWHERE), parser=parser, max_body_bytes=1000) as w:
        line = await w.connect()
        await line.send(headers={"content-length": str(10**9)})
        reply = await line.reply()
        assert (reply.status, reply.json["error"]["code"]) == (413, "request_too_large")
        assert_untouched(w)
        assert (await refused(w, b"x" * 1001, 413, "request_too_large")).json["error"]["type"] == (
            "request_too_large"
        )


@PARSERS
async def test_a_client_that_asks_first_is_told_before_it_sends(parser: str) -> None:
    async with (
        upstream(answers(GOOD)) as up,
        world(model(up.url), parser=parser, max_body_bytes=1000) as w,
    ):
        line = await w.connect()
        await line.send(headers={"content-length": "2000", "expect": "100-continue"})
        reply = await line.reply()
        assert (reply.status, reply.header("connection")) == (413, "close")
        assert await line.is_closed()
        line = await w.connect()
        text = chat()
        await line.send(headers={"content-length": str(len(text)), "expect": "100-continue"})
        assert b"100" in await line.reader.readuntil(b"\r\n\r\n")
        await line.write(text)
        assert (await line.reply()).status == 200


@PARSERS
async def test_a_body_of_unknown_length_is_refused_at_the_limit_and_not_kept(parser: str) -> None:
    async with world(model(NOWHERE), parser=parser, max_body_bytes=100_000) as w:
        line = await w.connect()
        await line.send(headers={"transfer-encoding": "chunked"})
        piece = b"%x\r\n%b\r\n" % (50_000, b" " * 50_000)
        for _ in range(200):
            line.writer.write(piece)
        reply = await line.reply()
        assert (reply.status, reply.json["error"]["code"]) == (413, "request_too_large")
        assert_untouched(w)
        await line.write(b"0\r\n\r\n")
        await line.send(b"{}")  # what was left of the body has been passed over
        assert (await line.reply()).status == 400


@PARSERS
@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_a_client_that_sends_all_of_a_refused_body_and_then_reads_is_told_why(
    parser: str, framing: str
) -> None:
    pieces = [b"x" * 1_000_000] * 20
    headers = {"connection": "close"}
    if framing == "length":
        headers["content-length"] = str(sum(map(len, pieces)))
    else:
        headers["transfer-encoding"] = "chunked"
        pieces = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces] + [b"0\r\n\r\n"]
    async with world(model(NOWHERE), parser=parser, max_body_bytes=1000) as w:
        line = await w.connect()
        await line.send(headers=headers)
        for piece in pieces:
            await line.write(piece)
        await line.send(b"{}")  # and this is no request of a connection that ends
        reply = await line.reply()
        assert (reply.status, reply.json["error"]["code"]) == (413, "request_too_large")
        assert await line.is_closed()
        assert_untouched(w)


@PARSERS
async def test_a_refused_body_that_goes_on_and_on_is_cut_off(
    parser: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_protocol, "HEAD_TIMEOUT_SECS", 0.2)
    async with world(model(NOWHERE), parser=parser, max_body_bytes=1000) as w:
        line = await w.connect()
        await line.send(headers={"content-length": str(10**9), "connection": "close"})
        assert (await line.reply()).status == 413
        with pytest.raises(ConnectionError):
            while True:
                await line.write(b"x" * 1000)


@PARSERS
async def test_a_body_at_the_limit_passes(parser: str) -> None:
    text = chat(pad="x" * 100_000)
    async with (
        upstream(answers(GOOD)) as up,
        world(model(up.url), parser=parser, max_body_bytes=len(text)) as w,
    ):
        assert (await w.ask(body=text)).status == 200
        assert up.last.body == text


# Time


@PARSERS
async def test_a_client_that_sends_too_slowly_is_told_and_holds_no_slot(
    parser: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "BODY_BYTES_PER_SEC_MIN", 10**9)
    async with world(model(NOWHERE), parser=parser, body_timeout_secs=0.3) as w:
        line = await w.connect()
        await line.send(headers={"content-length": "1000"})

        async def drip() -> None:
            while True:
                await line.write(b" ")
                await asyncio.sleep(0.02)

        dripping = asyncio.create_task(drip())
        reply = await line.reply()
        dripping.cancel()
        await asyncio.gather(dripping, return_exceptions=True)
        assert (reply.status, reply.json["error"]["code"]) == (408, "request_timeout")
        assert reply.header("connection") == "close"
        assert_untouched(w)


async def test_a_body_that_comes_fast_enough_may_take_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clients, "BODY_BYTES_PER_SEC_MIN", 100)
    text = chat(pad="x" * 1000)
    async with (
        upstream(answers(GOOD)) as up,
        world(model(up.url), body_timeout_secs=0.1) as w,
    ):
        line = await w.connect()
        await line.send(headers={"content-length": str(len(text))})
        for at in range(0, len(text), 100):
            await line.write(text[at : at + 100])
            await asyncio.sleep(0.03)
        assert (await line.reply()).status == 200


@PARSERS
async def test_a_head_that_does_not_come_ends_the_connection(
    parser: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_protocol, "HEAD_TIMEOUT_SECS", 0.2)
    async with upstream(answers(GOOD)) as up, world(model(up.url), parser=parser) as w:
        for sent in (b"", b"POST /v1/chat"):
            line = await w.connect()
            await line.write(sent)
            assert await line.is_closed()
        line = await w.connect()
        await line.send(chat())
        assert (await line.reply()).status == 200
        await line.write(b"POST /v1/chat")
        assert await line.is_closed()


# Framing


async def test_a_body_with_two_kinds_of_length_is_refused_and_nothing_after_it_is_served() -> None:
    sent = {"content-length": "5", "transfer-encoding": "chunked"}
    for parser in ("httptools", "h11"):
        async with upstream(answers(GOOD)) as up, world(model(up.url), parser=parser) as w:
            line = await w.connect()
            await line.send(headers=sent)
            await line.write(b"0\r\n\r\n")
            await line.send(chat())
            assert (await line.head()).status == 400
            rest = await line.reader.read()
            assert b"HTTP/1.1 200" not in rest
            assert up.asked == []
            assert_untouched(w)


@PARSERS
async def test_two_requests_sent_at_once_are_both_answered(parser: str) -> None:
    async with upstream(answers(GOOD)) as up, world(model(up.url), parser=parser) as w:
        line = await w.connect()
        await line.send(chat())
        await line.send(chat(n=2))
        assert [(await line.reply()).body for _ in "12"] == [GOOD, GOOD]
        assert [b'"n":2' in asked.body for asked in up.asked] == [False, True]


@PARSERS
async def test_a_timer_of_one_request_does_not_end_the_next(parser: str) -> None:
    async def script(_: Upstream, peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.start_stream()
            for _event in range(10):
                await peer.chunk(b"data: 1\n\n")
                await asyncio.sleep(0.05)
            await peer.end_stream()

    async with (
        upstream(script) as up,
        world(model(up.url), parser=parser, keep_alive_secs=0.2) as w,
    ):
        line = await w.connect()
        await line.send(b"{}")
        await line.send(chat(stream=True))
        await line.send(chat(stream=True))
        assert [(await line.reply()).status for _ in "123"] == [400, 200, 200]
        assert await line.is_closed()


@PARSERS
async def test_a_client_that_would_rather_speak_another_protocol_is_answered_in_this_one(
    parser: str,
) -> None:
    """As Java's does on every first request."""
    offers = {
        "connection": "Upgrade, HTTP2-Settings",
        "upgrade": "h2c",
        "http2-settings": "AAEAAEAAAAIAAAABAAMAAABk",
    }
    large = chat(pad="x" * 300_000)
    async with upstream(answers(GOOD)) as up, world(model(up.url), parser=parser) as w:
        line = await w.connect()
        for text in (chat(), large, chat(n=2)):
            await line.send(text, headers=offers)
            assert (await line.reply()).body == GOOD
            assert up.last.body == text
            assert up.last.header("upgrade") is None
        await line.send(method="GET", path="/", headers=offers)
        assert (await line.reply()).status == 200
        slow = await w.connect()
        await slow.send(headers={**offers, "content-length": str(len(large))})
        for at in range(0, len(large), 100_000):
            await slow.write(large[at : at + 100_000])
            await asyncio.sleep(0.01)
        await slow.send(chat(), headers=offers)
        assert [(await slow.reply()).body for _ in "12"] == [GOOD, GOOD]
        assert [len(asked.body) for asked in up.asked[-2:]] == [len(large), len(chat())]


@PARSERS
async def test_an_early_refusal_leaves_the_connection_usable(parser: str) -> None:
    async with upstream(answers(GOOD)) as up, world(model(up.url), parser=parser) as w:
        line = await w.connect()
        await line.send(b"x" * 300_000, key="sk-wrong")
        assert (await line.reply()).status == 401
        await line.send(chat())
        assert (await line.reply()).status == 200


# Large bodies


async def test_a_large_body_is_read_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    parse = json_body.parse

    def spied(text: bytes) -> JsonBody:
        threads.append(threading.current_thread().name)
        return parse(text)

    monkeypatch.setattr(json_body, "parse", spied)
    async with upstream(answers(GOOD)) as up, world(model(up.url, upstream_model="real")) as w:
        await w.ask(body=chat(pad="x" * (intake.INLINE_BYTES_MAX - 1000)))
        text = chat(pad="é🙂\n" * 1_000_000)
        assert (await w.ask(body=text)).status == 200
        assert threads[0] == threading.current_thread().name
        assert threads[1].startswith("body")
        assert up.last.body == text.replace(b'"model":"m"', b'"model":"real"')
