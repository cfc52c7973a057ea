"""Reading traces: the three shapes, and what is said about files that are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from obleth.replay import BadTrace, TraceKind, load

DATA = Path(__file__).resolve().parents[1] / "data"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
FIRST = "2023-11-16 18:15:46.6805900,374,44\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "trace"


def json_lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def mooncake(at: int, *blocks: int) -> dict[str, Any]:
    lengths = {"input_length": 512 * len(blocks), "output_length": 5}
    return {"timestamp": at, "hash_ids": list(blocks), **lengths}


def test_an_azure_row_is_a_request_that_stands_alone_at_its_time() -> None:
    trace = load(DATA / "azure_llm_2023_conv_400.csv")
    assert (trace.kind, trace.requests) == (TraceKind.AZURE, 400)
    first, second = trace.sessions[:2]
    assert (first.id, first.starts_secs) == (None, 0.0)
    assert second.starts_secs == pytest.approx(4.314579)
    assert (second.steps[0].prompt_tokens, second.steps[0].output_tokens) == (396, 109)


def test_rows_of_a_conversation_trace_join_the_session_they_go_on_from(file: Path) -> None:
    rows = [
        mooncake(0, 1, 2, 3),
        mooncake(1000, 1, 9, 8),
        mooncake(5000, 1, 2, 7, 6),
        mooncake(9000, 1, 2, 7, 5, 4),
    ]
    file.write_text(json_lines(*rows))
    trace = load(file)
    assert trace.kind is TraceKind.MOONCAKE
    first, other, second, third = trace.sessions
    assert first.id == second.id == third.id != other.id
    assert [session.starts_secs for session in trace.sessions] == [0, 1, 5, 9]


def test_a_shared_first_block_alone_makes_no_session(file: Path) -> None:
    file.write_text(json_lines(mooncake(0, 1), mooncake(1, 1, 2), mooncake(2, 1, 3)))
    assert len({session.id for session in load(file).sessions}) == 3


def test_no_step_of_the_recorded_conversations_follows_within_three_seconds() -> None:
    trace = load(DATA / "mooncake_conversation_200.jsonl")
    last: dict[str | None, float] = {}
    gaps = []
    for session in trace.sessions:
        if session.id in last:
            gaps.append(session.starts_secs - last[session.id])
        last[session.id] = session.starts_secs
    assert gaps
    assert min(gaps) > 3


def test_an_agentic_session_has_its_steps_with_their_delays() -> None:
    trace = load(DATA / "agentic_code_synthetic_16.jsonl")
    assert (trace.kind, len(trace.sessions), trace.requests) == (TraceKind.AGENTIC, 16, 211)
    steps = trace.sessions[0].steps
    assert (steps[0].prompt_tokens, steps[0].delay_secs) == (42773, 0.0)
    assert steps[1].prompt_tokens == 1855
    assert steps[1].delay_secs == pytest.approx(12.1901)


def test_only_the_first_rows_sessions_and_steps_are_taken() -> None:
    path = DATA / "agentic_code_synthetic_16.jsonl"
    assert load(path, limit=30).requests == 30
    few = load(path, max_sessions=3, max_steps=2)
    assert len(few.sessions) == 3
    assert few.requests <= 6
    assert load(DATA / "azure_llm_2023_conv_400.csv", limit=7).requests == 7


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ":1: not a trace"),
        ("<html>", ":1: not a trace"),
        ("a,b\n1,2\n", ":1: not a trace"),
        (AZURE, "the trace has no rows"),
        (AZURE + FIRST + "2023-11-16 18:15:50,396\n", ":3: 2 cells where 3 belong"),
        (AZURE + "yesterday,1,2\n", ":2: TIMESTAMP 'yesterday' is not a time"),
        (AZURE + FIRST + FIRST + "2023-11-16 18:15:50,many,1\n", ":4: ContextTokens 'many'"),
        (AZURE + "2023-11-16 18:15:50,1,-1\n", ":2: GeneratedTokens '-1'"),
        (AZURE + "2023-11-16 18:15:50,1,1e9\n", ":2: GeneratedTokens '1e9'"),
        ("{nonsense\n", ":1: not JSON"),
        (json_lines(mooncake(0, 1, 2)) + "[1]\n", ":2: not a JSON object"),
        (json_lines({"timestamp": 0, "input_length": 5}), ":1: output_length None"),
        (json_lines(mooncake(0, 1) | {"input_length": True}), ":1: input_length True"),
        (json_lines(mooncake(0, 1) | {"hash_ids": "abc"}), ":1: hash_ids"),
        (json_lines(mooncake(0, 1) | {"timestamp": "now"}), ":1: timestamp 'now'"),
        (json_lines(mooncake(0, 1) | {"session_id": 7}), ":1: session_id 7"),
    ],
)
def test_a_bad_row_is_named_by_its_line(file: Path, text: str, said: str) -> None:
    file.write_text(text)
    with pytest.raises(BadTrace) as caught:
        load(file)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_file_that_is_not_text_or_not_there_is_told(file: Path) -> None:
    with pytest.raises(BadTrace, match="No such file"):
        load(file)
    with pytest.raises(BadTrace, match="directory"):
        load(file.parent)
    file.write_bytes(b"\x00\xff\xfe\x80" * 100)
    with pytest.raises(BadTrace, match="not text"):
        load(file)
