"""Refusal: every answer the gateway itself gives instead of an upstream's.

One class for each reason. A class says its status and its words in both API dialects; an instance
adds the sentence for whoever reads it and, where waiting helps, for how long. `openai_api.dialects`
turns them into bytes. Raised anywhere on a request's path and answered in one place.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar, Final

SHOWN_NAME_CHARS: Final = 128
"""Names that clients send are cut to this length where a message repeats them."""


class Refusal(Exception):
    """A request the gateway answers itself. Only leaves are raised."""

    status: ClassVar[int]
    openai_type: ClassVar[str]
    anthropic_type: ClassVar[str]
    code: str
    """Stable, for programs; only the OpenAI dialect shows it."""
    param: str | None = None
    """The field of the request that is to blame."""
    retry_after_secs: float | None = None
    """When another try may succeed; None: nothing is known about that."""
    should_retry: bool | None = None
    """What SDKs are told in so many words; None leaves it to the status."""
    closes_connection: bool = False
    """Whether the rest of what the client sends cannot be trusted or waited for."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message: Final = message


class BadRequest(Refusal):
    """400: the request cannot be understood."""

    status = 400
    openai_type = "invalid_request_error"
    anthropic_type = "invalid_request_error"

    def __init__(
        self, message: str, *, code: str, param: str | None = None, closes: bool = False
    ) -> None:
        super().__init__(message)
        self.code = code
        self.param = param
        self.closes_connection = closes


class InvalidApiKey(Refusal):
    """401, alike for a key that is missing, unknown, disabled, expired, or one of two."""

    status = 401
    openai_type = "invalid_request_error"
    anthropic_type = "authentication_error"
    code = "invalid_api_key"

    def __init__(self) -> None:
        super().__init__(
            "No valid API key. Send one key of this gateway as `Authorization: Bearer <key>` or"
            " `x-api-key: <key>`."
        )


class TenantSuspended(Refusal):
    """403: an operator has suspended the tenant."""

    status = 403
    openai_type = "permission_error"
    anthropic_type = "permission_error"
    code = "tenant_suspended"
    should_retry = False

    def __init__(self) -> None:
        super().__init__("This key's tenant is suspended.")


class ModelNotAllowed(Refusal):
    """403: the tenant may not use this model."""

    status = 403
    openai_type = "permission_error"
    anthropic_type = "permission_error"
    code = "model_not_allowed"
    param = "model"
    should_retry = False

    def __init__(self, model: str) -> None:
        super().__init__(f"This key may not use the model {shown(model)}.")


class BudgetExhausted(Refusal):
    """403: the token budget of a term is spent; no retry helps until the term ends."""

    status = 403
    openai_type = "permission_error"
    anthropic_type = "permission_error"
    code = "budget_exhausted"
    should_retry = False


class ModelNotFound(Refusal):
    """404: no such model, or it is disabled, or it was deleted while the request waited."""

    status = 404
    openai_type = "invalid_request_error"
    anthropic_type = "not_found_error"
    code = "model_not_found"
    param = "model"

    def __init__(self, model: str) -> None:
        super().__init__(f"The model {shown(model)} does not exist.")


class PathNotFound(Refusal):
    """404: the gateway has nothing at this path."""

    status = 404
    openai_type = "invalid_request_error"
    anthropic_type = "not_found_error"
    code = "not_found"

    def __init__(self, path: str) -> None:
        super().__init__(
            f"There is nothing at {shown(path)}. This gateway serves the OpenAI and Anthropic APIs"
            " under /v1, for example POST /v1/chat/completions, POST /v1/messages, GET /v1/models."
        )


class MethodNotAllowed(Refusal):
    """405: the path exists, with other methods."""

    status = 405
    openai_type = "invalid_request_error"
    anthropic_type = "invalid_request_error"
    code = "method_not_allowed"

    def __init__(self, method: str, path: str, allowed: Collection[str]) -> None:
        self.allowed: Final = ", ".join(allowed)
        super().__init__(f"{shown(path)} takes {self.allowed}, not {shown(method)}.")


class RequestTimeout(Refusal):
    """408: the client sends its body too slowly."""

    status = 408
    openai_type = "invalid_request_error"
    anthropic_type = "invalid_request_error"
    code = "request_timeout"
    closes_connection = True

    def __init__(self, waited_secs: float, received_bytes: int) -> None:
        super().__init__(
            f"The request's body did not arrive in time: {received_bytes:,} bytes came while the"
            f" gateway waited {waited_secs:.3g} seconds."
        )


class RequestTooLarge(Refusal):
    """413: the body is over the limit."""

    status = 413
    openai_type = "invalid_request_error"
    anthropic_type = "request_too_large"
    code = "request_too_large"

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"The request's body is larger than the {limit_bytes:,} bytes allowed.")


class RateLimited(Refusal):
    """429: the tokens of this minute are spent; `retry_after_secs` is when they are back."""

    status = 429
    openai_type = "rate_limit_error"
    anthropic_type = "rate_limit_error"
    code = "rate_limit_exceeded"
    should_retry = True

    def __init__(
        self,
        message: str,
        *,
        retry_after_secs: float,
        tokens: tuple[int, int, float] | None = None,
    ) -> None:
        """`tokens`: the budget's size, what is left of it, and the seconds until it is full."""
        super().__init__(message)
        self.retry_after_secs = retry_after_secs
        self.tokens = tokens


class InternalFailure(Refusal):
    """500: a fault of the gateway's own. The log has it under the request's id."""

    status = 500
    openai_type = "server_error"
    anthropic_type = "api_error"
    code = "internal_error"

    def __init__(self) -> None:
        super().__init__("The gateway failed to handle this request.")


class UpstreamFailed(Refusal):
    """502: no endpoint of the model could be reached, or the one that was broke off."""

    status = 502
    openai_type = "server_error"
    anthropic_type = "api_error"
    code = "upstream_error"


class UpstreamTimedOut(Refusal):
    """504: the upstream took too long."""

    status = 504
    openai_type = "server_error"
    anthropic_type = "timeout_error"
    code = "upstream_timeout"


class AdmissionTimedOut(Refusal):
    """503: no slot became free in time."""

    status = 503
    openai_type = "server_error"
    anthropic_type = "overloaded_error"
    code = "admission_timeout"
    retry_after_secs = 5
    should_retry = True

    def __init__(self) -> None:
        super().__init__("The model is busy: no slot became free in time. Try again shortly.")


class ShuttingDown(Refusal):
    """503: this replica is going away; another one, or its successor, answers."""

    status = 503
    openai_type = "server_error"
    anthropic_type = "overloaded_error"
    code = "shutting_down"
    retry_after_secs = 1
    should_retry = True
    closes_connection = True

    def __init__(self) -> None:
        super().__init__("The gateway is shutting down. Try again.")


class PolicyUnavailable(Refusal):
    """503: whether the request is allowed cannot be told at the moment."""

    status = 503
    openai_type = "server_error"
    anthropic_type = "overloaded_error"
    code = "policy_unavailable"
    retry_after_secs = 1
    should_retry = True

    def __init__(self) -> None:
        super().__init__("The gateway cannot read its policy at the moment. Try again shortly.")


def shown(name: str) -> str:
    """A client's own text as messages repeat it: quoted, escaped, and cut to a bearable length."""
    if len(name) > SHOWN_NAME_CHARS:
        name = name[:SHOWN_NAME_CHARS] + "…"
    return "`" + "".join(c if c.isprintable() else "\ufffd" for c in name) + "`"
