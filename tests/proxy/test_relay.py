"""An answer crosses as it comes: bytes, pace, and the way it ends."""

from __future__ import annotations

import asyncio
import gzip
import tracemalloc
from typing import Any

import msgspec
import pytest

from dataplane.openai_api.ports import Figures, Outcome
from dataplane.proxy.upstream import Timeouts
from tests.proxy.parts import model
from tests.proxy.serving import Line, Peer, Upstream, answers, chat, streams, upstream, world

ENDS = [b"\n", b"\r\n", b"\r"]
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
DELTA = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
REPORT = b'data: {"choices":[],"usage":' + msgspec.json.encode(USAGE) + b"}\n\n"
DONE = b"data: [DONE]\n\n"
ANTHROPIC = (
    b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":7,'
    b'"output_tokens":1}}}\n\nevent: content_block_delta\ndata: {"type":"content_block_delta"}\n\n'
)
ASKING = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("space", [b"", b" "])
@pytest.mark.parametrize("piece", [1, 7, 10_000])
async def test_a_stream_arrives_byte_for_byte_however_it_is_written_and_cut(
    end: bytes, space: bytes, piece: int
) -> None:
    text = '{"choices":[{"delta":{"content":"你好 🙂 é"}}]}'.encode()
    events = [b": keep-alive", b"", b"data:" + space + text, b"", b"id: 1", b"data:" + space]
    events += [REPORT.strip(), b"", b"data:" + space + b"[DONE]", b"", b""]
    whole = end.join(events)
    pieces = [whole[at : at + piece] for at in range(0, len(whole), piece)]
    async with upstream(streams(*pieces)) as up, world(model(up.url)) as w:
        reply = await w.ask(body=chat(**ASKING))
        assert reply.body == whole
        record = await w.seen.last()
        assert (record.input_tokens, record.output_tokens, record.cached_tokens) == (7, 3, 2)
        assert record.figures is Figures.REPORTED


async def test_each_event_is_passed_on_before_the_next_has_come() -> None:
    go_on = asyncio.Event()

    async def script(_: Upstream, peer: Peer) -> None:
        await peer.request()
        await peer.start_stream()
        for number in range(5):
            await peer.chunk(b"data: %d\n\n" % number)
            await go_on.wait()
            go_on.clear()
        await peer.end_stream()

    for fields in ({"stream": True}, ASKING):
        async with upstream(script) as up, world(model(up.url)) as w:
            line = await w.connect()
            await line.send(chat(**fields))
            await line.head()
            for number in range(5):
                assert await line.chunk() == b"data: %d\n\n" % number
                go_on.set()
            assert await line.chunk() == b""


async def test_half_an_event_passes_at_once_where_nothing_is_to_be_removed() -> None:
    async def script(_: Upstream, peer: Peer) -> None:
        await peer.request()
        await peer.start_stream()
        await peer.chunk(b'data: {"ha')
        await peer.until_gone()

    async with upstream(script) as up, world(model(up.url)) as w:
        line = await w.connect()
        await line.send(chat(**ASKING))
        await line.head()
        assert await line.chunk() == b'data: {"ha'


async def test_a_stream_says_that_nothing_is_to_hold_it_back() -> None:
    script = streams(DELTA, DONE, cache_control="max-age=60", x_custom="kept")
    async with upstream(script) as up, world(model(up.url)) as w:
        reply = await w.ask(body=chat(stream=True))
        assert reply.header("content-type") == "text/event-stream"
        assert reply.header("cache-control") == "no-cache"
        assert reply.header("x-accel-buffering") == "no"
        assert reply.header("x-custom") == "kept"
        assert reply.header("content-encoding") is None


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_usage_is_asked_for_and_its_report_kept_from_who_did_not_ask(path: str) -> None:
    async with upstream(streams(DELTA, REPORT, DONE)) as up, world(model(up.url)) as w:
        for options in (None, {"include_usage": False}, {"include_obfuscation": False}):
            fields: dict[str, Any] = {} if options is None else {"stream_options": options}
            reply = await w.ask(path=path, body=chat(stream=True, **fields))
            assert reply.body == DELTA + DONE
            assert up.last.json["stream_options"]["include_usage"] is True
        reply = await w.ask(path=path, body=chat(**ASKING))
        assert reply.body == DELTA + REPORT + DONE
        assert [each.input_tokens for each in w.seen.finished] == [7] * 4
        assert w.budget.settled == [10] * 4


@pytest.mark.parametrize(
    "path", ["/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/audio/speech"]
)
async def test_usage_is_not_asked_for_where_it_comes_unasked(path: str) -> None:
    async with upstream(streams(DELTA, REPORT)) as up, world(model(up.url)) as w:
        body = chat(stream=True)
        reply = await w.ask(path=path, body=body)
        assert up.last.body == body
        assert reply.body == DELTA + REPORT


async def test_a_request_that_is_no_stream_is_not_asked_for_usage_either() -> None:
    async with upstream(answers(b"{}")) as up, world(model(up.url)) as w:
        await w.ask(body=chat())
        assert up.last.body == chat()


@pytest.mark.parametrize("fields", [{"stream": True}, ASKING])
async def test_where_no_usage_comes_it_is_estimated_and_marked(fields: dict[str, Any]) -> None:
    async with upstream(streams(DELTA, DELTA, DONE)) as up, world(model(up.url)) as w:
        assert (await w.ask(body=chat(**fields))).body == DELTA + DELTA + DONE
        record = await w.seen.last()
        assert (record.input_tokens, record.output_tokens) == (5, 2)
        assert record.figures is Figures.ESTIMATED
        assert w.budget.settled == [7]


@pytest.mark.parametrize(
    ("path", "output_tokens"),
    [
        ("/v1/audio/speech", 512),
        ("/v1/images/generations", 512),
        ("/v1/audio/transcriptions", 250_000),
        ("/v1/completions", 250_000),
    ],
)
async def test_the_size_of_sound_and_images_says_nothing_of_tokens(
    path: str, output_tokens: int
) -> None:
    body = b"x" * 1_000_000
    async with upstream(answers(body)) as up, world(model(up.url)) as w:
        assert (await w.ask(path=path, body=chat())).body == body
        record = await w.seen.last()
        assert (record.output_tokens, record.figures) == (output_tokens, Figures.ESTIMATED)
        assert w.budget.settled == [5 + output_tokens]


async def test_absurd_usage_is_cut_and_marked() -> None:
    body = b'{"usage":{"prompt_tokens":1000000000000000,"completion_tokens":1}}'
    async with upstream(answers(body)) as up, world(model(up.url)) as w:
        assert (await w.ask(body=chat())).body == body
        record = await w.seen.last()
        assert (record.input_tokens, record.figures) == (10_000_000, Figures.CLAMPED)


async def test_usage_without_a_figure_for_output_counts_for_embeddings_alone() -> None:
    body = b'{"usage":{"prompt_tokens":9,"total_tokens":9}}'
    async with upstream(answers(body)) as up, world(model(up.url)) as w:
        await w.ask(path="/v1/embeddings", body=chat(input="x"))
        assert (await w.seen.last()).figures is Figures.REPORTED
        await w.ask(body=chat())
        assert (await w.seen.last(2)).figures is Figures.ESTIMATED
        assert w.budget.settled[0] == 9


async def test_counting_tokens_uses_none() -> None:
    async with upstream(answers(b'{"input_tokens":7}')) as up, world(model(up.url)) as w:
        await w.ask(path="/v1/messages/count_tokens?beta=true", body=chat())
        assert up.last.target == "/v1/messages/count_tokens?beta=true"
        record = await w.seen.last()
        assert (record.figures, record.estimated_tokens) == (Figures.NONE, 1)
        assert w.budget.settled == [None]


async def test_anthropic_figures_are_read_and_the_stream_is_not_touched() -> None:
    delta = b'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":9}}\n\n'
    async with upstream(streams(ANTHROPIC, delta)) as up, world(model(up.url)) as w:
        reply = await w.ask(path="/v1/messages", body=chat(stream=True, max_tokens=5))
        assert reply.body == ANTHROPIC + delta
        record = await w.seen.last()
        assert (record.input_tokens, record.output_tokens) == (7, 9)


async def test_a_body_compressed_unasked_arrives_intact_and_its_figures_are_read() -> None:
    packed = gzip.compress(DELTA + REPORT + DONE)
    script = streams(
        *(packed[at : at + 9] for at in range(0, len(packed), 9)), content_encoding="gzip"
    )
    async with upstream(script) as up, world(model(up.url)) as w:
        reply = await w.ask(body=chat(stream=True), headers={"accept-encoding": "gzip"})
        assert reply.body == packed
        assert reply.header("content-encoding") == "gzip"
        assert up.last.header("accept-encoding") == "identity"
        assert (await w.seen.last()).input_tokens == 7


async def test_a_clean_end_without_done_passes_as_it_is() -> None:
    async with upstream(streams(DELTA, DELTA.rstrip())) as up, world(model(up.url)) as w:
        reply = await w.ask(body=chat(stream=True))
        assert (reply.body, reply.is_whole) == (DELTA + DELTA.rstrip(), True)
        assert (await w.seen.last()).outcome is Outcome.ANSWERED


async def test_a_body_that_only_the_connections_end_delimits_passes() -> None:
    async def script(_: Upstream, peer: Peer) -> None:
        await peer.request()
        await peer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + DELTA)

    async with upstream(script) as up, world(model(up.url)) as w:
        reply = await w.ask(body=chat(stream=True))
        assert (reply.body, reply.is_whole) == (DELTA, True)


# Broken off


def breaks(*chunks: bytes, reset: bool) -> Any:
    async def script(_: Upstream, peer: Peer) -> None:
        await peer.request()
        await peer.start_stream()
        for chunk in chunks:
            await peer.chunk(chunk)
        if reset:
            # What has been sent must arrive: a reset discards what the other side has not read.
            await asyncio.sleep(0.05)
            peer.reset()

    return script


@pytest.mark.parametrize("parser", ["httptools", "h11"])
@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("fields", [{"stream": True}, ASKING])
async def test_a_stream_that_breaks_ends_with_an_error_event_and_a_closed_connection(
    parser: str, reset: bool, fields: dict[str, Any]
) -> None:
    script = breaks(DELTA, DELTA, DELTA, reset=reset)
    async with upstream(script) as up, world(model(up.url), parser=parser) as w:
        reply = await w.ask(body=chat(**fields))
        assert not reply.is_whole
        assert reply.body.startswith(DELTA * 3)
        error = msgspec.json.decode(reply.body.removeprefix(DELTA * 3).removeprefix(b"data: "))
        assert error["error"]["code"] == "upstream_error"
        assert reply.body.endswith(b"}\n\n")
        assert b"[DONE]" not in reply.body
        record = await w.seen.last()
        assert (record.outcome, record.status) == (Outcome.BROKEN, 200)
        assert (record.code, record.output_tokens) == ("upstream_error", 3)
        assert w.budget.settled == [8]
        assert w.gate.left[0].has_failed
        assert w.attempts == [("m", "answered")]
        assert len(up.asked) == 1


async def test_on_messages_the_error_event_speaks_anthropics_words() -> None:
    async with upstream(breaks(ANTHROPIC, reset=False)) as up, world(model(up.url)) as w:
        reply = await w.ask(path="/v1/messages", body=chat(stream=True))
        head, _, data = reply.body.removeprefix(ANTHROPIC).partition(b"\n")
        assert head == b"event: error"
        error = msgspec.json.decode(data.removeprefix(b"data: "))
        assert (error["type"], error["error"]["type"]) == ("error", "api_error")
        assert error["request_id"] == reply.header("request-id") == reply.header("x-request-id")


async def test_an_event_cut_in_half_is_not_completed_by_the_error_event() -> None:
    half = b'data: {"choices":[{"del'
    async with upstream(breaks(DELTA, half, reset=False)) as up, world(model(up.url)) as w:
        held = await w.ask(body=chat(stream=True))
        assert held.body.startswith(DELTA + b'data: {"error"')
        passed = await w.ask(body=chat(**ASKING))
        assert passed.body.startswith(DELTA + half + b'\n\ndata: {"error"')


async def test_a_body_that_is_no_stream_is_cut_short_when_it_breaks() -> None:
    async def script(_: Upstream, peer: Peer) -> None:
        await peer.request()
        await peer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
        await peer.write(b'content-length: 100\r\n\r\n{"choices":')

    async with upstream(script) as up, world(model(up.url)) as w:
        reply = await w.ask(body=chat())
        assert (reply.body, reply.is_whole) == (b'{"choices":', False)
        assert (await w.seen.last()).outcome is Outcome.BROKEN


async def test_a_compressed_stream_that_breaks_gets_no_plain_event_added() -> None:
    packed = gzip.compress(DELTA)

    async def script(_: Upstream, peer: Peer) -> None:
        await peer.request()
        await peer.start_stream(content_encoding="gzip")
        await peer.chunk(packed)

    async with upstream(script) as up, world(model(up.url)) as w:
        reply = await w.ask(body=chat(stream=True))
        assert (reply.body, reply.is_whole) == (packed, False)


async def test_an_upstream_that_falls_silent_ends_in_an_error_event() -> None:
    async def script(_: Upstream, peer: Peer) -> None:
        await peer.request()
        await peer.start_stream()
        await peer.chunk(DELTA)
        await peer.until_gone()

    timeouts = Timeouts(connect_secs=1, head_secs=5, read_secs=0.2)
    async with upstream(script) as up, world(model(up.url), timeouts=timeouts) as w:
        reply = await w.ask(body=chat(stream=True))
        assert b'"code":"upstream_timeout"' in reply.body
        assert not reply.is_whole
        await up.until(lambda up: up.open == 0)


async def test_a_stream_without_end_is_ended_at_the_models_limit() -> None:
    async def script(_: Upstream, peer: Peer) -> None:
        await peer.request()
        await peer.start_stream()
        while True:
            await peer.chunk(DELTA)
            await asyncio.sleep(0.01)

    async with upstream(script) as up, world(model(up.url, request_timeout_secs=0.3)) as w:
        reply = await w.ask(body=chat(stream=True))
        assert b'"code":"upstream_timeout"' in reply.body
        assert not reply.is_whole
        await up.until(lambda up: up.open == 0)
        assert w.gate.running == 0


# Much


async def test_a_line_of_four_megabytes_passes() -> None:
    event = b'data: {"choices":[1],"x":"' + b"y" * 4_000_000 + b'"}\n\n'
    pieces = [event[at : at + 60_000] for at in range(0, len(event), 60_000)]
    async with upstream(streams(*pieces, REPORT, DONE)) as up, world(model(up.url)) as w:
        reply = await w.ask(body=chat(stream=True))
        assert reply.body == event + DONE
        assert (await w.seen.last()).input_tokens == 7


async def test_a_client_that_does_not_read_holds_the_upstream_back() -> None:
    async def script(_: Upstream, peer: Peer) -> None:
        await peer.request()
        await peer.start_stream()
        for _chunk in range(5_000):
            await peer.chunk(b"data: " + b"z" * 10_000 + b"\n\n")
        await peer.end_stream()

    async with upstream(script) as up, world(model(up.url)) as w:
        line: Line = await w.connect(buffer=4096)
        await line.send(chat(stream=True))
        await up.until_still()
        assert up.written < 20_000_000


async def test_a_long_stream_keeps_nothing() -> None:
    """The interpreter's own count of what is held, far below what went through."""

    async def script(_: Upstream, peer: Peer) -> None:
        await peer.request()
        await peer.start_stream()
        for _chunk in range(2_000):
            await peer.chunk(b"data: " + b"z" * 20_000 + b"\n\n")
        await peer.end_stream()

    async with upstream(script) as up, world(model(up.url)) as w:
        line = await w.connect()
        await line.send(chat(stream=True))
        await line.head()
        passed = 0
        tracemalloc.start()
        try:
            while chunk := await line.chunk():
                passed += len(chunk)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert passed == 2_000 * 20_008
        assert peak < 4_000_000
