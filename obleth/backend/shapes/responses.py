"""`/v1/responses`: the least that OpenAI's SDKs take for a response, whole and streamed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from obleth.backend import tokens
from obleth.backend.events import Event
from obleth.backend.shapes import port
from obleth.backend.shapes.port import Ask, BadAsk, Body, Reply, Say

_OPENING_EVENTS: Final = 4


class Responses(port.OpenAIErrors):
    """One message of one text part; every event is numbered."""

    def ask(self, body: Body) -> Ask:
        given = body.get("input")
        instructions = body.get("instructions")
        if isinstance(given, str):
            messages = [("user", given)]
            if instructions:
                messages.insert(0, ("system", port.plain_text(instructions)))
            prompt = tokens.prompt(messages)
        elif isinstance(given, list):
            prompt = port.conversation(body, "input", system=instructions)
        else:
            raise BadAsk(400, "input must be text or a list", "input")
        return Ask(
            model=port.required_model(body),
            prompt=prompt,
            max_tokens=port.token_limit(body, "max_output_tokens"),
            stream=port.flag(body, "stream"),
        )

    def whole(self, reply: Reply) -> bytes:
        return port.encoded(self._response(reply, finished=True))

    def opening(self, reply: Reply) -> Sequence[Event]:
        begun = self._response(reply, finished=False)
        return [
            _event("response.created", 0, response=begun),
            _event("response.in_progress", 1, response=begun),
            _event("response.output_item.added", 2, output_index=0, item=_item(reply, [])),
            _event("response.content_part.added", 3, **_at(reply), part=_part("")),
        ]

    def pieces(self, reply: Reply) -> Say:
        kind = "response.output_text.delta"

        def say(index: int, text: str) -> Event:
            number = _OPENING_EVENTS + index
            return _event(kind, number, **_at(reply), delta=text, logprobs=[])

        return say

    def closing(self, reply: Reply) -> Sequence[Event]:
        number = _OPENING_EVENTS + reply.output_tokens
        part = _part(reply.text)
        end = "response.completed" if reply.complete else "response.incomplete"
        return [
            _event("response.output_text.done", number, **_at(reply), text=reply.text, logprobs=[]),
            _event("response.content_part.done", number + 1, **_at(reply), part=part),
            _event(
                "response.output_item.done", number + 2, output_index=0, item=_item(reply, [part])
            ),
            _event(end, number + 3, response=self._response(reply, finished=True)),
        ]

    def error_event(self, message: str) -> Event:
        return _event("error", 0, code="server_error", message=message, param=None)

    @staticmethod
    def _response(reply: Reply, *, finished: bool) -> dict[str, Any]:
        status = "completed" if reply.complete else "incomplete"
        response: dict[str, Any] = {
            "id": f"resp_{reply.number}",
            "object": "response",
            "created_at": reply.created,
            "status": status if finished else "in_progress",
            "error": None,
            "incomplete_details": (
                {"reason": "max_output_tokens"} if finished and not reply.complete else None
            ),
            "instructions": reply.body.get("instructions"),
            "max_output_tokens": reply.ask.max_tokens,
            "metadata": {},
            "model": reply.ask.model,
            "output": [_item(reply, [_part(reply.text)])] if finished else [],
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
        }
        if finished and reply.figures is not None:
            response["usage"] = {
                "input_tokens": reply.figures.prompt,
                "input_tokens_details": {"cached_tokens": reply.figures.cached},
                "output_tokens": reply.figures.output,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": reply.figures.total,
            }
        return response


def _at(reply: Reply) -> dict[str, Any]:
    return {"item_id": f"msg_{reply.number}", "output_index": 0, "content_index": 0}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _item(reply: Reply, content: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": f"msg_{reply.number}",
        "type": "message",
        "role": "assistant",
        "status": "completed" if content else "in_progress",
        "content": content,
    }


def _event(kind: str, number: int, **fields: Any) -> Event:
    return Event(port.encoded({"type": kind, "sequence_number": number, **fields}), kind)
