"""The official SDKs through the gateway to the simulated backend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import anthropic
import openai
import pytest
from anthropic.types import MessageParam
from openai.types.chat import ChatCompletionMessageParam

from dataplane.errors import AdmissionTimedOut, BudgetExhausted, RateLimited
from dataplane.openai_api.ports import Figures, Outcome
from obleth.backend import Outcome as BackendOutcome
from obleth.backend import SimulatedBackend
from tests.proxy.parts import SECRET, endpoint, model
from tests.proxy.serving import World, world

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "abcd" * 30}]
BONJOUR: list[MessageParam] = [{"role": "user", "content": "abcd" * 30}]
"""30 tokens and 4 for the message."""


@pytest.fixture
async def backend() -> AsyncIterator[SimulatedBackend]:
    async with SimulatedBackend(api_key="sk-upstream") as running:
        yield running


@pytest.fixture
async def w(backend: SimulatedBackend) -> AsyncIterator[World]:
    keyed = endpoint(backend.url, api_key="sk-upstream")
    served = model(endpoints=(keyed,), upstream_model="sim-model", max_retries=0)
    async with world(served) as running:
        yield running


@pytest.fixture
async def client(w: World) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=w.url, api_key=SECRET, max_retries=0) as client:
        yield client


@pytest.fixture
async def claude(w: World) -> AsyncIterator[anthropic.AsyncAnthropic]:
    url = w.url.removesuffix("/v1")
    async with anthropic.AsyncAnthropic(base_url=url, api_key=SECRET, max_retries=0) as client:
        yield client


# OpenAI's


async def test_a_chat(w: World, client: openai.AsyncOpenAI) -> None:
    raw = await client.chat.completions.with_raw_response.create(
        model="m", messages=HELLO, max_tokens=7
    )
    answer = raw.parse()
    assert answer.choices[0].message.content == "A shared model answers one s"
    assert answer.usage
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (34, 7)
    assert raw.headers["x-obleth-admission"] == "fast"
    assert answer._request_id == raw.headers["x-request-id"]
    record = await w.seen.last()
    assert (record.input_tokens, record.output_tokens) == (34, 7)
    assert (record.estimated_tokens, record.figures) == (34 + 7, Figures.REPORTED)


async def test_a_streamed_chat_has_no_event_its_client_did_not_ask_for(
    w: World, client: openai.AsyncOpenAI
) -> None:
    stream = await client.chat.completions.create(
        model="m", messages=HELLO, max_tokens=5, stream=True
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == "A shared model answe"
    assert all(chunk.usage is None for chunk in chunks)
    record = await w.seen.last()
    assert (record.input_tokens, record.output_tokens) == (34, 5)
    assert record.ttfb_ms is not None


async def test_a_streamed_chat_with_usage(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="m",
        messages=HELLO,
        max_tokens=5,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].choices == []
    assert chunks[-1].usage
    assert chunks[-1].usage.completion_tokens == 5


async def test_the_other_routes_of_openai(
    w: World, backend: SimulatedBackend, client: openai.AsyncOpenAI
) -> None:
    completion = await client.completions.create(model="m", prompt="abcd", max_tokens=2)
    assert completion.choices[0].text
    response = await client.responses.create(model="m", input="abcd", max_output_tokens=16)
    assert response.output_text
    events = await client.responses.create(
        model="m", input="abcd", max_output_tokens=16, stream=True
    )
    kinds = [event.type async for event in events]
    assert (kinds[0], kinds[-1]) == ("response.created", "response.incomplete")
    embedded = await client.embeddings.create(model="m", input=["abcd", "efgh"])
    assert len(embedded.data) == 2
    heard = await client.audio.transcriptions.create(model="m", file=("a.wav", b"RIFF" * 1000))
    assert heard.text
    drawn = await client.images.generate(model="m", prompt="abcd")
    assert drawn.data
    assert [each.id async for each in client.models.list()] == ["m"]
    assert (await client.models.retrieve("m")).id == "m"
    assert {each.figures for each in w.seen.finished[:4]} == {Figures.REPORTED}
    assert {record.model for record in backend.log} == {"sim-model"}
    assert {record.header("authorization") for record in backend.log} == {"Bearer sk-upstream"}


async def test_errors_are_the_sdks_own_kinds_with_their_codes(
    w: World, client: openai.AsyncOpenAI
) -> None:
    async def fails(kind: type[openai.APIStatusError], code: str, name: str = "m") -> None:
        with pytest.raises(kind) as raised:
            await client.chat.completions.create(model=name, messages=HELLO)
        assert raised.value.code == code
        assert raised.value.request_id

    await fails(openai.NotFoundError, "model_not_found", "nope")
    await fails(openai.BadRequestError, "missing_model", "")
    w.budget.check_fails_with = BudgetExhausted("Spent.")
    await fails(openai.PermissionDeniedError, "budget_exhausted")
    w.budget.check_fails_with = RateLimited("Slow.", retry_after_secs=1)
    await fails(openai.RateLimitError, "rate_limit_exceeded")
    w.budget.check_fails_with = AdmissionTimedOut()
    await fails(openai.InternalServerError, "admission_timeout")
    w.policy.keys.clear()
    await fails(openai.AuthenticationError, "invalid_api_key")


async def test_sdks_try_again_what_is_worth_it_and_nothing_else(w: World) -> None:
    async with openai.AsyncOpenAI(base_url=w.url, api_key=SECRET, max_retries=2) as client:
        w.budget.check_fails_with = BudgetExhausted("Spent.")
        with pytest.raises(openai.PermissionDeniedError):
            await client.chat.completions.create(model="m", messages=HELLO)
        assert len(w.budget.checked) == 1
        w.budget.checked.clear()
        w.budget.check_fails_with = RateLimited("Slow.", retry_after_secs=0.02)
        with pytest.raises(openai.RateLimitError):
            await client.chat.completions.create(model="m", messages=HELLO)
        assert len(w.budget.checked) == 3


@pytest.mark.parametrize("cut", ["rst", "fin", "mid-event"])
async def test_a_broken_stream_is_an_error_to_the_sdk_and_no_end(
    w: World, client: openai.AsyncOpenAI, cut: str
) -> None:
    stream = await client.chat.completions.create(
        model="m", messages=HELLO, stream=True, extra_headers={"x-sim-cut": cut}
    )
    with pytest.raises(openai.APIError) as raised:
        async for chunk in stream:
            assert chunk.choices[0].finish_reason is None
    assert raised.value.code == "upstream_error"
    assert (await w.seen.last()).outcome is Outcome.BROKEN


async def test_a_broken_response_stream_is_an_error_to_the_sdk_too(
    client: openai.AsyncOpenAI,
) -> None:
    events = await client.responses.create(
        model="m", input="abcd", stream=True, extra_headers={"x-sim-cut": "rst"}
    )
    with pytest.raises(openai.APIError) as raised:
        async for event in events:
            assert event.type != "response.completed"
    assert raised.value.code == "upstream_error"


async def test_leaving_a_stream_ends_it_at_the_backend(
    w: World, backend: SimulatedBackend, client: openai.AsyncOpenAI
) -> None:
    stream = await client.chat.completions.create(
        model="m",
        messages=HELLO,
        stream=True,
        extra_headers={"x-sim-endless": "1", "x-sim-token-ms": "5"},
    )
    async for _ in stream:
        break
    assert backend.running("sim-model") == 1
    await stream.close()
    await backend.until(lambda: backend.running("sim-model") == 0)
    assert backend.log[0].outcome is BackendOutcome.CLIENT_LEFT
    assert (await w.seen.last()).outcome is Outcome.CLIENT_LEFT


async def test_a_slot_lasts_until_the_last_byte(w: World, backend: SimulatedBackend) -> None:
    w.gate.slots = 1
    async with openai.AsyncOpenAI(base_url=w.url, api_key=SECRET, max_retries=0) as client:

        async def one() -> None:
            stream = await client.chat.completions.create(
                model="m", messages=HELLO, stream=True, max_tokens=4
            )
            assert len([chunk async for chunk in stream]) > 4

        await asyncio.gather(*(one() for _ in range(8)))
    assert backend.peak_present("sim-model") == 1


@pytest.mark.parametrize(
    "headers",
    [
        {"x-sim-newline": "crlf", "x-sim-data-space": "0"},
        {"x-sim-newline": "cr", "x-sim-comments": "2"},
        {"x-sim-write-bytes": "1", "x-sim-text": "unicode"},
        {"x-sim-multiline": "1", "x-sim-comments": "1"},
        {"x-sim-line-bytes": "1000000"},
        {"x-sim-framing": "close"},
        {"x-sim-answer-headers": "hop,duplicate"},
    ],
)
async def test_whatever_form_the_events_have_the_figures_are_right(
    w: World, backend: SimulatedBackend, client: openai.AsyncOpenAI, headers: dict[str, str]
) -> None:
    stream = await client.chat.completions.create(
        model="m", messages=HELLO, max_tokens=6, stream=True, extra_headers=headers
    )
    chunks = [chunk async for chunk in stream]
    assert all(chunk.choices for chunk in chunks)
    record = await w.seen.last()
    truth = backend.log[0]
    assert (record.input_tokens, record.output_tokens) == (truth.prompt_tokens, truth.output_tokens)
    assert record.figures is Figures.REPORTED


@pytest.mark.parametrize(
    ("switch", "figures"),
    [
        ({"x-sim-stream-options": "refuse"}, Figures.ESTIMATED),
        ({"x-sim-stream-options": "ignore"}, Figures.ESTIMATED),
        ({"x-sim-usage": "none"}, Figures.ESTIMATED),
        ({"x-sim-usage": "1000000000000000"}, Figures.CLAMPED),
        ({"x-sim-usage": "-5"}, Figures.ESTIMATED),
        ({"x-sim-usage": "1.5"}, Figures.ESTIMATED),
        ({"x-sim-usage": '"7"'}, Figures.ESTIMATED),
    ],
)
async def test_usage_is_never_nothing_and_never_absurd(
    w: World, client: openai.AsyncOpenAI, switch: dict[str, str], figures: Figures
) -> None:
    stream = await client.chat.completions.create(
        model="m", messages=HELLO, max_tokens=6, stream=True, extra_headers=switch
    )
    assert [chunk async for chunk in stream]
    record = await w.seen.last()
    assert record.figures is figures
    assert 0 < record.input_tokens <= 10_000_000
    assert 0 < record.output_tokens <= 10_000_000
    assert w.budget.settled == [record.input_tokens + record.output_tokens]


# Anthropic's


async def test_a_message(w: World, claude: anthropic.AsyncAnthropic) -> None:
    answer = await claude.messages.create(model="m", messages=BONJOUR, max_tokens=7)
    assert answer.content[0].type == "text"
    assert answer.usage.output_tokens == 7
    record = await w.seen.last()
    assert (record.input_tokens, record.output_tokens) == (34, 7)
    assert answer._request_id == record.request_id


async def test_a_streamed_message(w: World, claude: anthropic.AsyncAnthropic) -> None:
    async with claude.messages.stream(model="m", messages=BONJOUR, max_tokens=7) as stream:
        text = "".join([piece async for piece in stream.text_stream])
    assert text == "A shared model answers one s"
    record = await w.seen.last()
    assert (record.input_tokens, record.output_tokens) == (34, 7)
    assert record.figures is Figures.REPORTED


async def test_the_other_routes_of_anthropic(w: World, claude: anthropic.AsyncAnthropic) -> None:
    counted = await claude.messages.count_tokens(model="m", messages=BONJOUR)
    assert counted.input_tokens == 34
    assert [each.id async for each in claude.models.list()] == ["m"]
    assert (await claude.models.retrieve("m")).display_name == "m"
    beta = await claude.beta.messages.create(model="m", messages=BONJOUR, max_tokens=1)
    assert beta.usage.output_tokens == 1


async def test_a_bearer_token_does_as_well(w: World) -> None:
    url = w.url.removesuffix("/v1")
    async with anthropic.AsyncAnthropic(base_url=url, auth_token=SECRET) as claude:
        assert await claude.messages.create(model="m", messages=BONJOUR, max_tokens=1)


async def test_anthropics_errors_are_the_sdks_own_kinds(
    w: World, claude: anthropic.AsyncAnthropic
) -> None:
    async def fails(kind: type[anthropic.APIStatusError], word: str, name: str = "m") -> None:
        with pytest.raises(kind) as raised:
            await claude.messages.create(model=name, messages=BONJOUR, max_tokens=1)
        body = raised.value.body
        assert isinstance(body, dict)
        assert body["error"]["type"] == word
        assert raised.value.request_id == body["request_id"]

    await fails(anthropic.NotFoundError, "not_found_error", "nope")
    w.budget.check_fails_with = BudgetExhausted("Spent.")
    await fails(anthropic.PermissionDeniedError, "permission_error")
    w.budget.check_fails_with = RateLimited("Slow.", retry_after_secs=1)
    await fails(anthropic.RateLimitError, "rate_limit_error")
    w.policy.keys.clear()
    await fails(anthropic.AuthenticationError, "authentication_error")


@pytest.mark.parametrize("cut", ["rst", "fin"])
async def test_a_broken_message_stream_is_an_error_to_the_sdk(
    w: World, claude: anthropic.AsyncAnthropic, cut: str
) -> None:
    stream = await claude.messages.create(
        model="m",
        messages=BONJOUR,
        max_tokens=50,
        stream=True,
        extra_headers={"x-sim-cut": cut},
    )
    with pytest.raises(anthropic.APIStatusError) as raised:
        async for event in stream:
            assert event.type != "message_stop"
    assert "api_error" in str(raised.value)
    assert (await w.seen.last()).outcome is Outcome.BROKEN
