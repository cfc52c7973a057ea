"""A gateway on a real socket, and raw sockets on both sides of it."""

from __future__ import annotations

import asyncio
import select
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import uvicorn

from dataplane.openai_api.endpoint import Gateway, GatewayOptions
from dataplane.openai_api.server_protocol import http_protocol
from dataplane.proxy.aiohttp_upstream import AiohttpUpstream
from dataplane.proxy.endpoint_choice import EndpointChoice
from dataplane.proxy.forward import Forwarder
from dataplane.proxy.upstream import Timeouts
from shared.network import NetworkRules
from shared.policy import ModelPolicy
from tests import listeners
from tests.proxy.parts import MODEL, SECRET, Budget, Gate, Observations, Policy

TIMEOUTS = Timeouts(connect_secs=2, head_secs=5, read_secs=5)


class _Server(uvicorn.Server):
    """uvicorn without its pauses: it starts and stops at once."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up = asyncio.Event()
        self.is_over = asyncio.Event()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        self.is_up.set()
        await self.is_over.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            await listeners.close(server)
        for connection in list(self.server_state.connections):
            cast(asyncio.Transport, connection.transport).abort()
        await asyncio.gather(*self.server_state.tasks, return_exceptions=True)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def served(
    app: Any, http: Any, keep_alive_secs: float = 5
) -> AsyncIterator[tuple[int, uvicorn.Server]]:
    """Serve an ASGI application on a free port of the loopback interface."""
    bound = socket.create_server(("127.0.0.1", 0))
    server = _Server(
        uvicorn.Config(
            app,
            http=http,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_keep_alive=keep_alive_secs,  # type: ignore[arg-type]
        )
    )
    serving = asyncio.create_task(server.serve(sockets=[bound]))
    await server.is_up.wait()
    try:
        yield bound.getsockname()[1], server
    finally:
        server.is_over.set()
        await serving


@dataclass
class World:
    """A gateway and everything around it."""

    port: int
    server: uvicorn.Server
    gateway: Gateway
    policy: Policy
    budget: Budget
    gate: Gate
    seen: Observations
    attempts: list[tuple[str, str]]
    choice: EndpointChoice

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    lines: list[Line] = field(default_factory=list)

    async def connect(self, **kwargs: Any) -> Line:
        """A client's connection, closed with the world if not before."""
        line = await Line.connect(self.port, **kwargs)
        self.lines.append(line)
        return line

    async def ask(self, **fields: Any) -> Reply:
        """One request on a connection of its own."""
        line = await self.connect()
        try:
            await line.send(**fields)
            return await line.reply()
        finally:
            await line.close()


@asynccontextmanager
async def world(
    *models: ModelPolicy,
    parser: str = "httptools",
    slots: int = 100,
    timeouts: Timeouts = TIMEOUTS,
    rules: NetworkRules | None = None,
    plain_server: bool = False,
    keep_alive_secs: float = 5,
    clock: Callable[[], float] = time.monotonic,
    **options: Any,
) -> AsyncIterator[World]:
    """A gateway served by uvicorn; `plain_server`: without the connection's extra abilities."""
    upstream = AiohttpUpstream(rules or NetworkRules())
    attempts: list[tuple[str, str]] = []
    choice = EndpointChoice()
    policy = Policy(registered={each.name: each for each in models})
    budget, gate, seen = Budget(), Gate(slots), Observations()
    settings = GatewayOptions(**options)
    gateway = Gateway(
        settings,
        policy=policy,
        budgets=budget,
        admission=gate,
        forwarder=Forwarder(
            upstream,
            choice,
            timeouts,
            lambda label, outcome: attempts.append((label, outcome)),
            clock=clock,
        ),
        observers=[seen],
    )
    http: Any = parser
    if not plain_server:
        http = http_protocol(parser, write_timeout_secs=settings.client_write_timeout_secs)  # type: ignore[arg-type]
    try:
        async with served(gateway, http, keep_alive_secs) as (port, server):
            found = World(port, server, gateway, policy, budget, gate, seen, attempts, choice)
            yield found
            for line in found.lines:
                line.leave()
            await gateway.stop(0)
    finally:
        await upstream.close()


def chat(**fields: Any) -> bytes:
    """A chat request's body."""
    messages = [{"role": "user", "content": "hello"}]
    return msgspec.json.encode({"model": MODEL, "messages": messages, **fields})


@dataclass
class Reply:
    """What a client got."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    is_whole: bool = True
    """False: the connection ended before the body did."""

    def header(self, name: str) -> str | None:
        found = [value for each, value in self.headers if each == name]
        assert len(found) <= 1, f"{name} is there {len(found)} times"
        return found[0] if found else None

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Line:
    """A client's connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int, *, buffer: int | None = None) -> Line:
        """`buffer`: bytes the client's side holds before the sender has to wait."""
        own = socket.socket()
        if buffer is not None:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        own.setblocking(False)
        await asyncio.get_running_loop().sock_connect(own, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=own, limit=buffer or 2**16)
        return cls(reader, writer)

    async def send(
        self,
        body: bytes = b"",
        *,
        method: str = "POST",
        path: str = "/v1/chat/completions",
        headers: dict[str, str] | None = None,
        key: str | None = SECRET,
    ) -> None:
        head = {"host": "gateway", "content-type": "application/json", **(headers or {})}
        if key is not None:
            head["authorization"] = f"Bearer {key}"
        if method == "POST" and "transfer-encoding" not in head:
            head.setdefault("content-length", str(len(body)))
        lines = [f"{method} {path} HTTP/1.1", *(f"{n}: {v}" for n, v in head.items()), "", ""]
        await self.write("\r\n".join(lines).encode("latin-1") + body)

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> Reply:
        """The head of the next answer; interim answers are passed over."""
        while True:
            text = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = text.split("\r\n")
            status = int(first.split(" ")[1])
            if status != 100:
                break
        parted = (line.partition(":") for line in lines if line)
        return Reply(status, [(name.lower(), value.strip()) for name, _, value in parted], b"")

    async def reply(self) -> Reply:
        """The next answer whole, or what there is of it."""
        reply = await self.head()
        try:
            if reply.header("transfer-encoding") == "chunked":
                while chunk := await self.chunk():
                    reply.body += chunk
            elif reply.status not in (204, 304):
                reply.body = await self.reader.readexactly(int(reply.header("content-length") or 0))
        except asyncio.IncompleteReadError as cut:
            reply.body += cut.partial
            reply.is_whole = False
        except ConnectionResetError:
            reply.is_whole = False
        return reply

    async def chunk(self) -> bytes:
        """The next chunk's bytes; empty at the end."""
        size = int((await self.reader.readuntil(b"\r\n")).strip(), 16)
        data = await self.reader.readexactly(size + 2)
        return data[:-2]

    async def read_until(self, text: bytes) -> bytes:
        """Chunks until one of them completes `text`."""
        found = b""
        while text not in found:
            chunk = await self.chunk()
            assert chunk, f"the body ended without {text!r}: {found!r}"
            found += chunk
        return found

    async def is_closed(self) -> bool:
        """Whether the server has nothing more to say and closes."""
        try:
            return await self.reader.read(1) == b""
        except ConnectionResetError:
            return True

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except OSError:
            return

    def leave(self) -> None:
        """Close at once, as a client does that has lost interest."""
        self.writer.transport.abort()


@dataclass
class Asked:
    """A request as an upstream got it."""

    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        found = [value for each, value in self.headers if each == name]
        assert len(found) <= 1, f"{name} is there {len(found)} times"
        return found[0] if found else None

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


@dataclass
class Upstream:
    """An upstream whose every byte is written by the test.

    Each connection is handed to `script` until that returns; then it is closed.
    """

    script: Callable[[Upstream, Peer], Awaitable[None]]
    port: int = 0
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    open: int = 0
    written: int = 0
    """Bytes that were taken from it."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    serving: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def last(self) -> Asked:
        return self.asked[-1]

    async def until(self, condition: Callable[[Upstream], bool], within: float = 30.0) -> None:
        async with asyncio.timeout(within):
            while not condition(self):
                self.changed.clear()
                await self.changed.wait()

    async def until_still(self) -> None:
        """Wait until nothing more is taken from it: every buffer on the way is full."""
        await self.until(lambda up: up.written > 0)
        readings = [-1, -2, -3]
        while len(set(readings[-3:])) > 1:
            await asyncio.sleep(0.05)
            readings.append(self.written)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.serving.add(task)
        self.connections += 1
        self.open += 1
        self.changed.set()
        try:
            await self.script(self, Peer(self, reader, writer))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            writer.transport.abort()  # what it has written may never be taken
        finally:
            writer.close()
            self.open -= 1
            self.changed.set()


@dataclass
class Peer:
    """One connection to an upstream."""

    upstream: Upstream
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def request(self) -> Asked:
        """The next request whole. Raises IncompleteReadError at the connection's end."""
        text = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = text.split("\r\n")
        parted = (line.partition(":") for line in lines if line)
        headers = [(name.lower(), value.strip()) for name, _, value in parted]
        asked = Asked(first.split(" ")[1], headers, b"")
        if asked.header("transfer-encoding") == "chunked":
            while size := int((await self.reader.readuntil(b"\r\n")).strip(), 16):
                asked.body += (await self.reader.readexactly(size + 2))[:-2]
            await self.reader.readexactly(2)
        else:
            asked.body = await self.reader.readexactly(int(asked.header("content-length") or 0))
        self.upstream.asked.append(asked)
        self.upstream.changed.set()
        return asked

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()
        self.upstream.written += len(data)
        self.upstream.changed.set()

    async def answer(self, body: bytes, status: str = "200 OK", **headers: str) -> None:
        head = {"content_type": "application/json", "content_length": str(len(body)), **headers}
        lines = [f"HTTP/1.1 {status}", *(f"{n.replace('_', '-')}: {v}" for n, v in head.items())]
        await self.write("\r\n".join([*lines, "", ""]).encode() + body)

    async def start_stream(self, **headers: str) -> None:
        head = {"content_type": "text/event-stream", "transfer_encoding": "chunked", **headers}
        lines = ["HTTP/1.1 200 OK", *(f"{n.replace('_', '-')}: {v}" for n, v in head.items())]
        await self.write("\r\n".join([*lines, "", ""]).encode())

    async def chunk(self, data: bytes) -> None:
        await self.write(b"%x\r\n%b\r\n" % (len(data), data))

    async def end_stream(self) -> None:
        await self.write(b"0\r\n\r\n")

    async def until_gone(self) -> None:
        """Returns when the other side has closed."""
        while await self.reader.read(2**16):
            pass

    @property
    def is_gone(self) -> bool:
        """Whether the other side has closed, as the kernel knows it at this moment."""
        number = self.writer.get_extra_info("socket").fileno()
        if number < 0:
            return True
        poll = select.poll()
        poll.register(number, select.POLLRDHUP)
        return bool(poll.poll(0))

    def reset(self) -> None:
        """Cut the connection without a word."""
        own = self.writer.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.writer.transport.abort()


@asynccontextmanager
async def upstream(script: Callable[[Upstream, Peer], Awaitable[None]]) -> AsyncIterator[Upstream]:
    found = Upstream(script)
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0, limit=2**20)
    found.port = server.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        await listeners.close(server)
        for task in found.serving:
            task.cancel()
        await asyncio.gather(*found.serving, return_exceptions=True)


def answers(
    body: bytes, status: str = "200 OK", **kwargs: str
) -> Callable[[Upstream, Peer], Awaitable[None]]:
    """A script that gives every request the same answer."""

    async def script(_: Upstream, peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.answer(body, status, **kwargs)

    return script


def streams(*chunks: bytes, **headers: str) -> Callable[[Upstream, Peer], Awaitable[None]]:
    """A script that gives every request the same stream, one chunk for each piece."""

    async def script(_: Upstream, peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.start_stream(**headers)
            for chunk in chunks:
                await peer.chunk(chunk)
            await peer.end_stream()

    return script
