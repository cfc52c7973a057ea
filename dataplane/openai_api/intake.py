"""From bytes to a request that is understood: reads bodies, the large ones off the event loop."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeVar

from dataplane.errors import BadRequest, RequestTooLarge
from dataplane.openai_api import body as json_body
from dataplane.openai_api.body import JsonBody
from dataplane.openai_api.client import Client
from dataplane.openai_api.routes import Route
from dataplane.openai_api.upload import Upload
from dataplane.proxy.forward import OutgoingBody

INLINE_BYTES_MAX: Final = 128 * 1024
"""A larger body is read by a thread. One thread: several would take turns with the event loop for
the interpreter, and each turn they get is a turn it waits."""

_CHARSET: Final = re.compile(rb';\s*charset\s*=\s*"?([^\s;"]*)', re.IGNORECASE)
_UTF8: Final = frozenset({b"utf-8", b"utf8", b"us-ascii"})

T = TypeVar("T")


class OutgoingJson:
    """A JSON body as upstreams are sent it."""

    is_replayable: Final = True

    def __init__(self, body: JsonBody, *, asks_usage: bool) -> None:
        self._body: Final = body
        self.asks_usage: Final = asks_usage

    def declared_length(self, model: str) -> int | None:
        return None  # a plain body declares itself

    def content(self, model: str, *, asks_usage: bool) -> bytes:
        return self._body.with_model(model, asks_usage=asks_usage)


@dataclass(frozen=True, slots=True)
class Incoming:
    """A request whose body is understood as far as need be."""

    model: str
    """As the client calls it."""
    body: JsonBody | None
    """None: an upload, which is passed through."""
    outgoing: OutgoingBody

    @property
    def is_stream(self) -> bool:
        return self.body is not None and self.body.is_true("stream")


class Intake:
    """Reads bodies up to `max_body_bytes`."""

    def __init__(self, max_body_bytes: int) -> None:
        self._max_body_bytes: Final = max_body_bytes
        self._reader: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="body")

    def close(self) -> None:
        """End the reading thread."""
        self._reader.shutdown(wait=False, cancel_futures=True)

    async def read(self, client: Client, route: Route) -> Incoming:
        """The request, as soon as its model is known; from then on the client is watched.

        Raises `BadRequest`, `RequestTooLarge` and `ClientLeft`; see also `Client.read`.
        """
        declared = client.declared_bytes
        if declared is not None and declared > self._max_body_bytes:
            raise RequestTooLarge(self._max_body_bytes)
        _check_content_coding(client)
        content_type = client.header(b"content-type") or b""
        if route.takes_uploads and content_type.lower().startswith(b"multipart/form-data"):
            upload = await Upload.begin(client, content_type, self._max_body_bytes)
            client.watch()
            return Incoming(upload.model, None, upload)
        _check_charset(content_type)
        pieces, size = await self._read_whole(client)
        client.watch()
        body = await self.run(size, lambda: json_body.parse(b"".join(pieces)))
        outgoing = OutgoingJson(body, asks_usage=route.reports_usage_on_request and _may_ask(body))
        return Incoming(body.model, body, outgoing)

    async def run(self, size: int, work: Callable[[], T]) -> T:
        """`work` on a body of `size` bytes, off the event loop if that is large."""
        if size <= INLINE_BYTES_MAX:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._reader, work)

    async def _read_whole(self, client: Client) -> tuple[list[bytes], int]:
        pieces: list[bytes] = []
        size = 0
        while piece := await client.read():
            size += len(piece)
            if size > self._max_body_bytes:
                raise RequestTooLarge(self._max_body_bytes)
            pieces.append(piece)
        return pieces, size


def _may_ask(body: JsonBody) -> bool:
    """Whether the gateway has to, and can, add the wish for a usage report."""
    return body.is_true("stream") and not body.includes_usage and body.is_usage_option_open


def _check_content_coding(client: Client) -> None:
    coding = client.header(b"content-encoding")
    if coding is not None and coding.strip().lower() not in (b"", b"identity"):
        raise BadRequest(
            "Bodies with a `Content-Encoding` are not accepted.", code="unsupported_encoding"
        )


def _check_charset(content_type: bytes) -> None:
    match = _CHARSET.search(content_type)
    if match is not None and match[1].lower() not in _UTF8:
        raise BadRequest("JSON is UTF-8; no other charset is accepted.", code="unsupported_charset")
