"""Limits on what a request may say before its body, and after it, for every listener.

uvicorn and its parser set none, and both add to what they have got of a header each time a packet
comes. An endless head would take all memory, and long before that all of the event loop's time.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from dataplane.errors import BadRequest, Refusal

HEAD_BYTES_MAX: Final = 64 * 1024
"""Request line and headers, and the trailers with them. Proxies in front allow 8 to 60 KiB, and
what they let through is not to fail here."""
FIELDS_MAX: Final = 256
"""Headers and trailers of one request; real clients send about twenty, a chain of proxies twice
that. Each costs far more memory than its bytes."""
URL_BYTES_MAX: Final = 16 * 1024
"""The longest URL in use is a few hundred bytes; this leaves room for every query string."""
FLUSH_SECS: Final = 5.0
"""How long a client may take to read why it was refused."""


class UrlTooLong(Refusal):
    """414: the URL is over the limit."""

    status = 414
    openai_type = "invalid_request_error"
    anthropic_type = "invalid_request_error"
    code = "url_too_long"
    closes_connection = True

    def __init__(self) -> None:
        super().__init__(f"The request's URL is longer than the {URL_BYTES_MAX:,} bytes allowed.")


class HeadTooLarge(Refusal):
    """431: the request's headers are too many or too long."""

    status = 431
    openai_type = "invalid_request_error"
    anthropic_type = "invalid_request_error"
    code = "headers_too_large"
    closes_connection = True

    def __init__(self) -> None:
        super().__init__(
            f"The request's headers are more than the {FIELDS_MAX} or longer than the"
            f" {HEAD_BYTES_MAX:,} bytes allowed."
        )


class NotHttp(BadRequest):
    """400: it cannot even be told what is asked for."""

    def __init__(self) -> None:
        super().__init__(
            "What was sent is not a valid HTTP/1.1 request.", code="invalid_http", closes=True
        )


class LimitedHttpTools(HttpToolsProtocol):
    """uvicorn's protocol for a peer that may send anything.

    A request over a limit is answered at once and its connection closed; of what it still sends
    nothing is read. Where an earlier request's answer is still owed it is closed without a word,
    which would be taken for that answer.
    """

    url = b""  # of uvicorn's, which sets it when a request begins

    _refusal: Refusal | None = None
    _is_in_head = True
    _has_moved_on = False
    _unended_bytes = 0
    """Read since a head, a piece of a body or a message last came to its end."""
    _head_bytes = 0
    _fields = 0
    _is_coded = False
    """Whether a transfer coding has been named."""

    def data_received(self, data: bytes) -> None:
        # The parser tells of a header once it is whole. Until then all that can be counted is what
        # it was fed, so it is never fed more than the limit in one go.
        for start in range(0, len(data), HEAD_BYTES_MAX):
            if self.transport.is_closing():
                return
            piece = data[start : start + HEAD_BYTES_MAX]
            self._has_moved_on = False
            super().data_received(piece)
            self._unended_bytes = 0 if self._has_moved_on else self._unended_bytes + len(piece)
            if self._unended_bytes >= HEAD_BYTES_MAX and not self.transport.is_closing():
                self._refusal = HeadTooLarge()
                self._answer(self._refusal)

    # Called by the parser. What they raise ends in `send_400_response`.

    def on_message_begin(self) -> None:
        self._is_in_head = True
        self._is_coded = False
        self._head_bytes = self._fields = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._head_bytes = len(self.url)
        if self._head_bytes > URL_BYTES_MAX:
            self._refuse(UrlTooLong())

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields += 1
        self._head_bytes += len(name) + len(value) + len(b": \r\n")
        if self._fields > FIELDS_MAX or self._head_bytes > HEAD_BYTES_MAX:
            self._refuse(HeadTooLarge())
        if self._is_in_head and name.lower() == b"transfer-encoding":
            self._check_coding(value)
        if self._is_in_head:  # a trailer is no header: nobody has checked the request with it
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._has_moved_on = True
        self._is_in_head = False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._has_moved_on = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._has_moved_on = True
        super().on_message_complete()

    def _check_coding(self, value: bytes) -> None:
        # The parser looks at the last coding alone, and hands over what the others have made of
        # the body as if it were the body. No 501: clients try again after that.
        if self._is_coded or value.strip().lower() != b"chunked":
            self._refuse(
                BadRequest(
                    "Of all `Transfer-Encoding`s only `chunked` is accepted, once.",
                    code="unsupported_encoding",
                    closes=True,
                )
            )
        self._is_coded = True

    # The answer

    def _refuse(self, refusal: Refusal) -> None:
        self._refusal = refusal
        raise refusal

    def send_400_response(self, msg: str) -> None:
        self._answer(self._refusal or NotHttp())

    def _answer(self, refusal: Refusal) -> None:
        if not self._may_answer():
            self.transport.abort()
            return
        if self.cycle is not None:
            self.cycle.disconnected = True
        headers, body = self.refusal_answer(refusal)
        status = HTTPStatus(refusal.status)
        self.transport.write(
            f"HTTP/1.1 {status.value} {status.phrase}\r\n"
            "content-type: application/json\r\n"
            f"content-length: {len(body)}\r\n".encode("ascii")
            + b"".join(b"%b: %b\r\n" % header for header in headers)
            + b"connection: close\r\n\r\n"
            + body
        )
        self.transport.close()
        self.loop.call_later(FLUSH_SECS, self.transport.abort)

    def _may_answer(self) -> bool:
        """Whether the next answer that the client waits for is the one to this request."""
        newest = self.cycle
        if newest is None or newest.response_complete:
            return True
        return not (self._is_in_head or self.pipeline or newest.response_started)

    def refusal_answer(self, refusal: Refusal) -> tuple[list[tuple[bytes, bytes]], bytes]:
        """Headers and JSON in answer to a request of which only a part may be known."""
        error = {"message": refusal.message, "code": refusal.code}
        return [], msgspec.json.encode({"error": error})
