"""The SDKs that the tests have at hand: OpenAI's, in both of its dialects, and Anthropic's."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai

from tests.clients.table import ABSENT, PROMPT, TOKENS, TOOL, Shop
from tests.clients.upstream import FLAKY, TOOLS

ASKED: Any = [{"role": "user", "content": PROMPT}]


class OpenAI:
    """`openai`, chat completions."""

    def __init__(self, shop: Shop) -> None:
        self.client = openai.AsyncOpenAI(base_url=shop.url, api_key=shop.key, max_retries=1)
        self.chat = self.client.chat.completions

    async def plain(self) -> str:
        answer = await self.chat.create(model="sim", messages=ASKED, max_tokens=TOKENS)
        return answer.choices[0].message.content or ""

    async def stream(self) -> str:
        stream = await self.chat.create(model="sim", messages=ASKED, max_tokens=TOKENS, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def tools(self) -> list[Any]:
        tools: Any = [{"type": "function", "function": TOOL}]
        whole: Any = await self.chat.create(model=TOOLS, messages=ASKED, tools=tools)
        called = whole.choices[0].message.tool_calls[0].function
        async with self.chat.stream(model=TOOLS, messages=ASKED, tools=tools) as stream:
            last: Any = await stream.get_final_completion()
        streamed = last.choices[0].message.tool_calls[0].function
        found = ((each.name, json.loads(each.arguments)) for each in (called, streamed))
        return [part for each in found for part in each]

    async def usage(self) -> list[int]:
        asked: Any = {"model": "sim", "messages": ASKED, "max_tokens": TOKENS}
        whole = (await self.chat.create(**asked)).usage
        stream = await self.chat.create(
            **asked, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert [chunk.usage is not None for chunk in chunks].count(True) == 1
        streamed = chunks[-1].usage
        return [
            *(whole.prompt_tokens, whole.completion_tokens),
            *(streamed.prompt_tokens, streamed.completion_tokens),
        ]

    async def error(self) -> list[Any]:
        try:
            await self.chat.create(model=ABSENT, messages=ASKED)
        except openai.NotFoundError as error:
            return [error.status_code, error.type, error.code]
        raise AssertionError("there is no such model")

    async def retry(self) -> str:
        answer = await self.chat.create(model=FLAKY, messages=ASKED)
        return answer.choices[0].message.content or ""

    async def models(self) -> list[str]:
        return [model.id async for model in self.client.models.list()]


class OpenAIResponses(OpenAI):
    """`openai`, responses."""

    async def plain(self) -> str:
        asked: Any = {"model": "sim", "input": ASKED, "max_output_tokens": TOKENS}
        return (await self.client.responses.create(**asked)).output_text

    async def stream(self) -> str:
        stream: Any = await self.client.responses.create(
            model="sim", input=ASKED, max_output_tokens=TOKENS, stream=True
        )
        events = [event async for event in stream]
        return "".join(e.delta for e in events if e.type == "response.output_text.delta")

    async def tools(self) -> list[Any]:
        asked: Any = {"model": TOOLS, "input": ASKED, "tools": [{"type": "function", **TOOL}]}
        whole: Any = await self.client.responses.create(**asked)
        async for event in await self.client.responses.create(**asked, stream=True):
            last: Any = event
        found = (response.output[0] for response in (whole, last.response))
        return [part for each in found for part in (each.name, json.loads(each.arguments))]

    async def usage(self) -> list[int]:
        asked: Any = {"model": "sim", "input": ASKED, "max_output_tokens": TOKENS}
        whole: Any = await self.client.responses.create(**asked)
        async for event in await self.client.responses.create(**asked, stream=True):
            last: Any = event
        found = (whole.usage, last.response.usage)
        return [part for each in found for part in (each.input_tokens, each.output_tokens)]

    async def error(self) -> list[Any]:
        try:
            await self.client.responses.create(model=ABSENT, input=ASKED)
        except openai.NotFoundError as error:
            return [error.status_code, error.type, error.code]
        raise AssertionError("there is no such model")

    async def retry(self) -> str:
        return (await self.client.responses.create(model=FLAKY, input=ASKED)).output_text


class Anthropic:
    """`anthropic`."""

    def __init__(self, shop: Shop) -> None:
        self.client = anthropic.AsyncAnthropic(base_url=shop.root, api_key=shop.key, max_retries=1)
        self.asked: Any = {"messages": ASKED, "max_tokens": TOKENS}

    async def plain(self) -> str:
        answer: Any = await self.client.messages.create(model="sim", **self.asked)
        return answer.content[0].text

    async def stream(self) -> str:
        async with self.client.messages.stream(model="sim", **self.asked) as stream:
            return "".join([text async for text in stream.text_stream])

    async def tools(self) -> list[Any]:
        fields = {key: value for key, value in TOOL.items() if key != "parameters"}
        tools: Any = [{**fields, "input_schema": TOOL["parameters"]}]
        whole: Any = await self.client.messages.create(model=TOOLS, tools=tools, **self.asked)
        async with self.client.messages.stream(model=TOOLS, tools=tools, **self.asked) as stream:
            last: Any = await stream.get_final_message()
        found = (message.content[0] for message in (whole, last))
        return [part for each in found for part in (each.name, each.input)]

    async def usage(self) -> list[int]:
        whole = await self.client.messages.create(model="sim", **self.asked)
        async with self.client.messages.stream(model="sim", **self.asked) as stream:
            last = await stream.get_final_message()
        found = (whole.usage, last.usage)
        return [part for each in found for part in (each.input_tokens, each.output_tokens)]

    async def error(self) -> list[Any]:
        try:
            await self.client.messages.create(model=ABSENT, **self.asked)
        except anthropic.NotFoundError as error:
            body: Any = error.body
            return [error.status_code, body["error"]["type"], body["error"]["message"]]
        raise AssertionError("there is no such model")

    async def retry(self) -> str:
        answer: Any = await self.client.messages.create(model=FLAKY, **self.asked)
        return answer.content[0].text

    async def models(self) -> list[str]:
        return [model.id async for model in self.client.models.list()]
