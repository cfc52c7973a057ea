"""The end of a replica: nobody new, those under way to their end, or told why not."""

from __future__ import annotations

import asyncio

import msgspec

from dataplane.openai_api.ports import Outcome
from tests.proxy.parts import model
from tests.proxy.serving import Peer, Upstream, chat, upstream, world

EVENT = b'data: {"choices":[1]}\n\n'


class Streaming:
    """An upstream that sends an event and then waits to be told to end."""

    def __init__(self) -> None:
        self.end = asyncio.Event()

    async def __call__(self, _: Upstream, peer: Peer) -> None:
        await peer.request()
        await peer.start_stream()
        await peer.chunk(EVENT)
        await self.end.wait()
        await peer.end_stream()


async def mute(_: Upstream, peer: Peer) -> None:
    await peer.request()
    await peer.until_gone()


async def test_after_drain_new_requests_are_sent_elsewhere_and_old_ones_end_well() -> None:
    script = Streaming()
    async with upstream(script) as up, world(model(up.url)) as w:
        line = await w.connect()
        await line.send(chat(stream=True))
        await line.head()
        assert await line.chunk() == EVENT
        w.gateway.drain()
        reply = await w.ask(body=chat())
        assert (reply.status, reply.json["error"]["code"]) == (503, "shutting_down")
        assert (reply.header("retry-after"), reply.header("connection")) == ("1", "close")
        reply = await w.ask(path="/v1/messages", body=chat())
        assert reply.json["error"]["type"] == "overloaded_error"
        stopping = asyncio.create_task(w.gateway.stop(60))
        script.end.set()
        assert await line.chunk() == b""
        await stopping
        assert w.seen.finished[-1].outcome is Outcome.ANSWERED
        assert w.gateway.open_requests == 0


async def test_at_the_end_of_the_grace_streams_are_told_and_others_get_503() -> None:
    script = Streaming()
    async with (
        upstream(script) as up,
        upstream(mute) as silent,
        world(model(up.url), model(silent.url, name="mute")) as w,
    ):
        streaming, waiting = await w.connect(), await w.connect()
        await streaming.send(chat(stream=True))
        await streaming.head()
        assert await streaming.chunk() == EVENT
        await waiting.send(chat(model="mute"))
        await silent.until(lambda up: len(up.asked) == 1)
        await w.gateway.stop(0.05)
        assert w.gateway.open_requests == 0
        assert w.gate.running == 0
        reply = await waiting.reply()
        assert (reply.status, reply.json["error"]["code"]) == (503, "shutting_down")
        last = await streaming.chunk()
        error = msgspec.json.decode(last.removeprefix(b"data: "))["error"]
        assert error["code"] == "shutting_down"
        assert await streaming.is_closed()
        outcomes = {each.model: each.outcome for each in w.seen.finished}
        assert outcomes == {"m": Outcome.BROKEN, "mute": Outcome.REFUSED}
        await silent.until(lambda up: up.open == 0)


async def test_a_server_that_cancels_a_request_gets_everything_back() -> None:
    """As uvicorn does when its own patience ends."""
    async with upstream(mute) as up, world(model(up.url)) as w:
        line = await w.connect()
        await line.send(chat())
        await up.until(lambda up: len(up.asked) == 1)
        [task] = w.server.server_state.tasks
        task.cancel()
        await w.gate.until(lambda gate: len(gate.left) == 1)
        await up.until(lambda up: up.open == 0)
        record = await w.seen.last()
        assert record.outcome is Outcome.BROKEN
        assert w.gateway.open_requests == 0
