"""Uploads: passed on as they come, with their model renamed; cut or given up if they go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from dataplane.openai_api import client as clients
from tests.proxy.parts import model
from tests.proxy.serving import Peer, Upstream, answers, upstream, world

NOWHERE = "http://127.0.0.1:1/v1"
GOOD = b'{"usage":{"prompt_tokens":1,"completion_tokens":1}}'
PARSERS = pytest.mark.parametrize("parser", ["httptools", "h11"])


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
