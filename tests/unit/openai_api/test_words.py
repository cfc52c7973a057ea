"""Routes, keys, and how the gateway says things."""

from __future__ import annotations

import inspect

import msgspec
import pytest

from dataplane import errors
from dataplane.budgets.port import RateLimitState
from dataplane.errors import InvalidApiKey, MethodNotAllowed, PathNotFound, Refusal
from dataplane.openai_api import dialects, model_list, routes
from dataplane.openai_api.credentials import secret_of
from dataplane.openai_api.routes import Dialect, Kind
from dataplane.openai_api.story import request_id
from shared.policy import ModelPolicy

# Routes


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/rerank",
        "/v1/audio/transcriptions",
        "/v1/audio/speech",
        "/v1/images/generations",
        "/v1/images/edits",
    ],
)
def test_requests_to_models_are_forwarded(path: str) -> None:
    assert routes.match("POST", path).kind is Kind.FORWARD
    with pytest.raises(MethodNotAllowed):
        routes.match("GET", path)


def test_the_other_routes() -> None:
    assert routes.match("HEAD", "/").kind is Kind.ALIVE
    assert routes.match("GET", "/v1/models").kind is Kind.MODEL_LIST
    assert routes.match("GET", "/v1/models/org/name").model == "org/name"
    with pytest.raises(MethodNotAllowed) as raised:
        routes.match("DELETE", "/v1/models")
    assert raised.value.allowed == "GET, HEAD"


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/v1",
        "/v1/",
        "/v2/chat/completions",
        "/v1/chat/completions/",
        "/v1/models/",
        "/v1/audio",
        "/v1/audio/",
        "/v1/audio/../admin",
        "/v1/audio/..%2fadmin",
        "/v1/audio//x",
        "/v1/images/x?y",
        "//v1/models",
        "/v1/audio/x\n",
        "/v1/audio/" + "x" * 65,
        "/v1/audio" + "/x" * 5,
        "/v1/responses/1",
    ],
)
def test_nothing_is_at_any_other_path(path: str) -> None:
    with pytest.raises(PathNotFound):
        routes.match("POST", path)


def test_the_dialect_is_known_before_the_request_is() -> None:
    assert routes.dialect_of("/v1/messages", says_anthropic_version=False) is Dialect.ANTHROPIC
    assert routes.dialect_of("/v1/messages/x", says_anthropic_version=False) is Dialect.ANTHROPIC
    assert routes.dialect_of("/v1/models", says_anthropic_version=True) is Dialect.ANTHROPIC
    assert routes.dialect_of("/v1/models", says_anthropic_version=False) is Dialect.OPENAI
    assert routes.dialect_of("/v1/responses", says_anthropic_version=True) is Dialect.OPENAI


# Keys


@pytest.mark.parametrize(
    "headers",
    [
        [(b"authorization", b"Bearer sk-1")],
        [(b"authorization", b"bearer  sk-1 ")],
        [(b"x-api-key", b"sk-1")],
        [(b"x-api-key", b"sk-1"), (b"authorization", b"Bearer sk-1")],
        [(b"x-api-key", b"sk-1"), (b"authorization", b"Basic dTpw")],
        [(b"x-api-key", b""), (b"authorization", b"Bearer sk-1")],
        [(b"x-api-key", b"sk-1"), (b"authorization", b"Bearer ")],
        [(b"x-api-key", b"sk-1"), (b"authorization", b"")],
    ],
)
def test_a_key_comes_as_a_bearer_token_or_as_x_api_key(headers: list[tuple[bytes, bytes]]) -> None:
    assert secret_of(headers) == "sk-1"


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"authorization", b"sk-1")],
        [(b"authorization", b"Basic dTpw")],
        [(b"authorization", b"Bearer ")],
        [(b"x-api-key", b"")],
        [(b"x-api-key", b"sk-1"), (b"authorization", b"Bearer sk-2")],
        [(b"authorization", b"Bearer sk-1"), (b"authorization", b"Bearer sk-2")],
        [(b"x-api-key", b" "), (b"authorization", b"Bearer")],
        [(b"x-api-key", b"sk-\xff")],
        [(b"x-api-key", "sk-é".encode())],
        [(b"x-api-key", b"sk-\x00")],
        [(b"x-api-key", b"x" * 513)],
    ],
)
def test_none_two_or_odd_ones_are_no_key(headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(InvalidApiKey):
        secret_of(headers)


# Words

_INVALID, _PERMISSION, _RATE = "invalid_request_error", "permission_error", "rate_limit_error"
REFUSALS: list[tuple[Refusal, int, str, str, str]] = [
    (errors.BadRequest("x", code="invalid_json"), 400, _INVALID, "invalid_json", _INVALID),
    (errors.InvalidApiKey(), 401, _INVALID, "invalid_api_key", "authentication_error"),
    (errors.TenantSuspended(), 403, _PERMISSION, "tenant_suspended", _PERMISSION),
    (errors.ModelNotAllowed("m"), 403, _PERMISSION, "model_not_allowed", _PERMISSION),
    (errors.BudgetExhausted("x"), 403, _PERMISSION, "budget_exhausted", _PERMISSION),
    (errors.ModelNotFound("m"), 404, _INVALID, "model_not_found", "not_found_error"),
    (errors.PathNotFound("/x"), 404, _INVALID, "not_found", "not_found_error"),
    (errors.MethodNotAllowed("PUT", "/x", ["GET"]), 405, _INVALID, "method_not_allowed", _INVALID),
    (errors.RequestTimeout(1, 2), 408, _INVALID, "request_timeout", _INVALID),
    (errors.RequestTooLarge(1), 413, _INVALID, "request_too_large", "request_too_large"),
    (errors.RateLimited("x", retry_after_secs=1.2), 429, _RATE, "rate_limit_exceeded", _RATE),
    (errors.InternalFailure(), 500, "server_error", "internal_error", "api_error"),
    (errors.UpstreamFailed("x"), 502, "server_error", "upstream_error", "api_error"),
    (errors.UpstreamTimedOut("x"), 504, "server_error", "upstream_timeout", "timeout_error"),
    (errors.AdmissionTimedOut(), 503, "server_error", "admission_timeout", "overloaded_error"),
    (errors.ShuttingDown(), 503, "server_error", "shutting_down", "overloaded_error"),
    (errors.PolicyUnavailable(), 503, "server_error", "policy_unavailable", "overloaded_error"),
]  # fmt: skip


def test_the_table_of_refusals_is_complete() -> None:
    leaves = {
        each
        for _, each in inspect.getmembers(errors, inspect.isclass)
        if issubclass(each, Refusal) and each is not Refusal
    }
    assert {type(refusal) for refusal, *_ in REFUSALS} == leaves


@pytest.mark.parametrize(("refusal", "status", "openai", "code", "anthropic"), REFUSALS)
def test_every_refusal_is_said_in_both_dialects(
    refusal: Refusal, status: int, openai: str, code: str, anthropic: str
) -> None:
    assert refusal.status == status
    said = msgspec.json.decode(dialects.error_body(refusal, Dialect.OPENAI, "r"))
    assert set(said["error"]) == {"message", "type", "param", "code"}
    assert (said["error"]["type"], said["error"]["code"]) == (openai, code)
    said = msgspec.json.decode(dialects.error_body(refusal, Dialect.ANTHROPIC, "r"))
    assert said == {
        "type": "error",
        "error": {"type": anthropic, "message": refusal.message},
        "request_id": "r",
    }


@pytest.mark.parametrize(
    ("refusal", "expected"),
    [
        (errors.RateLimited("x", retry_after_secs=1.2), ("2", "1200", "true")),
        (errors.AdmissionTimedOut(), ("5", "5000", "true")),
        (errors.ShuttingDown(), ("1", "1000", "true")),
        (errors.BudgetExhausted("x"), (None, None, "false")),
        (errors.TenantSuspended(), (None, None, "false")),
        (errors.UpstreamFailed("x"), (None, None, None)),
    ],
)
def test_clients_are_told_whether_and_when_to_try_again(
    refusal: Refusal, expected: tuple[str | None, ...]
) -> None:
    headers = {name.decode(): value.decode() for name, value in dialects.error_headers(refusal)}
    names = ("retry-after", "retry-after-ms", "x-should-retry")
    assert tuple(headers.get(name) for name in names) == expected


def test_names_that_clients_send_are_shown_short_and_harmless() -> None:
    assert errors.ModelNotFound("a\r\nb").message == "The model `a\ufffd\ufffdb` does not exist."
    assert len(errors.ModelNotFound("x" * 10_000).message) < 200


@pytest.mark.parametrize(
    ("secs", "text"),
    [
        (0, "0s"),
        (-1, "0s"),
        (0.0001, "1ms"),
        (0.82, "820ms"),
        (1, "1s"),
        (1.5, "1.5s"),
        (59.9999, "1m0s"),
        (360, "6m0s"),
        (3661.25, "1h1m1.25s"),
        (7200, "2h0m0s"),
    ],
)
def test_times_are_written_as_openai_writes_them(secs: float, text: str) -> None:
    assert dialects.duration(secs) == text


def test_a_per_minute_budget_is_stated_in_three_headers() -> None:
    headers = dict(dialects.rate_limit_headers(RateLimitState(1000, 40, 57.6)))
    assert headers == {
        b"x-ratelimit-limit-tokens": b"1000",
        b"x-ratelimit-remaining-tokens": b"40",
        b"x-ratelimit-reset-tokens": b"57.6s",
    }


@pytest.mark.parametrize("given", ["abc-123", "A._:/+=@~-z", "x" * 128])
def test_a_harmless_request_id_is_kept(given: str) -> None:
    assert request_id(given.encode()) == given


@pytest.mark.parametrize(
    "given", [b"", b"a b", b"a\r\nset-cookie: x=1", b"\xe4\xbd\xa0", b"x" * 129, b'"', b"{}"]
)
def test_any_other_request_id_is_replaced(given: bytes) -> None:
    found = request_id(given)
    assert found.encode() != given
    assert len(found) == 36


def test_a_model_is_listed_for_clients_of_both_apis() -> None:
    model = ModelPolicy(id="0190163d-8694-739b-aea5-966c26f8ad91", name="m")
    listed = msgspec.json.decode(model_list.model_list([model]))
    assert listed["object"] == "list"
    assert (listed["first_id"], listed["has_more"]) == ("m", False)
    [item] = listed["data"]
    assert (item["id"], item["object"], item["created"]) == ("m", "model", 1718360049)
    assert (item["type"], item["created_at"]) == ("model", "2024-06-14T10:14:09Z")
    assert msgspec.json.decode(model_list.model_list([]))["data"] == []
    assert msgspec.json.decode(model_list.one_model(ModelPolicy(id="x", name="n")))["created"] == 0
