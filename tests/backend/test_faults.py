"""Each way of going wrong, seen as bytes on a socket."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator

import pytest

from obleth.backend import Outcome, SimulatedBackend
from tests.backend.raw_client import ask, question, sent

STREAM = question(stream=True, max_tokens=8)
WHOLE = question(max_tokens=8)


@pytest.fixture
async def backend() -> AsyncIterator[SimulatedBackend]:
    async with SimulatedBackend() as running:
        yield running


def events(body: bytes) -> list[bytes]:
    return [part for part in body.split(b"\n\n") if part]


async def test_a_healthy_stream_ends_with_done_and_a_proper_end(backend: SimulatedBackend) -> None:
    raw = await ask(backend.url, STREAM)
    assert events(raw.dechunked)[-1] == b"data: [DONE]"
    assert len(events(raw.dechunked)) == 1 + 8 + 1 + 1
    assert raw.ended_properly


async def test_a_status_can_be_asked_for_with_its_headers(backend: SimulatedBackend) -> None:
    raw = await ask(backend.url, WHOLE, x_sim_status=503, x_sim_retry_after="7")
    assert raw.status == 503
    assert raw.header_lines("retry-after") == ["7"]
    assert json.loads(raw.body)["error"]["message"] == "simulated status 503"
    moved = await ask(backend.url, WHOLE, x_sim_status=302, x_sim_location="http://x/")
    assert moved.header_lines("location") == ["http://x/"]


async def test_refused_means_a_reset_before_any_byte(backend: SimulatedBackend) -> None:
    raw = await ask(backend.url, WHOLE, x_sim_refuse=1)
    assert (raw.reset, raw.arrivals) == (True, [])
    assert backend.log[0].outcome is Outcome.CUT


@pytest.mark.parametrize("body", [WHOLE, STREAM])
async def test_mute_means_not_a_byte_and_a_slot_taken(
    backend: SimulatedBackend, body: dict[str, object]
) -> None:
    async with sent(backend.url, body, x_sim_mute=1) as (reader, _):
        await backend.until(lambda: backend.running("m") == 1)
        backend.drop_connections()
        assert await reader.read() == b""


async def test_a_head_can_come_byte_by_byte(backend: SimulatedBackend) -> None:
    raw = await ask(backend.url, WHOLE, x_sim_head_gap_ms=0.1)
    assert raw.status == 200
    assert len(raw.arrivals) > 20


async def test_a_delayed_first_token_comes_after_the_head(backend: SimulatedBackend) -> None:
    async with sent(backend.url, STREAM, x_sim_first_token_ms=60_000) as (reader, _):
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert backend.running("m") == 1


async def test_keep_alives_fill_the_wait_for_the_first_token(backend: SimulatedBackend) -> None:
    waits = {"x_sim_first_token_ms": 60_000, "x_sim_keepalive_ms": 1}
    async with sent(backend.url, STREAM, **waits) as (reader, _):
        for _ in range(3):
            assert b"data: " not in await reader.readuntil(b": keep-alive\n\n")


@pytest.mark.parametrize(
    ("cut", "reset", "proper", "tail"),
    [
        ("rst", True, False, b""),
        ("fin", False, False, b""),
        ("end", False, True, b""),
        ("error", False, True, b"the simulated engine died"),
        ("mid-event", False, False, b'data: {"id'),
    ],
)
async def test_a_stream_is_cut_after_three_whole_events(
    backend: SimulatedBackend, cut: str, reset: bool, proper: bool, tail: bytes
) -> None:
    raw = await ask(backend.url, STREAM, x_sim_cut=cut)
    assert (raw.reset, raw.ended_properly) == (reset, proper)
    whole = raw.dechunked.rpartition(b"\n\n")[0].split(b"\n\n") if cut != "error" else []
    assert len(whole) == (3 if cut != "error" else 0)
    assert tail in raw.dechunked.split(b"\n\n", 3)[3]
    assert b"[DONE]" not in raw.dechunked
    assert (backend.log[0].outcome, backend.running("m")) == (Outcome.CUT, 0)


async def test_a_stalled_stream_keeps_its_slot_in_silence(backend: SimulatedBackend) -> None:
    async with sent(backend.url, STREAM, x_sim_cut="stall", x_sim_cut_after=1) as (reader, _):
        await reader.readuntil(b"\n\n\r\n")
        assert backend.running("m") == 1
    await backend.until(lambda: backend.log[0].outcome is Outcome.CLIENT_LEFT)


@pytest.mark.parametrize(("cut", "reset"), [("rst", True), ("fin", False), ("mid-event", False)])
async def test_an_answer_in_one_piece_is_cut_in_its_middle(
    backend: SimulatedBackend, cut: str, reset: bool
) -> None:
    raw = await ask(backend.url, WHOLE, x_sim_cut=cut)
    promised = int(raw.header_lines("content-length")[0])
    assert raw.reset is reset
    assert len(raw.body) == promised // 2


async def test_a_stream_can_end_without_done(backend: SimulatedBackend) -> None:
    raw = await ask(backend.url, STREAM, x_sim_done=0)
    assert raw.ended_properly
    assert b"[DONE]" not in raw.dechunked
    assert backend.log[0].outcome is Outcome.FINISHED


async def test_a_body_can_end_with_its_connection(backend: SimulatedBackend) -> None:
    raw = await ask(backend.url, STREAM, x_sim_framing="close")
    assert not raw.header_lines("transfer-encoding")
    assert raw.body.endswith(b"data: [DONE]\n\n")


async def test_an_answer_can_be_compressed_unasked(backend: SimulatedBackend) -> None:
    headers = {"accept_encoding": "identity", "x_sim_encoding": "gzip"}
    plain = await ask(backend.url, STREAM)
    raw = await ask(backend.url, STREAM, **headers, x_sim_token_ms=1)
    assert raw.header_lines("content-encoding") == ["gzip"]
    assert len(events(gzip.decompress(raw.dechunked))) == len(events(plain.dechunked))


async def test_bytes_can_come_one_by_one(backend: SimulatedBackend) -> None:
    raw = await ask(backend.url, STREAM, x_sim_write_bytes=1)
    assert max(map(len, raw.arrivals[:10])) < 10
    assert len(events(raw.dechunked)) == 11


@pytest.mark.parametrize(("newline", "end"), [("lf", b"\n"), ("crlf", b"\r\n"), ("cr", b"\r")])
async def test_a_stream_comes_with_any_line_end_and_without_the_space(
    backend: SimulatedBackend, newline: str, end: bytes
) -> None:
    raw = await ask(backend.url, STREAM, x_sim_newline=newline, x_sim_data_space=0)
    assert raw.dechunked.endswith(b"data:[DONE]" + end + end)
    assert raw.dechunked.count(end + end) == 11


async def test_comments_empty_events_and_many_lines_surround_the_data(
    backend: SimulatedBackend,
) -> None:
    raw = await ask(backend.url, STREAM, x_sim_comments=2, x_sim_empty_events=1, x_sim_multiline=1)
    blocks = events(raw.dechunked)
    assert blocks[0].startswith(b": nothing to see here\n: nothing to see here\nevent: nothing")
    data = b"".join(line.removeprefix(b"data: ") for line in blocks[1].splitlines()[:-2])
    assert b"data: {\ndata:  " in raw.dechunked
    assert b'"chat.completion.chunk"' in data


async def test_a_line_can_be_four_megabytes_long(backend: SimulatedBackend) -> None:
    raw = await ask(backend.url, STREAM, x_sim_line_bytes=4 << 20)
    assert max(map(len, raw.dechunked.splitlines())) > 4 << 20


async def test_text_beyond_ascii_is_sent_as_such(backend: SimulatedBackend) -> None:
    raw = await ask(backend.url, STREAM, x_sim_text="unicode")
    assert "公平分配".encode() in raw.dechunked


def usage_of(body: bytes) -> object:
    return json.loads(events(body)[-2].removeprefix(b"data: ")).get("usage")


async def test_usage_can_be_left_out_or_sent_unasked(backend: SimulatedBackend) -> None:
    asked = {**STREAM, "stream_options": {"include_usage": True}}
    assert usage_of((await ask(backend.url, asked)).dechunked)
    assert not usage_of((await ask(backend.url, asked, x_sim_usage="none")).dechunked)
    assert not usage_of((await ask(backend.url, STREAM)).dechunked)
    assert usage_of((await ask(backend.url, STREAM, x_sim_usage="always")).dechunked)
    assert "usage" not in json.loads((await ask(backend.url, WHOLE, x_sim_usage="none")).body)


@pytest.mark.parametrize("count", ["1000000000000000", "-5", "1.5", '"7"'])
async def test_usage_can_be_absurd_while_the_log_keeps_the_truth(
    backend: SimulatedBackend, count: str
) -> None:
    raw = await ask(backend.url, WHOLE, x_sim_usage=count)
    assert json.loads(raw.body)["usage"]["completion_tokens"] == json.loads(count)
    assert backend.log[0].output_tokens == 8


async def test_stream_options_can_be_ignored_or_refused(backend: SimulatedBackend) -> None:
    asked = {**STREAM, "stream_options": {"include_usage": True}}
    ignored = await ask(backend.url, asked, x_sim_stream_options="ignore")
    assert b'"usage"' not in ignored.dechunked
    refused = await ask(backend.url, asked, x_sim_stream_options="refuse")
    assert refused.status == 400
    assert b"stream_options" in refused.body


async def test_an_endless_stream_goes_on_until_the_client_leaves(backend: SimulatedBackend) -> None:
    async with sent(backend.url, STREAM, x_sim_endless=1) as (reader, _):
        for _ in range(30):
            await reader.readuntil(b"\n\n")
    await backend.until(lambda: backend.running("m") == 0)
    assert backend.log[0].outcome is Outcome.CLIENT_LEFT
    assert backend.log[0].output_tokens > 8


async def test_an_answer_can_carry_headers_that_must_not_pass_on(backend: SimulatedBackend) -> None:
    raw = await ask(backend.url, WHOLE, x_sim_answer_headers="hop,duplicate")
    assert raw.header_lines("x-hop") == ["1"]
    assert "x-hop" in raw.header_lines("connection")
    assert raw.header_lines("set-cookie") == ["first=1", "second=2"]
    lengths = await ask(backend.url, WHOLE, x_sim_answer_headers="two-lengths")
    assert len(set(lengths.header_lines("content-length"))) == 2


async def test_the_reply_can_have_any_exact_length(backend: SimulatedBackend) -> None:
    raw = await ask(backend.url, WHOLE, x_sim_output_tokens=20)
    assert json.loads(raw.body)["usage"]["completion_tokens"] == 20


async def test_a_switch_that_does_not_exist_is_refused_by_name(backend: SimulatedBackend) -> None:
    raw = await ask(backend.url, WHOLE, x_sim_explode=1)
    assert raw.status == 400
    assert b"x-sim-explode" in raw.body
