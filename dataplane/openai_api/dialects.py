"""The gateway's own answers in the caller's words: errors, errors inside a stream, headers."""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec

from dataplane.budgets.port import RateLimitState
from dataplane.errors import MethodNotAllowed, Refusal
from dataplane.openai_api.routes import Dialect

HeaderList = list[tuple[bytes, bytes]]

JSON: Final = (b"content-type", b"application/json")


def error_body(refusal: Refusal, dialect: Dialect, request_id: str) -> bytes:
    """A refusal as the body of a response."""
    return msgspec.json.encode(_error(refusal, dialect, request_id))


def error_event(refusal: Refusal, dialect: Dialect, request_id: str) -> bytes:
    """A refusal as the last event of a stream that had begun well."""
    data = msgspec.json.encode(_error(refusal, dialect, request_id))
    if dialect is Dialect.ANTHROPIC:
        return b"event: error\ndata: " + data + b"\n\n"
    return b"data: " + data + b"\n\n"


def _error(refusal: Refusal, dialect: Dialect, request_id: str) -> dict[str, Any]:
    if dialect is Dialect.ANTHROPIC:
        return {
            "type": "error",
            "error": {"type": refusal.anthropic_type, "message": refusal.message},
            "request_id": request_id,
        }
    return {
        "error": {
            "message": refusal.message,
            "type": refusal.openai_type,
            "param": refusal.param,
            "code": refusal.code,
        }
    }


def error_headers(refusal: Refusal) -> HeaderList:
    """What a refusal says besides its body: above all, whether and when to try again."""
    headers: HeaderList = [JSON]
    if refusal.retry_after_secs is not None:
        # Whole seconds for everybody; SDKs that read the other header wait no longer than needed.
        secs, millis = math.ceil(refusal.retry_after_secs), refusal.retry_after_secs * 1000
        headers.append((b"retry-after", b"%d" % secs))
        headers.append((b"retry-after-ms", b"%d" % math.ceil(millis)))
    if refusal.should_retry is not None:
        headers.append((b"x-should-retry", b"true" if refusal.should_retry else b"false"))
    if isinstance(refusal, MethodNotAllowed):
        headers.append((b"allow", refusal.allowed.encode("ascii")))
    return headers


def identity_headers(request_id: str, dialect: Dialect) -> HeaderList:
    """The request's id under the names each API's clients look for."""
    value = request_id.encode("ascii")
    headers = [(b"x-request-id", value)]
    if dialect is Dialect.ANTHROPIC:
        headers.append((b"request-id", value))
    return headers


def rate_limit_headers(state: RateLimitState) -> HeaderList:
    """A tenant's per-minute budget, as OpenAI's clients read it."""
    return [
        (b"x-ratelimit-limit-tokens", b"%d" % state.limit),
        (b"x-ratelimit-remaining-tokens", b"%d" % state.remaining),
        (b"x-ratelimit-reset-tokens", duration(state.reset_secs).encode("ascii")),
    ]


def duration(secs: float) -> str:
    """A time as OpenAI writes it: `0s`, `820ms`, `1.5s`, `6m0s`, `1h0m0s`; rounded up to 1 ms."""
    millis = max(0, math.ceil(secs * 1000))
    if 0 < millis < 1000:
        return f"{millis}ms"
    minutes, millis = divmod(millis, 60_000)
    hours, minutes = divmod(minutes, 60)
    whole, rest = divmod(millis, 1000)
    text = f"{whole}s" if not rest else f"{whole}.{rest:03d}".rstrip("0") + "s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text
