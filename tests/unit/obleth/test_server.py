"""Listeners say clearly why they cannot listen, and drain before they cut."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import uvicorn

from obleth import server
from obleth.server import CannotListen, Listener, StopSignal
from obleth.service import Service
from shared.settings import ListenAddress

FREE_PORT = ListenAddress("127.0.0.1", 0)


class SlowApp:
    """Starts a response at once and ends it when told; remembers how each request ended."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.finish = asyncio.Event()
        self.draining = asyncio.Event()
        self.over = asyncio.Event()
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
        finally:
            self.over.set()


class Plane:
    """Drains as the data plane does: lets requests end, then cuts them off. Notes what it does."""

    def __init__(self, name: str, events: list[str], app: SlowApp) -> None:
        self.name, self.events, self.app = name, events, app

    async def start(self) -> None:
        self.events.append(f"{self.name} starts")

    async def drain(self, grace_secs: float) -> None:
        self.events.append(f"{self.name} drains for {grace_secs:g} s")
        self.app.draining.set()
        try:
            async with asyncio.timeout(grace_secs):
                await self.app.over.wait()
        except TimeoutError:
            self.app.finish.set()
            await self.app.over.wait()

    async def stop(self) -> None:
        self.events.append(f"{self.name} stops after {self.app.ended}")


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


@pytest.mark.parametrize("is_accepted", [False, True])
async def test_who_has_connected_before_a_listener_stops_is_answered(
    is_accepted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients: list[socket.socket] = []

    def connect() -> None:
        clients.append(socket.create_connection(where, timeout=10))

    async def until_the_last_moment(self: uvicorn.Server) -> None:
        if is_accepted:
            connect()
        # Neither is an event to wait for.
        while not (self.should_exit and len(self.server_state.connections) == is_accepted):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        # The server has not heard of it when it begins to shut down.
        if not is_accepted:
            connect()
        clients[0].sendall(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")

    monkeypatch.setattr(uvicorn.Server, "main_loop", until_the_last_moment)
    app = SlowApp()
    app.finish.set()
    listener = Listener(app, server.bind(FREE_PORT, "X"))
    where = ("127.0.0.1", listener.address.port)
    await listener.start()
    await listener.stop(grace_secs=60)
    with clients[0] as client:
        answer = await asyncio.to_thread(client.recv, 65536)
    assert answer.startswith(b"HTTP/1.1 200 ")


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


async def test_planes_drain_before_they_stop_in_the_opposite_order_of_their_start() -> None:
    app, events = SlowApp(), list[str]()
    listener = Listener(app, server.bind(FREE_PORT, "X"))
    service = Service([Plane(name, events, app) for name in ("a", "b")], [listener], 3600)
    await service.start()
    async with get(listener.address) as response:
        await app.started.wait()
        stopping = asyncio.create_task(service.stop())
        await app.draining.wait()
        app.finish.set()
        await stopping
        assert await response == "first last"
    assert events == [
        "a starts",
        "b starts",
        "a drains for 3600 s",
        "b drains for 3600 s",
        "b stops after ['whole']",
        "a stops after ['whole']",
    ]


async def test_a_second_signal_ends_the_draining() -> None:
    app, events, signals = SlowApp(), list[str](), StopSignal()
    listener = Listener(app, server.bind(FREE_PORT, "X"))
    service = Service([Plane("a", events, app)], [listener], 3600)
    await service.start()
    async with get(listener.address) as response:
        await app.started.wait()
        signals.received(signal.SIGTERM)
        await signals.wait()
        stopping = asyncio.create_task(service.stop(signals))
        await app.draining.wait()
        signals.received(signal.SIGTERM)
        await stopping
        await response
    assert events[1:] == ["a drains for 3600 s", "a drains for 0 s", "a stops after ['whole']"]


async def test_a_plane_that_cannot_start_leaves_nothing_running() -> None:
    class Broken(Plane):
        async def start(self) -> None:
            raise OSError("no disk")

    app, events = SlowApp(), list[str]()
    app.over.set()
    bound = server.bind(FREE_PORT, "X")
    planes = [Plane("first", events, app), Broken("broken", events, app)]
    service = Service(planes, [Listener(app, bound)], 3600)
    with pytest.raises(OSError, match="no disk"):
        await service.start()
    assert events == ["first starts", "first drains for 0 s", "first stops after []"]
    assert bound.fileno() == -1
