"""A client that leaves is noticed whatever is being done for it, and everything is given back.

Each test runs on real sockets, under both of uvicorn's parsers with what the gateway adds to them,
and once under uvicorn as it comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dataplane.openai_api.ports import CLIENT_LEFT_STATUS, Figures, FinishedRequest, Outcome
from dataplane.proxy import forward
from tests.proxy.parts import model
from tests.proxy.serving import Peer, Upstream, World, chat, upstream, world

SOON = 30.0
"""Seconds after which leaving counts as not noticed: far more than it takes, for busy machines."""
EVENT = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'

SERVERS = [
    pytest.param({"parser": "httptools"}, id="httptools"),
    pytest.param({"parser": "h11"}, id="h11"),
    pytest.param({"parser": "httptools", "plain_server": True}, id="plain"),
]


class Watched:
    """An upstream that does `script` and then waits for the gateway to hang up."""

    def __init__(self) -> None:
        self.peers: list[Peer] = []

    async def asked(self, peer: Peer) -> None:
        self.peers.append(peer)
        await peer.request()

    async def mute(self, _: Upstream, peer: Peer) -> None:
        await self.asked(peer)
        await peer.until_gone()

    async def head_only(self, _: Upstream, peer: Peer) -> None:
        await self.asked(peer)
        await peer.start_stream()
        await peer.until_gone()

    async def three_events(self, _: Upstream, peer: Peer) -> None:
        await self.asked(peer)
        await peer.start_stream()
        for _event in range(3):
            await peer.chunk(EVENT)
        await peer.until_gone()

    async def endless(self, _: Upstream, peer: Peer) -> None:
        await self.asked(peer)
        await peer.start_stream()
        while True:
            await peer.chunk(EVENT * 1000)

    async def refusing(self, _: Upstream, peer: Peer) -> None:
        await self.asked(peer)
        await peer.answer(b"{}", "503 Busy")

    async def deaf(self, upstream: Upstream, peer: Peer) -> None:
        """Takes a connection and reads nothing from it."""
        self.peers.append(peer)
        upstream.changed.set()
        await asyncio.Event().wait()


@asynccontextmanager
async def given_back(
    w: World, up: Upstream, watched: Watched, outcome: Outcome = Outcome.CLIENT_LEFT
) -> AsyncIterator[list[FinishedRequest]]:
    """The block's client leaves at its end: all must come back soon, upstream before slot."""
    closed_first: list[bool] = []
    w.gate.on_release = lambda: closed_first.append(all(p.is_gone for p in watched.peers))
    found: list[FinishedRequest] = []
    yield found
    await w.gate.until(lambda gate: len(gate.left) == 1 and gate.running == 0, within=SOON)
    assert closed_first == [True]
    assert w.gate.left[0].has_failed
    found.append(await w.seen.last(within=SOON))
    assert found[0].outcome is outcome
    assert w.gateway.open_requests == 0


@pytest.mark.parametrize("server", SERVERS)
async def test_while_its_body_is_read(server: Any) -> None:
    async with world(model("http://127.0.0.1:1/v1"), **server) as w:
        line = await w.connect()
        await line.send(headers={"content-length": "1000"})
        await line.write(b'{"model"')
        line.leave()
        record = await w.seen.last(within=SOON)
        assert (record.outcome, record.status) == (Outcome.CLIENT_LEFT, CLIENT_LEFT_STATUS)
        assert w.gate.admitted == []
        assert w.budget.checked == []


@pytest.mark.parametrize("server", SERVERS)
async def test_while_queued_without_being_charged_and_the_next_is_served(server: Any) -> None:
    watched = Watched()
    async with upstream(watched.mute) as up, world(model(up.url), slots=0, **server) as w:
        lines = [await w.connect() for _ in range(50)]
        for line in lines:
            await line.send(chat())
        await w.gate.until(lambda gate: len(gate.queue) == 50)
        for line in lines:
            line.leave()
        await w.gate.until(lambda gate: not gate.queue, within=SOON)
        record = await w.seen.last(50)
        assert (record.outcome, record.admission) == (Outcome.CLIENT_LEFT, "rejected")
        assert (record.estimated_tokens, record.figures) == (0, Figures.NONE)
        assert w.budget.reserved == []
        last = await w.connect()
        await last.send(chat())
        await w.gate.until(lambda gate: len(gate.queue) == 1)
        w.gate.slots = 1
        w.gate.next()
        await up.until(lambda up: len(up.asked) == 1)
        assert up.connections == 1
        last.leave()


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("stream", [False, True])
async def test_before_the_upstream_answers(server: Any, stream: bool) -> None:
    watched = Watched()
    async with upstream(watched.mute) as up, world(model(up.url), **server) as w:
        line = await w.connect()
        await line.send(chat(stream=stream))
        await up.until(lambda up: len(up.asked) == 1)
        async with given_back(w, up, watched) as found:
            line.leave()
        assert w.budget.settled == [None]
        assert w.attempts == [("m", "cancelled")]
        assert found[0].status == CLIENT_LEFT_STATUS


@pytest.mark.parametrize("server", SERVERS)
async def test_after_a_large_body_that_was_read_in_pieces(server: Any) -> None:
    watched = Watched()
    async with upstream(watched.mute) as up, world(model(up.url), **server) as w:
        line = await w.connect()
        await line.send(chat(pad="x" * 1_000_000))
        await up.until(lambda up: len(up.asked) == 1)
        async with given_back(w, up, watched):
            line.leave()


@pytest.mark.parametrize("server", SERVERS)
async def test_before_the_first_event(server: Any) -> None:
    watched = Watched()
    async with upstream(watched.head_only) as up, world(model(up.url), **server) as w:
        line = await w.connect()
        await line.send(chat(stream=True))
        assert (await line.head()).status == 200
        async with given_back(w, up, watched) as found:
            line.leave()
        assert w.budget.settled == [None]
        assert (found[0].ttfb_ms, found[0].status) == (None, 200)


@pytest.mark.parametrize("server", SERVERS)
async def test_in_the_middle_of_a_stream_and_what_came_is_charged(server: Any) -> None:
    watched = Watched()
    async with upstream(watched.three_events) as up, world(model(up.url), **server) as w:
        line = await w.connect()
        await line.send(chat(stream=True))
        await line.head()
        await line.read_until(EVENT * 3)
        async with given_back(w, up, watched) as found:
            line.leave()
        assert (found[0].input_tokens, found[0].output_tokens) == (5, 3)
        assert found[0].figures is Figures.ESTIMATED
        assert w.budget.settled == [8]


@pytest.mark.parametrize("server", SERVERS)
async def test_between_two_tries(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "BACK_OFF_SECS", 1000.0)
    monkeypatch.setattr(forward, "BACK_OFF_MAX_SECS", 1000.0)
    watched = Watched()
    async with upstream(watched.refusing) as up, world(model(up.url), **server) as w:
        line = await w.connect()
        await line.send(chat())
        await up.until(lambda up: up.connections == 1 and up.open == 0)
        async with given_back(w, up, watched):
            line.leave()
        assert w.attempts == [("m", "refused")]
        assert up.connections == 1


@pytest.mark.parametrize("server", SERVERS)
async def test_while_it_is_sent_to_and_does_not_read(server: Any) -> None:
    watched = Watched()
    async with upstream(watched.endless) as up, world(model(up.url), **server) as w:
        line = await w.connect(buffer=4096)
        await line.send(chat(stream=True))
        await up.until_still()
        async with given_back(w, up, watched):
            line.leave()


@pytest.mark.parametrize("server", SERVERS)
async def test_that_does_not_read_is_cut_off_in_the_end(server: Any) -> None:
    watched = Watched()
    options = {"client_write_timeout_secs": 0.4, **server}
    async with upstream(watched.endless) as up, world(model(up.url), **options) as w:
        line = await w.connect(buffer=4096)
        await line.send(chat(stream=True))
        async with given_back(w, up, watched, Outcome.CLIENT_STALLED):
            await up.until_still()
        line.leave()


@pytest.mark.parametrize("parser", ["httptools", "h11"])
async def test_a_client_that_was_cut_off_is_really_gone(parser: str) -> None:
    watched = Watched()
    options = {"client_write_timeout_secs": 0.4, "parser": parser}
    async with upstream(watched.endless) as up, world(model(up.url), **options) as w:
        line = await w.connect(buffer=4096)
        await line.send(chat(stream=True))
        await w.seen.last()
        await asyncio.sleep(0)
        assert not w.server.server_state.connections
        assert not (await line.reply()).is_whole


@pytest.mark.parametrize("parser", ["httptools", "h11"])
async def test_in_an_upload_that_the_upstream_does_not_take(parser: str) -> None:
    """The client is not read from then: only the socket itself tells."""
    watched = Watched()
    async with upstream(watched.deaf) as up, world(model(up.url), parser=parser) as w:
        line = await w.connect()
        await line.send(
            path="/v1/audio/transcriptions",
            headers={
                "content-type": "multipart/form-data; boundary=b",
                "content-length": str(60_000_000),
            },
        )
        await line.write(b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n')
        await line.write(b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\n')
        await up.until(lambda up: len(watched.peers) == 1)
        [connection] = w.server.server_state.connections
        for _ in range(1000):
            await line.write(b"x" * 50_000)
            await asyncio.sleep(0.001)
            if connection.flow.read_paused and w.gateway.open_requests:
                break
        await asyncio.sleep(0.05)
        assert connection.flow.read_paused
        async with given_back(w, up, watched):
            line.leave()


async def test_while_a_second_request_waits_behind_on_its_connection() -> None:
    watched = Watched()
    async with upstream(watched.mute) as up, world(model(up.url)) as w:
        line = await w.connect()
        await line.send(chat())
        await up.until(lambda up: len(up.asked) == 1)
        await line.send(chat())
        async with given_back(w, up, watched):
            line.leave()
        assert len(up.asked) == 1


@pytest.mark.parametrize("server", SERVERS)
async def test_one_that_closes_its_sending_side_counts_as_gone(server: Any) -> None:
    watched = Watched()
    async with upstream(watched.mute) as up, world(model(up.url), **server) as w:
        line = await w.connect()
        await line.send(chat())
        await up.until(lambda up: len(up.asked) == 1)
        async with given_back(w, up, watched):
            line.writer.write_eof()


async def test_a_thousand_in_a_row_leave_nothing_behind() -> None:
    watched = Watched()
    async with upstream(watched.three_events) as up, world(model(up.url), slots=1) as w:
        for _ in range(200):
            lines = [await w.connect() for _ in range(5)]
            for line in lines:
                await line.send(chat(stream=True))
            for line in lines:
                line.leave()
        await w.gate.until(lambda gate: gate.running == 0 and not gate.queue)
        await w.seen.last(1000)
        await up.until(lambda up: up.open == 0)
        assert w.gate.peak == 1
        assert w.gateway.open_requests == 0
        assert w.choice.in_flight("e0") == 0
        left = [each for each in asyncio.all_tasks() if each.get_coro().__name__ == "_watch"]  # type: ignore[union-attr]
        assert left == []
