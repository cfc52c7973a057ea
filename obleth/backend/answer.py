"""Answering one request: its slot, the time its tokens take, its words, and whatever goes wrong."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from aiohttp import web

from obleth.backend import tokens
from obleth.backend.events import DONE, Event, Framing
from obleth.backend.ledger import Account, Outcome, Pool
from obleth.backend.options import BackendOptions
from obleth.backend.shapes.port import Ask, BadAsk, Body, Figures, Reply, Shape
from obleth.backend.switches import Faults
from obleth.backend.wire import Wire

_LEAST_ENDLESS_SECS: Final = 0.001
_BEFORE_CUT_SECS: Final = 0.02
_LEAST_SLEEP_SECS: Final = 0.001
_JSON: Final = ("Content-Type", "application/json")
_SSE: Final = (("Content-Type", "text/event-stream; charset=utf-8"), ("Cache-Control", "no-cache"))


@dataclass(frozen=True, slots=True)
class Question:
    """One request as it came, read but not yet understood."""

    request: web.BaseRequest
    shape: Shape
    body: Body
    faults: Faults
    account: Account


class _CutHere(Exception):
    """The stream has come to the event it is to be cut at."""

    def __init__(self, unsent: Event) -> None:
        self.unsent = unsent


async def refuse(
    request: web.BaseRequest, account: Account, shape: Shape, faults: Faults, error: BadAsk
) -> web.StreamResponse:
    """Answer with an error of the dialect's kind and write the request down as failed."""
    body = shape.error(error.status, str(error), error.param)
    return await _single(Wire(request, faults), account, error.status, body, Outcome.FAILED)


async def answer(question: Question, pool: Pool, options: BackendOptions) -> web.StreamResponse:
    """Work a request off to its end. Raises BadAsk, and ConnectionError once the client is gone."""
    faults, account = question.faults, question.account
    ask = question.shape.ask(question.body)
    wire = Wire(question.request, faults)
    if faults.refuse:
        return await wire.reset(partial(account.close, Outcome.CUT))
    account.record.stream = ask.stream
    await account.start(pool)
    if faults.mute:
        await _for_ever()
    if faults.head_delay_ms:
        await asyncio.sleep(faults.head_delay_ms / 1000)
    if faults.status is not None:
        return await _status(wire, account, question.shape, faults)
    if faults.stream_options == "refuse" and "stream_options" in question.body:
        raise BadAsk(400, "Unrecognized request argument supplied: stream_options")
    work = _Work(question, ask, pool, options)
    return await (work.streamed(wire) if ask.stream else work.whole(wire))


class _Work:
    """One request that is really worked on."""

    def __init__(self, question: Question, ask: Ask, pool: Pool, options: BackendOptions) -> None:
        self._faults = question.faults
        self._account = question.account
        self._record = question.account.record
        self._shape = question.shape
        self._cache = pool.cache
        self._chain = pool.cache.chain(ask.prompt)
        self._record.prompt_tokens = tokens.count(ask.prompt)
        self._record.cached_tokens = pool.cache.cached_tokens(self._chain)
        uncached = self._record.prompt_tokens - self._record.cached_tokens
        self._prefill_secs = uncached * options.prefill_secs_per_token / options.speed
        self._token_secs = options.token_secs / options.speed
        if self._faults.token_ms is not None:
            self._token_secs = self._faults.token_ms / 1000
        self._reply = self._put_together(question, ask, options)

    def _put_together(self, question: Question, ask: Ask, options: BackendOptions) -> Reply:
        faults, record = self._faults, self._record
        wanted = options.reply_tokens
        if ask.max_tokens is not None:
            wanted = min(ask.max_tokens, options.longest_reply_tokens)
        if faults.output_tokens is not None:
            wanted = faults.output_tokens
        output = wanted if ask.generates else 0
        return Reply(
            number=record.number,
            created=int(time.time()),
            ask=ask,
            body=question.body,
            text=tokens.reply(output, unicode=faults.text == "unicode"),
            output_tokens=output,
            complete=ask.max_tokens is None or output < ask.max_tokens,
            figures=_figures(record.prompt_tokens, record.cached_tokens, output, faults.usage),
            stream_usage=_usage_wanted(question.body, faults),
        )

    async def whole(self, wire: Wire) -> web.StreamResponse:
        reply, faults = self._reply, self._faults
        await asyncio.sleep(self._prefill_secs + faults.first_token_ms / 1000)
        self._cache.store(self._chain)
        self._account.first_token()
        if faults.endless:
            await _for_ever()
        if self._token_secs and reply.output_tokens:
            await asyncio.sleep(self._token_secs * reply.output_tokens)
        self._record.output_tokens = reply.output_tokens
        self._remember_reply()
        body = self._shape.whole(reply)
        if faults.cut is None:
            return await _single(wire, self._account, 200, body, Outcome.FINISHED)
        half = body[: len(body) // 2]
        self._record.status = 200
        proper = faults.cut in ("end", "error")
        await wire.head(200, self._headers(body), length=len(half if proper else body))
        wire.body(half)
        return await self._break_off(wire, proper=proper)

    async def streamed(self, wire: Wire) -> web.StreamResponse:
        reply = self._reply
        framing = Framing(self._faults)
        self._record.status = 200
        await wire.head(200, (*_SSE, ("x-sim-record", str(reply.number))))
        try:
            await self._until_first_token(wire, framing)
            sender = _Sender(wire, framing, self._faults)
            await sender.send_all(self._shape.opening(reply))
            await self._send_tokens(sender, wire)
            self._remember_reply()
            closing = self._shape.closing(reply)
            await sender.send_all(
                [event for event in closing if self._faults.done or event is not DONE]
            )
        except _CutHere as cut:
            if self._faults.cut == "mid-event":
                event = framing.event(cut.unsent)
                wire.body(event[: len(event) // 2])
            elif self._faults.cut == "error":
                wire.body(framing.event(self._shape.error_event("the simulated engine died")))
            return await self._break_off(wire, proper=self._faults.cut in ("end", "error"))
        return await wire.finish(partial(self._account.close, Outcome.FINISHED))

    async def _until_first_token(self, wire: Wire, framing: Framing) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._prefill_secs + self._faults.first_token_ms / 1000
        each = self._faults.keepalive_ms / 1000
        while (left := until - loop.time()) > 0:
            await wire.flush()
            await asyncio.sleep(min(each, left) if each else left)
            if each:
                wire.body(framing.comment)
        self._cache.store(self._chain)
        self._account.first_token()

    async def _send_tokens(self, sender: _Sender, wire: Wire) -> None:
        """Each token at its time; those that are due together go out together."""
        pieces: Sequence[str] = tokens.pieces(self._reply.text)
        endless = self._faults.endless
        each = max(self._token_secs, _LEAST_ENDLESS_SECS) if endless else self._token_secs
        if endless and not pieces:
            pieces = tokens.pieces(tokens.reply(1))
        say = self._shape.pieces(self._reply)
        loop = asyncio.get_running_loop()
        began = loop.time()
        sent = 0
        while endless or sent < len(pieces):
            due = int((loop.time() - began) / each) if each else len(pieces)
            if not endless:
                due = min(due, len(pieces))
            if due <= sent:
                await wire.flush()
                wait = began + (sent + 1) * each - loop.time()
                await asyncio.sleep(max(wait, _LEAST_SLEEP_SECS))
                continue
            for index in range(sent, due):
                await sender.send(say(index, self._text(pieces, index)))
                self._record.output_tokens = index + 1
            sent = due

    def _text(self, pieces: Sequence[str], index: int) -> str:
        if index == 0 and self._faults.line_bytes:
            return "x" * self._faults.line_bytes
        return pieces[index % len(pieces)]

    async def _break_off(self, wire: Wire, *, proper: bool) -> web.StreamResponse:
        closed = partial(self._account.close, Outcome.CUT)
        await wire.flush()
        if self._faults.cut == "stall":
            await _for_ever()
        if not proper:
            # Clients drop what they have not read yet when the connection breaks: give them time.
            await asyncio.sleep(_BEFORE_CUT_SECS)
        if self._faults.cut == "rst":
            return await wire.reset(closed)
        return await wire.finish(closed, proper=proper)

    def _remember_reply(self) -> None:
        """What was said is cached too: the conversation's next prompt begins with it."""
        if self._chain:
            said = tokens.message("assistant", self._reply.text)
            text = self._reply.ask.prompt + said
            self._cache.store(self._cache.chain(text, self._chain))

    def _headers(self, body: bytes) -> tuple[tuple[str, str], ...]:
        return _single_headers(self._record.number, body)


class _Sender:
    """Sends events one after the other, up to the one the stream is to be cut at."""

    def __init__(self, wire: Wire, framing: Framing, faults: Faults) -> None:
        self._wire = wire
        self._framing = framing
        self._left = faults.cut_after if faults.cut else None

    async def send(self, event: Event) -> None:
        if self._left is not None:
            if self._left == 0:
                raise _CutHere(event)
            self._left -= 1
        self._wire.body(self._framing.event(event))
        if self._wire.full:
            await self._wire.flush()

    async def send_all(self, events: Sequence[Event]) -> None:
        for event in events:
            await self.send(event)


async def _status(wire: Wire, account: Account, shape: Shape, faults: Faults) -> web.StreamResponse:
    status = faults.status
    assert status is not None
    body = shape.error(status, f"simulated status {status}") if status >= 400 else b""
    extra = []
    if faults.retry_after is not None:
        extra.append(("Retry-After", faults.retry_after))
    if faults.location is not None:
        extra.append(("Location", faults.location))
    return await _single(wire, account, status, body, Outcome.FAILED, extra)


async def _single(
    wire: Wire,
    account: Account,
    status: int,
    body: bytes,
    outcome: Outcome,
    extra: Sequence[tuple[str, str]] = (),
) -> web.StreamResponse:
    """A whole answer in one piece."""
    account.record.status = status
    headers = (*_single_headers(account.record.number, body), *extra)
    await wire.head(status, headers, length=len(body))
    wire.body(body)
    return await wire.finish(partial(account.close, outcome))


def _single_headers(number: int, body: bytes) -> tuple[tuple[str, str], ...]:
    kind = _JSON if body.startswith((b"{", b"[")) else ("Content-Type", "text/plain; charset=utf-8")
    return (kind, ("x-sim-record", str(number)))


def _usage_wanted(body: Body, faults: Faults) -> bool:
    if faults.usage == "always":
        return True
    options: Any = body.get("stream_options")
    asked = isinstance(options, dict) and options.get("include_usage") is True
    return asked and faults.stream_options == "honour" and faults.usage != "none"


def _figures(prompt: int, cached: int, output: int, usage: str | None) -> Figures | None:
    match usage:
        case "none":
            return None
        case None | "always":
            return Figures(prompt, cached, output, prompt + output, prompt - cached)
    value = json.loads(usage)
    return Figures(value, value, value, value, value)


async def _for_ever() -> None:
    """Wait until the client leaves: the request is cancelled then."""
    await asyncio.get_running_loop().create_future()
