"""What every dialect is to the rest of the backend: a question read, an answer written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from obleth.backend import tokens
from obleth.backend.events import Event

Body = dict[str, Any]
"""A JSON object, or the fields of a form."""

Say = Callable[[int, str], Event]
PLACE: Final = "\N{PLACE OF INTEREST SIGN}"


class BadAsk(Exception):
    """A question the backend refuses, as a server of its kind would."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param


@dataclass(frozen=True, slots=True)
class Ask:
    """What a request asks for, in any dialect."""

    model: str
    prompt: str
    """The whole prompt as one text (`tokens.prompt`)."""
    max_tokens: int | None = None
    stream: bool = False
    generates: bool = True
    """Whether there is a reply in tokens; embeddings and the like only read."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The usage a reply reports: counts, or whatever nonsense was asked for in their place."""

    prompt: Any
    cached: Any
    output: Any
    total: Any
    uncached: Any


@dataclass(frozen=True, slots=True)
class Reply:
    """What was worked out for a request, ready to be put into words."""

    number: int
    created: int
    """Unix seconds."""
    ask: Ask
    body: Mapping[str, Any]
    text: str
    output_tokens: int
    complete: bool
    """False: cut short by the request's own limit."""
    figures: Figures | None
    """None: usage is left out."""
    stream_usage: bool
    """Whether an OpenAI stream carries its usage chunk."""


class Shape(Protocol):
    """One dialect. A stream is `opening`, a piece for each token, and `closing`."""

    def ask(self, body: Body) -> Ask:
        """Read a question. Raises BadAsk."""
        ...

    def whole(self, reply: Reply) -> bytes: ...

    def opening(self, reply: Reply) -> Sequence[Event]: ...

    def pieces(self, reply: Reply) -> Say:
        """What makes the event of one piece of text, given its index."""
        ...

    def closing(self, reply: Reply) -> Sequence[Event]: ...

    def error(self, status: int, message: str, param: str | None = None) -> bytes: ...

    def error_event(self, message: str) -> Event: ...


class SingleAnswer:
    """The half of a Shape that answers without a stream needs: there is none."""

    def opening(self, reply: Reply) -> Sequence[Event]:
        return ()

    def pieces(self, reply: Reply) -> Say:
        return template(encoded({"text": PLACE}))

    def closing(self, reply: Reply) -> Sequence[Event]:
        return ()


class OpenAIErrors:
    """Errors as OpenAI writes them."""

    def error(self, status: int, message: str, param: str | None = None) -> bytes:
        kind = "invalid_request_error" if status < 429 else "server_error"
        if status == 429:
            kind = "rate_limit_error"
        return encoded(
            {"error": {"message": message, "type": kind, "param": param, "code": f"sim_{status}"}}
        )

    def error_event(self, message: str) -> Event:
        return Event(self.error(500, message))


encoded = msgspec.json.encode


def template(data: bytes, name: str | None = None) -> Say:
    """Events that differ only in the text that stands for `PLACE`: cheaper than encoding each."""
    before, _, after = data.rpartition(encoded(PLACE))

    def say(index: int, text: str) -> Event:
        return Event(b"%b%b%b" % (before, encoded(text), after), name)

    return say


def required_model(body: Body) -> str:
    """The request's model. Raises BadAsk."""
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise BadAsk(400, "you must provide a model parameter", "model")
    return model


def token_limit(body: Body, *names: str) -> int | None:
    """The first of these fields that is set. Raises BadAsk."""
    for name in names:
        value = body.get(name)
        if value is not None:
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise BadAsk(400, f"{name} must be a whole number, at least 1", name)
            return value
    return None


def flag(body: Body, name: str) -> bool:
    """A field that is true or false, false when missing. Raises BadAsk."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise BadAsk(400, f"{name} must be true or false", name)
    return bool(value)


def conversation(body: Body, field: str, *, system: object = None) -> str:
    """The prompt of a list of messages: tools, system text, then the messages in order.

    Raises BadAsk when the field is not a list of objects.
    """
    messages = body.get(field)
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        raise BadAsk(400, f"{field} must be a list of messages", field)
    found = []
    if body.get("tools"):
        found.append(("tools", json.dumps(body["tools"], sort_keys=True)))
    if system:
        found.append(("system", plain_text(system)))
    for message in messages:
        text = plain_text(message.get("content", message.get("output")))
        if message.get("tool_calls"):
            text += json.dumps(message["tool_calls"])
        found.append((str(message.get("role") or message.get("type") or "user"), text))
    return tokens.prompt(found)


def plain_text(content: object) -> str:
    """The text of a message's content; what is not text (an image) is its digest, 16 tokens."""
    match content:
        case None:
            return ""
        case str():
            return content
        case list():
            return "".join(plain_text(part) for part in content)
        case {"text": str(text)}:
            return text
        case {"content": inner}:
            return plain_text(inner)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
