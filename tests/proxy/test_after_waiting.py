"""What changed while a request was read, or waited, is in force when it goes on."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from dataplane.errors import RateLimited
from dataplane.openai_api.ports import Outcome
from tests.proxy.parts import KEY, MODEL, SECRET, endpoint, model
from tests.proxy.serving import Line, Upstream, World, answers, chat, upstream, world

GOOD = answers(b'{"usage":{"prompt_tokens":1,"completion_tokens":1}}')


@asynccontextmanager
async def waiting() -> AsyncIterator[tuple[World, Line, Upstream, Upstream]]:
    """A request in the queue for the first upstream; the second is known to nobody yet."""
    async with (
        upstream(GOOD) as first,
        upstream(GOOD) as second,
        world(model(first.url), slots=0) as w,
    ):
        line = await w.connect()
        await line.send(chat())
        await w.gate.until(lambda gate: len(gate.queue) == 1)
        yield w, line, first, second


def let_through(w: World) -> None:
    w.gate.slots = 1
    w.gate.next()


def change_key(w: World, **tenant: Any) -> None:
    changed = dataclasses.replace(KEY, tenant=dataclasses.replace(KEY.tenant, **tenant))
    w.policy.keys[SECRET] = changed


async def test_it_goes_to_the_endpoint_that_serves_the_model_now() -> None:
    async with waiting() as (w, line, first, second):
        old = w.policy.registered[MODEL]
        w.policy.registered[MODEL] = dataclasses.replace(
            old, upstream_model="renamed", endpoints=(endpoint(second.url),)
        )
        let_through(w)
        reply = await line.reply()
        assert (reply.status, reply.header("x-obleth-admission")) == (200, "queued")
        assert (len(first.asked), len(second.asked)) == (0, 1)
        assert second.asked[0].json["model"] == "renamed"


async def test_it_goes_to_its_model_by_whatever_name_that_has_now() -> None:
    async with waiting() as (w, line, first, _):
        renamed = dataclasses.replace(w.policy.registered.pop(MODEL), name="other")
        w.policy.registered["other"] = renamed
        let_through(w)
        assert (await line.reply()).status == 200
        assert first.asked[0].json["model"] == "other"


async def test_it_is_refused_uncharged_if_its_tenant_may_not_use_the_model_any_more() -> None:
    async with waiting() as (w, line, first, _):
        change_key(w, allowed_models=frozenset())
        let_through(w)
        reply = await line.reply()
        assert (reply.status, reply.json["error"]["code"]) == (403, "model_not_allowed")
        assert [permit.was_undone for permit in w.gate.left] == [True]
        assert (first.asked, w.budget.reserved) == ([], [])


async def test_it_is_refused_uncharged_if_its_key_is_gone() -> None:
    async with waiting() as (w, line, _, _):
        w.policy.keys.clear()
        let_through(w)
        reply = await line.reply()
        assert (reply.status, reply.json["error"]["code"]) == (401, "invalid_api_key")
        assert [permit.was_undone for permit in w.gate.left] == [True]


async def test_its_tokens_are_reserved_from_the_budget_in_force_now() -> None:
    async with waiting() as (w, line, _, _):
        change_key(w, tokens_per_minute=77)
        let_through(w)
        assert (await line.reply()).status == 200
        assert [key.tenant.tokens_per_minute for key in w.budget.reserved_for] == [77]


async def test_the_wait_of_one_that_was_refused_in_the_queue_is_told() -> None:
    async with waiting() as (w, line, _, _):
        line.leave()
        record = await w.seen.last()
        assert record.outcome is Outcome.CLIENT_LEFT
        assert record.queue_ms is not None
        assert 0 < record.queue_ms <= record.duration_ms


async def test_one_that_never_asked_for_a_slot_has_no_wait() -> None:
    async with world() as w:
        await w.ask(body=chat(model="unknown"))
        assert (await w.seen.last()).queue_ms is None


async def test_a_refusal_by_the_minutes_budget_says_what_is_left_of_it() -> None:
    async with world(model("http://127.0.0.1:1/v1")) as w:
        w.budget.check_fails_with = RateLimited(
            "Slow down.", retry_after_secs=30, tokens=(1000, 20, 58.8)
        )
        for path in ("/v1/chat/completions", "/v1/messages"):
            reply = await w.ask(path=path, body=chat())
            assert reply.status == 429
            told = [reply.header(f"x-ratelimit-{what}-tokens") for what in ("limit", "remaining")]
            assert told == ["1000", "20"]
            assert reply.header("x-ratelimit-reset-tokens") == "58.8s"


async def test_a_key_that_goes_while_the_body_comes_is_refused_before_it_has_a_slot() -> None:
    text = chat()
    async with upstream(GOOD) as up, world(model(up.url)) as w:
        line = await w.connect()
        await line.send(headers={"content-length": str(len(text)), "expect": "100-continue"})
        assert b" 100 " in await line.reader.readuntil(b"\r\n\r\n"), "the key was looked at"
        del w.policy.keys[SECRET]
        await line.write(text)
        assert (await line.reply()).status == 401
        assert (w.gate.admitted, up.asked) == ([], [])


async def test_what_changes_while_budgets_are_asked_is_queued_for_as_it_is_then() -> None:
    async with upstream(GOOD) as up, world(model(up.url)) as w:

        def change() -> None:
            old = w.policy.registered[MODEL]
            w.policy.registered[MODEL] = dataclasses.replace(old, max_in_flight=1)
            change_key(w, max_in_flight=2)

        w.budget.on_check = change
        assert (await w.ask(body=chat())).status == 200
        (permit,) = w.gate.admitted
        assert permit.ask.model is not None
        assert permit.ask.model.max_in_flight == 1
        assert permit.ask.key.tenant.max_in_flight == 2


async def test_a_model_that_goes_while_budgets_are_asked_is_queued_for_by_nobody() -> None:
    async with upstream(GOOD) as up, world(model(up.url)) as w:
        w.budget.on_check = w.policy.registered.clear
        reply = await w.ask(body=chat())
        assert (reply.status, reply.json["error"]["code"]) == (404, "model_not_found")
        assert (w.gate.admitted, up.asked) == ([], [])


async def test_a_key_that_goes_while_budgets_are_asked_is_refused_before_it_has_a_slot() -> None:
    async with upstream(GOOD) as up, world(model(up.url)) as w:
        w.budget.on_check = w.policy.keys.clear
        assert (await w.ask(body=chat())).status == 401
        assert (w.gate.admitted, up.asked) == ([], [])
