"""Bodies as they arrive: too large, too slow, framed two ways, uploaded."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import msgspec
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


# Uploads

PARTS = [("language", b"en"), ("model", b"m"), ("file", b"\x00\xff\r\n--b" * 100_000)]
KIND = {"content-type": "multipart/form-data; boundary=bound"}


def form(*parts: tuple[str, bytes]) -> bytes:
    sent = b"".join(
        b'--bound\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
        % (name.encode(), text)
        for name, text in parts
    )
    return sent + b"--bound--\r\n"


@PARSERS
@pytest.mark.parametrize("parts", [PARTS, PARTS[::-1]])
async def test_an_upload_arrives_byte_for_byte_with_its_model_renamed(
    parser: str, parts: list[tuple[str, bytes]]
) -> None:
    async with upstream(answers(GOOD)) as up:
        renamed = model(up.url, upstream_model="whisper-large")
        async with world(renamed, parser=parser) as w:
            reply = await w.ask(body=form(*parts), path="/v1/audio/transcriptions", headers=KIND)
            assert reply.status == 200
            renamed_parts = [(n, b"whisper-large" if n == "model" else t) for n, t in parts]
            assert up.last.body == form(*renamed_parts)
            assert up.last.header("content-length") == str(len(up.last.body))
            assert up.last.header("transfer-encoding") is None
            assert up.last.header("content-type") == KIND["content-type"]


@PARSERS
async def test_an_upload_of_unknown_length_goes_on_as_such(parser: str) -> None:
    sent = form(*PARTS)
    async with upstream(answers(GOOD)) as up, world(model(up.url), parser=parser) as w:
        line = await w.connect()
        await line.send(path="/v1/images/edits", headers={**KIND, "transfer-encoding": "chunked"})
        for at in range(0, len(sent), 30_000):
            piece = sent[at : at + 30_000]
            await line.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        await line.write(b"0\r\n\r\n")
        assert (await line.reply()).status == 200
        assert up.last.body == sent


async def test_an_upload_is_sent_on_before_it_has_arrived() -> None:
    """The gateway asks for a slot once the model is known, and then waits for the client."""
    seen = asyncio.Event()

    async def script(_: Upstream, peer: Peer) -> None:
        await peer.reader.readuntil(b'name="file"')
        seen.set()
        await peer.reader.readuntil(b"--bound--\r\n")
        await peer.answer(GOOD)

    sent = form(("model", b"m"), ("file", b"z" * 1000))
    async with upstream(script) as up, world(model(up.url)) as w:
        line = await w.connect()
        await line.send(
            path="/v1/audio/transcriptions",
            headers={**KIND, "content-length": str(len(sent))},
        )
        await line.write(sent[:-500])
        await seen.wait()
        assert w.gate.running == 1
        await line.write(sent[-500:])
        assert (await line.reply()).status == 200


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (form(("file", b"x")), 400, "missing_model"),
        (form(("model", b""), ("file", b"x")), 400, "missing_model"),
        (form(("model", b"\xff"), ("file", b"x")), 400, "invalid_model"),
        (form(("model", b"m"), ("file", b"x"), ("model", b"n")), 400, "duplicate_key"),
        (form(("model", b"m"), ("file", b"x" * 1_000_000), ("model", b"n")), 400, "duplicate_key"),
        (form(("file", b"x" * 3_000_000), ("model", b"m")), 413, "request_too_large"),
        (b"nothing of the kind", 400, "missing_model"),
    ],
)
async def test_what_is_wrong_with_an_upload_is_told(sent: bytes, status: int, code: str) -> None:
    async with (
        upstream(answers(GOOD)) as up,
        world(model(up.url, max_retries=3), max_body_bytes=2_000_000) as w,
    ):
        reply = await w.ask(body=sent, path="/v1/audio/transcriptions", headers=KIND)
        assert (reply.status, reply.json["error"]["code"]) == (status, code)
        await w.seen.last()
        assert w.gate.running == 0
        assert up.asked == []


async def test_an_upload_that_goes_over_the_limit_on_its_way_is_cut() -> None:
    async with (
        upstream(answers(GOOD)) as up,
        world(model(up.url), max_body_bytes=1_000_000) as w,
    ):
        line = await w.connect()
        await line.send(path="/v1/images/edits", headers={**KIND, "transfer-encoding": "chunked"})
        sent = form(("model", b"m"), ("file", b"z" * 3_000_000))
        line.writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(sent), sent))
        reply = await line.reply()
        assert (reply.status, reply.json["error"]["code"]) == (413, "request_too_large")
        await w.seen.last()
        assert (w.gate.running, up.asked) == (0, [])
        await up.until(lambda up: up.open == 0)


async def test_an_upload_that_stops_coming_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "BODY_BYTES_PER_SEC_MIN", 10**9)
    async with (
        upstream(answers(GOOD)) as up,
        world(model(up.url), body_timeout_secs=0.3) as w,
    ):
        sent = form(("model", b"m"), ("file", b"z" * 1000))
        line = await w.connect()
        await line.send(
            path="/v1/audio/transcriptions",
            headers={**KIND, "content-length": str(len(sent))},
        )
        await line.write(sent[:-500])
        reply = await line.reply()
        assert (reply.status, reply.json["error"]["code"]) == (408, "request_timeout")
        assert w.gate.running == 0
        await up.until(lambda up: up.open == 0)


async def test_an_upload_is_tried_again_while_all_of_it_is_at_hand() -> None:
    sent = form(("model", b"m"), ("file", b"x"))
    async with (
        upstream(answers(GOOD)) as up,
        world(model(NOWHERE, up.url)) as w,
    ):
        reply = await w.ask(body=sent, path="/v1/audio/transcriptions", headers=KIND)
        assert reply.status == 200
        assert up.last.body == sent


@pytest.mark.parametrize(("answer", "status"), [("503 Busy", 503), (None, 502)])
async def test_an_upload_of_which_more_was_sent_goes_to_no_other_endpoint(
    answer: str | None, status: int
) -> None:
    """Only its beginning would arrive there."""

    async def script(_: Upstream, peer: Peer) -> None:
        await peer.reader.readuntil(b"--bound--\r\n")
        if answer is None:
            peer.reset()
        else:
            await peer.answer(b"{}", answer)

    sent = form(("model", b"m"), ("file", b"z" * 1000))
    async with (
        upstream(script) as up,
        upstream(answers(GOOD)) as other,
        world(model(up.url, other.url)) as w,
    ):
        line = await w.connect()
        headers = {**KIND, "content-length": str(len(sent))}
        await line.send(path="/v1/audio/transcriptions", headers=headers)
        await line.write(sent[:-500])
        await up.until(lambda up: up.connections == 1)
        await line.write(sent[-500:])
        assert (await line.reply()).status == status
        assert other.connections == 0


async def test_json_to_a_route_that_takes_uploads_is_read_as_json() -> None:
    async with (
        upstream(answers(b"\xff\xfb", content_type="audio/mpeg")) as up,
        world(model(up.url)) as w,
    ):
        sent = msgspec.json.encode({"model": "m", "input": "say it"})
        reply = await w.ask(body=sent, path="/v1/audio/speech")
        assert (reply.body, reply.header("content-type")) == (b"\xff\xfb", "audio/mpeg")
        assert up.last.body == sent


@pytest.fixture(autouse=True)
async def nothing_is_left_running() -> AsyncIterator[None]:
    yield
    names = {each.get_coro().__qualname__ for each in asyncio.all_tasks()}  # type: ignore[union-attr]
    assert not {name for name in names if name.startswith(("Client.", "Upload."))}
