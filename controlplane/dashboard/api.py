"""The Management API as the dashboard calls it: the same routes, in this process.

So every figure on a page is one the API gives, and every rule (who may write, what a field takes,
what goes to the audit log) is the API's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import httpx
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from controlplane.paging import LIMIT_MAX

Json = dict[str, Any]
Param = str | int | list[str] | None
ROOT: Final = "/api/v1"


class Refused(Exception):
    """The API answered with a problem."""

    def __init__(self, problem: Json) -> None:
        super().__init__(problem["detail"])
        self.status: int = problem["status"]
        self.detail: str = problem["detail"]
        self.fields: dict[str, str] = {
            error["field"]: error["detail"] for error in problem.get("errors", ())
        }
        """What is wrong with each field, by its dotted path."""


class Api:
    """Calls with one role's token, on behalf of a browser at the address `client`."""

    def __init__(self, app: ASGIApp, token: str, client: str) -> None:
        self._app = app
        self._headers = {"Authorization": f"Bearer {token}"}
        self._client = httpx.AsyncClient(
            # It holds nothing open: there is no connection to close.
            transport=httpx.ASGITransport(app, raise_app_exceptions=False, client=(client, 0)),
            base_url=f"http://dashboard{ROOT}",
            headers=self._headers,
            trust_env=False,
        )

    async def get(self, path: str, **params: Param) -> Json:
        """Raises Refused. Parameters that are None or empty are left out."""
        given = {name: value for name, value in params.items() if value not in (None, "", [])}
        return await self._call("GET", path, params=given)

    async def send(
        self, method: str, path: str, body: Json | None = None, *, revision: str | None = None
    ) -> Json:
        """A change. `revision` is that of the thing as whoever decided saw it. Raises Refused."""
        headers = {} if not revision else {"If-Match": tag_of(revision)}
        return await self._call(method, path, json=body, headers=headers)

    async def everything(self, path: str, **params: Param) -> list[Json]:
        """All items of a list. Raises Refused."""
        items: list[Json] = []
        cursor = None
        while True:
            page = await self.get(path, **params, limit=LIMIT_MAX, cursor=cursor)
            items += page["items"]
            cursor = page["next_cursor"]
            if cursor is None:
                return items

    def passed_on(self, path: str) -> Response:
        """What the API answers to the browser's query, as it comes: for files of any length."""
        return _PassedOn(self._app, f"{ROOT}{path}", self._headers)

    async def _call(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, **options: Any
    ) -> Json:
        answer = await self._client.request(method, path, headers=headers, **options)
        found: Json = answer.json() if answer.content else {}
        if answer.is_error:
            raise Refused(found)
        return found


class _PassedOn(Response):
    """An answer that another application gives to the same request on another path."""

    def __init__(self, app: ASGIApp, path: str, headers: Mapping[str, str]) -> None:
        super().__init__()
        self._app = app
        self._given = {
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "headers": [(name.lower().encode(), one.encode()) for name, one in headers.items()],
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kept = ("type", "asgi", "http_version", "method", "scheme", "query_string", "client")
        await self._app({**{name: scope[name] for name in kept}, **self._given}, receive, send)


def segment(text: str) -> str:
    """`text` as one segment of a path."""
    return quote(text, safe="")


def tag_of(revision: str) -> str:
    """The tag of a revision as a form carries it; what is no number is nothing's tag."""
    return f'"{revision}"' if revision.isascii() and revision.isdigit() else '"none"'
