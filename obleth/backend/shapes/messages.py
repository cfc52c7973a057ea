"""`/v1/messages` and `/v1/messages/count_tokens`, as Anthropic's API has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from obleth.backend import tokens
from obleth.backend.events import Event
from obleth.backend.shapes import port
from obleth.backend.shapes.port import Ask, BadAsk, Body, Reply, Say

_ERROR_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


class _Errors:
    def error(self, status: int, message: str, param: str | None = None) -> bytes:
        kind = _ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
        return port.encoded({"type": "error", "error": {"type": kind, "message": message}})

    def error_event(self, message: str) -> Event:
        return Event(self.error(500, message), "error")


class Messages(_Errors):
    """`/v1/messages`. Cached tokens are counted apart from `input_tokens`."""

    def ask(self, body: Body) -> Ask:
        limit = port.token_limit(body, "max_tokens")
        if limit is None:
            raise BadAsk(400, "max_tokens: Field required", "max_tokens")
        return Ask(
            model=port.required_model(body),
            prompt=port.conversation(body, "messages", system=body.get("system")),
            max_tokens=limit,
            stream=port.flag(body, "stream"),
        )

    def whole(self, reply: Reply) -> bytes:
        content = [{"type": "text", "text": reply.text}]
        return port.encoded(self._message(reply, content, self._reason(reply), None))

    def opening(self, reply: Reply) -> Sequence[Event]:
        return [
            _event("message_start", message=self._message(reply, [], None, 1)),
            _event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
            _event("ping"),
        ]

    def pieces(self, reply: Reply) -> Say:
        delta = {"type": "text_delta", "text": port.PLACE}
        event = _event("content_block_delta", index=0, delta=delta)
        return port.template(event.data, event.name)

    def closing(self, reply: Reply) -> Sequence[Event]:
        ending: dict[str, Any] = {
            "delta": {"stop_reason": self._reason(reply), "stop_sequence": None}
        }
        if reply.figures is not None:
            ending["usage"] = {"output_tokens": reply.figures.output}
        return [
            _event("content_block_stop", index=0),
            _event("message_delta", **ending),
            _event("message_stop"),
        ]

    @staticmethod
    def _reason(reply: Reply) -> str:
        return "end_turn" if reply.complete else "max_tokens"

    @staticmethod
    def _message(
        reply: Reply, content: list[Any], reason: str | None, output: int | None
    ) -> dict[str, Any]:
        """The message; `output` stands for the count that is not known at its start."""
        message: dict[str, Any] = {
            "id": f"msg_{reply.number}",
            "type": "message",
            "role": "assistant",
            "model": reply.ask.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": None,
        }
        figures = reply.figures
        if figures is not None:
            message["usage"] = {
                "input_tokens": figures.uncached,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": figures.cached,
                "output_tokens": figures.output if output is None else output,
            }
        return message


class CountTokens(_Errors, port.SingleAnswer):
    """`/v1/messages/count_tokens`."""

    def ask(self, body: Body) -> Ask:
        prompt = port.conversation(body, "messages", system=body.get("system"))
        return Ask(port.required_model(body), prompt, generates=False)

    def whole(self, reply: Reply) -> bytes:
        return port.encoded({"input_tokens": tokens.count(reply.ask.prompt)})


def _event(kind: str, **fields: Any) -> Event:
    return Event(port.encoded({"type": kind, **fields}), kind)
