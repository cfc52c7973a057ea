"""Requests as coding agents send them: their paths, headers and bodies, without the agents.

Such an agent streams nearly always; where the table asks for a whole answer it is the same request
without `stream`. Each names its session in its own way, and the gateway has to recognise it.
"""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

import httpx

from tests.clients.table import ABSENT, PROMPT, TOKENS, TOOL, Shop
from tests.clients.upstream import FLAKY, TOOLS

SESSION = "3f1c2f6e-9c57-4c2f-8a55-1d4f0a7b9e21"


class Agent(ABC):
    """What all have in common: a POST, and events read as they are."""

    path: str
    of_streams: ClassVar[dict[str, Any]] = {"stream": True}
    """What a request for a stream has besides."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.client = httpx.AsyncClient(
            base_url=shop.root, headers=self.headers(shop.key), trust_env=False, timeout=30
        )

    @abstractmethod
    def headers(self, key: str) -> dict[str, str]:
        """Of every request."""

    @abstractmethod
    def body(self, model: str) -> dict[str, Any]:
        """Of a request, without `stream`."""

    @abstractmethod
    def text_of(self, answer: Any) -> str:
        """What a whole answer says."""

    @abstractmethod
    def text_in(self, events: list[Any]) -> str:
        """What a stream says."""

    @abstractmethod
    def call_of(self, answer: Any) -> list[Any]:
        """Name and arguments of the tool called by a whole answer."""

    @abstractmethod
    def call_in(self, events: list[Any]) -> list[Any]:
        """The same of a stream."""

    @abstractmethod
    def usage_of(self, answer: Any) -> list[int]: ...

    @abstractmethod
    def usage_in(self, events: list[Any]) -> list[int]: ...

    async def whole(self, model: str) -> httpx.Response:
        answer = await self.client.post(self.path, json=self.body(model))
        if answer.is_success:
            assert answer.headers["x-obleth-session"] == "client"
        return answer

    async def events(self, model: str) -> list[Any]:
        body = {**self.body(model), **self.of_streams}
        async with self.client.stream("POST", self.path, json=body) as answer:
            assert answer.status_code == 200, await answer.aread()
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines = [line async for line in answer.aiter_lines()]
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        return [json.loads(each) for each in data if each != "[DONE]"]

    async def plain(self) -> str:
        return self.text_of((await self.whole("sim")).json())

    async def stream(self) -> str:
        return self.text_in(await self.events("sim"))

    async def tools(self) -> list[Any]:
        whole = self.call_of((await self.whole(TOOLS)).json())
        return whole + self.call_in(await self.events(TOOLS))

    async def usage(self) -> list[int]:
        whole = self.usage_of((await self.whole("sim")).json())
        return whole + self.usage_in(await self.events("sim"))

    async def error(self) -> list[Any]:
        answer = await self.whole(ABSENT)
        error = answer.json()["error"]
        return [answer.status_code, error["type"], error.get("code") or error["message"]]

    async def retry(self) -> str:
        """As an agent does it: the headers say whether, and when."""
        first = await self.whole(FLAKY)
        assert first.status_code == 503
        assert "loading" in first.text
        assert first.headers["x-should-retry"] == "true"
        await asyncio.sleep(float(first.headers["retry-after-ms"]) / 1000)
        return self.text_of((await self.whole(FLAKY)).json())

    async def models(self) -> list[str]:
        answer = await self.client.get("/v1/models")
        return [model["id"] for model in answer.json()["data"]]


class ClaudeCode(Agent):
    """Claude Code: Anthropic's dialect with betas, the session in `metadata` and a header."""

    path = "/v1/messages?beta=true"

    def headers(self, key: str) -> dict[str, str]:
        return {
            "authorization": f"Bearer {key}",
            "anthropic-version": "2023-06-01",
            "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
            "anthropic-dangerous-direct-browser-access": "true",
            "x-app": "cli",
            "user-agent": "claude-cli/2.0.42 (external, cli)",
            "x-stainless-lang": "js",
            "x-stainless-retry-count": "0",
            "x-claude-code-session-id": SESSION,
        }

    def body(self, model: str) -> dict[str, Any]:
        cached = {"cache_control": {"type": "ephemeral"}}
        tool = {"name": TOOL["name"], "description": TOOL["description"]}
        return {
            "model": model,
            "max_tokens": TOKENS,
            "system": [{"type": "text", "text": "You are a coding agent.", **cached}],
            "messages": [{"role": "user", "content": [{"type": "text", "text": PROMPT, **cached}]}],
            "tools": [{**tool, "input_schema": TOOL["parameters"]}],
            "metadata": {"user_id": f"user_1_account_2_session_{SESSION}"},
        }

    def text_of(self, answer: Any) -> str:
        return str(answer["content"][0]["text"])

    def text_in(self, events: list[Any]) -> str:
        deltas = (each["delta"] for each in _of(events, "content_block_delta"))
        return "".join(delta["text"] for delta in deltas)

    def call_of(self, answer: Any) -> list[Any]:
        return [answer["content"][0]["name"], answer["content"][0]["input"]]

    def call_in(self, events: list[Any]) -> list[Any]:
        (begun,) = _of(events, "content_block_start")
        deltas = (each["delta"] for each in _of(events, "content_block_delta"))
        text = "".join(delta["partial_json"] for delta in deltas)
        return [begun["content_block"]["name"], json.loads(text)]

    def usage_of(self, answer: Any) -> list[int]:
        return [answer["usage"]["input_tokens"], answer["usage"]["output_tokens"]]

    def usage_in(self, events: list[Any]) -> list[int]:
        (begun,), (ended,) = _of(events, "message_start"), _of(events, "message_delta")
        return [begun["message"]["usage"]["input_tokens"], ended["usage"]["output_tokens"]]


class Codex(Agent):
    """Codex: responses that are not stored, the session in headers and `prompt_cache_key`."""

    path = "/v1/responses"

    def headers(self, key: str) -> dict[str, str]:
        return {
            "authorization": f"Bearer {key}",
            "originator": "codex_cli_rs",
            "user-agent": "codex_cli_rs/0.63.0 (Debian 12; x86_64) xterm",
            "openai-beta": "responses=experimental",
            "version": "0.63.0",
            "session_id": SESSION,
            "conversation_id": SESSION,
        }

    def body(self, model: str) -> dict[str, Any]:
        return {
            "model": model,
            "instructions": "You are a coding agent.",
            "input": [
                {
                    "type": "message",
                    "role": "user",
                    "content": [{"type": "input_text", "text": PROMPT}],
                }
            ],
            "tools": [{"type": "function", "strict": False, **TOOL}],
            "tool_choice": "auto",
            "parallel_tool_calls": False,
            "reasoning": {"effort": "medium", "summary": "auto"},
            "store": False,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": SESSION,
            "max_output_tokens": TOKENS,
        }

    def text_of(self, answer: Any) -> str:
        return str(answer["output"][0]["content"][0]["text"])

    def text_in(self, events: list[Any]) -> str:
        return "".join(each["delta"] for each in _of(events, "response.output_text.delta"))

    def call_of(self, answer: Any) -> list[Any]:
        return [answer["output"][0]["name"], json.loads(answer["output"][0]["arguments"])]

    def call_in(self, events: list[Any]) -> list[Any]:
        return self.call_of(events[-1]["response"])

    def usage_of(self, answer: Any) -> list[int]:
        return [answer["usage"]["input_tokens"], answer["usage"]["output_tokens"]]

    def usage_in(self, events: list[Any]) -> list[int]:
        return self.usage_of(events[-1]["response"])


class OpenCode(Agent):
    """OpenCode: chat completions as the AI SDK sends them, the session in a header of its own."""

    path = "/v1/chat/completions"
    of_streams: ClassVar[dict[str, Any]] = {
        "stream": True,
        "stream_options": {"include_usage": True},
    }

    def headers(self, key: str) -> dict[str, str]:
        return {
            "authorization": f"Bearer {key}",
            "user-agent": "opencode/1.0.110 ai-sdk/provider-utils/3.0.17 runtime/bun/1.3.2",
            "x-opencode-project": "global",
            "x-opencode-session": "ses_5a1f0c2b4ffe",
            "x-opencode-request": "msg_5a1f0c2b4001",
            "x-opencode-client": "cli",
        }

    def body(self, model: str) -> dict[str, Any]:
        return {
            "model": model,
            "max_tokens": TOKENS,
            "messages": [
                {"role": "system", "content": "You are a coding agent."},
                {"role": "user", "content": [{"type": "text", "text": PROMPT}]},
            ],
            "tools": [{"type": "function", "function": TOOL}],
            "tool_choice": "auto",
        }

    def text_of(self, answer: Any) -> str:
        return str(answer["choices"][0]["message"]["content"])

    def text_in(self, events: list[Any]) -> str:
        deltas = (each["choices"][0]["delta"] for each in events if each["choices"])
        return "".join(delta.get("content") or "" for delta in deltas)

    def call_of(self, answer: Any) -> list[Any]:
        called = answer["choices"][0]["message"]["tool_calls"][0]["function"]
        return [called["name"], json.loads(called["arguments"])]

    def call_in(self, events: list[Any]) -> list[Any]:
        deltas = (each["choices"][0]["delta"] for each in events if each["choices"])
        parts = [part for delta in deltas for part in delta.get("tool_calls", ())]
        text = "".join(part["function"]["arguments"] for part in parts)
        return [parts[0]["function"]["name"], json.loads(text)]

    def usage_of(self, answer: Any) -> list[int]:
        return [answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]]

    def usage_in(self, events: list[Any]) -> list[int]:
        return self.usage_of(events[-1])


def _of(events: Iterable[Any], kind: str) -> list[Any]:
    return [each for each in events if each["type"] == kind]
