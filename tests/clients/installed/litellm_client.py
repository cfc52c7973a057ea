"""LiteLLM as a client: does every feature and prints what it was told, as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import litellm

url, key, given = sys.argv[1:]
told = json.loads(given)
asked = [{"role": "user", "content": told["prompt"]}]
litellm.suppress_debug_info = True


def ask(model: str, **options: Any) -> Any:
    return litellm.completion(
        model=f"openai/{model}", api_base=url, api_key=key, messages=asked, **options
    )


def function(answer: Any) -> list[Any]:
    called = answer.choices[0].message.tool_calls[0].function
    return [called.name, json.loads(called.arguments)]


def tools() -> list[Any]:
    offered = [{"type": "function", "function": told["tool"]}]
    chunks = list(ask("tools", tools=offered, stream=True))
    return [
        *function(ask("tools", tools=offered)),
        *function(litellm.stream_chunk_builder(chunks, messages=asked)),
    ]


def usage() -> list[int]:
    options = {"max_tokens": told["tokens"], "stream": True}
    chunks = list(ask("sim", stream_options={"include_usage": True}, **options))
    found = [ask("sim", max_tokens=told["tokens"]).usage]
    found += [chunk.usage for chunk in chunks if getattr(chunk, "usage", None)]
    return [part for each in found for part in (each.prompt_tokens, each.completion_tokens)]


def error() -> list[Any]:
    try:
        ask(told["absent"])
    except litellm.NotFoundError as error:
        return [error.status_code, "invalid_request_error", str(error)]
    raise AssertionError("there is no such model")


sim = {"max_tokens": told["tokens"]}
print(
    json.dumps(
        {
            "plain": ask("sim", **sim).choices[0].message.content,
            "stream": "".join(
                chunk.choices[0].delta.content or "" for chunk in ask("sim", stream=True, **sim)
            ),
            "tools": tools(),
            "usage": usage(),
            "error": error(),
            "retry": ask("flaky", max_retries=1).choices[0].message.content,
            "models": litellm.get_valid_models(
                check_provider_endpoint=True,
                custom_llm_provider="openai",
                api_base=url,
                api_key=key,
            ),
        }
    )
)
