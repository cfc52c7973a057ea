"""Token figures as upstreams give them, sane or not."""

from __future__ import annotations

import msgspec
import pytest

from dataplane.proxy.usage_figures import (
    TAIL_BYTES,
    TOKENS_MAX,
    WHOLE_BYTES_MAX,
    JsonUsage,
    Usage,
    of_object,
)


def read(text: bytes, *, piece: int = 1000) -> Usage | None:
    reader = JsonUsage()
    for at in range(0, len(text), piece):
        reader.feed(text[at : at + piece])
    return reader.result()


def test_openai_figures_are_read() -> None:
    text = b'{"id":"x","choices":[{}],"usage":{"prompt_tokens":3,"completion_tokens":4,'
    text += b'"prompt_tokens_details":{"cached_tokens":2}}}'
    assert read(text, piece=1) == Usage(3, 4, 2)


def test_anthropic_counts_what_the_cache_gave_and_took_apart_and_we_count_it_in() -> None:
    text = b'{"usage":{"input_tokens":3,"cache_read_input_tokens":10,'
    text += b'"cache_creation_input_tokens":20,"output_tokens":4}}'
    assert read(text) == Usage(33, 4, 10)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"not json",
        b'{"usage":null}',
        b'{"usage":7}',
        b'{"usage":{}}',
        b'{"usage":{"total_tokens":"7"}}',
        b'{"message":"words","response":"words"}',
        b'{"usage":{"prompt_tokens":' + b"9" * 5000 + b"}}",
        b'{"usage":' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
)
def test_no_figures_are_no_figures(text: bytes) -> None:
    assert read(text) is None


def test_a_sum_alone_is_what_went_in() -> None:
    assert read(b'{"results":[],"usage":{"total_tokens":7}}') == Usage(7, 0)
    assert read(b'{"usage":{"prompt_tokens":5,"total_tokens":7}}') == Usage(5)


def test_an_answer_with_other_fields_of_the_same_names_is_read() -> None:
    assert read(b'{"response":"text","message":"text","usage":{"prompt_tokens":1}}') == Usage(1)


@pytest.mark.parametrize("absurd", [10**15, 2**63, 10**30])
def test_a_figure_no_request_can_reach_is_cut_and_marked(absurd: int) -> None:
    assert of_object({"prompt_tokens": absurd, "completion_tokens": 1}) == Usage(
        TOKENS_MAX, 1, clamped=True
    )


@pytest.mark.parametrize("absurd", [-5, 1.5, "7", True, [], float("nan")])
def test_a_figure_that_is_no_count_is_not_given_and_marked(absurd: object) -> None:
    assert of_object({"prompt_tokens": absurd, "completion_tokens": 1}) == Usage(
        None, 1, clamped=True
    )


def test_sums_of_figures_stay_within_the_bound_too() -> None:
    found = of_object({"input_tokens": TOKENS_MAX, "cache_read_input_tokens": TOKENS_MAX})
    assert found is not None
    assert found.input_tokens == TOKENS_MAX


def test_figures_at_the_end_of_a_body_too_long_to_keep_are_found() -> None:
    body = {"data": ["0" * 1000] * 3000, "usage": {"prompt_tokens": 12, "total_tokens": 12}}
    text = msgspec.json.encode(body)
    assert len(text) > 2 * WHOLE_BYTES_MAX
    reader = JsonUsage()
    for at in range(0, len(text), TAIL_BYTES):
        reader.feed(text[at : at + TAIL_BYTES])
        assert len(reader._text) <= WHOLE_BYTES_MAX
    assert reader.result() == Usage(12)


def test_figures_at_the_beginning_of_a_body_too_long_to_keep_are_not_made_up() -> None:
    body = {"usage": {"prompt_tokens": 12}, "data": ["0" * 1000] * 3000}
    assert read(msgspec.json.encode(body), piece=65536) is None


def test_later_figures_override_earlier_ones() -> None:
    assert Usage(1, 2, 3).updated(Usage(None, 5)) == Usage(1, 5, 3)
    assert Usage(1, clamped=True).updated(Usage(2)) == Usage(2, clamped=True)
