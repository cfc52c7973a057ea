"""What is learnt from a response as it goes by."""

from __future__ import annotations

import gzip
import zlib

import pytest

from dataplane.proxy import meter as meters
from dataplane.proxy.meter import Meter
from dataplane.proxy.usage_figures import Usage

EVENTS = b'data: {"choices":[1]}\n\ndata: {"choices":[],"usage":{"prompt_tokens":3}}\n\n'
STREAM = (b"content-type", b"text/event-stream; charset=utf-8")


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [(b"gzip", gzip.compress(EVENTS, mtime=0)), (b"deflate", zlib.compress(EVENTS))],
)
def test_a_compressed_stream_passes_intact_and_a_copy_is_read(
    encoding: bytes, packed: bytes
) -> None:
    meter = Meter([STREAM, (b"content-encoding", encoding)], strips_usage=True)
    chunks = [packed[at : at + 1] for at in range(len(packed))]
    assert [meter.feed(chunk) for chunk in chunks] == chunks
    assert meter.finish() == b""
    assert meter.usage == Usage(3)
    assert not meter.changes_bytes
    assert not meter.takes_event


@pytest.mark.parametrize(
    ("encoding", "packed"), [(b"br", b"\x8b\x02\x80abc\x03"), (b"gzip", b"no gzip at all")]
)
def test_what_cannot_be_unpacked_passes_intact_and_is_guessed(
    encoding: bytes, packed: bytes
) -> None:
    meter = Meter([STREAM, (b"content-encoding", encoding)])
    assert meter.feed(packed * 10) == packed * 10
    assert meter.usage is None
    assert encoding != b"br" or meter.guessed_output_tokens == len(packed * 10) // 4


def test_a_small_body_that_unpacks_to_a_huge_one_is_given_up_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(meters, "UNPACKED_BYTES_MAX", 1_000_000)
    bomb = gzip.compress(b" " * 50_000_000)
    meter = Meter([(b"content-type", b"application/json"), (b"content-encoding", b"gzip")])
    assert meter.feed(bomb) == bomb
    assert meter._unpacker is not None
    assert meter._unpacker._left > -meters._UNPACKED_AT_A_TIME
    assert meter.usage is None


def test_figures_are_guessed_from_events_or_from_size() -> None:
    stream = Meter([STREAM])
    stream.feed(b": hi\n\n" + b"data: 1\n\n" * 5)
    assert stream.guessed_output_tokens == 5
    other = Meter([(b"content-type", b"application/json")])
    other.feed(b"0" * 44)
    assert other.guessed_output_tokens == 11


def test_comments_are_no_content() -> None:
    meter = Meter([STREAM])
    meter.feed(b": still working\n\n")
    assert not meter.has_content
    meter.feed(b"data: 1\n\n")
    assert meter.has_content


def test_a_body_of_another_kind_is_not_looked_into() -> None:
    meter = Meter([(b"content-type", b"audio/mpeg")], strips_usage=True)
    assert meter.feed(EVENTS) == EVENTS
    assert meter.usage is None
    assert meter.has_content
    assert meter.at_boundary
