"""Listeners say clearly why they cannot listen, and drain before they cut."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from obleth import server
from obleth.server import CannotListen, Listener
from obleth.service import Service
from shared.settings import ListenAddress

FREE_PORT = ListenAddress("127.0.0.1", 0)


class SlowApp:
    """Starts a response at once and ends it when told; remembers how each request ended."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.finish = asyncio.Event()
        self.ended: list[str] = []

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first ", "more_body": True})
        self.started.set()
        try:
            await self.finish.wait()
            await send({"type": "http.response.body", "body": b"last"})
            self.ended.append("whole")
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # cleaning up takes a turn of the loop
            self.ended.append("cut")


class RecordingPlane:
    def __init__(self, name: str, events: list[str], app: SlowApp) -> None:
        self.name, self.events, self.app = name, events, app

    async def start(self) -> None:
        self.events.append(f"{self.name} starts")

    def close(self) -> None:
        self.events.append(f"{self.name} closes with {len(self.app.ended)} ended")

    async def stop(self) -> None:
        self.events.append(f"{self.name} stops with {len(self.app.ended)} ended")


@asynccontextmanager
async def get(address: ListenAddress) -> AsyncIterator[asyncio.Task[str]]:
    async with httpx.AsyncClient(trust_env=False) as client:

        async def text() -> str:
            return (await client.get(f"http://{address}/")).text

        yield asyncio.create_task(text())


def test_a_taken_port_is_told_with_the_variable_that_moves_it() -> None:
    with server.bind(FREE_PORT, "OBLETH_PROXY_LISTEN") as first:
        taken = server.bound_address(first)
        with pytest.raises(CannotListen) as refused:
            server.bind(taken, "OBLETH_PROXY_LISTEN")
    assert str(refused.value) == (
        f"cannot listen on {taken}: address already in use;"
        " set OBLETH_PROXY_LISTEN to another host:port"
    )


def test_a_host_that_is_not_known_is_told_alike() -> None:
    with pytest.raises(CannotListen, match=r"^cannot listen on no\.such\.host\.invalid:80: "):
        server.bind(ListenAddress("no.such.host.invalid", 80), "OBLETH_PROXY_LISTEN")


async def test_a_stopping_listener_lets_open_requests_end_and_takes_no_new_ones() -> None:
    app = SlowApp()
    listener = Listener(app, server.bind(FREE_PORT, "X"))
    await listener.start()
    async with get(listener.address) as response:
        await app.started.wait()
        stopping = asyncio.create_task(listener.stop(grace_secs=60))
        while True:  # until the port is closed
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", listener.address.port)
            except ConnectionError:
                break
            writer.close()
            await asyncio.sleep(0.01)
        assert not stopping.done()
        app.finish.set()
        await stopping
        assert await response == "first last"
    assert app.ended == ["whole"]


async def test_what_outlives_the_grace_is_cut_and_has_cleaned_up_when_stop_returns() -> None:
    app = SlowApp()
    listener = Listener(app, server.bind(FREE_PORT, "X"))
    await listener.start()
    async with get(listener.address) as response:
        await app.started.wait()
        await listener.stop(grace_secs=0)
        assert app.ended == ["cut"]
        with pytest.raises(httpx.RemoteProtocolError):
            await response


async def test_a_hurried_listener_does_not_wait_for_its_grace() -> None:
    app = SlowApp()
    listener = Listener(app, server.bind(FREE_PORT, "X"))
    await listener.start()
    async with get(listener.address) as response:
        await app.started.wait()
        stopping = asyncio.create_task(listener.stop(grace_secs=3600))
        listener.hurry()
        await stopping
        assert app.ended == ["cut"]
        with pytest.raises(httpx.RemoteProtocolError):
            await response


async def test_planes_close_before_the_drain_and_stop_after_it_in_the_opposite_order() -> None:
    app, events = SlowApp(), list[str]()
    listener = Listener(app, server.bind(FREE_PORT, "X"))
    planes = [RecordingPlane(name, events, app) for name in ("control", "data")]
    service = Service(planes, [listener], grace_secs=0)
    await service.start()
    async with get(listener.address) as response:
        await app.started.wait()
        await service.stop()
        with pytest.raises(httpx.RemoteProtocolError):
            await response
    assert events == [
        "control starts",
        "data starts",
        "control closes with 0 ended",
        "data closes with 0 ended",
        "data stops with 1 ended",
        "control stops with 1 ended",
    ]


async def test_a_plane_that_cannot_start_leaves_nothing_running() -> None:
    class Broken(RecordingPlane):
        async def start(self) -> None:
            raise OSError("no disk")

    app, events = SlowApp(), list[str]()
    bound = server.bind(FREE_PORT, "X")
    first, broken = RecordingPlane("first", events, app), Broken("broken", events, app)
    service = Service([first, broken], [Listener(app, bound)], grace_secs=0)
    with pytest.raises(OSError, match="no disk"):
        await service.start()
    assert events[0] == "first starts"
    assert events[-1] == "first stops with 0 ended"
    assert bound.fileno() == -1
