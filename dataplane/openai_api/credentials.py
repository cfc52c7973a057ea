"""Which key a request brings. Pure."""

from __future__ import annotations

from typing import Final

from dataplane.errors import InvalidApiKey
from dataplane.proxy.headers import Headers

_KEY_CHARS_MAX: Final = 512


def secret_of(headers: Headers) -> str:
    """The one key in the headers, from a bearer token or `x-api-key`.

    Raises `InvalidApiKey` when there is none, when there are two different ones, or when what is
    there cannot be a key. An `Authorization` of another scheme is somebody else's and no key, and a
    header that is left blank, as clients send of the variable that is not in use, is none either.
    """
    found = set()
    for name, value in headers:
        if name == b"x-api-key":
            found.add(value.strip())
        elif name == b"authorization":
            scheme, _, token = value.strip().partition(b" ")
            if scheme.lower() == b"bearer":
                found.add(token.strip())
    found.discard(b"")
    if len(found) != 1:
        raise InvalidApiKey
    secret = found.pop()
    if len(secret) > _KEY_CHARS_MAX or not secret.isascii():
        raise InvalidApiKey
    text = secret.decode("ascii")
    if not text.isprintable():
        raise InvalidApiKey
    return text
