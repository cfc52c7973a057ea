"""Which session a request belongs to."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest

from dataplane.openai_api import session_id
from dataplane.openai_api.body import parse
from dataplane.openai_api.prompt import Prompt
from dataplane.openai_api.session_id import DerivedSessions, Outline, Session, SessionHash

SECRET = "sk-one"
HASHER = SessionHash(SECRET)
BARE = parse(b'{"model":"m"}')


def client(headers: dict[str, str] | None = None, secret: str = SECRET, **fields: Any) -> Session:
    sent = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    body = parse(msgspec.json.encode({"model": "m", **fields}))
    return session_id.from_client(sent, body, SessionHash(secret))


HEADERS = [
    "x-obleth-session-id",
    "x-session-id",
    "x-session-affinity",
    "session-id",
    "session_id",
    "agent-session-id",
    "x-opencode-session",
    "x-grok-conv-id",
    "x-claude-code-session-id",
    "x-litellm-session-id",
    "x-openwebui-chat-id",
    "x-conversation-id",
]
BODIES: list[dict[str, Any]] = [
    {"session_id": "S"},
    {"metadata": {"session_id": "S"}},
    {"metadata": {"cursorConversationId": "S"}},
    {"client_metadata": {"session_id": "S"}},
    {"prompt_cache_key": "S"},
    {"metadata": {"user_id": '{"device_id":"d","session_id":"S"}'}},
    {"metadata": {"user_id": "user_abc_account_def_session_S"}},
]


@pytest.mark.parametrize("name", HEADERS)
def test_every_known_header_names_the_same_session(name: str) -> None:
    assert client({name: "S"}) == client({HEADERS[0]: "S"})
    assert client({name: "S"}).source == "client"


@pytest.mark.parametrize("fields", BODIES)
def test_every_known_field_names_the_same_session(fields: dict[str, Any]) -> None:
    assert client(**fields) == client({HEADERS[0]: "S"})


def test_baggage_names_it_too() -> None:
    expected = client({HEADERS[0]: "S 1".replace(" ", "/")})
    assert client({"baggage": "a=b, session.id = S%2F1;prop=x,c=d"}) == expected
    assert client({"baggage": "session=S,xsession.id=S"}) == Session()
    lines = [(b"baggage", b"a=b"), (b"x-session-id-not", b"T"), (b"baggage", b"session.id=S")]
    found = session_id.from_client(lines, BARE, HASHER)
    assert found == client({HEADERS[0]: "S"}), "a list may be sent in several lines"


def test_the_first_that_is_there_counts() -> None:
    for earlier, later in pairwise(HEADERS):
        assert client({later: "B", earlier: "A"}) == client({earlier: "A"})
    everything = {**BODIES[4], "metadata": {"session_id": "A", "user_id": "x_session_B"}}
    assert client(**everything) == client({HEADERS[0]: "A"})
    assert client({HEADERS[-1]: "A", "baggage": "session.id=C"}, session_id="B") == client(
        {HEADERS[0]: "A"}
    )
    assert client({"baggage": "session.id=C"}, session_id="B") == client({HEADERS[0]: "B"})


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "U"},
        {"safety_identifier": "U"},
        {"metadata": {"user_id": "user_abc"}},
        {"metadata": {"user_id": '{"device_id":"d"}'}},
        {"metadata": {"user_id": "{broken"}},
        {"metadata": {"user_id": 7}},
        {"metadata": "S"},
        {"session_id": None},
        {"session_id": 7},
        {"prompt_cache_key": ["S"]},
    ],
)
def test_a_person_or_a_thing_of_another_kind_is_no_session(fields: dict[str, Any]) -> None:
    assert client({"x-request-id": "r", "x-client-request-id": "r"}, **fields) == Session()


@pytest.mark.parametrize(
    "bad", ["", " ", "a b", "a\tb", "x" * 257, "a\r\nset-cookie: x=1", "a\0b", "\u200b", "\x7f"]
)
def test_an_id_that_is_not_1_to_256_visible_characters_is_refused_and_told(bad: str) -> None:
    assert client({HEADERS[0]: bad}) == Session(was_refused=True)
    assert client({HEADERS[0]: bad}, session_id="good") == Session(was_refused=True)
    assert client(session_id=bad) == Session(was_refused=True)


@pytest.mark.parametrize("good", ["x", "x" * 256, "会话🙂", "a:b/c=d;e"])
def test_any_visible_characters_will_do(good: str) -> None:
    assert client({HEADERS[0]: good}).source == "client"
    assert client({HEADERS[0]: good}) == client(session_id=good)


def test_sessions_of_different_keys_are_different() -> None:
    mine = client({HEADERS[0]: "S"})
    assert mine.id is not None
    assert len(mine.id) == 32
    assert mine == client({HEADERS[0]: "S"})
    assert mine != client({HEADERS[0]: "S"}, secret="sk-other")


def test_parts_cannot_be_shifted_into_one_another() -> None:
    assert HASHER.of("a:b") != HASHER.of("a", "b")
    assert HASHER.of("a", "") != HASHER.of("a")
    assert client({"x-session-id": "a", "thread-id": "b"}) != client({"x-session-id": "ab"})


def test_sub_agents_have_sessions_of_their_own() -> None:
    parent = client({"x-claude-code-session-id": "S"})
    agents = [
        client({"x-claude-code-session-id": "S", "x-claude-code-agent-id": "1"}),
        client({"x-claude-code-session-id": "S", "x-claude-code-agent-id": "2"}),
        client({"x-claude-code-session-id": "S", "thread-id": "1"}),
    ]
    assert len({parent.id, *(agent.id for agent in agents)}) == 4
    assert client({"x-claude-code-agent-id": "1", "thread-id": "1"}) == Session()
    assert client({"x-session-id": "S", "thread-id": "a b"}).was_refused


# Derived


def said(*texts: str, system: str = "be good") -> list[dict[str, Any]]:
    """A conversation in which user and assistant take turns."""
    roles = ["user", "assistant"]
    turns = [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]
    return [{"role": "system", "content": system}, *turns]


def outlined(
    messages: Any = None, secret: str = SECRET, model: str = "m", **fields: Any
) -> Outline:
    given = {} if messages is None else {"messages": messages}
    body = parse(msgspec.json.encode({"model": "m", **given, **fields}))
    found = session_id.outline(body, Prompt(body), model, SessionHash(secret))
    assert found is not None
    return found


def test_a_loop_stays_one_session_while_its_messages_grow() -> None:
    sessions = DerivedSessions()
    first = sessions.join(outlined(said("go")))
    assert first.source == "derived"
    assert sessions.join(outlined(said("go", "done", "more"))) == first
    assert sessions.join(outlined(said("go", "done", "more", "ok", "last"))) == first
    assert len(sessions) == 1


def test_a_repeated_request_is_the_same_session() -> None:
    sessions = DerivedSessions()
    first = sessions.join(outlined(said("go", "a", "b")))
    assert sessions.join(outlined(said("go", "a", "b"))) == first


def test_parallel_runs_that_open_alike_stay_apart() -> None:
    sessions = DerivedSessions()
    one = sessions.join(outlined(said("go", "one", "x")))
    two = sessions.join(outlined(said("go", "two", "x")))
    assert one != two
    assert sessions.join(outlined(said("go", "one", "x", "y", "z"))) == one
    assert sessions.join(outlined(said("go", "two", "x", "y", "z"))) == two
    fresh = sessions.join(outlined(said("go")))
    assert fresh not in (one, two)


def test_a_history_that_was_cut_back_is_another_session() -> None:
    sessions = DerivedSessions()
    first = sessions.join(outlined(said("go", "a", "b")))
    assert sessions.join(outlined(said("go", "a"))) != first


@pytest.mark.parametrize(
    "other",
    [
        {"model": "n"},
        {"secret": "sk-other"},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"tools": [{"name": "f", "input_schema": {}}]},
        {"messages": said("go", system="be bad")},
        {"messages": said("no")},
        {"system": "more"},
    ],
)
def test_what_begins_differently_is_another_session(other: dict[str, Any]) -> None:
    sessions = DerivedSessions()
    first = sessions.join(outlined(said("go")))
    assert sessions.join(outlined(**{"messages": said("go"), **other})) != first


def test_marks_that_move_along_the_messages_change_nothing() -> None:
    def turn(text: str, **mark: Any) -> dict[str, Any]:
        return {"role": "user", "content": [{"type": "text", "text": text, **mark}]}

    sessions = DerivedSessions()
    cached = {"cache_control": {"type": "ephemeral"}}
    first = sessions.join(outlined([turn("go", **cached)]))
    assert sessions.join(outlined([turn("go"), turn("on", **cached)])) == first


def test_the_tools_descriptions_do_not_matter_their_names_do() -> None:
    def tool(name: str, text: str) -> list[dict[str, Any]]:
        return [{"type": "function", "function": {"name": name, "description": text}}]

    sessions = DerivedSessions()
    first = sessions.join(outlined(said("go"), tools=tool("f", "a")))
    assert sessions.join(outlined(said("go"), tools=tool("f", "b"))) == first
    assert sessions.join(outlined(said("go"), tools=tool("g", "a"))) != first


def test_responses_are_recognised_by_their_input() -> None:
    sessions = DerivedSessions()
    first = sessions.join(outlined(instructions="s", input=said("go")))
    assert sessions.join(outlined(instructions="s", input=said("go", "a", "b"))) == first


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"prompt": "text"},
        {"input": "text"},
        {"messages": []},
        {"messages": [{"role": "assistant", "content": "a"}]},
        {"messages": 7},
        {"input": said("go"), "previous_response_id": "r"},
    ],
)
def test_where_there_is_no_conversation_none_is_recognised(fields: dict[str, Any]) -> None:
    body = parse(msgspec.json.encode({"model": "m", **fields}))
    assert session_id.outline(body, Prompt(body), "m", HASHER) is None


def test_the_first_run_of_a_beginning_has_the_same_id_on_every_replica() -> None:
    here, there = DerivedSessions(), DerivedSessions()
    first = here.join(outlined(said("go")))
    assert there.join(outlined(said("go", "a", "b"))) == first


def test_memory_is_bounded_and_the_longest_unused_go() -> None:
    sessions = DerivedSessions(beginnings_max=10)
    kept = sessions.join(outlined(said("kept")))
    for number in range(100):
        sessions.join(outlined(said(f"go {number}")))
        assert sessions.join(outlined(said("kept"))) == kept
    assert len(sessions) == 10
    for number in range(100):
        sessions.join(outlined(said("kept", f"branch {number}")))
    [beginning] = [each for each in sessions._beginnings.values() if each.started > 1]
    assert len(beginning.runs) == session_id.RUNS_PER_BEGINNING_MAX
