"""Prompts made from lengths, and sessions given to tenants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from obleth.replay import (
    Assignment,
    BadOptions,
    ReplayOptions,
    Session,
    Step,
    TenantKey,
    Trace,
    TraceKind,
    plan,
)
from obleth.replay.prompts import Conversation, step_text

A, B = TenantKey("a", "sk-a", 300), TenantKey("b", "sk-b", 100)


def options(**fields: Any) -> ReplayOptions:
    given: dict[str, Any] = {"trace": Path("t"), "url": "http://localhost:8080", "tenants": (A, B)}
    return ReplayOptions(**given | fields)


def trace(*names: str | None, kind: TraceKind = TraceKind.MOONCAKE) -> Trace:
    sessions = tuple(Session(name, float(at), (Step(1, 1),)) for at, name in enumerate(names))
    return Trace("t", kind, sessions)


def owners(given: Trace, **fields: Any) -> list[str]:
    return [tenant.name for tenant, _ in plan(given, options(**fields)).sessions]


def test_a_step_has_exactly_its_tokens_with_and_without_blocks() -> None:
    assert len(step_text(Step(1000, 1, (7, 8)), 1.0)) == 4000
    assert len(step_text(Step(1000, 1), 1.0)) == 4000
    assert len(step_text(Step(5000, 1, (7, 8)), 1.0)) == 20_000
    assert len(step_text(Step(1000, 1, (7, 8)), 0.1)) == 400
    assert len(step_text(Step(0, 1), 1.0)) == 4


def test_prompts_share_their_text_as_far_as_they_share_their_blocks() -> None:
    one = step_text(Step(1500, 1, (1, 2, 3), row=1), 1.0)
    two = step_text(Step(1500, 1, (1, 2, 4), row=2), 1.0)
    assert one[: 1024 * 4] == two[: 1024 * 4]
    assert one[1024 * 4 : 1030 * 4] != two[1024 * 4 : 1030 * 4]


def test_prompts_without_blocks_share_nothing() -> None:
    assert step_text(Step(100, 1, row=1), 1.0)[:8] != step_text(Step(100, 1, row=2), 1.0)[:8]


def test_a_sessions_prompt_grows_by_answers_and_questions() -> None:
    conversation = Conversation(1.0)
    first = conversation.ask(Step(2, 1))
    conversation.answer("yes")
    second = conversation.ask(Step(2, 1, row=2))
    assert second[:1] == first
    assert [message["role"] for message in second] == ["user", "assistant", "user"]


def test_tenants_take_turns_when_nobody_has_a_session() -> None:
    assert owners(trace(None, None, None)) == ["a", "b", "a"]


def test_a_sessions_rows_stay_with_one_tenant_however_they_are_given_out() -> None:
    given = trace("x", "y", "x", "z", "y", "x")
    for assign in (None, *Assignment):
        found = owners(given, assign=assign)
        assert found[0] == found[2] == found[5]
        assert found[1] == found[4]


def test_a_random_plan_is_the_same_for_the_same_seed() -> None:
    given = trace(*(None,) * 64)
    same = owners(given, assign=Assignment.RANDOM, seed=5)
    assert same == owners(given, assign=Assignment.RANDOM, seed=5)
    assert same != owners(given, assign=Assignment.RANDOM, seed=6)
    assert set(same) == {"a", "b"}


def test_the_plan_says_in_words_how_it_was_made() -> None:
    assert plan(trace(None), options()).words == "tenants take turns"
    agentic = trace("x", "y", kind=TraceKind.AGENTIC)
    words = plan(agentic, options(seed=3)).words
    assert words == (
        "tenants by a hash of the session's name; session starts spread over 2 s (seed 3)"
    )


def test_sessions_that_all_start_at_once_are_spread() -> None:
    at_once = Trace(
        "t",
        TraceKind.AGENTIC,
        tuple(Session(f"s{number}", 0.0, (Step(1, 1),)) for number in range(20)),
    )
    planned = plan(at_once, options(start_spread_secs=10))
    starts = [session.starts_secs for _, session in planned.sessions]
    assert starts == sorted(starts)
    assert len(set(starts)) == 20
    assert max(starts) <= 10


def test_a_tenant_is_a_name_a_weight_and_a_key() -> None:
    assert TenantKey.parse("gold:500=sk-1=2") == TenantKey("gold", "sk-1=2", 500)
    assert TenantKey.parse("gold=sk-1").weight == 100
    assert "sk-1" not in repr(TenantKey.parse("gold=sk-1"))


@pytest.mark.parametrize("text", ["gold", "=sk-1", "gold=", "gold:0=sk-1", "gold:x=sk-1", ""])
def test_a_tenant_that_is_none_is_refused_without_its_key(text: str) -> None:
    with pytest.raises(BadOptions) as caught:
        TenantKey.parse(text)
    assert "sk-1" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("url", "localhost:8080", "not an http"),
        ("url", "ftp://x", "not an http"),
        ("tenants", (), "at least one tenant"),
        ("tenants", (A, A), "name of its own"),
        ("speed", 0, "speed"),
        ("speed", float("nan"), "speed"),
        ("limit", 0, "limit"),
        ("closed_loop", 0, "closed-loop"),
        ("token_scale", -1, "token-scale"),
        ("start_spread_secs", -1, "start-spread-secs"),
    ],
)
def test_an_option_that_makes_no_sense_is_named(field: str, value: object, said: str) -> None:
    with pytest.raises(BadOptions, match=said):
        options(**{field: value})


@pytest.mark.parametrize("url", ["http://x:1", "http://x:1/", "http://x:1/v1", "http://x:1/v1/"])
def test_the_gateways_url_is_taken_with_and_without_v1(url: str) -> None:
    assert options(url=url).base_url == "http://x:1/v1"
