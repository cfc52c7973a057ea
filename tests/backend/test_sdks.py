"""The official SDKs against the backend: what works for them works for other clients."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import pairwise

import anthropic
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from obleth.backend import SimulatedBackend

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "abcd" * 30}]
"""30 tokens and 4 for the message: two blocks of 16 and a bit."""


@pytest.fixture
async def backend() -> AsyncIterator[SimulatedBackend]:
    async with SimulatedBackend(models=("one", "two"), cache_tokens=1000) as running:
        yield running


@pytest.fixture
async def client(backend: SimulatedBackend) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=backend.url, api_key="k", max_retries=0) as client:
        yield client


@pytest.fixture
async def claude(backend: SimulatedBackend) -> AsyncIterator[anthropic.AsyncAnthropic]:
    url = backend.root_url
    async with anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as client:
        yield client


async def test_a_chat_has_exactly_the_tokens_it_asked_for(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="one", messages=HELLO, max_tokens=7)
    assert answer.usage
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (34, 7)
    assert answer.choices[0].message.content == "A shared model answers one s"
    assert answer.choices[0].finish_reason == "length"


async def test_a_chat_without_a_limit_comes_to_its_end(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="one", messages=HELLO)
    assert answer.choices[0].finish_reason == "stop"


async def test_the_second_of_two_like_prompts_finds_its_whole_blocks_cached(
    client: openai.AsyncOpenAI,
) -> None:
    cached = []
    for _ in range(2):
        answer = await client.chat.completions.create(model="one", messages=HELLO, max_tokens=1)
        assert answer.usage
        assert answer.usage.prompt_tokens_details
        cached.append(answer.usage.prompt_tokens_details.cached_tokens)
    assert cached == [0, 32]


async def test_the_next_turn_of_a_conversation_finds_the_last_reply_cached(
    client: openai.AsyncOpenAI,
) -> None:
    first = await client.chat.completions.create(model="one", messages=HELLO, max_tokens=26)
    said = first.choices[0].message.content
    following: list[ChatCompletionMessageParam] = [
        *HELLO,
        {"role": "assistant", "content": said},
        {"role": "user", "content": "go on"},
    ]
    second = await client.chat.completions.create(model="one", messages=following, max_tokens=1)
    assert second.usage
    assert second.usage.prompt_tokens_details
    assert second.usage.prompt_tokens_details.cached_tokens == 64


async def test_a_streamed_chat_is_the_whole_one_in_pieces(client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(model="one", messages=HELLO, max_tokens=5)
    text, usages = "", []
    async for chunk in await client.chat.completions.create(
        model="one", messages=HELLO, max_tokens=5, stream=True
    ):
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
        usages.append(chunk.usage)
    assert text == whole.choices[0].message.content
    assert not any(usages)


async def test_usage_ends_a_stream_that_asks_for_it(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="one",
        messages=HELLO,
        max_tokens=5,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].usage
    assert chunks[-1].usage.completion_tokens == 5
    assert chunks[-1].choices == []
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)


async def test_text_completions_work_whole_and_streamed(client: openai.AsyncOpenAI) -> None:
    whole = await client.completions.create(model="one", prompt="abcd", max_tokens=3)
    assert whole.usage
    assert whole.usage.total_tokens == 4
    stream = await client.completions.create(model="one", prompt="abcd", max_tokens=3, stream=True)
    pieces = [chunk.choices[0].text async for chunk in stream]
    assert "".join(pieces) == whole.choices[0].text


async def test_embeddings_are_the_same_for_the_same_text(client: openai.AsyncOpenAI) -> None:
    answer = await client.embeddings.create(model="one", input=["a", "b", "a"])
    first, other, again = (one.embedding for one in answer.data)
    assert first == again != other
    plain = await client.embeddings.create(model="one", input="a", encoding_format="float")
    assert plain.data[0].embedding == pytest.approx(first)


async def test_a_response_works_whole_and_streamed(client: openai.AsyncOpenAI) -> None:
    short = await client.responses.create(model="one", input="hi", max_output_tokens=4)
    assert short.usage
    assert (short.status, short.usage.output_tokens) == ("incomplete", 4)
    whole = await client.responses.create(model="one", input="hi")
    async with client.responses.stream(model="one", input="hi") as stream:
        numbers = [event.sequence_number async for event in stream]
        final = await stream.get_final_response()
    assert final.output_text == whole.output_text
    assert all(later == earlier + 1 for earlier, later in pairwise(numbers))


async def test_uploads_images_and_models_are_answered(client: openai.AsyncOpenAI) -> None:
    heard = await client.audio.transcriptions.create(model="w", file=("a.wav", b"0" * 3_000_000))
    assert heard.text == "A recording of 3000000 bytes."
    drawn = await client.images.generate(model="i", prompt="grey", n=2)
    assert drawn.data
    assert len(drawn.data) == 2
    assert [model.id async for model in client.models.list()] == ["one", "two"]
    assert (await client.models.retrieve("two")).id == "two"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("three")


async def test_a_message_works_whole_and_streamed(claude: anthropic.AsyncAnthropic) -> None:
    whole = await claude.messages.create(
        model="one", max_tokens=3, messages=[{"role": "user", "content": "abcd" * 30}]
    )
    assert (whole.usage.input_tokens, whole.usage.output_tokens) == (34, 3)
    assert whole.stop_reason == "max_tokens"
    async with claude.messages.stream(
        model="one", max_tokens=3, messages=[{"role": "user", "content": "abcd" * 30}]
    ) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        usage = (await stream.get_final_message()).usage
    assert text == whole.content[0].text  # type: ignore[union-attr]
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (2, 32, 3)


async def test_tokens_can_be_counted_without_a_reply(claude: anthropic.AsyncAnthropic) -> None:
    counted = await claude.messages.count_tokens(
        model="one", system="abcd", messages=[{"role": "user", "content": "abcdefgh"}]
    )
    assert counted.input_tokens == 4 + 1 + 4 + 2
    assert [model.id async for model in claude.models.list()] == ["one", "two"]


async def test_errors_come_in_the_callers_dialect(
    client: openai.AsyncOpenAI, claude: anthropic.AsyncAnthropic
) -> None:
    with pytest.raises(openai.RateLimitError) as limited:
        await client.chat.completions.create(
            model="one",
            messages=HELLO,
            extra_headers={"x-sim-status": "429", "x-sim-retry-after": "7"},
        )
    assert limited.value.response.headers["retry-after"] == "7"
    with pytest.raises(anthropic.RateLimitError) as refused:
        await claude.messages.create(
            model="one",
            max_tokens=1,
            messages=[{"role": "user", "content": "x"}],
            extra_headers={"x-sim-status": "429"},
        )
    assert refused.value.body == {
        "type": "error",
        "error": {"type": "rate_limit_error", "message": "simulated status 429"},
    }
