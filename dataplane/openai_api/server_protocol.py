"""uvicorn's HTTP protocols, taught what the gateway needs to know about a connection.

ASGI has no word for closing in the middle of an answer, and uvicorn stops reading from a client
that sends more than it is asked for, which leaves it blind to the client's leaving. Added here:

- the application gets the connection itself (`client.Connection`) in `scope["state"]`;
- while reading is paused, the socket is asked twice a second whether the peer has hung up;
- a connection that is lost tells the request that runs on it, also when others are queued behind;
- a request that offers another protocol keeps its body;
- a request's head is limited in size, and refused in the caller's words (see `head_limits`);
- a client gets `HEAD_TIMEOUT_SECS` to send a request's head, and as long to finish sending a body
  that was refused before it was read, also where the connection ends with that;
- an answer that nobody reads is given up by the kernel, too, once the application is done with it.
"""

from __future__ import annotations

import asyncio
import select
import socket
import struct
from collections.abc import Callable
from typing import Any, Final, Literal, cast

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState

from dataplane.errors import Refusal
from dataplane.openai_api import dialects, routes
from dataplane.openai_api.client import CONNECTION
from dataplane.openai_api.head_limits import HEAD_BYTES_MAX, LimitedHttpTools
from dataplane.openai_api.story import request_id

HEAD_TIMEOUT_SECS: Final = 30.0
LOOKS_EVERY_SECS: Final = 0.5
FLUSH_SECS: Final = 5.0
"""How long a connection that is being closed may take to be read to its end."""

_NO_LINGERING: Final = struct.pack("ii", 1, 0)
_HALF_CLOSED: Final[int] = getattr(select, "POLLRDHUP", 0)
"""Only Linux tells a peer that stopped sending from one that is slow; elsewhere it is noticed when
reading goes on."""
_HUNG_UP: Final = _HALF_CLOSED | select.POLLHUP | select.POLLERR


class _WatchedFlow(FlowControl):
    """Looks after the peer while nothing is read from it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._looking: asyncio.TimerHandle | None = None

    def pause_reading(self) -> None:
        super().pause_reading()
        if self._looking is None:
            self._look_later()

    def resume_reading(self) -> None:
        super().resume_reading()
        self.stop_looking()

    def stop_looking(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._looking = loop.call_later(LOOKS_EVERY_SECS, self._look)

    def _look(self) -> None:
        self._looking = None
        if self._transport.is_closing():
            return
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), _HALF_CLOSED)
        if any(events & _HUNG_UP for _, events in poll.poll(0)):
            self._transport.abort()
        else:
            self._look_later()


class _Transport:
    """A connection's transport, which is closed after a body that was refused has come to its end.

    A socket that is closed with something unread in it is reset, and the client, which may still
    be sending, never gets to read why. So only the gateway's own direction is closed at first. To
    uvicorn it is closed: what still comes is passed over.
    """

    def __init__(self, transport: asyncio.Transport, connection: _GatewayConnection) -> None:
        self._transport: Final = transport
        self._connection: Final = connection
        self._lingers = False
        self.write: Final = transport.write  # as often as a stream has pieces

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._lingers or self._transport.is_closing()

    def close(self) -> None:
        if self.is_closing() or not self._connection.ends_with_an_answer:
            self._transport.close()
            return
        self._lingers = True
        self._transport.write_eof()
        self._connection.pass_over()


class _GatewayConnection(asyncio.Protocol):
    """What both protocols below add to uvicorn's. Mixed in before them."""

    unread_millis_max = 120_000
    """After how long without progress the kernel gives up what the client does not take."""

    # Of uvicorn's protocols:
    transport: asyncio.Transport
    flow: FlowControl
    loop: asyncio.AbstractEventLoop
    cycle: Any

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        state = {**app_state, CONNECTION: self}
        super().__init__(config, server_state, state, _loop)  # type: ignore[call-arg]
        self.lost_callbacks: set[Callable[[], None]] = set()
        self._head_timer: asyncio.TimerHandle | None = None

    @property
    def running(self) -> Any:
        """The request that is being answered, as uvicorn keeps it."""
        return self.cycle

    # client.Connection

    def close(self) -> None:
        self.running.disconnected = True  # so that uvicorn takes the short answer as meant
        self.transport.close()
        self.loop.call_later(FLUSH_SECS, self.transport.abort)

    def abort(self) -> None:
        self.running.disconnected = True
        own = self.transport.get_extra_info("socket")
        if own is not None and own.fileno() >= 0:
            # A reset: what the client has not taken is not kept for it by the kernel either.
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGERING)
        self.transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport = cast(asyncio.Transport, _Transport(self.transport, self))
        self.flow = _WatchedFlow(self.transport)
        own = transport.get_extra_info("socket")
        over_tcp = own is not None and own.family in (socket.AF_INET, socket.AF_INET6)
        if over_tcp and hasattr(socket, "TCP_USER_TIMEOUT"):  # which only Linux has
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, self.unread_millis_max)
        self._mind_head()

    def data_received(self, data: bytes) -> None:
        if not self.transport.is_closing():
            super().data_received(data)
            self._mind_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        running = self.running
        if running is not None and not running.response_complete:
            running.disconnected = True
            running.message_event.set()
        if isinstance(self.flow, _WatchedFlow):
            self.flow.stop_looking()
        self._drop_head_timer()
        for callback in list(self.lost_callbacks):
            callback()

    @property
    def ends_with_an_answer(self) -> bool:
        """Whether a request has been answered though not all of its body has come."""
        running = self.running
        return running is not None and running.response_complete and running.more_body

    def pass_over(self) -> None:
        """Read what still comes, for a while, and do nothing with it."""
        self.flow.resume_reading()
        self._mind_head()

    def _mind_head(self) -> None:
        """Limit the time to the next whole head, from the first byte that belongs to it."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._drop_head_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_SECS, self.transport.abort)

    def _drop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class _GatewayH11(_GatewayConnection, H11Protocol):
    pass


class _Parser(httptools.HttpRequestParser):
    """Takes an offer to change the protocol for what it is: an offer."""

    rest = b""
    """What came after a head with such an offer, which the parser reads no further."""

    def feed_data(self, data: Any) -> None:
        try:
            super().feed_data(data)
        except httptools.HttpParserUpgrade as offered:
            self.rest = data[offered.args[0] :]


class _GatewayHttpTools(_GatewayConnection, LimitedHttpTools):
    """Some clients offer another protocol with every request, a body all the same, and go on in
    this one when nobody takes the offer up. The parser knows bodies of a declared length alone
    from there on, and ends the message before it: what is missing is counted off here.
    """

    _running: Any = None

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.parser: _Parser = _Parser(self)
        # As uvicorn has it: the first of several requests is answered, whatever follows it.
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._owed = 0
        """Bytes of a body that are still to come past the parser."""

    @property
    def running(self) -> Any:
        return self._running  # `cycle` may be one that waits its turn

    def data_received(self, data: bytes) -> None:
        while data and not self.transport.is_closing():
            if self._owed:
                piece, data = data[: self._owed], data[self._owed :]
                self._owed -= len(piece)
                self.on_body(piece)
                if not self._owed:
                    super().on_message_complete()
            else:
                # In pieces that are read in one go: what the parser leaves of one comes next.
                piece, data = data[:HEAD_BYTES_MAX], data[HEAD_BYTES_MAX:]
                super().data_received(piece)
                if self.parser is not None:
                    data, self.parser.rest = self.parser.rest + data, b""

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            declared = (value for name, value in self.headers if name == b"content-length")
            self._owed = int(next(declared, b"0"))
        if not self._owed:
            super().on_message_complete()

    @property
    def ends_with_an_answer(self) -> bool:
        # Else it ends for what is wrong with the rest of the body, which may have no end.
        return super().ends_with_an_answer and not self._running.keep_alive

    def refusal_answer(self, refusal: Refusal) -> tuple[dialects.HeaderList, bytes]:
        path = self.url.partition(b"?")[0].decode("latin-1")
        headers = dict(self.headers or ())
        dialect = routes.dialect_of(path, says_anthropic_version=b"anthropic-version" in headers)
        its_id = request_id(headers.get(b"x-request-id"))
        body = dialects.error_body(refusal, dialect, its_id)
        return dialects.identity_headers(its_id, dialect), body

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)


def http_protocol(
    parser: Literal["httptools", "h11"], *, write_timeout_secs: float
) -> type[asyncio.Protocol]:
    """The class to give to uvicorn's `http` setting.

    `write_timeout_secs`: for how long a client may leave what is sent to it unread.
    """
    base = _GatewayHttpTools if parser == "httptools" else _GatewayH11
    # The application goes first: it knows which request it is, and says so in the records.
    millis = round((write_timeout_secs + FLUSH_SECS) * 1000)
    return type(base.__name__, (base,), {"unread_millis_max": millis})
