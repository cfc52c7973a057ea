"""Which headers cross the gateway, each way. Pure.

A header crosses unless it belongs to one connection, to the gateway itself, or would carry a
client's credentials to somebody else. Names are lower-case bytes on the client's side, as ASGI has
them, and text on the upstream's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

Headers = Iterable[tuple[bytes, bytes]]

_HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_NOT_TO_UPSTREAM: Final = _HOP_BY_HOP | {
    # The client's credentials, under every name that SDKs send them by.
    b"authorization",
    b"x-api-key",
    b"api-key",
    b"x-goog-api-key",
    b"cookie",
    # What the gateway says itself.
    b"host",
    b"content-length",
    b"accept-encoding",
    b"expect",
    b"x-request-id",
}
_NOT_TO_CLIENT: Final = _HOP_BY_HOP | {
    # What this server says itself.
    b"date",
    b"server",
    b"x-request-id",
    b"request-id",
    # What concerns the upstream's own host: its cookies are the gateway's, not a client's.
    b"set-cookie",
    b"alt-svc",
    b"strict-transport-security",
}
_OWN_PREFIX: Final = b"x-obleth-"
_RATE_LIMIT: Final = frozenset(
    {b"x-ratelimit-limit-tokens", b"x-ratelimit-remaining-tokens", b"x-ratelimit-reset-tokens"}
)
_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_FORBIDDEN_IN_VALUE: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


def _named_in_connection(headers: Headers) -> frozenset[bytes]:
    """Headers that `Connection` declares to concern this connection alone."""
    return frozenset(
        token.strip().lower()
        for name, value in headers
        if name == b"connection"
        for token in value.split(b",")
    )


def to_upstream(headers: Headers, *, secret: bytes) -> list[tuple[str, str]]:
    """The client's headers that an upstream sees.

    `secret` is the client's key: a header that carries it under any name stays here. A value that
    is not UTF-8 stays here too; no upstream could be told it as it was meant.
    """
    headers = list(headers)
    dropped = _NOT_TO_UPSTREAM | _named_in_connection(headers)
    crossing = []
    for name, value in headers:
        if name in dropped or (secret and secret in value):
            continue
        try:
            crossing.append((name.decode("ascii"), value.decode()))
        except UnicodeDecodeError:
            continue
    return crossing


def credentials(api_key: str | None, *, anthropic: bool) -> list[tuple[str, str]]:
    """How an endpoint is shown its own key: as a bearer token, and as Anthropic's API takes it."""
    if api_key is None:
        return []
    bearer = ("authorization", f"Bearer {api_key}")
    return [bearer, ("x-api-key", api_key)] if anthropic else [bearer]


def to_client(
    headers: Headers, *, keeps_length: bool, own_rate_limit: bool
) -> list[tuple[bytes, bytes]]:
    """The upstream's headers that the client sees.

    `keeps_length`: the body crosses unchanged, so its declared length is still true.
    `own_rate_limit`: the gateway states its own token budget, which replaces the upstream's.
    Headers that no HTTP server could send (control characters) stay here.
    """
    headers = [(name.lower(), value) for name, value in headers]
    dropped = _NOT_TO_CLIENT | _named_in_connection(headers)
    if not keeps_length or any(name == b"transfer-encoding" for name, _ in headers):
        dropped |= {b"content-length"}
    if own_rate_limit:
        dropped |= _RATE_LIMIT
    return [
        (name, value)
        for name, value in headers
        if name not in dropped
        and not name.startswith(_OWN_PREFIX)
        and _NAME.fullmatch(name)
        and not _FORBIDDEN_IN_VALUE.search(value)
    ]


def find(headers: Headers, name: bytes) -> bytes | None:
    """The first value of a header, by its lower-case name."""
    for each, value in headers:
        if each == name:
            return value
    return None
