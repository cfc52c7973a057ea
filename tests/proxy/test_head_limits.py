"""A head that never ends, or says too much, ends its own connection and nobody else's."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count, repeat
from typing import Any

import msgspec
import pytest

from dataplane.openai_api.head_limits import FIELDS_MAX, HEAD_BYTES_MAX, URL_BYTES_MAX
from obleth.server import Listener, bind
from shared.settings import ListenAddress
from tests.proxy.parts import model
from tests.proxy.serving import Line, Peer, Upstream, answers, chat, upstream, world

GOOD = b'{"usage":{"prompt_tokens":1,"completion_tokens":1}}'
START = b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\n"
CHUNKED = START + b"transfer-encoding: chunked\r\n\r\n"
PIECE = b"x" * 8192
READ_AFTER_THE_LIMIT_MAX = 16 * 2**20
"""What the kernel and the loop hold of a sender by the time the connection is closed, and more."""


async def ok(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Reads the body, and answers with how many headers it was given."""
    while (await receive()).get("more_body"):
        pass
    body = b"%d" % len(scope["headers"])
    head = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def listening() -> AsyncIterator[Callable[[], Any]]:
    """A listener as the admin API and the metrics have it; yields how to connect to it."""
    listener = Listener(ok, bind(ListenAddress("127.0.0.1", 0), "X"))
    await listener.start()
    try:
        yield lambda: Line.connect(listener.address.port)
    finally:
        await listener.stop(grace_secs=0)


@asynccontextmanager
async def gateway() -> AsyncIterator[Callable[[], Any]]:
    async with upstream(answers(GOOD)) as up, world(model(up.url)) as w:
        yield w.connect


BOTH = pytest.mark.parametrize("server", [gateway, listening])


async def sent_until_closed(line: Line, pieces: Any) -> int:
    """Bytes that could be sent before the connection was closed, of more than are ever read."""
    sent = 0
    try:
        for piece in pieces:
            await line.write(piece)
            sent += len(piece)
            assert sent < READ_AFTER_THE_LIMIT_MAX, "the connection stays open"
            if line.reader.at_eof():
                break
            await asyncio.sleep(0)
    except ConnectionError:
        pass
    return sent


@BOTH
@pytest.mark.parametrize(
    ("start", "pieces"),
    [
        pytest.param(b"GET /", lambda: repeat(PIECE), id="url"),
        pytest.param(START + b"x: ", lambda: repeat(PIECE), id="value"),
        pytest.param(START, lambda: repeat(PIECE), id="name"),
        pytest.param(START, lambda: (b"a%d: b\r\n" % n for n in count()), id="fields"),
        pytest.param(b"", lambda: repeat(b"\r\n" * 4096), id="blank-lines"),
        pytest.param(CHUNKED + b"0\r\nx: ", lambda: repeat(PIECE), id="trailer"),
        pytest.param(CHUNKED + b"0\r\n", lambda: repeat(b"a: b\r\n" * 100), id="trailers"),
        pytest.param(CHUNKED + b"5;x=", lambda: repeat(PIECE), id="chunk-extension"),
    ],
)
async def test_a_head_without_end_is_closed_on_and_others_are_served(
    server: Any, start: bytes, pieces: Any
) -> None:
    async with server() as connect:
        beside, line = await connect(), await connect()
        await beside.send(chat())
        assert (await beside.reply()).status == 200
        tracemalloc.start()
        try:
            await line.write(start)
            sending = asyncio.create_task(sent_until_closed(line, pieces()))
            await beside.send(chat())
            assert (await beside.reply()).status == 200
            await sending
            assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
        finally:
            tracemalloc.stop()
        await beside.send(chat())
        assert (await beside.reply()).status == 200
        await line.close()
        await beside.close()


@BOTH
@pytest.mark.parametrize(
    ("head", "status", "code"),
    [
        (b"GET /" + b"x" * URL_BYTES_MAX + b" HTTP/1.1\r\n\r\n", 414, "url_too_long"),
        (START + b"a: b\r\n" * FIELDS_MAX + b"\r\n", 431, "headers_too_large"),
        (START + b"a: " + b"b" * HEAD_BYTES_MAX, 431, "headers_too_large"),
        (CHUNKED + b"0\r\n" + b"a: b\r\n" * FIELDS_MAX + b"\r\n", 431, "headers_too_large"),
    ],
)
async def test_a_head_over_a_limit_is_told_so(
    server: Any, head: bytes, status: int, code: str
) -> None:
    async with server() as connect:
        line = await connect()
        await line.write(head)
        reply = await line.reply()
        assert (reply.status, reply.json["error"]["code"]) == (status, code)
        assert reply.header("connection") == "close"
        assert await line.is_closed()
        await line.close()


@BOTH
async def test_a_head_just_below_the_limits_is_served(server: Any) -> None:
    body = chat()
    length = b"content-length: %d\r\n" % len(body)
    url = b"GET /" + b"x" * (URL_BYTES_MAX - 10) + b" HTTP/1.1\r\n\r\n"
    key = b"authorization: Bearer none\r\n"
    for head in (
        START + length + key + b"a: " + b"b" * (HEAD_BYTES_MAX - 200) + b"\r\n\r\n",
        START + length + key + b"a: b\r\n" * (FIELDS_MAX - 3) + b"\r\n",
        url,
    ):
        async with server() as connect:
            line = await connect()
            for start in range(0, len(head), 10_000):
                await line.write(head[start : start + 10_000])
                await asyncio.sleep(0)
            await line.write(body if head is not url else b"")
            assert (await line.reply()).status in (200, 401, 404)
            await line.close()


@BOTH
@pytest.mark.parametrize(
    "head",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"BREW / HTTP/1.1\r\n\r\n",
        START + b"content-length: 5\r\ncontent-length: 6\r\n\r\n",
        START + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
        START + b"x-request-id: a\rb\r\n\r\n",
        CHUNKED + b"zz\r\n",
    ],
)
async def test_what_is_not_http_is_told_so_in_json(server: Any, head: bytes) -> None:
    async with server() as connect:
        line = await connect()
        await line.write(head)
        reply = await line.reply()
        assert (reply.status, reply.json["error"]["code"]) == (400, "invalid_http")
        assert reply.header("content-type") == "application/json"
        assert reply.header("connection") == "close"
        assert await line.is_closed()
        await line.close()


async def test_what_is_not_http_is_not_answered_in_the_middle_of_an_earlier_answer() -> None:
    async def streaming(up: Upstream, peer: Peer) -> None:
        await peer.request()
        await peer.start_stream()
        await peer.chunk(b"data: {}\n\n")
        await peer.until_gone()

    async with upstream(streaming) as up, world(model(up.url)) as w:
        line = await w.connect()
        await line.send(chat(stream=True))
        assert (await line.head()).status == 200
        assert await line.chunk() == b"data: {}\n\n"
        await line.write(b"\x16\x03\x01\x02\r\n\r\n")
        assert await line.is_closed()


async def test_anthropics_clients_are_refused_in_their_own_words() -> None:
    async with gateway() as connect:
        line = await connect()
        await line.write(b"POST /v1/messages HTTP/1.1\r\nx-request-id: r-1\r\na: ")
        await line.write(b"x" * HEAD_BYTES_MAX)
        reply = await line.reply()
        error = reply.json
        assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
        assert error["request_id"] == "r-1"
        assert (reply.header("x-request-id"), reply.header("request-id")) == ("r-1", "r-1")


@pytest.mark.parametrize("head", [b"GET /" + b"x" * URL_BYTES_MAX, b"BREW / HTTP/1.1\r\n\r\n"])
async def test_what_is_refused_before_it_is_a_request_is_given_an_id_too(head: bytes) -> None:
    async with gateway() as connect:
        line = await connect()
        await line.write(head)
        reply = await line.reply()
        assert reply.header("x-request-id")
        assert reply.header("request-id") is None


async def test_a_refusal_is_not_taken_for_the_answer_to_an_earlier_request() -> None:
    async def slow(up: Upstream, peer: Peer) -> None:
        await peer.request()
        await peer.until_gone()

    async with upstream(slow) as up, world(model(up.url)) as w:
        line = await w.connect()
        await line.send(chat())
        await up.until(lambda up: len(up.asked) == 1)
        await line.write(b"GET /" + b"x" * (URL_BYTES_MAX + 1))
        assert await line.is_closed()


@BOTH
@pytest.mark.parametrize(
    "coding",
    [
        b"transfer-encoding: gzip, chunked",
        b"Transfer-Encoding: chunked, chunked",
        b"transfer-encoding: gzip\r\ntransfer-encoding: chunked",
        b"transfer-encoding: chunked\r\ntransfer-encoding: chunked",
        b"transfer-encoding: identity, chunked",
        b"transfer-encoding: gzip",
    ],
)
async def test_a_body_in_another_transfer_coding_is_refused(server: Any, coding: bytes) -> None:
    async with server() as connect:
        line = await connect()
        body = chat()
        await line.write(START + coding + b"\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        reply = await line.reply()
        assert reply.status == 400
        if b"gzip, chunked" in coding:  # some of the others the parser refuses itself
            assert reply.json["error"]["code"] == "unsupported_encoding"
        assert await line.is_closed()
        await line.close()


@BOTH
async def test_chunked_is_understood_however_it_is_written(server: Any) -> None:
    async with server() as connect:
        line = await connect()
        for _ in range(2):
            await line.send(headers={"transfer-encoding": "Chunked "})
            body = chat()
            await line.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
            assert (await line.reply()).status == 200
        await line.close()


async def test_trailers_are_not_added_to_the_headers() -> None:
    async with listening() as connect:
        line = await connect()
        await line.write(CHUNKED + b"0\r\nauthorization: Bearer x\r\n\r\n")
        reply = await line.reply()
        assert msgspec.json.decode(reply.body) == 2
        await line.close()


async def test_an_offer_of_another_protocol_with_a_body_over_several_pieces_keeps_its_order() -> (
    None
):
    body = chat(x="".join(str(number) for number in range(60_000)))
    headers = {"connection": "upgrade", "upgrade": "h2c"}
    async with upstream(answers(GOOD)) as up, world(model(up.url)) as w:
        reply = await w.ask(body=body, headers=headers)
        assert reply.status == 200
        assert up.last.body == body
