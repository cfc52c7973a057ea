"""How requests to the API are read: bodies strictly, and as JSON whatever a client labels them."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any, Final

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from controlplane.fields import is_plain
from controlplane.problems import Problem

LONGEST_BODY: Final = 4 * 1024 * 1024
"""Bytes; room for importing some thousand models."""
_LONGEST_NUMBER: Final = 400
"""Digits; a longer number is out of every range, and slow to read."""


def parse(data: bytes) -> Any:
    """`data` as JSON. Raises JSONDecodeError for anything else, and for a name given twice.

    NaN and infinities pass, for the field's own check to refuse by name.
    """
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_object, parse_int=_whole)
    except UnicodeDecodeError as error:
        raise json.JSONDecodeError("it is not UTF-8", "", error.start) from None
    except RecursionError:
        raise json.JSONDecodeError("it is nested too deeply", "", 0) from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise json.JSONDecodeError("a name occurs twice in one object", "", 0)
    return found


def _whole(digits: str) -> int | float:
    return int(digits) if len(digits) <= _LONGEST_NUMBER else float(digits)


class ApiRequest(Request):
    """A request whose body is JSON; see `parse`."""

    @property
    def headers(self) -> Headers:
        """The headers, with the label the framework asks for before it reads a body as JSON."""
        headers = super().headers.mutablecopy()
        headers["content-type"] = "application/json"
        return headers

    async def body(self) -> bytes:
        """The body's bytes. Raises HTTPException once there are too many."""
        if not hasattr(self, "_body"):
            pieces = bytearray()
            async for piece in self.stream():
                pieces += piece
                if len(pieces) > LONGEST_BODY:
                    raise HTTPException(413, f"a body has at most {LONGEST_BODY:,} bytes")
            self._body = bytes(pieces)
        return self._body

    async def json(self) -> Any:
        """The body. Raises JSONDecodeError."""
        return parse(await self.body())


class ApiRoute(APIRoute):
    """A route of the API. Nothing is named with control characters, so no path has any."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The framework's handler, given the request as an `ApiRequest`."""
        handle = super().get_route_handler()

        async def read(request: Request) -> Response:
            if not is_plain(request.scope["path"]):
                raise Problem(404, "not-found", "no name or id has control characters")
            return await handle(ApiRequest(request.scope, request.receive))

        return read


class HeadAsGet:
    """ASGI middleware: what is asked with HEAD is worked out as for GET; the server sends no body.

    The framework answers HEAD on its own only where a route names it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)
