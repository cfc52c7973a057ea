"""The client's side of one request: head, body, the way back, and whether it is still there.

From the moment the body needs no more attention, somebody always waits in `receive`: that is how an
ASGI server tells that a client has left. Whatever is being done for it then, waiting for a slot or
for an upstream, sending, backing off, is cut off, and `ClientLeft` is raised out of the block.

Where the server says more than ASGI does (see `server_protocol`), a client that leaves while it is
not being read from is noticed too, and a connection can be closed in the middle of an answer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, Final, Protocol

from dataplane.errors import RequestTimeout
from dataplane.openai_api.cut_off import CutOff
from dataplane.openai_api.dialects import HeaderList

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

BODY_BYTES_PER_SEC_MIN: Final = 16 * 1024
"""A client that sends its body at least this fast is never too slow, however long it takes."""
READ_AHEAD_BYTES: Final = 256 * 1024
"""How much of an upload is taken from the client before the upstream has taken it."""
LAST_WORDS_SECS: Final = 5.0
"""How long a client may take to read why its answer breaks off."""
CONNECTION: Final = "obleth.connection"
"""The name in `scope["state"]` under which the server gives its `Connection`."""


class ClientLeft(Exception):
    """Nobody is there any more to answer."""


class ClientStalled(Exception):
    """The client has not read its answer for too long."""


class Connection(Protocol):
    """What a server that can do more than ASGI lets the application do with a connection."""

    lost_callbacks: set[Callable[[], None]]
    """Called when the connection is lost, one for each request that still has to do with it."""

    def close(self) -> None:
        """Close in the middle of an answer, once what has been written has been read."""

    def abort(self) -> None:
        """Close at once."""


class Client:
    """One request, over ASGI. Times in seconds."""

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        body_timeout_secs: float,
        write_timeout_secs: float,
    ) -> None:
        self.method: Final[str] = scope["method"]
        self.path: Final[str] = scope["path"]
        self.query: Final[bytes] = scope["query_string"]
        self.headers: Final[list[tuple[bytes, bytes]]] = list(scope["headers"])
        self._first: Final = dict(reversed(self.headers))
        self.has_started = False
        """Whether the head of an answer has been sent."""
        self.has_finished = False
        """Whether all of it has."""
        self._receive: Final = receive
        self._send: Final = send
        self._body_timeout_secs: Final = body_timeout_secs
        self._write_timeout_secs: Final = write_timeout_secs
        self._loop: Final = asyncio.get_running_loop()
        state = scope.get("state")
        self._connection: Final[Connection | None] = state.get(CONNECTION) if state else None
        self._block = CutOff()
        self._watcher: asyncio.Task[None] | None = None
        self._ahead: deque[MutableMapping[str, Any]] = deque()
        self._ahead_bytes = 0
        self._changed = asyncio.Event()
        """Set when something has been read ahead, or taken from what was."""
        self._was_asked = False
        self._body_has_ended = False
        self._body_bytes = 0
        self._waited_secs = 0.0
        self._sending_since: float | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    # The block

    @contextmanager
    def served(self) -> Iterator[None]:
        """The block in which the request is dealt with, and out of which it may be cut.

        Raises `ClientLeft`, `ClientStalled`, or what `cut` was given.
        """
        if self._connection is not None:
            self._connection.lost_callbacks.add(self._lost)
        try:
            with self._block:
                yield
        finally:
            if self._watcher is not None:
                self._watcher.cancel()
            if self._connection is not None:
                self._connection.lost_callbacks.discard(self._lost)
            if self._stall_timer is not None:
                self._stall_timer.cancel()

    def watch(self) -> None:
        """From now on the client's leaving ends the block, whatever it is doing.

        A server that calls back makes a task of one's own for it needless, once the body is read.
        """
        if self._connection is None or not self._body_has_ended:
            self._watcher = self._loop.create_task(self._watch())

    def cut(self, reason: Exception) -> None:
        """End the block from outside with `reason`."""
        self._block.cut(reason)

    def spare(self) -> None:
        """Nothing cuts the block from now on: all that is left is to give back what it holds."""
        self._block.close()

    def _lost(self) -> None:
        self.cut(ClientLeft())

    @contextmanager
    def cut_after(self, secs: float, reason: Exception) -> Iterator[None]:
        """A part of the block that is cut off when it takes longer."""
        timer = self._loop.call_later(secs, self.cut, reason)
        try:
            yield
        finally:
            timer.cancel()

    async def _watch(self) -> None:
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.cut(ClientLeft())
                return
            self._ahead.append(message)
            self._ahead_bytes += len(message.get("body", b""))
            self._changed.set()
            while self._ahead_bytes >= READ_AHEAD_BYTES:
                self._changed.clear()
                await self._changed.wait()

    # The head

    def header(self, name: bytes) -> bytes | None:
        """The first value of a header, by its lower-case name."""
        return self._first.get(name)

    # The body

    @property
    def declared_bytes(self) -> int | None:
        """The length the client declares for its body; None if it declares none."""
        value = self.header(b"content-length")
        return int(value) if value is not None and value.isdigit() else None

    @property
    def waits_to_send(self) -> bool:
        """Whether the client sends its body only when asked to, and has not been asked."""
        return not self._was_asked and self.header(b"expect") is not None

    async def read(self) -> bytes:
        """The next piece of the body; empty once it has ended.

        Raises `ClientLeft`. Cuts the block with `RequestTimeout` when the client has been waited
        for longer than allowed, counted over the whole body.
        """
        self._was_asked = True
        while not self._body_has_ended:
            message = await self._next_message()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            self._body_has_ended = not message.get("more_body", False)
            piece: bytes = message.get("body", b"")
            self._body_bytes += len(piece)
            if piece:
                return piece
        return b""

    async def _next_message(self) -> MutableMapping[str, Any]:
        allowed = self._body_timeout_secs + self._body_bytes / BODY_BYTES_PER_SEC_MIN
        began = self._loop.time()
        left = allowed - self._waited_secs
        timer = self._loop.call_later(left, self._is_too_slow, allowed)
        try:
            return await (self._receive() if self._watcher is None else self._take_ahead())
        finally:
            timer.cancel()
            self._waited_secs += self._loop.time() - began

    def _is_too_slow(self, allowed_secs: float) -> None:
        self.cut(RequestTimeout(allowed_secs, self._body_bytes))

    async def _take_ahead(self) -> MutableMapping[str, Any]:
        while not self._ahead:
            self._changed.clear()
            await self._changed.wait()
        message = self._ahead.popleft()
        self._ahead_bytes -= len(message.get("body", b""))
        self._changed.set()
        return message

    # The answer

    async def start(self, status: int, headers: HeaderList) -> None:
        """Send the head of an answer whose body follows in pieces."""
        self.has_started = True
        self._stall_timer = self._loop.call_later(
            self._write_timeout_secs / 4, self._look_for_stall
        )
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, data: bytes) -> None:
        """Send a piece of the body; waits while the client does not read."""
        self._sending_since = self._loop.time()
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        self._sending_since = None

    async def finish(self) -> None:
        """The body is whole."""
        self._sending_since = self._loop.time()
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        self._sending_since = None
        self.has_finished = True

    async def respond(self, status: int, headers: HeaderList, body: bytes) -> None:
        """Send a whole answer."""
        self.has_started = True
        headers.append((b"content-length", b"%d" % len(body)))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": False})
        self.has_finished = True

    async def break_off(self, last_words: bytes = b"") -> None:
        """End an answer that is not whole so that the client can tell: by closing on it."""
        try:
            async with asyncio.timeout(LAST_WORDS_SECS):
                if last_words:
                    await self.write(last_words)
        except TimeoutError:
            self.abort()
        if self._connection is not None:
            self._connection.close()

    def abort(self) -> None:
        """Close the connection at once, where the server lets us."""
        if self._connection is not None:
            self._connection.abort()

    def _look_for_stall(self) -> None:
        since = self._sending_since
        if since is not None and self._loop.time() - since >= self._write_timeout_secs:
            self.cut(ClientStalled())
            return
        self._stall_timer = self._loop.call_later(
            self._write_timeout_secs / 4, self._look_for_stall
        )
