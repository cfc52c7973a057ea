"""What a request is charged before its usage is known."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dataplane.openai_api.body import parse
from dataplane.openai_api.prompt import Prompt
from dataplane.openai_api.token_estimate import Estimate, estimate


def estimated(generates_text: bool = True, **fields: Any) -> Estimate:
    body = parse(msgspec.json.encode({"model": "m", **fields}))
    return estimate(body, Prompt(body), generates_text=generates_text)


def message(content: Any, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": content}


@pytest.mark.parametrize(
    ("content", "tokens"),
    [
        ("", 4),
        ("a", 5),
        ("abcd", 5),
        ("abcdefg", 5),
        ("a" * 400, 104),
        ("你" * 8, 6),
        ("🙂" * 8, 6),
        ([{"type": "text", "text": "a" * 40}, {"type": "text", "text": "b"}], 15),
        ([{"type": "image_url", "image_url": {"url": "data:" + "A" * 10_000}}], 4),
        ([{"type": "tool_result", "content": "c" * 40}], 14),
        ([{"type": "tool_result", "content": [{"type": "text", "text": "c" * 40}]}], 14),
        ([{"type": "tool_use", "name": "f", "input": {"a": "b" * 33}}], 14),
        (None, 4),
    ],
)
def test_a_message_is_a_quarter_of_its_code_points_and_four(content: Any, tokens: int) -> None:
    assert estimated(messages=[message(content)]).input_tokens == tokens


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"messages": [message("a" * 8), message("b" * 8)]}, 12),
        ({"system": "s" * 40, "messages": [message("a")]}, 15),
        ({"system": [{"type": "text", "text": "s" * 40}], "messages": [message("a")]}, 15),
        ({"instructions": "s" * 40, "input": "i" * 40}, 20),
        ({"input": [message([{"type": "input_text", "text": "i" * 40}])]}, 14),
        ({"input": [{"type": "function_call_output", "output": "o" * 40}]}, 10),
        ({"input": [{"type": "function_call", "arguments": "o" * 40}]}, 10),
        ({"prompt": "p" * 40}, 10),
        ({"prompt": ["p" * 40, "q"]}, 11),
        ({"prompt": [1, 2, 3]}, 3),
        ({"prompt": [[1, 2, 3], [4]]}, 4),
        ({"query": "q" * 40, "documents": ["d" * 40, {"text": "e" * 40}]}, 30),
        (
            {
                "messages": [
                    {"role": "assistant", "tool_calls": [{"function": {"arguments": "a" * 40}}]}
                ]
            },
            14,
        ),
        ({"messages": 7}, 1),
        ({"messages": [message("a" * 40), 7.5]}, 15),
        ({"messages": [message({"odd": "x"})]}, 9),
        ({}, 0),
    ],
)
def test_text_is_found_wherever_an_api_puts_it(fields: dict[str, Any], tokens: int) -> None:
    assert estimated(**fields).input_tokens == tokens


def test_tools_count_as_the_text_they_are() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert estimated(tools=tools).input_tokens == len(msgspec.json.encode(tools)) // 4


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"max_tokens": 100}, 100),
        ({"max_completion_tokens": 100}, 100),
        ({"max_output_tokens": 100}, 100),
        ({"max_tokens": 5, "max_completion_tokens": 100}, 100),
        ({"max_tokens": 0}, 0),
        ({"max_tokens": 1_000_000}, 8192),
        ({}, 512),
        ({"prompt": "p" * 4000}, 1000),
        ({"prompt": "p" * 400_000}, 8192),
        ({"max_tokens": -5}, 512),
        ({"max_tokens": "9"}, 512),
        ({"max_tokens": 1.5}, 512),
        ({"max_tokens": 2**64}, 8192),
        ({"max_tokens": None}, 512),
    ],
)
def test_output_is_what_is_allowed_or_guessed_within_bounds(
    fields: dict[str, Any], tokens: int
) -> None:
    assert estimated(**fields).output_tokens == tokens


def test_where_nothing_is_generated_no_output_is_charged_but_never_nothing_at_all() -> None:
    assert estimated(generates_text=False, input="i" * 40) == Estimate(10, 0)
    assert estimated(generates_text=False).total == 1


def test_deep_content_is_counted_by_its_size() -> None:
    inner: Any = "x"
    for _ in range(100):
        inner = [{"type": "tool_result", "content": inner}]
    assert estimated(messages=[message(inner)]).input_tokens == 5
