"""`obleth demo` as its user meets it: the printed curl line, the official SDKs, the shares."""

import asyncio
import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.e2e.processes import Demo

MODEL = "demo-model"
HELLO: Any = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    with Demo("--no-traffic", folder=tmp_path_factory.mktemp("demo")) as running:
        yield running.await_ready()


@pytest.fixture
def openai_sdk(demo: Demo) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{demo.gateway}/v1", api_key=demo.key("chatbot"), max_retries=0
    ) as client:
        yield client


@pytest.fixture
def anthropic_sdk(demo: Demo) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=demo.gateway, api_key=demo.key("api-batch"), max_retries=0
    ) as client:
        yield client


def test_the_printed_curl_line_is_answered(demo: Demo) -> None:
    assert shutil.which("curl"), "curl is needed: deploy/dev/services installs it"
    done = subprocess.run(
        ["/bin/sh", "-c", demo.curl], capture_output=True, text=True, check=True, timeout=30
    )
    answer = json.loads(done.stdout)
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"]["content"]


def test_the_openai_sdk_gets_a_whole_answer_with_usage(openai_sdk: openai.OpenAI) -> None:
    answer = openai_sdk.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=3)
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3


def test_the_openai_sdk_streams_and_sees_no_usage_it_did_not_ask_for(
    openai_sdk: openai.OpenAI,
) -> None:
    with openai_sdk.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=3, stream=True
    ) as stream:
        chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "length"
    assert all(chunk.usage is None for chunk in chunks)


def test_the_openai_sdk_streams_the_usage_it_asks_for(openai_sdk: openai.OpenAI) -> None:
    with openai_sdk.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        max_tokens=3,
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        usage = [chunk.usage for chunk in stream if chunk.usage is not None]
    assert [one.completion_tokens for one in usage] == [3]


def test_the_openai_sdk_embeds_and_lists_models(openai_sdk: openai.OpenAI) -> None:
    assert openai_sdk.embeddings.create(model=MODEL, input="Hello").data[0].embedding
    assert [model.id for model in openai_sdk.models.list()] == [MODEL]


def test_the_anthropic_sdk_gets_a_whole_answer(anthropic_sdk: anthropic.Anthropic) -> None:
    answer = anthropic_sdk.messages.create(model=MODEL, messages=HELLO, max_tokens=3)
    assert answer.content[0].type == "text"
    assert answer.content[0].text
    assert answer.usage.output_tokens == 3


def test_the_anthropic_sdk_streams(anthropic_sdk: anthropic.Anthropic) -> None:
    with anthropic_sdk.messages.stream(model=MODEL, messages=HELLO, max_tokens=3) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text
    assert final.stop_reason == "max_tokens"


def test_a_wrong_key_is_refused_in_each_sdks_own_words(
    openai_sdk: openai.OpenAI, anthropic_sdk: anthropic.Anthropic
) -> None:
    with pytest.raises(openai.AuthenticationError) as refused:
        openai_sdk.with_options(api_key="sk-wrong").models.list()
    assert refused.value.code == "invalid_api_key"
    with pytest.raises(anthropic.AuthenticationError, match="authentication_error"):
        anthropic_sdk.with_options(api_key="sk-wrong").messages.create(
            model=MODEL, messages=HELLO, max_tokens=1
        )


def test_the_dashboard_url_answers_and_the_admin_token_opens_the_api(demo: Demo) -> None:
    with httpx.Client(base_url=demo.dashboard, trust_env=False) as client:
        assert "Admin or viewer token" in client.get("/", follow_redirects=True).text
        assert client.get("/api/v1/tenants").status_code == 401
        client.headers["authorization"] = f"Bearer {demo.admin_token}"
        tenants = client.get("/api/v1/tenants").json()["items"]
    assert {tenant["name"] for tenant in tenants} == {"chatbot", "api-batch"}


async def test_two_busy_tenants_of_groups_500_and_50_hold_seven_slots_and_one(demo: Demo) -> None:
    """Judged by the backend, which alone knows what ran."""
    clients = {
        "chatbot": 84,
        "api-batch": 16,
    }  # some always wait, however slowly a test machine asks
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        await client.post(f"{demo.backend}/sim/reset")
        busy = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for tenant, number in clients.items():
                for _ in range(number):
                    group.create_task(_ask_until(busy, client, demo, tenant))
            while True:
                records = await _log(client, demo)
                if sum(record["ended"] is not None for record in records) >= 160:
                    break
                await asyncio.sleep(0.2)
            busy.set()
        state = (await client.get(f"{demo.backend}/sim/state")).json()
    assert state["models"][MODEL]["peak"] == 8
    assert state["models"][MODEL]["peak_present"] == 8  # nobody ever waited in the backend
    held = _slot_seconds(records)
    assert held["chatbot"] / held["api-batch"] == pytest.approx(7, rel=0.08)


async def _ask_until(
    over: asyncio.Event, client: httpx.AsyncClient, demo: Demo, tenant: str
) -> None:
    while not over.is_set():
        answer = await client.post(
            f"{demo.gateway}/v1/chat/completions",
            headers={"authorization": f"Bearer {demo.key(tenant)}", "x-sim-tenant": tenant},
            json={"model": MODEL, "messages": HELLO, "max_tokens": 8},
        )
        assert answer.status_code == 200, answer.text


async def _log(client: httpx.AsyncClient, demo: Demo) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = (await client.get(f"{demo.backend}/sim/log")).json()
    return [record for record in records if record["tenant"]]


def _slot_seconds(records: list[dict[str, Any]]) -> Counter[str]:
    """How long each tenant held slots, from when both are at work until the first had enough."""
    ended = [record for record in records if record["ended"] is not None]
    start = sorted(record["ended"] for record in ended)[16]  # those that found an empty pool
    end = max(record["ended"] for record in ended)
    held: Counter[str] = Counter()
    for record in records:
        if record["started"] is not None:
            until = min(record["ended"] or end, end)
            held[record["tenant"]] += max(0.0, until - max(record["started"], start))
    return held
