"""Events by the rules of their format, wherever they are cut."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.proxy.sse import DATA_BYTES_MAX, HELD_BYTES_MAX, SseReader
from dataplane.proxy.usage_figures import Usage

LINE_ENDS = [b"\n", b"\r\n", b"\r"]
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
EXPECTED = Usage(7, 3, 2)


def data(content: object, *, end: bytes = b"\n", space: bytes = b" ") -> bytes:
    return b"data:" + space + msgspec.json.encode(content) + end + end


def delta(text: str, **kwargs: bytes) -> bytes:
    return data({"choices": [{"delta": {"content": text}}], "usage": None}, **kwargs)


def report(**kwargs: bytes) -> bytes:
    return data({"choices": [], "usage": USAGE}, **kwargs)


def done(end: bytes) -> bytes:
    return b"data: [DONE]" + end + end


def cuts(whole: bytes) -> Iterator[list[bytes]]:
    """The same bytes cut once, at every place, and into single bytes."""
    for at in range(len(whole) + 1):
        yield [whole[:at], whole[at:]]
    yield [whole[at : at + 1] for at in range(len(whole))]


def passed_on(reader: SseReader, chunks: list[bytes]) -> bytes:
    return b"".join(reader.feed(chunk) for chunk in chunks) + reader.finish()


@pytest.mark.parametrize("end", LINE_ENDS)
@pytest.mark.parametrize("space", [b"", b" "])
def test_bytes_pass_unaltered_and_usage_is_read_wherever_the_stream_is_cut(
    end: bytes, space: bytes
) -> None:
    whole = delta("你好 🙂", end=end, space=space) + report(end=end, space=space) + done(end)
    for chunks in cuts(whole):
        reader = SseReader()
        assert [reader.feed(chunk) for chunk in chunks] == chunks
        assert reader.finish() == b""
        assert (reader.usage, reader.events) == (EXPECTED, 2)


@pytest.mark.parametrize("end", LINE_ENDS)
@pytest.mark.parametrize("space", [b"", b" "])
def test_the_usage_event_is_removed_whole_wherever_the_stream_is_cut(
    end: bytes, space: bytes
) -> None:
    before = b": comment" + end + end + delta("é", end=end, space=space)
    whole = before + report(end=end, space=space) + done(end)
    for chunks in cuts(whole):
        reader = SseReader(strips_usage=True)
        assert passed_on(reader, chunks) == before + done(end)
        assert reader.usage == EXPECTED


def test_a_usage_event_at_the_end_is_removed_also_without_its_empty_line() -> None:
    whole = delta("a") + report().removesuffix(b"\n\n")
    for chunks in cuts(whole):
        reader = SseReader(strips_usage=True)
        assert passed_on(reader, chunks) == delta("a")
        assert reader.usage == EXPECTED


def test_an_unfinished_event_is_passed_on_when_the_stream_ends_well() -> None:
    whole = delta("a") + b'data: {"choices":[1]'
    for chunks in cuts(whole):
        assert passed_on(SseReader(strips_usage=True), chunks) == whole


@pytest.mark.parametrize(
    "event",
    [
        data({"choices": [{"delta": {}}], "usage": USAGE}),
        data({"choices": [], "usage": None}),
        data({"choices": [], "prompt_filter_results": []}),
        data({"usage": USAGE}),
        b'data: {"choices":[],"usage":{\n\n',
        b"event: x\nid: 1\nretry: 5\n\n",
        b"data: [DONE]\n\n",
        b"\n\n\n",
        b"no colon\n\n",
    ],
)
def test_only_an_event_without_choices_that_reports_usage_is_removed(event: bytes) -> None:
    for chunks in cuts(delta("a") + event):
        assert passed_on(SseReader(strips_usage=True), chunks) == delta("a") + event


def test_an_event_is_passed_on_at_its_empty_line_and_a_comment_at_its_own_end() -> None:
    reader = SseReader(strips_usage=True)
    assert reader.feed(b": ping\n") == b": ping\n"
    assert reader.feed(b"\n: pi") == b"\n"
    assert reader.feed(b"ng\n") == b": ping\n"
    assert reader.feed(b'data: {"a"') == b""
    assert reader.feed(b":1}\n") == b""
    assert reader.feed(b"\ndata") == b'data: {"a":1}\n\n'


def test_data_over_several_lines_is_one_text() -> None:
    event = b'event: x\ndata: {"choices": [],\n: in between\ndata: "usage":\ndata: '
    event += msgspec.json.encode(USAGE) + b"}\nid: 4\n\n"
    for chunks in cuts(delta("a") + event + done(b"\n")):
        reader = SseReader(strips_usage=True)
        assert passed_on(reader, chunks) == delta("a") + done(b"\n")
        assert reader.usage == EXPECTED


def test_unicode_line_ends_end_no_line() -> None:
    event = 'data: {"usage": {"prompt_tokens": 1}, "x": "a\u2028b\u2029c\x85d\v\f"}\n\n'.encode()
    event = event.replace(b"\x0b\x0c", b"")
    reader = SseReader()
    reader.feed(event)
    assert (reader.usage, reader.events) == (Usage(1), 1)


def test_comments_pings_and_the_end_are_no_content() -> None:
    reader = SseReader()
    reader.feed(b": keep-alive\n\nevent: ping\ndata: {}\n\ndata: [DONE]\n\n:\n\n")
    assert reader.events == 0


def test_anthropic_figures_come_in_two_events() -> None:
    reader = SseReader()
    start = {"input_tokens": 5, "cache_read_input_tokens": 100, "output_tokens": 1}
    reader.feed(b"event: message_start\n" + data({"message": {"usage": start}}))
    reader.feed(b"event: message_delta\n" + data({"usage": {"output_tokens": 40}}))
    assert reader.usage == Usage(105, 40, 100)


def test_figures_of_a_finished_response_are_read() -> None:
    reader = SseReader()
    usage = {"input_tokens": 5, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 6}
    reader.feed(b"event: response.completed\n" + data({"response": {"usage": usage}}))
    assert reader.usage == Usage(5, 6, 4)


@pytest.mark.parametrize("strips_usage", [False, True])
def test_a_very_long_line_passes_and_is_not_kept(strips_usage: bool) -> None:
    reader = SseReader(strips_usage=strips_usage)
    filler = b"x" * 65_536
    whole = (
        b'data: {"choices": [1], "text": "' + filler * 64 + b'", "usage": {"prompt_tokens": 9}}\n\n'
    )
    passed = bytearray()
    for at in range(0, len(whole), 50_000):
        passed += reader.feed(whole[at : at + 50_000])
        assert len(reader._events._line) <= DATA_BYTES_MAX + 50_000
        assert len(reader._held) <= HELD_BYTES_MAX
    assert bytes(passed) == whole
    assert reader.usage == Usage(9)
    assert reader.feed(report()) == (b"" if strips_usage else report())


def test_many_lines_of_one_event_are_not_kept_either() -> None:
    reader = SseReader(strips_usage=True)
    line = b"data: " + b"y" * 1000 + b"\n"
    passed = b"".join(reader.feed(line) for _ in range(1000))
    assert len(reader._events._data) <= DATA_BYTES_MAX + 1001
    assert passed + reader.feed(b"\n") == line * 1000 + b"\n"
    assert reader.events == 1


@pytest.mark.parametrize(
    ("sent", "is_boundary"),
    [
        (b"", True),
        (b"data: 1\n\n", True),
        (b": ping\n", True),
        (b"data: 1\n", False),
        (b"dat", False),
        (b"data: 1\r\r", True),
        (b"data: 1\r\n\r", True),
    ],
)
def test_it_is_known_whether_an_event_could_follow_what_was_sent(
    sent: bytes, is_boundary: bool
) -> None:
    reader = SseReader()
    reader.feed(sent)
    assert reader.at_boundary is is_boundary


def test_what_is_held_back_leaves_a_boundary_unless_it_was_too_long() -> None:
    reader = SseReader(strips_usage=True)
    reader.feed(b"data: half of an ev")
    assert reader.at_boundary
    reader.feed(b"e" * HELD_BYTES_MAX)
    assert not reader.at_boundary


_LINES = st.sampled_from(
    [b"data: x", b"data:", b": c", b"", b"event: ping", b"id", report().strip(), delta("z").strip()]
)


@given(st.lists(st.tuples(_LINES, st.sampled_from(LINE_ENDS)), max_size=20), st.data())
def test_however_a_stream_is_cut_the_same_bytes_and_figures_come_out(
    lines: list[tuple[bytes, bytes]], draw: st.DataObject
) -> None:
    whole = b"".join(text + end for text, end in lines)
    at_once = SseReader(strips_usage=True)
    expected = passed_on(at_once, [whole])
    places = sorted(draw.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    chunks = [whole[a:b] for a, b in zip([0, *places], [*places, len(whole)], strict=True)]
    cut = SseReader(strips_usage=True)
    assert passed_on(cut, chunks) == expected
    assert (cut.usage, cut.events) == (at_once.usage, at_once.events)
    plain = SseReader()
    assert passed_on(plain, chunks) == whole
    assert (plain.usage, plain.events) == (at_once.usage, at_once.events)
