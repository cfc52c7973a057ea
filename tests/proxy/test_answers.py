"""What clients are told: every refusal in both dialects, and the heads of answers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from dataplane.budgets.port import RateLimitState
from dataplane.errors import (
    AdmissionTimedOut,
    BudgetExhausted,
    InvalidApiKey,
    ModelNotFound,
    PolicyUnavailable,
    RateLimited,
    Refusal,
    ShuttingDown,
)
from dataplane.openai_api.ports import Figures, Outcome
from shared.policy import AffinityOverride, AffinityPolicy
from tests.proxy.parts import KEY, SECRET, TENANT, endpoint, model
from tests.proxy.serving import (
    Peer,
    Reply,
    Upstream,
    World,
    answers,
    chat,
    streams,
    upstream,
    world,
)

NOWHERE = "http://127.0.0.1:1/v1"
GOOD = b'{"usage":{"prompt_tokens":1,"completion_tokens":1}}'
PARSERS = pytest.mark.parametrize("parser", ["httptools", "h11"])


async def both(w: World, **kwargs: Any) -> tuple[Reply, Reply]:
    """The same request in both dialects; each answer's error carries the request's id."""
    kwargs.setdefault("body", chat())
    openai = await w.ask(path="/v1/chat/completions", **kwargs)
    anthropic = await w.ask(path="/v1/messages", **kwargs)
    assert anthropic.json["request_id"] == anthropic.header("request-id")
    assert anthropic.header("x-request-id") == anthropic.header("request-id")
    assert openai.header("request-id") is None
    assert openai.header("x-request-id")
    return openai, anthropic


def assert_told(
    replies: tuple[Reply, Reply], status: int, kind: str, code: str, anthropic_kind: str
) -> None:
    openai, anthropic = replies
    assert (openai.status, anthropic.status) == (status, status)
    assert (openai.json["error"]["type"], openai.json["error"]["code"]) == (kind, code)
    assert anthropic.json["error"]["type"] == anthropic_kind
    assert openai.json["error"]["message"] == anthropic.json["error"]["message"]


# Keys

WRONG_KEYS: list[dict[str, str]] = [
    {},
    {"authorization": "Bearer sk-unknown"},
    {"authorization": "Bearer "},
    {"authorization": SECRET},
    {"x-api-key": "sk-unknown"},
    {"x-api-key": "sk-other", "authorization": f"Bearer {SECRET}"},
    {"authorization": "Bearer sk-\xff\xfe"},
    {"x-api-key": "sk-\xe9"},
    {"authorization": "Bearer " + "x" * 5000},
]


@PARSERS
async def test_every_wrong_key_is_told_the_same(parser: str) -> None:
    async with world(model(NOWHERE), parser=parser) as w:
        texts = set()
        for headers in WRONG_KEYS:
            replies = await both(w, key=None, headers=headers)
            assert_told(
                replies, 401, "invalid_request_error", "invalid_api_key", "authentication_error"
            )
            texts.add(replies[0].body)
            for path in ("/v1/models", "/v1/models/m"):
                reply = await w.ask(method="GET", path=path, key=None, headers=headers)
                assert (reply.status, reply.body) == (401, replies[0].body)
        assert len(texts) == 1
        assert w.gate.admitted == []
        assert {each.key for each in w.seen.finished} == {None}


@pytest.mark.parametrize("headers", [{"x-api-key": SECRET}, {"authorization": f"bearer {SECRET}"}])
async def test_a_key_is_taken_from_either_header(headers: dict[str, str]) -> None:
    async with upstream(answers(GOOD)) as up, world(model(up.url)) as w:
        assert (await w.ask(body=chat(), key=None, headers=headers)).status == 200


async def test_the_key_is_looked_at_before_the_body() -> None:
    async with world(model(NOWHERE)) as w:
        line = await w.connect()
        await line.send(key="sk-unknown", headers={"content-length": "1000"})
        assert (await line.reply()).status == 401


async def test_policy_that_cannot_be_had_is_not_a_wrong_key() -> None:
    async with world(model(NOWHERE)) as w:
        w.policy.fails_with = PolicyUnavailable()
        replies = await both(w, key="sk-never-seen")
        assert_told(replies, 503, "server_error", "policy_unavailable", "overloaded_error")


async def test_a_suspended_tenant_is_told_so() -> None:
    async with world(model(NOWHERE)) as w:
        w.policy.keys[SECRET] = replace(KEY, tenant=replace(TENANT, suspended=True))
        replies = await both(w)
        assert_told(replies, 403, "permission_error", "tenant_suspended", "permission_error")
        assert replies[0].header("x-should-retry") == "false"


# Models


async def test_a_model_that_is_not_there_is_told_as_such() -> None:
    async with world(model(NOWHERE)) as w:
        replies = await both(w, body=chat(model="模型"))
        assert_told(replies, 404, "invalid_request_error", "model_not_found", "not_found_error")
        assert replies[0].json["error"]["param"] == "model"
        assert (await w.ask(body=chat(model="x" * 10_000))).status == 400


async def test_a_model_a_tenant_may_not_use_is_told_as_such() -> None:
    async with upstream(answers(GOOD)) as up:
        mine, other = model(up.url, aliases=("nick",)), model(up.url, name="other")
        async with world(mine, other) as w:
            allowed = replace(TENANT, allowed_models=frozenset({"m"}))
            w.policy.keys[SECRET] = replace(KEY, tenant=allowed)
            replies = await both(w, body=chat(model="other"))
            assert_told(replies, 403, "permission_error", "model_not_allowed", "permission_error")
            assert (await w.ask(body=chat(model="nick"))).status == 200
            listed = await w.ask(method="GET", path="/v1/models")
            assert [each["id"] for each in listed.json["data"]] == ["m"]
            assert (await w.ask(method="GET", path="/v1/models/m")).json["id"] == "m"
            assert (await w.ask(method="GET", path="/v1/models/nick")).json["id"] == "m"
            assert (await w.ask(method="GET", path="/v1/models/other")).status == 404


async def test_unregistered_names_go_to_the_default_upstream_as_they_are() -> None:
    async with upstream(answers(GOOD)) as up:
        default = endpoint(up.url, "default", api_key="sk-default")
        async with world(model(NOWHERE), default_endpoint=default) as w:
            body = chat(model="anything/at:all")
            assert (await w.ask(body=body)).status == 200
            assert up.last.body == body
            assert up.last.header("authorization") == "Bearer sk-default"
            assert w.gate.admitted[0].ask.model is None
            assert (await w.seen.last()).model == "(unrouted)"
            assert w.attempts == [("(unrouted)", "answered")]
            allowed = replace(TENANT, allowed_models=frozenset({"m"}))
            w.policy.keys[SECRET] = replace(KEY, tenant=allowed)
            assert (await w.ask(body=body)).status == 403


async def test_models_with_slashes_are_found_however_they_are_written() -> None:
    async with world(model(NOWHERE, name="org/name")) as w:
        for path in ("/v1/models/org/name", "/v1/models/org%2Fname"):
            assert (await w.ask(method="GET", path=path)).json["id"] == "org/name"


async def test_the_list_of_models_speaks_anthropic_to_its_clients_errors_too() -> None:
    async with world(model(NOWHERE)) as w:
        sent = {"anthropic-version": "2023-06-01"}
        listed = await w.ask(method="GET", path="/v1/models", headers=sent)
        assert listed.json["data"][0]["type"] == "model"
        assert listed.header("request-id") == listed.header("x-request-id")
        missing = await w.ask(method="GET", path="/v1/models/x", headers=sent)
        assert missing.json["error"]["type"] == "not_found_error"


# Paths


@PARSERS
async def test_the_root_says_that_somebody_is_there(parser: str) -> None:
    async with world(parser=parser) as w:
        assert (await w.ask(method="GET", path="/", key=None)).json == {"status": "ok"}
        line = await w.connect()
        await line.send(method="HEAD", path="/", key=None)
        await line.send(method="GET", path="/", key=None)
        head = await line.head()
        assert (head.status, head.header("content-length")) == (200, "15")
        assert (await line.reply()).body == b'{"status":"ok"}'
        assert w.seen.finished == []


async def test_other_paths_and_methods_are_told_as_such() -> None:
    async with world(model(NOWHERE)) as w:
        for path in ("/nope", "/v1", "/v1/chat/completions/", "/v1/audio/%2e%2e/admin", "/%ff%00"):
            reply = await w.ask(path=path, body=chat())
            assert (reply.status, reply.json["error"]["code"]) == (404, "not_found")
        reply = await w.ask(path="/v1/messages/nope", body=chat())
        assert (reply.status, reply.json["error"]["type"]) == (404, "not_found_error")
        reply = await w.ask(method="GET", path="/v1/chat/completions")
        assert (reply.status, reply.json["error"]["code"]) == (405, "method_not_allowed")
        assert reply.header("allow") == "POST"
        assert (await w.ask(path="/v1/models", body=chat())).header("allow") == "GET, HEAD"
        assert {each.path for each in w.seen.finished} == {""}


# Budgets and admission

WAITING: list[tuple[Refusal, int, str, str, str]] = [
    (AdmissionTimedOut(), 503, "server_error", "admission_timeout", "overloaded_error"),
    (ShuttingDown(), 503, "server_error", "shutting_down", "overloaded_error"),
    (ModelNotFound("m"), 404, "invalid_request_error", "model_not_found", "not_found_error"),
    (InvalidApiKey(), 401, "invalid_request_error", "invalid_api_key", "authentication_error"),
]


@pytest.mark.parametrize(("refusal", "status", "kind", "code", "anthropic_kind"), WAITING)
async def test_who_waits_in_vain_is_told_why(
    refusal: Refusal, status: int, kind: str, code: str, anthropic_kind: str
) -> None:
    async with world(model(NOWHERE), slots=0) as w:
        asking = asyncio.create_task(both(w))
        for _ in "12":
            await w.gate.until(lambda gate: len(gate.queue) == 1)
            w.gate.refuse_waiting(refusal)
            await w.gate.until(lambda gate: not gate.queue)
        replies = await asking
        assert_told(replies, status, kind, code, anthropic_kind)
        if isinstance(refusal, AdmissionTimedOut):
            assert replies[0].header("retry-after") == "5"
        assert replies[0].header("x-obleth-admission") is None
        assert (w.budget.reserved, w.budget.settled) == ([], [])
        record = w.seen.finished[0]
        assert (record.outcome, record.admission) == (Outcome.REFUSED, "rejected")
        assert (record.code, record.model, record.figures) == (code, "m", Figures.NONE)


BUDGETS: list[tuple[Refusal, int, str, str, str]] = [
    (
        RateLimited("Slow down.", retry_after_secs=2.4),
        429,
        "rate_limit_error",
        "rate_limit_exceeded",
        "rate_limit_error",
    ),
    (BudgetExhausted("Spent."), 403, "permission_error", "budget_exhausted", "permission_error"),
]


@pytest.mark.parametrize("after_admission", [False, True])
@pytest.mark.parametrize(("refusal", "status", "kind", "code", "anthropic_kind"), BUDGETS)
async def test_a_spent_budget_is_told_and_after_admission_the_charge_is_undone(
    after_admission: bool, refusal: Refusal, status: int, kind: str, code: str, anthropic_kind: str
) -> None:
    async with world(model(NOWHERE)) as w:
        if after_admission:
            w.budget.reserve_fails_with = refusal
        else:
            w.budget.check_fails_with = refusal
        replies = await both(w)
        assert_told(replies, status, kind, code, anthropic_kind)
        headers = [
            replies[0].header(n) for n in ("retry-after", "retry-after-ms", "x-should-retry")
        ]
        assert headers == (["3", "2400", "true"] if status == 429 else [None, None, "false"])
        assert [permit.was_undone for permit in w.gate.left] == [True] * 2 * after_admission
        assert w.gate.running == 0
        assert w.attempts == []
        assert w.budget.settled == []


async def test_budgets_are_asked_before_anybody_waits() -> None:
    async with world(model(NOWHERE), slots=0) as w:
        w.budget.check_fails_with = BudgetExhausted("Spent.")
        assert (await w.ask(body=chat())).status == 403
        assert w.budget.checked == [5 + 512]


# Heads


async def test_an_answer_says_how_it_was_admitted() -> None:
    async with upstream(answers(GOOD)) as up, world(model(up.url), slots=0) as w:
        asking = asyncio.create_task(w.ask(body=chat(), headers={"x-session-id": "s"}))
        await w.gate.until(lambda gate: len(gate.queue) == 1)
        w.gate.slots = 1
        w.gate.next()
        reply = await asking
        told = {n: v for n, v in reply.headers if n.startswith("x-obleth-")}
        assert told == {
            "x-obleth-admission": "queued",
            "x-obleth-queue-ms": "13",
            "x-obleth-session": "client",
            "x-obleth-slot": "new",
        }
        reply = await w.ask(body=chat())
        assert reply.header("x-obleth-admission") == "fast"
        assert reply.header("x-obleth-session") == "none"
        assert reply.header("x-ratelimit-limit-tokens") is None


async def test_a_per_minute_budget_is_stated_in_place_of_the_upstreams() -> None:
    script = answers(GOOD, x_ratelimit_limit_tokens="9", x_ratelimit_limit_requests="8")
    async with upstream(script) as up, world(model(up.url)) as w:
        assert (await w.ask(body=chat())).header("x-ratelimit-limit-tokens") == "9"
        w.budget.rate_limit = RateLimitState(1000, 483, 360.0)
        reply = await w.ask(body=chat())
        assert reply.header("x-ratelimit-limit-tokens") == "1000"
        assert reply.header("x-ratelimit-remaining-tokens") == "483"
        assert reply.header("x-ratelimit-reset-tokens") == "6m0s"
        assert reply.header("x-ratelimit-limit-requests") == "8"


@PARSERS
async def test_a_request_id_goes_all_the_way_or_is_made(parser: str) -> None:
    script = answers(GOOD, x_request_id="theirs")
    async with upstream(script) as up, world(model(up.url), parser=parser) as w:
        for given in ("mine-1", "a b", "\xff\xfe", "x" * 10_000, '"'):
            reply = await w.ask(body=chat(), headers={"x-request-id": given})
            found = reply.header("x-request-id")
            assert (found == given) is (given == "mine-1")
            assert up.last.header("x-request-id") == found
            assert w.seen.finished[-1].request_id == found


@PARSERS
async def test_odd_headers_of_an_upstream_never_keep_an_answer_from_arriving(parser: str) -> None:
    async def script(_: Upstream, peer: Peer) -> None:
        await peer.request()
        odd = "x-a: ok\r\nx-b: caf\xe9\r\nx-c: \xe4\xbd\xa0\r\nX-D: Up\r\nx-empty:\r\n"
        head = f"HTTP/1.1 200 Fine\r\ncontent-length: 2\r\n{odd}x-long: {'y' * 20_000}\r\n\r\n"
        await peer.write(head.encode("latin-1") + b"{}")

    async with upstream(script) as up, world(model(up.url), parser=parser) as w:
        reply = await w.ask(body=chat())
        assert (reply.status, reply.body) == (200, b"{}")
        assert [reply.header(n) for n in ("x-a", "x-b", "x-d")] == ["ok", "caf\xe9", "Up"]
        assert reply.header("x-long") == "y" * 20_000


@PARSERS
@pytest.mark.parametrize("line", ["204 No Content", "200 OK"])
async def test_an_answer_without_a_body_is_one(parser: str, line: str) -> None:
    async with upstream(answers(b"", line)) as up, world(model(up.url), parser=parser) as w:
        reply = await w.ask(body=chat())
        assert (reply.status, reply.body, reply.is_whole) == (int(line[:3]), b"", True)


# Sessions


def grown(*texts: str) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]


async def test_sessions_are_recognised_for_models_with_affinity_alone() -> None:
    async with upstream(streams(b"data: 1\n\n")) as up:
        on = AffinityOverride(enabled=True)
        warm, cold = model(up.url, affinity=on), model(up.url, name="cold")
        spread = model(up.url, up.url, name="spread", affinity=on)
        async with world(warm, cold, spread) as w:
            sources = []
            for name in ("m", "m", "cold", "spread"):
                texts = ("go", "a", "b")[: 1 + 2 * len(sources)]
                reply = await w.ask(body=chat(model=name, messages=grown(*texts)))
                sources.append(reply.header("x-obleth-session"))
            assert sources == ["derived", "derived", "none", "none"]
            sessions = [permit.ask.session for permit in w.gate.admitted]
            assert sessions[0] == sessions[1] is not None
            assert sessions[2:] == [None, None]
            assert (await w.seen.last(4)).session is None
            assert w.seen.finished[0].session == sessions[0]


async def test_every_replica_gives_a_session_the_same_id_with_nothing_configured() -> None:
    on = AffinityPolicy(enabled=True)
    found = []
    async with upstream(answers(GOOD)) as up:
        for _ in range(2):
            async with world(model(up.url), affinity=on) as w:
                await w.ask(body=chat(), headers={"X-Session-ID": "s"})
                await w.ask(body=chat())
                found.append([permit.ask.session for permit in w.gate.admitted])
    assert found[0] == found[1]
    assert len({None, *found[0]}) == 3


async def test_the_gateways_own_setting_counts_where_a_model_has_none() -> None:
    async with upstream(answers(GOOD)) as up:
        off = model(up.url, name="off", affinity=AffinityOverride(enabled=False))
        on = AffinityPolicy(enabled=True)
        async with world(model(up.url), off, affinity=on) as w:
            assert (await w.ask(body=chat())).header("x-obleth-session") == "derived"
            reply = await w.ask(body=chat(model="off"))
            assert reply.header("x-obleth-session") == "none"
        async with world(model(up.url), affinity=on, derives_sessions=False) as w:
            assert (await w.ask(body=chat())).header("x-obleth-session") == "none"


async def test_a_session_id_that_cannot_be_used_is_told_to_observers_and_replaced_by_none() -> None:
    on = AffinityPolicy(enabled=True)
    async with upstream(answers(GOOD)) as up, world(model(up.url), affinity=on) as w:
        reply = await w.ask(body=chat(), headers={"x-session-id": "a b"})
        assert reply.header("x-obleth-session") == "none"
        assert (await w.seen.last()).session_was_refused


# Our own faults


async def test_a_fault_of_our_own_is_an_answer_and_gives_everything_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with upstream(answers(GOOD)) as up, world(model(up.url)) as w:
        monkeypatch.setattr(w.budget, "reserve", _broken)
        replies = await both(w)
        assert_told(replies, 500, "server_error", "internal_error", "api_error")
        assert w.gate.running == 0
        assert w.gateway.open_requests == 0


@PARSERS
async def test_a_fault_after_the_answer_does_not_spoil_it(
    parser: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    event = b"data: 1\n\n"
    async with upstream(streams(event)) as up, world(model(up.url), parser=parser) as w:
        monkeypatch.setattr(w.budget, "settle", _broken)
        line = await w.connect()
        for _ in "12":
            await line.send(chat(stream=True))
            assert (await line.reply()).body == event
        assert {each.outcome for each in w.seen.finished} == {Outcome.ANSWERED}
        assert w.gate.running == 0


async def _broken(*_: object) -> None:
    raise ZeroDivisionError
