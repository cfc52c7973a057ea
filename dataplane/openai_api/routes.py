"""What is served where. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from dataplane.errors import MethodNotAllowed, PathNotFound

API: Final = "/v1"


class Dialect(Enum):
    """Whose API a caller speaks."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


class Kind(Enum):
    """What is done with a request."""

    ALIVE = "alive"
    MODEL_LIST = "model_list"
    MODEL = "model"
    FORWARD = "forward"


@dataclass(frozen=True, slots=True)
class Route:
    """One path, as far as requests to it differ."""

    kind: Kind
    path: str
    dialect: Dialect = Dialect.OPENAI
    generates_text: bool = True
    """Whether output tokens are to be expected of it."""
    uses_tokens: bool = True
    """Whether a model works on it at all."""
    reports_usage_on_request: bool = False
    """Whether streams report usage only to those who set `stream_options.include_usage`."""
    takes_uploads: bool = False
    """Whether the body may be `multipart/form-data`."""
    answers_in_text: bool = True
    """Whether the size of an answer tells its tokens where nothing else does; not of images."""
    model: str = ""
    """Of `Kind.MODEL`: the name in the path."""


_FORWARDED: Final = {
    route.path: route
    for route in (
        Route(Kind.FORWARD, "/v1/chat/completions", reports_usage_on_request=True),
        Route(Kind.FORWARD, "/v1/completions", reports_usage_on_request=True),
        Route(Kind.FORWARD, "/v1/responses"),
        Route(Kind.FORWARD, "/v1/embeddings", generates_text=False),
        Route(Kind.FORWARD, "/v1/rerank", generates_text=False),
        Route(Kind.FORWARD, "/v1/messages", Dialect.ANTHROPIC),
        Route(Kind.FORWARD, "/v1/messages/count_tokens", Dialect.ANTHROPIC, uses_tokens=False),
    )
}
_PASSED_THROUGH: Final = re.compile(r"/v1/(?:audio|images)(?:/[A-Za-z0-9_-]{1,64}){1,4}")
"""Whatever an upstream serves below these; nothing in a path that could lead out of them."""
_TRANSCRIBING: Final = ("/v1/audio/transcriptions", "/v1/audio/translations")
_READ: Final = ("GET", "HEAD")


def dialect_of(path: str, *, says_anthropic_version: bool) -> Dialect:
    """Whose words an answer is to use, known before the request has been understood.

    Paths that both APIs have go by the header that Anthropic's clients always send.
    """
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        return Dialect.ANTHROPIC
    if says_anthropic_version and path not in _FORWARDED:
        return Dialect.ANTHROPIC
    return Dialect.OPENAI


def match(method: str, path: str) -> Route:
    """The route of a request. Raises `PathNotFound` and `MethodNotAllowed`."""
    route = _FORWARDED.get(path)
    if route is None:
        route = _other(path)
    allowed = ("POST",) if route.kind is Kind.FORWARD else _READ
    if method not in allowed:
        raise MethodNotAllowed(method, path, allowed)
    return route


def _other(path: str) -> Route:
    if path == "/":
        return Route(Kind.ALIVE, path)
    if path == "/v1/models":
        return Route(Kind.MODEL_LIST, path)
    if path.startswith("/v1/models/") and len(path) > len("/v1/models/"):
        return Route(Kind.MODEL, path, model=path.removeprefix("/v1/models/"))
    if _PASSED_THROUGH.fullmatch(path):
        in_text = path in _TRANSCRIBING
        return Route(Kind.FORWARD, path, takes_uploads=True, answers_in_text=in_text)
    raise PathNotFound(path)
