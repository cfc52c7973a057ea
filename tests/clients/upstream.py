"""An upstream that calls tools and that is down every other time, in each of the three dialects."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from aiohttp import web

from tests.listeners import application

TOOLS, FLAKY = "tools", "flaky"
"""The models it serves."""
CALLED = "weather"
ARGUMENTS = {"city": "Zürich"}
_TEXT = json.dumps(ARGUMENTS, ensure_ascii=False)
SAID = "back again"
AGAIN = {"retry-after-ms": "1", "retry-after": "0", "x-should-retry": "true"}
"""What makes a client try again, and soon."""


class Dialect(NamedTuple):
    error: Any
    call: Any
    """A whole answer that calls the tool."""
    events: list[Any]
    """The same as a stream."""
    text: Any


_CHAT: dict[str, Any] = {"id": "c1", "created": 1, "model": "sim"}
_CHAT_USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}


def _chat(message: dict[str, Any], reason: str) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}
    return {**_CHAT, "object": "chat.completion", "choices": [choice], "usage": _CHAT_USAGE}


def _chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return {**_CHAT, "object": "chat.completion.chunk", "choices": [choice]}


def _called(arguments: str, **more: Any) -> dict[str, Any]:
    return {**more, "type": "function", "function": {"name": CALLED, "arguments": arguments}}


def _arguments(part: str) -> dict[str, Any]:
    return _chunk({"tool_calls": [{"index": 0, "function": {"arguments": part}}]})


CHAT = Dialect(
    error={"error": {"message": "loading", "type": "server_error", "code": None}},
    call=_chat({"content": None, "tool_calls": [_called(_TEXT, id="t1")]}, "tool_calls"),
    events=[
        _chunk({"role": "assistant", "content": None}),
        _chunk({"tool_calls": [_called("", index=0, id="t1")]}),
        _arguments(_TEXT[:5]),
        _arguments(_TEXT[5:]),
        _chunk({}, "tool_calls"),
        {**_chunk({}), "choices": [], "usage": _CHAT_USAGE},
    ],
    text=_chat({"content": SAID}, "stop"),
)

_STOP = {"stop_reason": "tool_use", "stop_sequence": None}
_USE = {"type": "tool_use", "id": "t1", "name": CALLED}


def _message(content: Any, reason: str | None) -> dict[str, Any]:
    return {
        "id": "m1",
        "type": "message",
        "role": "assistant",
        "model": "sim",
        "content": content,
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": {"input_tokens": 9, "output_tokens": 3},
    }


def _input(part: str) -> dict[str, Any]:
    delta = {"type": "input_json_delta", "partial_json": part}
    return {"type": "content_block_delta", "index": 0, "delta": delta}


MESSAGES = Dialect(
    error={"type": "error", "error": {"type": "overloaded_error", "message": "loading"}},
    call=_message([{**_USE, "input": ARGUMENTS}], "tool_use"),
    events=[
        {"type": "message_start", "message": _message([], None)},
        {"type": "content_block_start", "index": 0, "content_block": {**_USE, "input": {}}},
        _input(_TEXT[:5]),
        _input(_TEXT[5:]),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": _STOP, "usage": {"output_tokens": 3}},
        {"type": "message_stop"},
    ],
    text=_message([{"type": "text", "text": SAID}], "end_turn"),
)

_ITEM = {
    "type": "function_call",
    "id": "f1",
    "call_id": "t1",
    "name": CALLED,
    "arguments": _TEXT,
    "status": "completed",
}


def _response(status: str, *output: Any) -> dict[str, Any]:
    return {
        "id": "r1",
        "object": "response",
        "created_at": 1,
        "model": "sim",
        "status": status,
        "output": list(output),
        "usage": {"input_tokens": 9, "output_tokens": 3, "total_tokens": 12},
    }


_SPOKEN = {"type": "message", "id": "o1", "role": "assistant", "status": "completed"}
RESPONSES = Dialect(
    error=CHAT.error,
    call=_response("completed", _ITEM),
    events=[
        {"type": "response.created", "response": _response("in_progress")},
        {"type": "response.output_item.added", "output_index": 0, "item": _ITEM},
        {"type": "response.output_item.done", "output_index": 0, "item": _ITEM},
        {"type": "response.completed", "response": _response("completed", _ITEM)},
    ],
    text=_response(
        "completed",
        {**_SPOKEN, "content": [{"type": "output_text", "text": SAID, "annotations": []}]},
    ),
)
DIALECTS = {"chat/completions": CHAT, "messages": MESSAGES, "responses": RESPONSES}


@dataclass
class Upstream:
    url: str = ""
    posts: list[str] = field(default_factory=list)
    """The model of each POST."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            return web.json_response({"object": "list", "data": []})
        body = await request.json()
        dialect = DIALECTS[request.path.removeprefix("/v1/")]
        self.posts.append(body["model"])
        if body["model"] == FLAKY:
            if self.posts.count(FLAKY) % 2:
                return web.json_response(dialect.error, status=503, headers=AGAIN)
            return web.json_response(dialect.text)
        assert CALLED in json.dumps(body["tools"]), "tools come as they were sent"
        if not body.get("stream"):
            return web.json_response(dialect.call)
        return await _streamed(request, dialect)


async def _streamed(request: web.Request, dialect: Dialect) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for event in dialect.events:
        name = f"event: {event['type']}\n" if "type" in event else ""
        await response.write(f"{name}data: {json.dumps(event)}\n\n".encode())
    if dialect is CHAT:
        await response.write(b"data: [DONE]\n\n")
    return response


@asynccontextmanager
async def upstream() -> AsyncIterator[Upstream]:
    made = Upstream()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.handle)
    async with application(app) as port:
        made.url = f"http://127.0.0.1:{port}/v1"
        yield made
