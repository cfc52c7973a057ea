"""LangChain's ChatOpenAI: does every feature and prints what it was told, as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import openai
from langchain_openai import ChatOpenAI

url, key, given = sys.argv[1:]
told = json.loads(given)


def chat(model: str, **options: Any) -> Any:
    return ChatOpenAI(base_url=url, api_key=key, model=model, max_retries=1, **options)


def tools() -> list[Any]:
    bound = chat("tools").bind_tools([{"type": "function", "function": told["tool"]}])
    called = bound.invoke(told["prompt"]).tool_calls[0]
    whole = None
    for chunk in bound.stream(told["prompt"]):
        whole = chunk if whole is None else whole + chunk
    streamed = whole.tool_calls[0]
    return [called["name"], called["args"], streamed["name"], streamed["args"]]


def usage() -> list[int]:
    sim = chat("sim", max_tokens=told["tokens"], stream_usage=True)
    found = [sim.invoke(told["prompt"]).usage_metadata]
    found += [c.usage_metadata for c in sim.stream(told["prompt"]) if c.usage_metadata]
    return [each[name] for each in found for name in ("input_tokens", "output_tokens")]


def error() -> list[Any]:
    try:
        chat(told["absent"]).invoke(told["prompt"])
    except openai.NotFoundError as error:
        return [error.status_code, error.type, error.code]
    raise AssertionError("there is no such model")


sim = chat("sim", max_tokens=told["tokens"])
print(
    json.dumps(
        {
            "plain": sim.invoke(told["prompt"]).content,
            "stream": "".join(chunk.content for chunk in sim.stream(told["prompt"])),
            "tools": tools(),
            "usage": usage(),
            "error": error(),
            "retry": chat("flaky").invoke(told["prompt"]).content,
            "models": [model.id for model in sim.root_client.models.list()],
        }
    )
)
