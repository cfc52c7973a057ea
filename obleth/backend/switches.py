"""How the backend can be made to misbehave, request by request.

A switch is set, each over the one before: at construction for all models, at construction or over
`PUT /sim/faults` for one model, in the model's name (`chat+status=500,retry-after=7`; such a name
is a model of its own), by a header (`x-sim-status: 500`) that a gateway passes on as it would
any other. `SWITCHES` is the whole table. Times are real milliseconds, whatever the backend's speed.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

HEADER_PREFIX: Final = "x-sim-"
TENANT_HEADER: Final = "x-sim-tenant"
"""Not a switch: a name for the sender, kept in the log."""


class BadSwitch(ValueError):
    """A switch that does not exist or cannot take that value; the text names both."""


@dataclass(frozen=True, slots=True)
class Faults:
    """What is wrong with one answer. The defaults are a healthy backend."""

    status: int | None = None
    retry_after: str | None = None
    location: str | None = None
    refuse: bool = False
    mute: bool = False
    head_delay_ms: float = 0
    head_gap_ms: float = 0
    first_token_ms: float = 0
    token_ms: float | None = None
    output_tokens: int | None = None
    cut: str | None = None
    cut_after: int = 3
    endless: bool = False
    done: bool = True
    encoding: str | None = None
    framing: str | None = None
    write_bytes: int | None = None
    newline: str = "lf"
    data_space: bool = True
    comments: int = 0
    keepalive_ms: float = 0
    empty_events: bool = False
    multiline: bool = False
    line_bytes: int = 0
    text: str = "ascii"
    usage: str | None = None
    stream_options: str = "honour"
    answer_headers: frozenset[str] = frozenset()

    def changed(self, values: Mapping[str, str]) -> Faults:
        """These faults with switches set by name (without the prefix). Raises BadSwitch."""
        if not values:
            return self
        parsed: dict[str, Any] = {}
        for name, value in values.items():
            switch = _BY_NAME.get(name)
            if switch is None:
                raise BadSwitch(f"there is no switch {HEADER_PREFIX}{name}")
            try:
                parsed[switch.field] = switch.parse(value.strip())
            except ValueError as error:
                raise BadSwitch(
                    f"{HEADER_PREFIX}{name}: {value!r} is not {switch.takes}"
                ) from error
        return dataclasses.replace(self, **parsed)


@dataclass(frozen=True, slots=True)
class Switch:
    """One row of the table: its name without prefix, what it takes, what it does."""

    name: str
    takes: str
    does: str
    parse: Callable[[str], object]

    @property
    def field(self) -> str:
        return self.name.replace("-", "_")

    @property
    def header(self) -> str:
        return HEADER_PREFIX + self.name


def _flag(value: str) -> bool:
    if value in ("1", "true"):
        return True
    if value in ("0", "false"):
        return False
    raise ValueError(value)


def _number(least: int, most: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        if not (value.isascii() and value.isdigit()) or not least <= int(value) <= most:
            raise ValueError(value)
        return int(value)

    return parse


def _milliseconds(value: str) -> float:
    number = float(value)
    if not 0 <= number <= 86_400_000:
        raise ValueError(value)
    return number


def _one_of(*names: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value not in names:
            raise ValueError(value)
        return value

    return parse


def _some_of(*names: str) -> Callable[[str], frozenset[str]]:
    one = _one_of(*names)
    return lambda value: frozenset(one(part.strip()) for part in value.split(","))


def _header_text(value: str) -> str:
    if not value or any(ord(char) < 32 or ord(char) > 126 for char in value):
        raise ValueError(value)
    return value


def _usage(value: str) -> str:
    if value not in ("none", "always"):
        count = json.loads(value, parse_constant=_refuse)
        if isinstance(count, list | dict | bool | None):
            raise ValueError(value)
    return value


def _refuse(value: str) -> object:
    raise ValueError(value)


_MS: Final = "milliseconds"
_FLAG: Final = "0 or 1"

SWITCHES: Final = (
    Switch("status", "200…599", "answer with this status", _number(200, 599)),
    Switch("retry-after", "a header value", "send `Retry-After`", _header_text),
    Switch("location", "a URL", "send `Location`", _header_text),
    Switch("refuse", _FLAG, "reset the connection before any byte, without a slot", _flag),
    Switch("mute", _FLAG, "keep the slot and never answer", _flag),
    Switch("head-delay-ms", _MS, "wait before the response head", _milliseconds),
    Switch("head-gap-ms", _MS, "send the head byte by byte with this gap", _milliseconds),
    Switch("first-token-ms", _MS, "wait between the head and the first token", _milliseconds),
    Switch("token-ms", _MS, "time each output token takes", _milliseconds),
    Switch("output-tokens", "0…10000000", "exact length of the reply", _number(0, 10_000_000)),
    Switch(
        "cut",
        "rst, fin, end, mid-event, error or stall",
        "break the body off: connection reset; closed with the body unfinished; the body ended "
        "properly but without its last events; closed in the middle of an event; an error event "
        "and a proper end; silence",
        _one_of("rst", "fin", "end", "mid-event", "error", "stall"),
    ),
    Switch("cut-after", "0…10000000", "events sent whole before it (3)", _number(0, 10_000_000)),
    Switch("endless", _FLAG, "never stop: one token each `token-ms`, at least 1 ms", _flag),
    Switch("done", _FLAG, "0 ends a stream without its `[DONE]`", _flag),
    Switch("encoding", "gzip", "compress, whatever was asked for", _one_of("gzip")),
    Switch("framing", "chunked or close", "how a body ends", _one_of("chunked", "close")),
    Switch("write-bytes", "1…1048576", "send in writes of this size", _number(1, 1 << 20)),
    Switch("newline", "lf, crlf or cr", "line ends of a stream", _one_of("lf", "crlf", "cr")),
    Switch("data-space", _FLAG, "0 writes `data:{` without a space", _flag),
    Switch("comments", "0…100", "comment lines before each event", _number(0, 100)),
    Switch("keepalive-ms", _MS, "a comment each so often until the first token", _milliseconds),
    Switch("empty-events", _FLAG, "an event without data before each event", _flag),
    Switch("multiline", _FLAG, "spread each event's data over several `data:` lines", _flag),
    Switch(
        "line-bytes", "0…134217728", "make the first piece of text this long", _number(0, 1 << 27)
    ),
    Switch("text", "ascii or unicode", "characters of the reply", _one_of("ascii", "unicode")),
    Switch(
        "usage",
        "none, always, or a JSON number or string",
        "leave usage out; send it unasked; put the value in place of each count",
        _usage,
    ),
    Switch(
        "stream-options",
        "honour, ignore or refuse",
        "what becomes of `stream_options`: obeyed, ignored, 400",
        _one_of("honour", "ignore", "refuse"),
    ),
    Switch(
        "answer-headers",
        "hop, duplicate, two-lengths (a list)",
        "add hop-by-hop headers; some headers twice; a second, different Content-Length",
        _some_of("hop", "duplicate", "two-lengths"),
    ),
)  # fmt: skip

HEALTHY: Final = Faults()
_BY_NAME: Final = {switch.name: switch for switch in SWITCHES}


def from_headers(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The switches among a request's headers (names in lower case)."""
    return {
        name.removeprefix(HEADER_PREFIX): value
        for name, value in headers
        if name.startswith(HEADER_PREFIX) and name != TENANT_HEADER
    }


def from_model_name(model: str) -> dict[str, str]:
    """The switches in a model's name: `chat+mute` is `mute=1`. Raises BadSwitch.

    A plus sign at the very end is part of an ordinary name.
    """
    found = {}
    text = model.partition("+")[2]
    for part in text.split(",") if text else ():
        name, equals, value = part.partition("=")
        if not name:
            raise BadSwitch(f"the model name {model!r} has an empty switch after its +")
        found[name] = value if equals else "1"
    return found


def table() -> list[tuple[str, str, str]]:
    """The whole table as (header, what it takes, what it does)."""
    return [(switch.header, switch.takes, switch.does) for switch in SWITCHES]
