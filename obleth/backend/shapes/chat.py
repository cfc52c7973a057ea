"""`/v1/chat/completions` and `/v1/completions`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from obleth.backend import tokens
from obleth.backend.events import DONE, Event
from obleth.backend.shapes import port
from obleth.backend.shapes.port import Ask, BadAsk, Body, Reply, Say


def usage(reply: Reply) -> dict[str, Any] | None:
    """Usage as OpenAI's completions report it."""
    figures = reply.figures
    if figures is None:
        return None
    return {
        "prompt_tokens": figures.prompt,
        "completion_tokens": figures.output,
        "total_tokens": figures.total,
        "prompt_tokens_details": {"cached_tokens": figures.cached},
    }


def finish_reason(reply: Reply) -> str:
    return "stop" if reply.complete else "length"


class _Completions(port.OpenAIErrors):
    """What chat and text completions share: one choice, a usage chunk on request, `[DONE]`."""

    kind: ClassVar[str]
    chunk_kind: ClassVar[str]
    prefix: ClassVar[str]

    def pieces(self, reply: Reply) -> Say:
        return port.template(self._chunk(reply, self._delta(port.PLACE)).data)

    def closing(self, reply: Reply) -> Sequence[Event]:
        events = [self._chunk(reply, self._end(finish_reason(reply)))]
        figures = usage(reply)
        if reply.stream_usage and figures is not None:
            events.append(self._chunk(reply, None, figures))
        return [*events, DONE]

    def _head(self, reply: Reply, kind: str) -> dict[str, Any]:
        return {
            "id": f"{self.prefix}-{reply.number}",
            "object": kind,
            "created": reply.created,
            "model": reply.ask.model,
            "system_fingerprint": "sim",
        }

    def _chunk(
        self, reply: Reply, choice: dict[str, Any] | None, figures: dict[str, Any] | None = None
    ) -> Event:
        body = self._head(reply, self.chunk_kind)
        body["choices"] = [] if choice is None else [choice]
        if reply.stream_usage:
            body["usage"] = figures
        return Event(port.encoded(body))

    def _answer(self, reply: Reply, choice: dict[str, Any]) -> bytes:
        body = self._head(reply, self.kind)
        body["choices"] = [choice]
        if (figures := usage(reply)) is not None:
            body["usage"] = figures
        return port.encoded(body)

    def _delta(self, text: str) -> dict[str, Any]:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": None}

    def _end(self, reason: str) -> dict[str, Any]:
        return {**self._delta(""), "finish_reason": reason}


class Chat(_Completions):
    """`/v1/chat/completions`."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    prefix = "chatcmpl"

    def ask(self, body: Body) -> Ask:
        return Ask(
            model=port.required_model(body),
            prompt=port.conversation(body, "messages"),
            max_tokens=port.token_limit(body, "max_completion_tokens", "max_tokens"),
            stream=port.flag(body, "stream"),
        )

    def whole(self, reply: Reply) -> bytes:
        return self._answer(
            reply,
            {
                "index": 0,
                "message": {"role": "assistant", "content": reply.text, "refusal": None},
                "logprobs": None,
                "finish_reason": finish_reason(reply),
            },
        )

    def opening(self, reply: Reply) -> Sequence[Event]:
        return [self._chunk(reply, self._choice({"role": "assistant", "content": ""}))]

    def _delta(self, text: str) -> dict[str, Any]:
        return self._choice({"content": text})

    def _end(self, reason: str) -> dict[str, Any]:
        return self._choice({}, reason)

    @staticmethod
    def _choice(delta: dict[str, str], reason: str | None = None) -> dict[str, Any]:
        return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}


class Completion(_Completions):
    """`/v1/completions`: a prompt in text, in token numbers, or a list of either."""

    kind = "text_completion"
    chunk_kind = "text_completion"
    prefix = "cmpl"

    def ask(self, body: Body) -> Ask:
        return Ask(
            model=port.required_model(body),
            prompt=tokens.whole(bare_text(body, "prompt")),
            max_tokens=port.token_limit(body, "max_tokens"),
            stream=port.flag(body, "stream"),
        )

    def whole(self, reply: Reply) -> bytes:
        choice = self._delta(reply.text)
        return self._answer(reply, {**choice, "finish_reason": finish_reason(reply)})

    def opening(self, reply: Reply) -> Sequence[Event]:
        return ()


def bare_text(body: Body, field: str) -> str:
    """A text, token numbers, or a list of either, as one text. Raises BadAsk."""

    def text(value: object) -> str:
        if isinstance(value, str):
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return f"{value % 0xFFFF:04x}"
        if isinstance(value, list):
            return "".join(text(part) for part in value)
        raise BadAsk(400, f"{field} must be text or a list of texts or of tokens", field)

    return text(body.get(field))
