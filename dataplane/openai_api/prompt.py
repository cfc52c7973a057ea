"""The text of a request, as far as its length and its beginnings matter. Nothing of it is kept.

All the APIs put text into a few fields: a string, a list of strings or of token numbers, or a list
of messages whose content is a string or a list of parts, which may have content of their own. One
shape reads them all. What does not fit it is left to the upstream to refuse, and counted by size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from dataplane.openai_api.body import JsonBody

_FIELDS: Final = ("system", "instructions", "messages", "input", "prompt", "query", "documents")
"""Where text stands, in the order in which upstreams put it together."""

_NULL: Final = msgspec.Raw(b"null")


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    function: _Function | None = None


class Block(msgspec.Struct):
    """A message, or a part of one."""

    role: str | None = None
    type: str | None = None
    text: str | None = None
    thinking: str | None = None
    content: str | list[str | Block] | None = None
    output: msgspec.Raw = _NULL
    name: str | None = None
    arguments: str | None = None
    input: msgspec.Raw = _NULL
    tool_calls: list[_ToolCall] | None = None

    @property
    def is_message(self) -> bool:
        return self.role is not None

    def texts(self) -> Iterator[str]:
        """Every text in it, in order."""
        for text in (self.text, self.thinking, self.arguments):
            if text is not None:
                yield text
        if self.content is not None:
            yield from texts_of(self.content)
        if not _is_null(self.output):
            yield from texts_of(_texts_in(self.output) or "")
        if not _is_null(self.input):
            yield _as_text(self.input)
        for call in self.tool_calls or ():
            if call.function is not None and call.function.arguments is not None:
                yield call.function.arguments


Texts = str | list[str | int | list[int] | Block]

_decode_texts: Final = msgspec.json.Decoder(Texts).decode
_decode_item: Final = msgspec.json.Decoder(str | int | list[int] | Block).decode
_decode_list: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


def _texts_in(raw: msgspec.Raw) -> Texts | None:
    try:
        return _decode_texts(raw)
    except (msgspec.DecodeError, RecursionError):
        return None


class _Tool(msgspec.Struct):
    name: str | None = None
    function: _Function | None = None


_decode_tools: Final = msgspec.json.Decoder(list[_Tool]).decode


class Prompt:
    """A request's text. Made anew for each use and dropped after it.

    Takes about 10 ms a megabyte to make: for large bodies, not on the event loop.
    """

    def __init__(self, body: JsonBody) -> None:
        self._body: Final = body
        self.fields: Final[dict[str, Texts]] = {}
        self.unread: Final[list[str]] = []
        """What has another shape, as raw text."""
        for name in _FIELDS:
            raw = body.fields.get(name)
            if raw is None or _is_null(raw):
                continue
            found = _texts_in(raw)
            self.fields[name] = self._item_by_item(raw) if found is None else found

    def _item_by_item(self, raw: msgspec.Raw) -> Texts:
        """What can be read of a list that holds something of another shape."""
        try:
            items = _decode_list(raw)
        except (msgspec.DecodeError, RecursionError):
            items = [raw]
        readable: list[str | int | list[int] | Block] = []
        for item in items:
            try:
                readable.append(_decode_item(item))
            except (msgspec.DecodeError, RecursionError):
                self.unread.append(_as_text(item))
        return readable

    @property
    def tools(self) -> str:
        """The tools' definitions as raw text, which is how models are told of them."""
        raw = self._body.fields.get("tools")
        return "" if raw is None else _as_text(raw)

    def tool_names(self) -> list[str]:
        """The names of the tools on offer."""
        raw = self._body.fields.get("tools")
        try:
            tools = [] if raw is None else _decode_tools(raw)
        except (msgspec.DecodeError, RecursionError):
            return []
        return [
            (tool.function.name if tool.function is not None else tool.name) or "" for tool in tools
        ]

    def conversation(self) -> list[Block]:
        """The messages, where the API has any."""
        for name in ("messages", "input"):
            found = self.fields.get(name)
            if isinstance(found, list):
                return [each for each in found if isinstance(each, Block)]
        return []


def texts_of(found: str | list[str | Block] | Texts) -> Iterator[str]:
    """Every text in a field's value."""
    if isinstance(found, str):
        yield found
        return
    for each in found:
        if isinstance(each, str):
            yield each
        elif isinstance(each, Block):
            yield from each.texts()


def _is_null(raw: msgspec.Raw) -> bool:
    return bytes(memoryview(raw)[:1]) == b"n"


def _as_text(raw: msgspec.Raw) -> str:
    return str(memoryview(raw), "utf-8")
